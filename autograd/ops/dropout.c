/* Dropout. What is kept is drawn again in backward instead of being stored. */
#include "autograd/dropout.h"
#include "autograd/ops/op.h"
#include "tensor/extend.h"

typedef struct dropout_params {
    double p;
    td_philox_key key;
    uint64_t counter;
    const uint64_t *at; /* where it is instead; NULL: counter itself */
} dropout_params;

static const uint64_t *counter_of(const dropout_params *params)
{
    return params->at != NULL ? params->at : &params->counter;
}

static void dropout_backward(td_node *node, const td_tensor *dy)
{
    const dropout_params *params = td_params_of(node);
    td_grad_slot slot = td_input_grad(node, 0);
    if (slot.grad != NULL) {
        td_kernels_of(td_device_of(dy))
            ->dropout(slot.grad, dy, params->p, params->key, counter_of(params), slot.accumulate);
    }
}

static td_tensor *dropout(td_tensor *x, const dropout_params *params, td_site at)
{
    x = td_op_input(x, "dropout", "x", TD_RULE_OF(dropout), at);
    TD_REQUIRE(params->p >= 0.0 && params->p < 1.0, at,
               "dropout: the probability is %g; it must be at least 0 and below 1", params->p);
    td_tensor *y = td_step_new_like(x, at);
    td_kernels_of(td_device_of(x))
        ->dropout(y, x, params->p, params->key, counter_of(params), false);
    return td_record(
        &(td_record_args){
            .op = "dropout",
            .backward = dropout_backward,
            .out = y,
            .inputs = { x },
            .input_count = 1,
            .params = params,
            .params_size = sizeof *params,
        },
        at);
}

td_tensor *td_dropout_at(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at)
{
    return dropout(x, &(dropout_params){ p, key, counter, NULL }, at);
}

td_tensor *td_dropout_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                         td_site at)
{
    return dropout(x, &(dropout_params){ p, key, 0, counter }, at);
}
