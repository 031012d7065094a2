/* Formulas that all devices compute: the CPU's loops (tensor/cpu/loops*.inc) and CUDA's kernels
 * (tensor/cuda/) expand the same text, so the CPU's tests cover the mathematics of both. Operation
 * by operation the rounding is the same, too, where only +, -, *, /, sqrt and fma occur.
 *
 * T is the type that is computed in, TD_MATH(exp) the device's function for it, and FMA(a, b, c) is
 * a b + c, rounded once where the device can. */
#pragma once

/* ---- for tensor/kernels/elementwise.def ---- */

/* s(x) = 1 / (1 + exp(-x)). silu(x) = x s(x); its slope is s + x s (1 - s). */
#define TD_SIGMOID(x) ((T)1 / ((T)1 + TD_MATH(exp)(-(x))))
#define TD_SILU(x) ((x) / ((T)1 + TD_MATH(exp)(-(x))))
#define TD_SILU_SLOPE(x) (TD_SIGMOID(x) * ((T)1 + (x) * ((T)1 - TD_SIGMOID(x))))

/* -1, 0 or 1; of NaN 0, as in PyTorch. min(max(x, low), high), where NaN stays NaN. */
#define TD_SIGN(x) ((T)((x) > (T)0) - (T)((x) < (T)0))
#define TD_CLAMP(x, low, high)                                                                     \
    ((x) > (high) ? (high) : (x) < (low) ? ((low) > (high) ? (high) : (low)) : (x))

/* g for the larger (smaller) one; of equal ones each has half, as in PyTorch. */
#define TD_SHARE(g, wins, equal) ((wins) ? (g) : (equal) ? (T)0.5 * (g) : (T)0)

/* log(1 + u), u >= 0: what 1 + u has lost by rounding is put right (Goldberg 1991, theorem 4). */
#define TD_LOG1P(u)                                                                                \
    ((T)1 + (u) == (T)1 ? (u) : TD_MATH(log)((T)1 + (u)) * ((u) / (((T)1 + (u)) - (T)1)))

/* Self-normalising networks (Klambauer et al. 2017). */
#define TD_SELU_SCALE (T)1.05070098735548049342
#define TD_SELU_ALPHA (T)1.67326324235437728482

/* mish(x) = x t with t = tanh(log(1 + e)) = n / (n + 2), e = exp(x), n = e (e + 2); t is 1 from 20
 * on. Its slope is t + x (1 - t^2) s(x). */
#define TD_MISH_EXP(x) TD_MATH(exp)((x) > (T)20 ? (T)20 : (x))
#define TD_MISH_GATE_OF(n) ((n) / ((n) + (T)2))
#define TD_MISH_GATE(x) TD_MISH_GATE_OF(TD_MISH_EXP(x) * (TD_MISH_EXP(x) + (T)2))
#define TD_MISH_SLOPE(x, t) ((t) + (x) * ((T)1 - (t) * (t)) * TD_SIGMOID(x))

/* gelu by tanh: x h with h = (1 + tanh(c (x + a x^3))) / 2 = 1 / (1 + exp(-2 c (x + a x^3))), which
 * is one exponential; c = sqrt(2 / pi), a = 0.044715. */
#define TD_GELU_GATE(x)                                                                            \
    ((T)1 /                                                                                        \
     ((T)1 + TD_MATH(exp)((x) * ((T)-1.5957691216057308 - (T)0.07135481627159936 * (x) * (x)))))
#define TD_GELU_TANH_SLOPE(x, h)                                                                   \
    ((h) + (x) * (h) * ((T)1 - (h)) * ((T)1.5957691216057308 + (T)0.21406444881479808 * (x) * (x)))

/* x^p. Roots are roots, as in PyTorch: C's pow(-inf, 0.5) is inf, pow(-0.0, -0.5) is inf. */
#define TD_POW(x, p)                                                                               \
    ((p) == (T)0.5    ? TD_MATH(sqrt)(x)                                                           \
     : (p) == (T)-0.5 ? (T)1 / TD_MATH(sqrt)(x)                                                    \
                      : TD_MATH(pow)(x, p))

/* The normal distribution's function P and density. gelu(x) = x P(x); its slope: P(x) + x P'(x). */
#define TD_NORMAL_BELOW(x) TD_MATH(normal_below)(x)
#define TD_NORMAL_DENSITY(x) ((T)0.39894228040143267794 * TD_MATH(exp)((T)-0.5 * (x) * (x)))
#define TD_GELU(x) ((x)*TD_NORMAL_BELOW(x))
#define TD_GELU_SLOPE(x) (TD_NORMAL_BELOW(x) + (x)*TD_NORMAL_DENSITY(x))

/* ---- normalisation ---- */

/* Batch normalisation of one element, and the gradient by it of what it became: g is the gradient
 * that arrives, a, b and c are its channel's constants. */
#define TD_NORM(x, mean, scale, shift) FMA((x) - (mean), scale, shift)
#define TD_NORM_GRAD(g, x, mean, a, b, c) FMA(a, g, FMA(b, (x) - (mean), c))

/* relu, and its gradient from the result: as in PyTorch NaN stays, and its slope is 1. */
#define TD_RELU(value) ((value) <= (T)0 ? (T)0 : (value))
#define TD_RELU_GRAD(y, dy) ((y) <= (T)0 ? (T)0 : (dy))

/* Whether `value` takes the place of a window's largest so far: as in PyTorch the first largest
 * stays, and the last NaN. */
#define TD_POOL_TAKES(value, best) (((value) > (best)) | ((value) != (value)))

/* ---- softmax, from the results: y, or log y ---- */

#define TD_SOFTMAX_GRAD(dy, y, sum_dyy) ((y) * ((dy) - (sum_dyy)))
#define TD_LOG_SOFTMAX_GRAD(dy, y, sum_dy) ((dy)-TD_MATH(exp)(y) * (sum_dy))

/* ---- optimizers, whose operations and order are PyTorch's, so that training curves can be held
 * against each other; w: the parameter, g: its gradient ---- */

/* Weight decay is added to the gradient (L2); or, decoupled, taken off the parameter first. These
 * two are of double, rounded to T afterwards: what is added, and what the parameter is multiplied
 * by. */
#define TD_ADDED_DECAY(decoupled, decay) ((decoupled) ? 0.0 : (decay))
#define TD_SHRINK(decoupled, lr, decay) ((decoupled) ? 1.0 - (lr) * (decay) : 1.0)

/* The gradient with the added decay. */
#define TD_DECAYED(g, w, decay) FMA(decay, w, g)

/* SGD: momentum from the decayed gradient d; the direction to go; the step. */
#define TD_SGD_MOMENTUM(momentum, d, mu, fresh) FMA(fresh, d, (momentum) * (mu))
#define TD_SGD_DIRECTION(momentum, d, mu, nesterov) ((nesterov) ? FMA(mu, momentum, d) : (momentum))
#define TD_SGD_STEP(w, direction, lr) FMA(-(lr), direction, w)

/* Adam: the averages of the gradient and of its square (fresh = 1 - beta); the step, with size =
 * lr / bias1 and root_bias2 = sqrt(bias2). */
#define TD_ADAM_MEAN(m, g, beta, fresh) FMA(fresh, g, (m) * (beta))
#define TD_ADAM_SQUARE(v, g, beta, fresh) ((v) * (beta) + (fresh) * (g) * (g))
#define TD_ADAM_STEP(w, m, v, size, root_bias2, eps)                                               \
    ((w) - (size) * (m) / (TD_MATH(sqrt)(v) / (root_bias2) + (eps)))
