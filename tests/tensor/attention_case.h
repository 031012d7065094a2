/* Cases of attention and its gradient, against sums over all pairs in double precision. */
#pragma once

#include "tensor/dtype.h"

/* Runs all of them by the kernels of ref_device; for ref_run. */
void attention_cases(td_dtype dtype);
