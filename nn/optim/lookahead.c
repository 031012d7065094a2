/* Parameters in one pass over flat memory, buffers one by one. */
#include "nn/optim/lookahead.h"
#include "nn/params.h"
#include "tensor/kernels.h"

#include <stdlib.h>

typedef struct followed {
    td_tensor *fast, *slow;
} followed;

struct td_lookahead {
    td_params *params;
    td_tensor *slow; /* flat, like the parameters */
    followed *buffers;
    int buffer_count;
};

static bool is_followed(const td_named_tensor *t)
{
    return t->buffer && td_is_float(t->tensor->dtype);
}

/* A buffer under two names is followed once. */
static bool is_known(const td_lookahead *l, const td_tensor *t)
{
    for (int i = 0; i < l->buffer_count; i++) {
        if (l->buffers[i].fast == t) {
            return true;
        }
    }
    return false;
}

static bool add_buffers(td_lookahead *l, td_module *model)
{
    td_state_list state = td_module_state(model);
    l->buffers = state.count >= 0 ? calloc((size_t)state.count + 1, sizeof *l->buffers) : NULL;
    bool added = l->buffers != NULL;
    for (int i = 0; i < state.count && added; i++) {
        td_tensor *fast = state.items[i].tensor;
        if (is_followed(&state.items[i]) && !is_known(l, fast)) {
            td_tensor *slow = td_clone(fast);
            added = slow != NULL;
            if (added) {
                l->buffers[l->buffer_count++] = (followed){ fast, slow };
            }
        }
    }
    td_state_list_free(&state);
    return added;
}

td_lookahead *td_lookahead_new(td_module *model)
{
    td_lookahead *l = calloc(1, sizeof *l);
    if (l != NULL) {
        l->params = td_parameters(model);
        l->slow = l->params != NULL ? td_params_new_flat(l->params) : NULL;
    }
    if (l == NULL || l->slow == NULL || !add_buffers(l, model)) {
        td_lookahead_free(l);
        td_fail(TD_E_NOMEM, "no memory for lookahead's second copy of the weights");
        return NULL;
    }
    td_copy_(l->slow, td_params_flat(l->params));
    return l;
}

void td_lookahead_free(td_lookahead *l)
{
    if (l == NULL) {
        return;
    }
    if (l->params != NULL) {
        td_params_drop_state(l->params, l->slow);
    }
    for (int i = 0; i < l->buffer_count; i++) {
        td_free(l->buffers[i].slow);
    }
    free(l->buffers);
    free(l);
}

static void follow(td_tensor *slow, td_tensor *fast, double decay)
{
    const td_kernels *k = td_kernels_of(td_device_of(fast));
    if (decay != 1.0) {
        k->unary(TD_UNARY_MUL_SCALAR, slow, slow, decay);
        k->axpy(slow, 1.0 - decay, fast);
    }
    td_copy_(fast, slow);
}

void td_lookahead_update(td_lookahead *l, double decay)
{
    TD_REQUIRE(decay >= 0.0 && decay <= 1.0, TD_HERE,
               "td_lookahead_update: decay %g is not in [0, 1]", decay);
    td_context_push("lookahead");
    follow(l->slow, td_params_flat(l->params), decay);
    for (int i = 0; i < l->buffer_count; i++) {
        follow(l->buffers[i].slow, l->buffers[i].fast, decay);
    }
    td_context_pop();
}
