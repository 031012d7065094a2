/* matmul.cu, conv.cu, conv_groups.cu: products by own kernels: any shape, strides and float dtypes.
 * They serve where the vendors' libraries do not: computed in f32 (f64 if everything is f64),
 * summed in segments of fixed length, without tensor cores. */
#ifndef TD_TENSOR_CUDA_LAUNCH_PRODUCTS_H
#define TD_TENSOR_CUDA_LAUNCH_PRODUCTS_H

#include "tensor/cuda/launch.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

typedef struct td_cuda_operand {
    void *at;
    td_dtype dtype;
    int64_t stride[4]; /* N,C,H,W; O,I,H,W; or row, column */
} td_cuda_operand;

/* How a sum over k is cut: segments of `segment`, whose results go through
 * partial[segments][results], f64, if there are several. */
typedef struct td_cuda_cut {
    int64_t segment, segments;
    double *partial;
} td_cuda_cut;
/* For `results` sums of k terms each: several segments where there are few results. */
td_cuda_cut td_cuda_cut_of(int64_t results, int64_t k);

/* c[m,n] (+)= a[m,k] b[k,n] + bias[n], in each of walk.count batches (operands c, a, b). */
typedef struct td_cuda_own_matmul {
    int64_t m, n, k;
    td_cuda_operand a, b, c, bias; /* bias.at NULL: none */
    td_cuda_walk batch;
    bool accumulate;
    td_cuda_cut cut;
} td_cuda_own_matmul;
void td_cuda_launch_matmul(const td_cuda_own_matmul *product, cudaStream_t stream);

/* A convolution: x [n,ic,ih,iw], w [oc,ic/groups,kh,kw], y [n,oc,oh,ow]. The pass reads two of them
 * and writes the third, += if accumulate. */
typedef struct td_cuda_own_conv {
    int64_t n, ic, ih, iw, oc, oh, ow, kh, kw, groups;
    int stride[2], pad[2], dilation[2];
    td_cuda_operand x, w, y, bias;
    bool accumulate;
    td_cuda_cut cut; /* of conv_grad_weight */
} td_cuda_own_conv;
void td_cuda_launch_conv(const td_cuda_own_conv *conv, cudaStream_t stream);
void td_cuda_launch_conv_grad_input(const td_cuda_own_conv *conv, cudaStream_t stream);
void td_cuda_launch_conv_grad_weight(const td_cuda_own_conv *conv, cudaStream_t stream);

/* The same for groups of few channels (depthwise): a thread for each result. */
bool td_cuda_conv_is_narrow(const td_cuda_own_conv *conv);
void td_cuda_launch_conv_narrow(const td_cuda_own_conv *conv, cudaStream_t stream);
void td_cuda_launch_conv_narrow_grad_input(const td_cuda_own_conv *conv, cudaStream_t stream);
void td_cuda_launch_conv_narrow_grad_weight(const td_cuda_own_conv *conv, cudaStream_t stream);

TD_EXTERN_C_END

#endif
