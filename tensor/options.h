/* Options: how calls such as td_conv2d(x, w, b, .stride = 2) work.
 *
 * Such a function takes one struct by value, and a macro of the same name fills the struct: first
 * the required fields in their order, then other fields by name. A field that you do not name is 0
 * or NULL, which means the default; the field's comment says the default if it is not zero. If the
 * default of a number is not zero and you want zero, write TD_ZERO. If you want to keep options in
 * a variable, call the function behind the macro:
 *
 *     td_sgd_options options = { .params = params, .lr = 0.1 };
 *     td_optim *optim = td_sgd_at(options, TD_HERE);                                             */
#pragma once

#define TD_ZERO (-0.0) /* negative zero: equal to 0, but different from "not given" */
