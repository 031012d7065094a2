/* Parameters in one pass over flat memory, buffers one by one. */
#include "nn/extra/followed.h"
#include "nn/extra/lookahead.h"
#include "nn/params.h"
#include "nn/module.h"
#include "tensor/hooks.h"
#include "tensor/kernels.h"
#include "tensor/extend.h"

#include <stdlib.h>

struct td_lookahead {
    td_params *params;
    td_tensor *slow;          /* flat, like the parameters */
    td_followed_list buffers; /* and their slow copies */
    double decay;
    td_optim_slice *slices; /* of an update: the parameters', and each buffer's */
};

td_lookahead *td_lookahead_new(td_module *model)
{
    td_lookahead *l = calloc(1, sizeof *l);
    if (l != NULL) {
        l->params = td_parameters(model);
        l->slow = l->params != NULL ? td_params_new_flat(l->params) : NULL;
    }
    bool made = l != NULL && l->slow != NULL && td_followed_buffers(model, &l->buffers) == TD_OK;
    if (made) {
        l->slices = calloc((size_t)l->buffers.count + 1, sizeof *l->slices);
    }
    if (!made || l->slices == NULL) {
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
    free(l->slices);
    free(l);
}

void td_lookahead_set_decay(td_lookahead *l, double decay)
{
    TD_REQUIRE(decay >= 0.0 && decay <= 1.0, TD_HERE,
               "td_lookahead_set_decay: decay %g is not in [0, 1]", decay);
    l->decay = decay;
}

/* Slices that leave the slow weights alone are for a decay of 1. */
static void fill_slices(void *user, void *numbers)
{
    const td_lookahead *l = user;
    td_optim_slice *slices = numbers;
    for (int i = 0; i < 1 + l->buffers.count; i++) {
        slices[i] = td_follow_slice(i == 0 ? l->slow : l->buffers.items[i - 1].copy, l->decay);
        slices[i].skip = l->decay == 1.0;
    }
}

static void follow(td_tensor *slow, td_tensor *fast, const td_optim_slice *slice)
{
    td_follow(slow, fast, slice, "td_lookahead_update");
    td_copy_(fast, slow);
}

void td_lookahead_update(td_lookahead *l)
{
    size_t bytes = (size_t)(1 + l->buffers.count) * sizeof *l->slices;
    const td_optim_slice *slices = td_step_numbers(l->slices, bytes, fill_slices, l);
    td_context_push("lookahead");
    follow(l->slow, td_params_flat(l->params), &slices[0]);
    for (int i = 0; i < l->buffers.count; i++) {
        const td_followed *buffer = &l->buffers.items[i];
        if (td_is_float(buffer->value->dtype)) { /* counts go their own way */
            follow(buffer->copy, buffer->value, &slices[1 + i]);
        }
    }
    td_context_pop();
}
