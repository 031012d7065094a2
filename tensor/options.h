/* Options: what stands behind calls such as td_conv2d(x, w, b, .stride = 2).
 *
 * Such a function takes one struct by value. A macro of the function's name fills it: required
 * fields in order, the rest by name. A field that is not named is 0 or NULL and stands for the
 * default that its comment names. Where the default of a number is not zero and you want zero,
 * write TD_ZERO. To keep options in a variable, call the function behind the macro:
 *
 *     td_sgd_options options = { .params = params, .lr = 0.1 };
 *     td_optim *optim = td_sgd_at(options, TD_HERE);                                             */
#ifndef TD_TENSOR_OPTIONS_H
#define TD_TENSOR_OPTIONS_H

#include <math.h>

#define TD_ZERO (-0.0) /* negative zero: equal to 0, and still not "not given" */

/* The value of an option: `usual` if it was not given. */
static inline double td_or_usual(double given, double usual)
{
    return given == 0.0 ? (signbit(given) ? 0.0 : usual) : given;
}

#endif
