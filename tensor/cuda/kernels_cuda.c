/* The table of CUDA's kernels. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/products.h"
#include "tensor/watch.h"

/* ---- limits ---- */

/* The quickest of a few products (or copies) of N x N, in seconds. */
static double quickest(td_tensor *c, const td_tensor *a, bool multiply)
{
    enum { ROUNDS = 4 };
    td_cuda *gpu = td_cuda_of(td_device_of(c));
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        td_cuda_wait(gpu, "measuring");
        double begin = td_watch_clock();
        if (multiply) {
            td_cuda_matmul(c, a, a, NULL, false, (td_math){ .precision = TD_PRECISION_FP32 });
        } else {
            td_cuda_copy(c, a);
        }
        td_cuda_wait(gpu, "measuring");
        double taken = td_watch_clock() - begin;
        best = taken < best ? taken : best;
    }
    return best;
}

/* How many products' operations (or copies' bytes) a second: of the smallest matrices for which the
 * time to start one counts for little. */
static td_status measure(td_device device, td_dtype dtype, bool multiply, double *rate)
{
    enum { LEAST = 128, MOST = 8192 };
    const double enough = 2e-3;
    double taken = 0;
    for (int64_t n = LEAST; taken < enough && n <= MOST; n *= 2) {
        td_tensor *a = td_zeros(TD_SHAPE(n, n), dtype, device);
        td_tensor *c = a != NULL ? td_zeros(TD_SHAPE(n, n), dtype, device) : NULL;
        if (c == NULL) {
            td_free(a);
            return taken > 0 ? TD_OK : TD_E_NOMEM;
        }
        taken = quickest(c, a, multiply);
        double each = (double)(n * n);
        *rate = (multiply ? 2.0 * (double)n : 2.0 * (double)td_dtype_size(dtype)) * each / taken;
        td_free(a);
        td_free(c);
    }
    return TD_OK;
}

static td_status measure_limits(td_device device, td_limits *limits)
{
    TD_TRY(measure(device, TD_F32, true, &limits->f32));
    TD_TRY(measure(device, TD_F64, true, &limits->f64));
    return measure(device, TD_F32, false, &limits->memory);
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
        .adapt_scale = td_cuda_adapt_scale,
        .unary = td_cuda_unary,
        .unary_grad = td_cuda_unary_grad,
        .binary = td_cuda_binary,
        .reduce = td_cuda_reduce,
        .argmax = td_cuda_argmax,
        .argmax_grad = td_cuda_argmax_grad,
        .sum_of_squares = td_cuda_sum_of_squares,
        .clip = td_cuda_clip,
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
