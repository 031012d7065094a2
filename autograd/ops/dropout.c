/* Dropout, of elements and of whole samples. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

/* ---- of elements: what is kept is drawn again in backward instead of being stored ---- */

typedef struct dropout_params {
    double p;
    td_philox_key key;
    uint64_t counter;
    const uint64_t *at; /* where it is instead; NULL: counter itself */
    td_numbering of;
} dropout_params;

static const uint64_t *counter_of(const dropout_params *params)
{
    return params->at != NULL ? params->at : &params->counter;
}

static void dropout_backward(td_node *node, const td_tensor *dy)
{
    const dropout_params *params = td_params_of(node);
    td_grad_slot slot = td_input_grad(node, 0);
    td_kernels_for(dy)->dropout(slot.grad, dy, params->p, params->key, counter_of(params),
                                params->of, slot.accumulate);
}

static td_tensor *dropout(td_tensor *x, const dropout_params *params, td_site at)
{
    x = td_op_input(x, "dropout", "x", TD_RULE_OF(dropout), at);
    TD_REQUIRE(params->p >= 0.0 && params->p < 1.0, at,
               "dropout: the probability is %g; it must be at least 0 and below 1", params->p);
    td_tensor *y = td_step_new_like(x, at);
    td_kernels_for(x)->dropout(y, x, params->p, params->key, counter_of(params), params->of, false);
    return TD_RECORD(at, .op = "dropout", .backward = dropout_backward, .out = y, .inputs = { x },
                     TD_PARAMS(params));
}

td_tensor *td_dropout_at(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at)
{
    return dropout(x, &(dropout_params){ .p = p, .key = key, .counter = counter }, at);
}

td_tensor *td_dropout_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                         td_numbering of, td_site at)
{
    return dropout(x, &(dropout_params){ .p = p, .key = key, .at = counter, .of = of }, at);
}

/* ---- stochastic depth (Huang et al. 2016): whole samples of a batch are
 * dropped; and of channels (Tompson et al. 2015) ---- */

/* What each sample (whole: 1) or channel (whole: 2) is multiplied with, 0 or 1/(1-p): ones that
 * went through a dropout. */
static td_tensor *draw_factors(const td_tensor *x, int whole, double p, td_philox_key key,
                               const uint64_t *counter, td_site at)
{
    td_shape shape = { .ndim = x->ndim };
    for (int d = 0; d < x->ndim; d++) {
        shape.dim[d] = d < whole ? x->shape[d] : 1;
    }
    td_tensor *factors = td_op_new(shape, x->dtype, x, at);
    td_fill_(factors, 1.0);
    td_kernels_for(x)->dropout(factors, factors, p, key, counter, (td_numbering){ 0 }, false);
    return factors;
}

static td_tensor *drop_whole(const char *op, td_rule rule, int whole, td_tensor *x, double p,
                             td_philox_key key, const uint64_t *counter, td_site at)
{
    x = td_op_input(x, op, "x", rule, at);
    TD_REQUIRE(p >= 0.0 && p < 1.0, at,
               "%s: the probability is %g; it must be at least 0 and below 1", op, p);
    TD_REQUIRE(x->ndim >= whole, at, "%s: x%s must have %s", op, TD_SHAPE_TEXT(x),
               whole == 1 ? "a batch dimension" : "batch and channel dimensions");
    return td_mul_at(x, draw_factors(x, whole, p, key, counter, at), at);
}

td_tensor *td_stochastic_depth_by(td_tensor *x, double p, td_philox_key key,
                                  const uint64_t *counter, td_site at)
{
    return drop_whole("stochastic_depth", TD_RULE_OF(stochastic_depth), 1, x, p, key, counter, at);
}

td_tensor *td_stochastic_depth_at(td_tensor *x, double p, td_philox_key key, uint64_t counter,
                                  td_site at)
{
    return td_stochastic_depth_by(x, p, key, &counter, at);
}

td_tensor *td_dropout2d_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                           td_site at)
{
    return drop_whole("dropout2d", TD_RULE_OF(dropout2d), 2, x, p, key, counter, at);
}

td_tensor *td_dropout2d_at(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at)
{
    return td_dropout2d_by(x, p, key, &counter, at);
}
