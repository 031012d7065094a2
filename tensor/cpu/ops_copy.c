/* Copies of any strides and dtypes. The hard case is a transposition (NCHW to the CPU's HWNC and
 * back): it goes in square tiles, as wide as a line of the caches. The rows of a larger tile, where
 * they are powers of two apart, push each other out of the few places that caches have for them. */
#include "tensor/cpu/ops.h"

#include <string.h>

enum { LINE = 64, PIECE = 256 }; /* bytes of a line of the caches; elements */

typedef struct copy_job {
    td_walk walk;
    char *y;
    const char *x;
    td_dtype y_dtype, x_dtype;
    /* transposition: `walk` is what lies outside of the planes */
    int64_t rows, columns;          /* of a plane, as y has it: columns are next to each other */
    int64_t y_row, x_row, x_column; /* strides */
    int64_t tile, bands;            /* rows and columns of a tile; bands of so many rows */
} copy_job;

/* ---- one run ---- */

/* An expanded tensor repeats its elements: such a run is written only. */
#define COPY_STRIDED(type)                                                                         \
    if (sy == 1 && sx == 0) {                                                                      \
        type value = *(const type *)x;                                                             \
        for (int64_t i = 0; i < n; i++) {                                                          \
            ((type *)y)[i] = value;                                                                \
        }                                                                                          \
        return;                                                                                    \
    }                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                              \
        ((type *)y)[i * sy] = ((const type *)x)[i * sx];                                           \
    }

void td_copy_run(size_t size, int64_t n, void *y, int64_t sy, const void *x, int64_t sx)
{
    if (sy == 1 && sx == 1) {
        memcpy(y, x, (size_t)n * size);
        return;
    }
    TD_BY_SIZE(size, COPY_STRIDED)
}

#define EACH(expression)                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                              \
        expression;                                                                                \
    }

static void to_doubles(int64_t n, double *out, td_dtype dtype, const void *x, int64_t sx)
{
    if (dtype == TD_F32) {
        EACH(out[i] = (double)((const float *)x)[i * sx])
    } else if (dtype == TD_BF16) {
        EACH(out[i] = (double)td_bf16_to_f32(((const td_bf16 *)x)[i * sx]))
    } else if (dtype == TD_U8) {
        EACH(out[i] = (double)((const uint8_t *)x)[i * sx])
    } else {
        EACH(out[i] = td_load_element(x, dtype, i * sx))
    }
}

static void from_doubles(int64_t n, td_dtype dtype, void *y, int64_t sy, const double *values)
{
    if (dtype == TD_F32) {
        EACH(((float *)y)[i * sy] = (float)values[i])
    } else if (dtype == TD_BF16) {
        EACH(((td_bf16 *)y)[i * sy] = td_f32_to_bf16((float)values[i]))
    } else {
        EACH(td_store_element(y, dtype, i * sy, values[i]))
    }
}

/* Between f32 and the halves, where elements lie side by side; false: between others. */
static bool convert_dense(td_dtype y_dtype, td_dtype x_dtype, int64_t n, void *y, const void *x)
{
    bool widen = y_dtype == TD_F32, narrow = x_dtype == TD_F32;
    if (widen && x_dtype == TD_BF16) {
        td_loops_of(TD_BF16)->widen(n, y, x);
    } else if (narrow && y_dtype == TD_BF16) {
        td_loops_of(TD_BF16)->narrow(n, y, x);
    } else if (widen && x_dtype == TD_F16) {
        td_f16_widen(n, y, x);
    } else if (narrow && y_dtype == TD_F16) {
        td_f16_narrow(n, y, x);
    } else {
        return false;
    }
    return true;
}

/* Other dtypes and runs by way of double, which holds every value but large i64. */
static void convert_run(const copy_job *job, int64_t n, char *y, const char *x)
{
    int64_t sy = job->walk.stride[0][0], sx = job->walk.stride[1][0];
    int64_t y_size = (int64_t)td_dtype_size(job->y_dtype);
    int64_t x_size = (int64_t)td_dtype_size(job->x_dtype);
    if (sy == 1 && sx == 1 && convert_dense(job->y_dtype, job->x_dtype, n, y, x)) {
        return;
    }
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        int64_t m = n - begin < PIECE ? n - begin : PIECE;
        double values[PIECE];
        to_doubles(m, values, job->x_dtype, x + begin * sx * x_size, sx);
        from_doubles(m, job->y_dtype, y + begin * sy * y_size, sy, values);
    }
}

static void copy_range(void *ctx, int64_t begin, int64_t end)
{
    const copy_job *job = ctx;
    size_t y_size = td_dtype_size(job->y_dtype), x_size = td_dtype_size(job->x_dtype);
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        char *y = job->y + c.offset[0] * (int64_t)y_size;
        const char *x = job->x + c.offset[1] * (int64_t)x_size;
        if (job->y_dtype == job->x_dtype) {
            td_copy_run(y_size, n, y, job->walk.stride[0][0], x, job->walk.stride[1][0]);
        } else {
            convert_run(job, n, y, x);
        }
    }
}

/* ---- transposition ---- */

#define COPY_TILE(type)                                                                            \
    for (int64_t r = 0; r < rows; r++) {                                                           \
        type *restrict to = (type *)y + r * job->y_row;                                            \
        const type *restrict from = (const type *)x + r * job->x_row;                              \
        for (int64_t c = 0; c < columns; c++) {                                                    \
            to[c] = from[c * job->x_column];                                                       \
        }                                                                                          \
    }

static void copy_tile(const copy_job *job, int64_t rows, int64_t columns, void *y, const void *x)
{
    size_t size = td_dtype_size(job->y_dtype);
    if (size == 4 && job->x_row == 1) {
        td_gemm_kernels_for(TD_F32)->turn(y, x, job->y_row, rows, columns, job->x_column);
        return;
    }
    TD_BY_SIZE(size, COPY_TILE)
}

/* Items are bands of rows, plane by plane. */
static void transpose_range(void *ctx, int64_t begin, int64_t end)
{
    const copy_job *job = ctx;
    int64_t size = (int64_t)td_dtype_size(job->y_dtype);
    for (int64_t item = begin; item < end; item++) {
        td_cursor plane;
        int64_t p = item / job->bands, row = item % job->bands * job->tile;
        td_cursor_start(&plane, &job->walk, p, p + 1);
        int64_t rows = td_min64(job->rows - row, job->tile);
        for (int64_t column = 0; column < job->columns; column += job->tile) {
            int64_t columns = td_min64(job->columns - column, job->tile);
            int64_t to = plane.offset[0] + row * job->y_row + column;
            int64_t from = plane.offset[1] + row * job->x_row + column * job->x_column;
            copy_tile(job, rows, columns, job->y + to * size, job->x + from * size);
        }
    }
}

/* The dimension along which x is read best, if that is not the one along which y is written. */
static int find_transposed(const td_walk *w)
{
    int best = 0;
    for (int d = 1; d < w->ndim; d++) {
        if (w->stride[1][d] > 0 && w->stride[1][d] < w->stride[1][best]) {
            best = d;
        }
    }
    return best;
}

/* Takes dimensions 0 and d out of the walk. */
static void take_plane(copy_job *job, int d)
{
    td_walk *w = &job->walk;
    job->columns = w->size[0];
    job->x_column = w->stride[1][0];
    job->rows = w->size[d];
    job->y_row = w->stride[0][d];
    job->x_row = w->stride[1][d];
    job->tile = LINE / (int64_t)td_dtype_size(job->y_dtype);
    job->bands = td_divide_up(job->rows, job->tile);
    int kept = 0;
    for (int i = 1; i < w->ndim; i++) {
        if (i != d) {
            w->size[kept] = w->size[i];
            w->stride[0][kept] = w->stride[0][i];
            w->stride[1][kept] = w->stride[1][i];
            kept++;
        }
    }
    if (kept == 0) {
        w->size[kept++] = 1;
        w->stride[0][0] = w->stride[1][0] = 0;
    }
    w->ndim = kept;
}

void td_cpu_copy(td_tensor *y, const td_tensor *x)
{
    copy_job job = { .y = td_ptr(y), .x = td_ptr(x), .y_dtype = y->dtype, .x_dtype = x->dtype };
    td_walk_init(&job.walk, 2, (const td_tensor *[]){ y, x });
    int64_t count = job.walk.count;
    if (count == 0) {
        return;
    }
    int d = find_transposed(&job.walk);
    if (d > 0 && job.walk.stride[0][0] == 1 && y->dtype == x->dtype) {
        take_plane(&job, d);
        int64_t planes = count / (job.rows * job.columns);
        int64_t items = planes * job.bands;
        td_parallel(td_device_of(y), items, job.tile * job.columns, transpose_range, &job);
        return;
    }
    td_parallel(td_device_of(y), count, 1, copy_range, &job);
}
