/* Stochastic depth (Huang et al. 2016): whole samples of a batch are dropped. */
#include "autograd/ops/op.h"

#include <math.h>

/* What each sample is multiplied with: 0, or 1/(1-p). */
static td_tensor *draw_factors(const td_tensor *x, double p, td_philox_key key, uint64_t counter,
                               td_site at)
{
    td_shape shape = { .ndim = x->ndim };
    for (int d = 0; d < x->ndim; d++) {
        shape.dim[d] = d == 0 ? x->shape[0] : 1;
    }
    td_tensor *factors = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
    double *values = td_step_bytes((size_t)x->shape[0] * sizeof *values + 1);
    double limit = ldexp(p, 32);
    for (int64_t n = 0; n < x->shape[0]; n++) {
        uint32_t words[4];
        td_philox(key, counter, (uint64_t)n, words);
        values[n] = words[0] >= limit ? 1.0 / (1.0 - p) : 0.0;
    }
    td_write(factors, values, TD_F64);
    return factors;
}

td_tensor *(td_stochastic_depth)(td_tensor *x, double p, td_philox_key key, uint64_t counter,
                                 td_site at)
{
    x = td_op_input(x, "stochastic_depth", "x", TD_RULE_OF(stochastic_depth), at);
    TD_REQUIRE(p >= 0.0 && p < 1.0, at,
               "stochastic_depth: the probability is %g; it must be at least 0 and below 1", p);
    TD_REQUIRE(x->ndim >= 1, at, "stochastic_depth: x%s must have a batch dimension",
               TD_SHAPE_TEXT(x));
    return (td_mul)(x, draw_factors(x, p, key, counter, at), at);
}
