/* Parameters in one pass over flat memory, buffers one by one. */
#include "nn/optim/followed.h"
#include "nn/optim/lookahead.h"
#include "nn/params.h"
#include "tensor/capture.h"
#include "tensor/kernels.h"

#include <stdlib.h>

struct td_lookahead {
    td_params *params;
    td_tensor *slow;          /* flat, like the parameters */
    td_followed_list buffers; /* and their slow copies */
};

td_lookahead *td_lookahead_new(td_module *model)
{
    td_lookahead *l = calloc(1, sizeof *l);
    if (l != NULL) {
        l->params = td_parameters(model);
        l->slow = l->params != NULL ? td_params_new_flat(l->params) : NULL;
    }
    if (l == NULL || l->slow == NULL || td_followed_buffers(model, &l->buffers) != TD_OK) {
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
    td_followed_free(&l->buffers);
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
    td_capture_note("td_lookahead_update takes its decay by value");
    td_context_push("lookahead");
    follow(l->slow, td_params_flat(l->params), decay);
    for (int i = 0; i < l->buffers.count; i++) {
        const td_followed *buffer = &l->buffers.items[i];
        if (td_is_float(buffer->value->dtype)) { /* counts go their own way */
            follow(buffer->copy, buffer->value, decay);
        }
    }
    td_context_pop();
}
