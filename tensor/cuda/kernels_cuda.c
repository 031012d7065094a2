/* The table of CUDA's kernels. */
#include "tensor/clock.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/products.h"
#include "tensor/hooks.h"

/* ---- limits ---- */

/* The quickest of a few products (or copies) of N x N, in seconds. */
static double quickest(td_tensor *c, const td_tensor *a, bool multiply)
{
    enum { ROUNDS = 4 };
    td_cuda *gpu = td_cuda_of(td_device_of(c));
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        td_cuda_wait(gpu, "measuring");
        double begin = td_clock();
        if (multiply) {
            td_cuda_matmul(c, a, a, NULL, false, (td_math){ .precision = TD_PRECISION_FP32 });
        } else {
            td_cuda_copy(c, a);
        }
        td_cuda_wait(gpu, "measuring");
        double taken = td_clock() - begin;
        best = taken < best ? taken : best;
    }
    return best;
}

/* [n,n], each row the one before moved by one: of zeros, products need less power, and so less
 * time. NULL: memory is short. */
static td_tensor *random_matrix(int64_t n, td_dtype dtype, td_device device)
{
    td_generator random;
    td_generator_seed(&random, 1);
    td_tensor *line = td_new(TD_SHAPE(2 * n), dtype, device), *matrix = NULL;
    if (line != NULL) {
        td_normal_(line, 0, 1, &random);
        matrix = td_new(TD_SHAPE(n, n), dtype, device);
    }
    if (matrix != NULL) {
        td_tensor rows = *line;
        rows.ndim = 2;
        rows.shape[0] = rows.shape[1] = n;
        rows.stride[0] = rows.stride[1] = 1;
        td_cuda_copy(matrix, &rows);
    }
    td_free(line);
    return matrix;
}

/* How many products' operations (or copies' bytes) a second: of the smallest matrices for which the
 * time to start one counts for little. */
static td_status measure(td_device device, td_dtype dtype, bool multiply, double *rate)
{
    enum { LEAST = 128, MOST = 8192 };
    const double enough = 2e-3;
    double taken = 0;
    for (int64_t n = LEAST; taken < enough && n <= MOST; n *= 2) {
        td_tensor *a = random_matrix(n, dtype, device);
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
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) .NAME = td_cuda_##NAME,
#define TD_KERNEL_CPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"
        .check_precision = td_cuda_check_precision,
        .measure_limits = measure_limits,
    };
    return &table;
}
