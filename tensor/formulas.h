/* Parts of formulas that tensor/elementwise.def uses more than once. The same for every device: T
 * is the type that is computed in, TD_MATH(exp) that device's function for it. */
#ifndef TD_TENSOR_FORMULAS_H
#define TD_TENSOR_FORMULAS_H

/* s(x) = 1 / (1 + exp(-x)). silu(x) = x s(x); its slope is s + x s (1 - s). */
#define TD_SIGMOID(x) ((T)1 / ((T)1 + TD_MATH(exp)(-(x))))
#define TD_SILU_SLOPE(x) (TD_SIGMOID(x) * ((T)1 + (x) * ((T)1 - TD_SIGMOID(x))))

/* The normal distribution's function and density. gelu(x) = x P(x); its slope is P(x) + x P'(x). */
#define TD_NORMAL_BELOW(x) ((T)0.5 * ((T)1 + TD_MATH(erf)((x) * (T)0.70710678118654752440)))
#define TD_NORMAL_DENSITY(x) ((T)0.39894228040143267794 * TD_MATH(exp)((T)-0.5 * (x) * (x)))
#define TD_GELU_SLOPE(x) (TD_NORMAL_BELOW(x) + (x)*TD_NORMAL_DENSITY(x))

#endif
