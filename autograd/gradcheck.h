/* Checks gradients numerically. Run it on an operation or module of your own. */
#pragma once

#include "autograd/autograd.h"

TD_BEGIN_C

typedef td_tensor *(*td_grad_check_fn)(td_tensor *const *inputs, void *user);
typedef struct td_gradcheck_options {
    double eps;       /* half the width of the central difference; 0: 1e-6 */
    double tolerance; /* |analytic - numeric| <= tolerance (1 + |numeric|); 0: 1e-6 */
    char *report;     /* where the first differences are described; may be NULL */
    size_t report_size;
} td_gradcheck_options;

/* Compares the gradients of sum(fn(inputs) R), with fixed pseudo-random weights R, with central
 * differences, element by element, for every f64 leaf among the inputs; other inputs are constants.
 * fn is called many times, each time inside a step of its own, and must be deterministic. Call it
 * outside of steps; afterwards the leaves have no gradients. options may be NULL. TD_E_MISMATCH:
 * they differ; TD_E_ARG: no f64 leaf, or fn returns NULL or results of changing size. */
td_status td_gradcheck(td_grad_check_fn fn, void *user, td_tensor *const *inputs, int count,
                       const td_gradcheck_options *options);

TD_END_C
