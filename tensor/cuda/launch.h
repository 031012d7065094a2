/* What the launch_*.h headers share: plain C prototypes of the functions in .cu files that start
 * kernels. All put their work on the stream and return. */
#pragma once

#include "tensor/dtype.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define TD_EXTERN_C_BEGIN extern "C" {
#define TD_EXTERN_C_END }
#else
#define TD_EXTERN_C_BEGIN
#define TD_EXTERN_C_END
#endif

/* Sizes and strides (in elements) of what a kernel walks over. Passed by value. */
enum { TD_CUDA_MAX_DIMS = 8, TD_CUDA_MAX_OPERANDS = 4 };
typedef struct td_cuda_walk {
    int ndim; /* at least 1 */
    int64_t count;
    int64_t shape[TD_CUDA_MAX_DIMS];
    int64_t stride[TD_CUDA_MAX_OPERANDS][TD_CUDA_MAX_DIMS]; /* by operand */
} td_cuda_walk;
