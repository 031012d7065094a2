/* layer_norm.cu, softmax.cu: kernels over dense rows. f32, f64 */
#pragma once

#include "tensor/cuda/launch_norm.h"

TD_EXTERN_C_BEGIN

/* each > 0: a row is a group of `each` channels of an image in memory
 * [images][pixels][channels]; rows are counted by image, then group, and d is pixels each. */
typedef struct td_cuda_groups {
    int64_t pixels, channels, each;
} td_cuda_groups;

/* x, y [rows][d]; weight, bias [d] or NULL; mean, inv_std [rows] are written. Of groups: weight,
 * bias [channels]. mean NULL, here and in the gradients: RMS normalisation. dtype: y's (and dy's),
 * which is 16 bits or x's own; all else has x's: f64 or f32. */
void td_cuda_launch_layer_norm(td_dtype dtype, int64_t rows, int64_t d, td_cuda_groups groups,
                               void *y, void *mean, void *inv_std, const void *x,
                               const void *weight, const void *bias, double eps,
                               cudaStream_t stream);

/* All gradients in one launch: blocks [0, sum_blocks) make those of weight and bias (at NULL: not
 * wanted), which are sums over m, the rows (of groups: all pixels) as a matrix. */
typedef struct td_cuda_layer_grad {
    void *dx; /* NULL: not wanted */
    const void *dy, *x, *weight, *mean, *inv_std;
    bool accumulate_dx, accumulate_dweight, accumulate_dbias;
    td_cuda_channel dweight, dbias;
    td_cuda_matrix m;
    td_cuda_sums sums;
    unsigned sum_blocks;
} td_cuda_layer_grad;
void td_cuda_launch_layer_norm_grad(td_dtype dtype, int64_t rows, int64_t d, td_cuda_groups groups,
                                    const td_cuda_layer_grad *grad, cudaStream_t stream);

/* y, of m's dtype, = x (f32), and the sums of x's columns; at NULL: they are not wanted. */
void td_cuda_launch_narrow(const td_cuda_matrix *m, const td_cuda_sums *sums, void *y,
                           const void *x, td_cuda_channel to, bool accumulate, cudaStream_t stream);

/* Memory [outer][d][inner]; along d. y may not be x. */
void td_cuda_launch_softmax(td_dtype dtype, int64_t outer, int64_t d, int64_t inner, void *y,
                            const void *x, bool log, cudaStream_t stream);
void td_cuda_launch_softmax_grad(td_dtype dtype, int64_t outer, int64_t d, int64_t inner, void *dx,
                                 const void *dy, const void *y, bool log, bool accumulate,
                                 cudaStream_t stream);

/* Rows of k classes; labels [rows], weight [k] or NULL; see tensor/kernels/kernels.def. */
typedef struct td_cuda_entropy {
    int64_t rows, k;
    const int64_t *labels;
    const void *weight;
    double *total;
    bool per_row;
    td_entropy_params params;
} td_cuda_entropy;
/* losses: room for two numbers a row. */
void td_cuda_launch_cross_entropy(td_dtype dtype, const td_cuda_entropy *e, void *loss,
                                  double *losses, void *log_p, const void *logits,
                                  cudaStream_t stream);
/* weights: room for one number; NULL: the sum of the weights is not needed. */
void td_cuda_launch_cross_entropy_grad(td_dtype dtype, const td_cuda_entropy *e, void *dlogits,
                                       const void *dloss, double *weights, const void *log_p,
                                       bool accumulate, cudaStream_t stream);

TD_EXTERN_C_END
