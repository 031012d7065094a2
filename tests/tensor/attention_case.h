/* Cases of attention and its gradient, against sums over all pairs in double precision. */
#ifndef TD_TESTS_ATTENTION_CASE_H
#define TD_TESTS_ATTENTION_CASE_H

#include "tensor/dtype.h"

/* Runs all of them by the kernels of ref_device; for ref_run. */
void attention_cases(td_dtype dtype);

#endif
