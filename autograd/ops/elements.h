/* More operations on single elements; the rules of autograd/ops.h apply here, too.
 * tensor/kernels/elementwise.def has the formulas and derivatives. Names are PyTorch's, unless a
 * comment gives PyTorch's name. */
#pragma once

#include "autograd/ops.h"

TD_BEGIN_C

/* ---- of one tensor ---- */

td_tensor *td_abs_at(td_tensor *x, td_site at);        /* |x|; the derivative at 0 is 0 */
td_tensor *td_sign_at(td_tensor *x, td_site at);       /* -1, 0 or 1; gradient 0 */
td_tensor *td_floor_at(td_tensor *x, td_site at);      /* gradient 0 */
td_tensor *td_ceil_at(td_tensor *x, td_site at);       /* gradient 0 */
td_tensor *td_round_at(td_tensor *x, td_site at);      /* halves to even; gradient 0 */
td_tensor *td_reciprocal_at(td_tensor *x, td_site at); /* 1 / x */
td_tensor *td_rsqrt_at(td_tensor *x, td_site at);      /* 1 / sqrt(x) */
td_tensor *td_sin_at(td_tensor *x, td_site at);
td_tensor *td_cos_at(td_tensor *x, td_site at);
td_tensor *td_erf_at(td_tensor *x, td_site at);
/* x^2 / 2 where |x| < delta, otherwise delta (|x| - delta / 2): the elements of td_huber_loss */
td_tensor *td_huber_at(td_tensor *x, double delta, td_site at);
/* min(max(x, low), high), whose derivative at a bound is 0; use -INFINITY or INFINITY for no bound
 */
td_tensor *td_clamp_at(td_tensor *x, double low, double high, td_site at);

/* ---- activations ---- */

td_tensor *td_leaky_relu_at(td_tensor *x, double slope, td_site at); /* x > 0 ? x : slope x */
td_tensor *td_elu_at(td_tensor *x, double alpha, td_site at); /* x > 0 ? x : alpha (exp(x) - 1) */
td_tensor *td_selu_at(td_tensor *x, td_site at);              /* 1.0507 elu(x, 1.6733) */
td_tensor *td_softplus_at(td_tensor *x, td_site at);          /* log(1 + exp(x)) */
td_tensor *td_softsign_at(td_tensor *x, td_site at);          /* x / (1 + |x|) */
td_tensor *td_hardtanh_at(td_tensor *x, double low, double high, td_site at); /* as clamp */
td_tensor *td_relu6_at(td_tensor *x, td_site at);       /* min(max(x, 0), 6) */
td_tensor *td_hardsigmoid_at(td_tensor *x, td_site at); /* relu6(x + 3) / 6 */
td_tensor *td_hardswish_at(td_tensor *x, td_site at);   /* x relu6(x + 3) / 6 */
td_tensor *td_mish_at(td_tensor *x, td_site at);        /* x tanh(softplus(x)) */
/* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2; PyTorch: gelu(x, approximate='tanh') */
td_tensor *td_gelu_tanh_at(td_tensor *x, td_site at);
/* x > 0 ? x : w x. w [1], or [C] for x [N,C,...]; otherwise w broadcasts to x. */
td_tensor *td_prelu_at(td_tensor *x, td_tensor *w, td_site at);

/* ---- of two tensors, which broadcast ---- */

/* max(a, b) and min(a, b), of integers, too. If one is NaN, the result is NaN. If a == b, each gets
 * half of the gradient. */
td_tensor *td_maximum_at(td_tensor *a, td_tensor *b, td_site at);
td_tensor *td_minimum_at(td_tensor *a, td_tensor *b, td_site at);
td_tensor *td_pow_tensor_at(td_tensor *a, td_tensor *b, td_site at); /* a^b; PyTorch: pow(a, b) */
/* silu(a) b: SwiGLU (Shazeer 2020) of a gate a and b, two linear layers of x */
td_tensor *td_swiglu_at(td_tensor *a, td_tensor *b, td_site at);

/* The result is u8: 1 where the comparison is true, otherwise 0; no gradient. a and b have the same
 * dtype, any. */
td_tensor *td_eq_at(td_tensor *a, td_tensor *b, td_site at); /* a == b */
td_tensor *td_ne_at(td_tensor *a, td_tensor *b, td_site at); /* a != b */
td_tensor *td_lt_at(td_tensor *a, td_tensor *b, td_site at); /* a < b */
td_tensor *td_le_at(td_tensor *a, td_tensor *b, td_site at); /* a <= b */
td_tensor *td_gt_at(td_tensor *a, td_tensor *b, td_site at); /* a > b */
td_tensor *td_ge_at(td_tensor *a, td_tensor *b, td_site at); /* a >= b */
/* condition (u8) != 0 ? a : b. All three broadcast; a and b have one dtype, any. */
td_tensor *td_where_at(td_tensor *condition, td_tensor *a, td_tensor *b, td_site at);

TD_END_C

#define td_abs(...) td_abs_at(__VA_ARGS__, TD_HERE)
#define td_sign(...) td_sign_at(__VA_ARGS__, TD_HERE)
#define td_floor(...) td_floor_at(__VA_ARGS__, TD_HERE)
#define td_ceil(...) td_ceil_at(__VA_ARGS__, TD_HERE)
#define td_round(...) td_round_at(__VA_ARGS__, TD_HERE)
#define td_reciprocal(...) td_reciprocal_at(__VA_ARGS__, TD_HERE)
#define td_rsqrt(...) td_rsqrt_at(__VA_ARGS__, TD_HERE)
#define td_sin(...) td_sin_at(__VA_ARGS__, TD_HERE)
#define td_cos(...) td_cos_at(__VA_ARGS__, TD_HERE)
#define td_erf(...) td_erf_at(__VA_ARGS__, TD_HERE)
#define td_huber(...) td_huber_at(__VA_ARGS__, TD_HERE)
#define td_clamp(...) td_clamp_at(__VA_ARGS__, TD_HERE)
#define td_leaky_relu(...) td_leaky_relu_at(__VA_ARGS__, TD_HERE)
#define td_elu(...) td_elu_at(__VA_ARGS__, TD_HERE)
#define td_selu(...) td_selu_at(__VA_ARGS__, TD_HERE)
#define td_softplus(...) td_softplus_at(__VA_ARGS__, TD_HERE)
#define td_softsign(...) td_softsign_at(__VA_ARGS__, TD_HERE)
#define td_hardtanh(...) td_hardtanh_at(__VA_ARGS__, TD_HERE)
#define td_relu6(...) td_relu6_at(__VA_ARGS__, TD_HERE)
#define td_hardsigmoid(...) td_hardsigmoid_at(__VA_ARGS__, TD_HERE)
#define td_hardswish(...) td_hardswish_at(__VA_ARGS__, TD_HERE)
#define td_mish(...) td_mish_at(__VA_ARGS__, TD_HERE)
#define td_gelu_tanh(...) td_gelu_tanh_at(__VA_ARGS__, TD_HERE)
#define td_prelu(...) td_prelu_at(__VA_ARGS__, TD_HERE)
#define td_maximum(...) td_maximum_at(__VA_ARGS__, TD_HERE)
#define td_minimum(...) td_minimum_at(__VA_ARGS__, TD_HERE)
#define td_pow_tensor(...) td_pow_tensor_at(__VA_ARGS__, TD_HERE)
#define td_swiglu(...) td_swiglu_at(__VA_ARGS__, TD_HERE)
#define td_eq(...) td_eq_at(__VA_ARGS__, TD_HERE)
#define td_ne(...) td_ne_at(__VA_ARGS__, TD_HERE)
#define td_lt(...) td_lt_at(__VA_ARGS__, TD_HERE)
#define td_le(...) td_le_at(__VA_ARGS__, TD_HERE)
#define td_gt(...) td_gt_at(__VA_ARGS__, TD_HERE)
#define td_ge(...) td_ge_at(__VA_ARGS__, TD_HERE)
#define td_where(...) td_where_at(__VA_ARGS__, TD_HERE)
