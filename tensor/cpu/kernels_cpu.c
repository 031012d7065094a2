/* The CPU's table. */
#include "tensor/isa.h"
#include "tensor/cpu/ops.h"

#define TD_CPU_TABLE(title)                                                                        \
    {                                                                                              \
        .name = "cpu (" title ")", .fill = td_cpu_fill, .copy = td_cpu_copy, .axpy = td_cpu_axpy,  \
        .all_finite = td_cpu_all_finite, .unscale = td_cpu_unscale,                                \
        .adapt_scale = td_cpu_adapt_scale, .unary = td_cpu_unary, .unary_grad = td_cpu_unary_grad, \
        .binary = td_cpu_binary, .reduce = td_cpu_reduce, .argmax = td_cpu_argmax,                 \
        .argmax_grad = td_cpu_argmax_grad, .sum_of_squares = td_cpu_sum_of_squares,                \
        .matmul = td_cpu_matmul, .conv2d = td_cpu_conv2d,                                          \
        .conv2d_grad_input = td_cpu_conv2d_grad_input,                                             \
        .conv2d_grad_weight = td_cpu_conv2d_grad_weight, .batch_norm = td_cpu_batch_norm,          \
        .batch_norm_grad = td_cpu_batch_norm_grad, .layer_norm = td_cpu_layer_norm,                \
        .layer_norm_grad = td_cpu_layer_norm_grad, .softmax = td_cpu_softmax,                      \
        .softmax_grad = td_cpu_softmax_grad, .cross_entropy = td_cpu_cross_entropy,                \
        .cross_entropy_grad = td_cpu_cross_entropy_grad, .max_pool2d = td_cpu_max_pool2d,          \
        .max_pool2d_grad = td_cpu_max_pool2d_grad, .avg_pool2d = td_cpu_avg_pool2d,                \
        .avg_pool2d_grad = td_cpu_avg_pool2d_grad, .embedding = td_cpu_embedding,                  \
        .embedding_grad = td_cpu_embedding_grad, .indices_in_range = td_cpu_indices_in_range,      \
        .count_equal = td_cpu_count_equal, .count_top = td_cpu_count_top,                          \
        .pictures = td_cpu_pictures, .dropout = td_cpu_dropout, .sgd = td_cpu_sgd,                 \
        .adam = td_cpu_adam, .check_precision = td_cpu_check_precision,                            \
        .measure_limits = td_cpu_measure_limits,                                                   \
    }

/* The same functions for every instruction set: they look it up themselves. Only the names differ.
 */
static const td_kernels tables[] = {
    [TD_ISA_PORTABLE] = TD_CPU_TABLE("portable"),
    [TD_ISA_AVX2] = TD_CPU_TABLE("avx2"),
    [TD_ISA_AVX512] = TD_CPU_TABLE("avx512"),
    [TD_ISA_AVX512_BF16] = TD_CPU_TABLE("avx512_bf16"),
    [TD_ISA_AMX] = TD_CPU_TABLE("amx"),
};

const td_kernels *td_cpu_kernels(void)
{
    return &tables[td_isa_current()];
}
