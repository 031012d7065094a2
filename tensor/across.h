/* Values from one place to another, whichever devices they lie on. Not for users: td_copy_, td_read
 * and td_write are. */
#ifndef TD_TENSOR_ACROSS_H
#define TD_TENSOR_ACROSS_H

#include "tensor/tensor.h"

/* y = x, element by element, converting dtype and memory order, between any devices. Same shape; x
 * and y do not overlap. When it returns, host memory that it wrote can be read, and host memory
 * that it read can be written. */
void td_copy_across(td_tensor *y, const td_tensor *x);

/* Fails unless the host can touch t's memory; what: the function's name. */
void td_require_host(const td_tensor *t, const char *what, td_site at);

#endif
