/* fill, axpy, all_finite, unscale: simple passes over tensors of any strides. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_half.h"
#include "tensor/kernels/scaling.h"

#include <stdatomic.h>
#include <string.h>

/* ---- fill ---- */

typedef struct fill_job {
    td_walk walk;
    char *y;
    size_t size;
    uint64_t value; /* its first bytes */
} fill_job;

#define FILL(type)                                                                                 \
    type *y = (type *)job->y + c.offset[0], value;                                                 \
    memcpy(&value, &job->value, sizeof value);                                                     \
    for (int64_t i = 0; i < n; i++) {                                                              \
        y[i * stride] = value;                                                                     \
    }

static void fill_range(void *ctx, int64_t begin, int64_t end)
{
    const fill_job *job = ctx;
    int64_t stride = job->walk.stride[0][0];
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        TD_BY_SIZE(job->size, FILL)
    }
}

void td_cpu_fill(td_tensor *y, double value)
{
    fill_job job = { .y = td_ptr(y), .size = td_dtype_size(y->dtype) };
    td_store_element(&job.value, y->dtype, 0, value);
    td_walk_init(&job.walk, 1, (const td_tensor *[]){ y });
    td_parallel(td_device_of(y), job.walk.count, 1, fill_range, &job);
}

/* ---- axpy ---- */

typedef struct axpy_job {
    td_walk walk;
    td_dtype dtype;
    char *y;
    const char *x;
    double alpha;
} axpy_job;

static void axpy_half(const axpy_job *job, int64_t n, char *y, const char *x)
{
    const td_loops *loops = td_loops_of(TD_F32);
    int64_t sy = job->walk.stride[0][0], sx = job->walk.stride[1][0];
    for (int64_t begin = 0; begin < n; begin += TD_HALF_PIECE) {
        int64_t m = n - begin < TD_HALF_PIECE ? n - begin : TD_HALF_PIECE;
        uint16_t *to = (uint16_t *)(void *)y + begin * sy;
        float from[TD_HALF_PIECE], sum[TD_HALF_PIECE];
        td_half_load(TD_F16, m, sum, to, sy);
        td_half_load(TD_F16, m, from, (const uint16_t *)(const void *)x + begin * sx, sx);
        loops->axpy(m, sum, 1, job->alpha, from, 1);
        td_half_store(TD_F16, m, to, sy, sum);
    }
}

/* Integers: alpha is truncated to one; overflow wraps around. */
#define AXPY_INTEGER(type)                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                              \
        ((type *)y)[i * sy] =                                                                      \
            (type)((uint64_t)((type *)y)[i * sy] + factor * (uint64_t)((const type *)x)[i * sx]);  \
    }

static void axpy_range(void *ctx, int64_t begin, int64_t end)
{
    const axpy_job *job = ctx;
    int64_t sy = job->walk.stride[0][0], sx = job->walk.stride[1][0];
    int64_t size = (int64_t)td_dtype_size(job->dtype);
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        void *y = job->y + c.offset[0] * size;
        const void *x = job->x + c.offset[1] * size;
        if (job->dtype == TD_F16) {
            axpy_half(job, n, y, x);
        } else if (td_is_float(job->dtype)) {
            td_loops_of(job->dtype)->axpy(n, y, sy, job->alpha, x, sx);
        } else {
            uint64_t factor = (uint64_t)td_double_to_integer(job->alpha, -0x1p63, 0x1p63);
            if (job->dtype == TD_I64) {
                AXPY_INTEGER(int64_t)
            } else if (job->dtype == TD_I32) {
                AXPY_INTEGER(int32_t)
            } else {
                AXPY_INTEGER(uint8_t)
            }
        }
    }
}

void td_cpu_axpy(td_tensor *y, double alpha, const td_tensor *x)
{
    axpy_job job = { .dtype = y->dtype, .y = td_ptr(y), .x = td_ptr(x), .alpha = alpha };
    td_walk_init(&job.walk, 2, (const td_tensor *[]){ y, x });
    td_parallel(td_device_of(y), job.walk.count, 1, axpy_range, &job);
}

/* ---- all_finite ---- */

typedef struct finite_job {
    td_walk walk;
    const char *x;
    td_dtype dtype;
    atomic_bool found; /* an infinity or NaN: the exponent's bits are all set */
} finite_job;

#define ANY_SET(type, exponent)                                                                    \
    for (int64_t i = 0; i < n; i++) {                                                              \
        any |= (((const type *)x)[i * stride] & (exponent)) == (exponent);                         \
    }

static void finite_range(void *ctx, int64_t begin, int64_t end)
{
    finite_job *job = ctx;
    int64_t stride = job->walk.stride[0][0], size = (int64_t)td_dtype_size(job->dtype);
    int any = 0;
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        const void *x = job->x + c.offset[0] * size;
        if (job->dtype == TD_F32 && stride == 1) {
            const uint32_t *word = x;
            uint32_t most = 0;
            for (int64_t i = 0; i < n; i++) {
                most |= (uint32_t)((word[i] & 0x7f800000u) == 0x7f800000u);
            }
            any |= (int)most;
        } else if (job->dtype == TD_F32) {
            ANY_SET(uint32_t, 0x7f800000u)
        } else if (job->dtype == TD_F64) {
            ANY_SET(uint64_t, UINT64_C(0x7ff0000000000000))
        } else if (job->dtype == TD_BF16) {
            ANY_SET(uint16_t, 0x7f80)
        } else {
            ANY_SET(uint16_t, 0x7c00)
        }
    }
    if (any) {
        atomic_store_explicit(&job->found, true, memory_order_relaxed);
    }
}

bool td_cpu_all_finite(const td_tensor *x)
{
    finite_job job = { .x = td_ptr(x), .dtype = x->dtype };
    atomic_init(&job.found, false);
    td_walk_init(&job.walk, 1, &x);
    td_parallel(td_device_of(x), job.walk.count, 1, finite_range, &job);
    return !atomic_load(&job.found);
}

void td_cpu_unscale(td_tensor *x, const td_tensor *scale, td_tensor *found)
{
    const double *numbers = td_ptr(scale);
    if (!td_cpu_all_finite(x)) {
        *(int32_t *)td_ptr(found) = 1;
    }
    td_cpu_unary(TD_UNARY_mul_scalar, x, x, 1.0 / numbers[TD_SCALE_FACTOR], 0.0);
}

void td_cpu_adapt_scale(td_tensor *scale, const td_tensor *found, const td_scale_rule *rule)
{
    const int32_t *flag = td_ptr(found);
    td_scale_adapt(td_ptr(scale), *flag != 0, rule);
}
