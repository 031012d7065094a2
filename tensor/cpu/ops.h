/* The CPU's kernels, as tensor/kernels.h describes them; kernels_cpu.c puts them into the table. */
#ifndef TD_TENSOR_CPU_OPS_H
#define TD_TENSOR_CPU_OPS_H

#include "tensor/kernels.h"

/* ops_memory.c */
void td_cpu_fill(td_tensor *y, double value);
void td_cpu_axpy(td_tensor *y, double alpha, const td_tensor *x);
bool td_cpu_all_finite(const td_tensor *x);
void td_cpu_unscale(td_tensor *x, const td_tensor *scale, td_tensor *found);
void td_cpu_adapt_scale(td_tensor *scale, const td_tensor *found, const td_scale_rule *rule);

/* ops_copy.c */
void td_cpu_copy(td_tensor *y, const td_tensor *x);

/* ops_elements.c */
void td_cpu_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p);
void td_cpu_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                       const td_tensor *y, double p, bool accumulate);
void td_cpu_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b);

/* ops_reduce.c */
void td_cpu_reduce(td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate);
double td_cpu_sum_of_squares(const td_tensor *x);

/* ops_index.c */
void td_cpu_argmax(td_tensor *index, const td_tensor *x, int dim);
void td_cpu_argmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index, int dim,
                        bool accumulate);
void td_cpu_embedding(td_tensor *y, const td_tensor *table, const td_tensor *index);
void td_cpu_embedding_grad(td_tensor *dtable, const td_tensor *dy, const td_tensor *index,
                           bool accumulate);
bool td_cpu_indices_in_range(const td_tensor *index, int64_t limit, int64_t *bad);
void td_cpu_count_equal(td_tensor *count, const td_tensor *a, const td_tensor *b);
void td_cpu_count_top(td_tensor *count, const td_tensor *x, const td_tensor *labels, int64_t k);

/* ops_channel_stats.c: [2,C] f64, the sum of every channel of y and of its squares */
void td_cpu_channel_stats(td_tensor *stats, const td_tensor *y);

/* ops_products.c */
void td_cpu_matmul(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                   bool accumulate, td_math math);
void td_cpu_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                   const td_conv2d_params *params, td_tensor *stats);
void td_cpu_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                              const td_conv2d_params *params, bool accumulate);
void td_cpu_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                               const td_conv2d_params *params, bool accumulate);

/* ops_batch_norm.c */
void td_cpu_batch_norm(const td_batch_norm_args *args);

/* ops_batch_norm_grad.c */
void td_cpu_batch_norm_grad(const td_batch_norm_grad_args *args);

/* ops_layer_norm.c */
void td_cpu_layer_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                       const td_tensor *weight, const td_tensor *bias, double eps);
void td_cpu_layer_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                            const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                            const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                            bool accumulate_dweight, bool accumulate_dbias);

/* ops_softmax.c */
void td_cpu_softmax(td_tensor *y, const td_tensor *x, int dim, bool log);
void td_cpu_softmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
                         bool accumulate);
void td_cpu_cross_entropy(td_tensor *loss, td_tensor *log_p, const td_tensor *logits,
                          const td_tensor *labels, double smoothing);
void td_cpu_cross_entropy_grad(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *log_p,
                               const td_tensor *labels, double smoothing, bool accumulate);

/* ops_pool.c */
void td_cpu_max_pool2d(td_tensor *y, td_tensor *index, const td_tensor *x,
                       const td_pool2d_params *params);
void td_cpu_max_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                            const td_pool2d_params *params, bool accumulate);
void td_cpu_avg_pool2d(td_tensor *y, const td_tensor *x, const td_pool2d_params *params);
void td_cpu_avg_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                            bool accumulate);

/* ops_pictures.c */
void td_cpu_pictures(td_tensor *y, td_tensor *labels, const td_tensor *pictures,
                     const td_tensor *values, const td_picture_cut *cuts);

/* ops_dropout.c */
void td_cpu_dropout(td_tensor *y, const td_tensor *x, double p, td_philox_key key,
                    const uint64_t *step, bool accumulate);

/* ops_optim.c */
void td_cpu_sgd(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                const td_optim_slice *slices, int count);
void td_cpu_adam(td_tensor *param, const td_tensor *grad, td_tensor *m, td_tensor *v,
                 const td_optim_slice *slices, int count);

/* ops_limits.c */
td_status td_cpu_check_precision(td_device device, td_precision precision);
td_status td_cpu_measure_limits(td_device device, td_limits *limits);

#endif
