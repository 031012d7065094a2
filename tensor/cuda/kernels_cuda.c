/* The table of CUDA's kernels. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/products.h"

/* On a GPU the limits are what the vendor's tools measure. */
static td_status measure_limits(td_device device, td_limits *limits)
{
    (void)limits;
    return td_fail(TD_E_UNSUPPORTED, "the limits of %s are not measured; ask the GPU's maker",
                   td_device_name(device));
}

const td_kernels *td_cuda_kernels(void)
{
    static const td_kernels table = {
        .name = "cuda",
        .fill = td_cuda_fill,
        .copy = td_cuda_copy,
        .axpy = td_cuda_axpy,
        .all_finite = td_cuda_all_finite,
        .unscale = td_cuda_unscale,
        .unary = td_cuda_unary,
        .unary_grad = td_cuda_unary_grad,
        .binary = td_cuda_binary,
        .reduce = td_cuda_reduce,
        .argmax = td_cuda_argmax,
        .argmax_grad = td_cuda_argmax_grad,
        .sum_of_squares = td_cuda_sum_of_squares,
        .matmul = td_cuda_matmul,
        .conv2d = td_cuda_conv2d,
        .conv2d_grad_input = td_cuda_conv2d_grad_input,
        .conv2d_grad_weight = td_cuda_conv2d_grad_weight,
        .batch_norm = td_cuda_batch_norm,
        .batch_norm_grad = td_cuda_batch_norm_grad,
        .layer_norm = td_cuda_layer_norm,
        .layer_norm_grad = td_cuda_layer_norm_grad,
        .softmax = td_cuda_softmax,
        .softmax_grad = td_cuda_softmax_grad,
        .cross_entropy = td_cuda_cross_entropy,
        .cross_entropy_grad = td_cuda_cross_entropy_grad,
        .max_pool2d = td_cuda_max_pool2d,
        .max_pool2d_grad = td_cuda_max_pool2d_grad,
        .avg_pool2d = td_cuda_avg_pool2d,
        .avg_pool2d_grad = td_cuda_avg_pool2d_grad,
        .embedding = td_cuda_embedding,
        .embedding_grad = td_cuda_embedding_grad,
        .indices_in_range = td_cuda_indices_in_range,
        .count_equal = td_cuda_count_equal,
        .count_top = td_cuda_count_top,
        .pictures = td_cuda_pictures,
        .dropout = td_cuda_dropout,
        .sgd = td_cuda_sgd,
        .adam = td_cuda_adam,
        .check_precision = td_cuda_check_precision,
        .measure_limits = measure_limits,
    };
    return &table;
}
