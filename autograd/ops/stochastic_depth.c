/* Stochastic depth (Huang et al. 2016): whole samples of a batch are dropped. */
#include "autograd/dropout.h"
#include "autograd/ops/op.h"
#include "tensor/extend.h"

/* What each sample is multiplied with, 0 or 1/(1-p): ones that went through a dropout. */
static td_tensor *draw_factors(const td_tensor *x, double p, td_philox_key key,
                               const uint64_t *counter, td_site at)
{
    td_shape shape = { .ndim = x->ndim };
    for (int d = 0; d < x->ndim; d++) {
        shape.dim[d] = d == 0 ? x->shape[0] : 1;
    }
    td_tensor *factors = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
    td_fill_(factors, 1.0);
    td_kernels_of(td_device_of(x))->dropout(factors, factors, p, key, counter, false);
    return factors;
}

td_tensor *td_stochastic_depth_by(td_tensor *x, double p, td_philox_key key,
                                  const uint64_t *counter, td_site at)
{
    x = td_op_input(x, "stochastic_depth", "x", TD_RULE_OF(stochastic_depth), at);
    TD_REQUIRE(p >= 0.0 && p < 1.0, at,
               "stochastic_depth: the probability is %g; it must be at least 0 and below 1", p);
    TD_REQUIRE(x->ndim >= 1, at, "stochastic_depth: x%s must have a batch dimension",
               TD_SHAPE_TEXT(x));
    return td_mul_at(x, draw_factors(x, p, key, counter, at), at);
}

td_tensor *td_stochastic_depth_at(td_tensor *x, double p, td_philox_key key, uint64_t counter,
                                  td_site at)
{
    return td_stochastic_depth_by(x, p, key, &counter, at);
}
