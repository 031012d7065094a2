/* Helpers of tensor/elementwise.def: derivatives that are longer than a line. The same for every
 * device. */
#ifndef TD_TENSOR_FORMULAS_H
#define TD_TENSOR_FORMULAS_H

#include <math.h>

/* silu(x) = x s(x) with s(x) = 1 / (1 + exp(-x)); its slope is s + x s (1 - s). */
static inline float td_silu_slope_f32(float x)
{
    float s = 1.0f / (1.0f + expf(-x));
    return s + x * s * (1.0f - s);
}

static inline double td_silu_slope_f64(double x)
{
    double s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}

/* gelu(x) = x P(x), P the normal distribution function; its slope is P(x) + x P'(x), where P'(x) =
 * exp(-x^2/2) / sqrt(2 pi). */
static inline float td_gelu_slope_f32(float x)
{
    float below = 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
    return below + x * 0.39894228040143267794f * expf(-0.5f * x * x);
}

static inline double td_gelu_slope_f64(double x)
{
    double below = 0.5 * (1.0 + erf(x * 0.70710678118654752440));
    return below + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* By the type of x, as elementwise.def writes them. */
#define td_silu_slope(x) _Generic((x), float : td_silu_slope_f32, double : td_silu_slope_f64)(x)
#define td_gelu_slope(x) _Generic((x), float : td_gelu_slope_f32, double : td_gelu_slope_f64)(x)

#endif
