/* The entries of CUDA's table, as tensor/kernels.h describes them: kernels_*.c, each beside the .cu
 * file that it starts. */
#ifndef TD_TENSOR_CUDA_KERNELS_H
#define TD_TENSOR_CUDA_KERNELS_H

#include "tensor/kernels.h"

/* kernels_memory.c */
void td_cuda_fill(td_tensor *y, double value);
void td_cuda_copy(td_tensor *y, const td_tensor *x);
bool td_cuda_all_finite(const td_tensor *x);
void td_cuda_unscale(td_tensor *x, const td_tensor *scale, td_tensor *found);
void td_cuda_adapt_scale(td_tensor *scale, const td_tensor *found, const td_scale_rule *rule);

/* kernels_elements.c */
void td_cuda_axpy(td_tensor *y, double alpha, const td_tensor *x);
void td_cuda_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p);
void td_cuda_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                        const td_tensor *y, double p, bool accumulate);
void td_cuda_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b);

/* kernels_reduce.c */
void td_cuda_reduce(td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate);
double td_cuda_sum_of_squares(const td_tensor *x);
void td_cuda_clip(td_tensor *const *x, int count, td_tensor *all, double max_norm, double *norm);

/* kernels_index.c */
void td_cuda_argmax(td_tensor *index, const td_tensor *x, int dim);
void td_cuda_argmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index, int dim,
                         bool accumulate);
void td_cuda_embedding(td_tensor *y, const td_tensor *table, const td_tensor *index);
void td_cuda_embedding_grad(td_tensor *dtable, const td_tensor *dy, const td_tensor *index,
                            bool accumulate);
bool td_cuda_indices_in_range(const td_tensor *index, int64_t limit, int64_t *bad);
void td_cuda_count_equal(td_tensor *count, const td_tensor *a, const td_tensor *b);
void td_cuda_count_top(td_tensor *count, const td_tensor *x, const td_tensor *labels, int64_t k);

/* kernels_norm.c */
void td_cuda_batch_norm(const td_batch_norm_args *args);
void td_cuda_batch_norm_grad(const td_batch_norm_grad_args *args);
/* [2,C] f64: the sum of every channel of y and of its squares. */
void td_cuda_channel_stats(td_tensor *stats, const td_tensor *y);

/* kernels_rows.c */
void td_cuda_layer_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                        const td_tensor *weight, const td_tensor *bias, double eps);
void td_cuda_layer_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                             const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                             const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                             bool accumulate_dweight, bool accumulate_dbias);
void td_cuda_softmax(td_tensor *y, const td_tensor *x, int dim, bool log);
void td_cuda_softmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
                          bool accumulate);
void td_cuda_cross_entropy(td_tensor *loss, td_tensor *log_p, const td_tensor *logits,
                           const td_tensor *labels, double smoothing);
void td_cuda_cross_entropy_grad(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *log_p,
                                const td_tensor *labels, double smoothing, bool accumulate);

/* kernels_pool.c */
void td_cuda_max_pool2d(td_tensor *y, td_tensor *index, const td_tensor *x,
                        const td_pool2d_params *params);
void td_cuda_max_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                             const td_pool2d_params *params, bool accumulate);
void td_cuda_avg_pool2d(td_tensor *y, const td_tensor *x, const td_pool2d_params *params);
void td_cuda_avg_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                             bool accumulate);

/* kernels_train.c */
void td_cuda_pictures(td_tensor *y, td_tensor *labels, const td_tensor *pictures,
                      const td_tensor *values, const td_picture_cut *cuts);
void td_cuda_dropout(td_tensor *y, const td_tensor *x, double p, td_philox_key key,
                     const uint64_t *step, bool accumulate);
void td_cuda_sgd(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                 const td_optim_slice *slices, int count);
void td_cuda_adam(td_tensor *param, const td_tensor *grad, td_tensor *m, td_tensor *v,
                  const td_optim_slice *slices, int count);

/* kernels_products.c */
void td_cuda_matmul(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                    bool accumulate, td_math math);
void td_cuda_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                    const td_conv2d_params *params, td_tensor *stats);
void td_cuda_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                               const td_conv2d_params *params, bool accumulate);
void td_cuda_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                const td_conv2d_params *params, bool accumulate);

/* kernels_own.c: products by own kernels, of every shape, stride and dtype that the table allows:
 * what the vendors' libraries refuse. */
void td_cuda_matmul_own(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                        bool accumulate);
void td_cuda_conv2d_own(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                        const td_conv2d_params *params);
void td_cuda_conv2d_grad_input_own(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                                   const td_conv2d_params *params, bool accumulate);
void td_cuda_conv2d_grad_weight_own(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                    const td_conv2d_params *params, bool accumulate);

#endif
