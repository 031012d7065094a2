/* Kernels along one dimension: gather, scatter_add, cumsum, prod and its gradient, argmax, argsort,
 * triangles. A line is what lies along the dimension. Lines are independent of each other; what is
 * added up within one has a fixed order. */
#include "tensor/cpu/ops.h"

typedef struct line_job line_job;
struct line_job {
    td_walk walk; /* over lines: of the first operand without the dimension */
    char *base[TD_WALK_OPERANDS];
    int64_t size[TD_WALK_OPERANDS];   /* of an element */
    int64_t stride[TD_WALK_OPERANDS]; /* along the dimension */
    int64_t n;                        /* elements of a line */
    /* Does the line whose operands begin at `at`. */
    void (*line)(const line_job *job, char *const *at, int64_t number);
    bool flag;              /* cumsum: backwards; argsort: descending; triangle: the upper one */
    int64_t *scratch;       /* argsort: two indices an element */
    int64_t rows, diagonal; /* triangle */
};

static void line_range(void *ctx, int64_t begin, int64_t end)
{
    const line_job *job = ctx;
    const td_walk *w = &job->walk;
    int64_t number = begin;
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, w, begin, end); n; n = td_cursor_next(&c)) {
        for (int64_t i = 0; i < n; i++) {
            char *at[TD_WALK_OPERANDS] = { NULL };
            for (int k = 0; k < w->operands; k++) {
                at[k] = job->base[k] + (c.offset[k] + i * w->stride[k][0]) * job->size[k];
            }
            job->line(job, at, number++);
        }
    }
}

/* n: the length of a line. */
static void run_lines(line_job *job, int64_t n, int dim, int operands,
                      const td_tensor *const *tensors)
{
    td_tensor rest[TD_WALK_OPERANDS];
    const td_tensor *lines[TD_WALK_OPERANDS];
    for (int k = 0; k < operands; k++) {
        job->base[k] = td_ptr(tensors[k]);
        job->size[k] = (int64_t)td_dtype_size(tensors[k]->dtype);
        job->stride[k] = tensors[k]->stride[dim];
        rest[k] = *tensors[k];
        rest[k].shape[dim] = 1;
        lines[k] = &rest[k];
    }
    job->n = n;
    td_walk_init(&job->walk, operands, lines);
    int64_t count = n > 0 ? job->walk.count : 0;
    td_parallel(td_device_of(tensors[0]), count, n, line_range, job);
}

/* ---- gather ---- */

typedef struct gather_job {
    td_walk walk; /* y, index, x without the dimension */
    int64_t size, stride;
    char *y;
    const char *x;
    const int64_t *index;
} gather_job;

#define GATHER(W)                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                              \
        ((W *)y)[i * sy] = ((const W *)x)[i * sx + index[i * si] * job->stride];                   \
    }

static void gather_range(void *ctx, int64_t begin, int64_t end)
{
    const gather_job *job = ctx;
    const td_walk *w = &job->walk;
    int64_t sy = w->stride[0][0], si = w->stride[1][0], sx = w->stride[2][0];
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, w, begin, end); n; n = td_cursor_next(&c)) {
        char *y = job->y + c.offset[0] * job->size;
        const int64_t *index = job->index + c.offset[1];
        const char *x = job->x + c.offset[2] * job->size;
        TD_BY_SIZE(job->size, GATHER)
    }
}

void td_cpu_gather(td_tensor *y, const td_tensor *x, const td_tensor *index, int dim)
{
    td_tensor rest = *x;
    rest.stride[dim] = 0;
    gather_job job = { .size = (int64_t)td_dtype_size(x->dtype),
                       .stride = x->stride[dim],
                       .y = td_ptr(y),
                       .x = td_ptr(x),
                       .index = td_ptr(index) };
    td_walk_init(&job.walk, 3, (const td_tensor *[]){ y, index, &rest });
    int64_t count = job.walk.count;
    td_parallel(td_device_of(y), count, 1, gather_range, &job);
}

/* ---- loops over a line, of each type ---- */

#define SCATTER_ADD(T)                                                                             \
    static void scatter_add_##T(const line_job *job, char *const *at, int64_t number)              \
    {                                                                                              \
        (void)number;                                                                              \
        T *y = (T *)(void *)at[0];                                                                 \
        const T *x = (const T *)(void *)at[1];                                                     \
        const int64_t *index = (const int64_t *)(void *)at[2];                                     \
        for (int64_t i = 0; i < job->n; i++) {                                                     \
            y[index[i * job->stride[2]] * job->stride[0]] += x[i * job->stride[1]];                \
        }                                                                                          \
    }

/* U: what is added up in. */
#define CUMSUM(T, U)                                                                               \
    static void cumsum_##T(const line_job *job, char *const *at, int64_t number)                   \
    {                                                                                              \
        (void)number;                                                                              \
        T *y = (T *)(void *)at[0];                                                                 \
        const T *x = (const T *)(void *)at[1];                                                     \
        U sum = 0;                                                                                 \
        for (int64_t i = 0; i < job->n; i++) {                                                     \
            int64_t k = job->flag ? job->n - 1 - i : i;                                            \
            sum += (U)x[k * job->stride[1]];                                                       \
            y[k * job->stride[0]] = (T)sum;                                                        \
        }                                                                                          \
    }

#define PROD(T)                                                                                    \
    static void prod_##T(const line_job *job, char *const *at, int64_t number)                     \
    {                                                                                              \
        (void)number;                                                                              \
        const T *x = (const T *)(void *)at[1];                                                     \
        double product = 1.0;                                                                      \
        for (int64_t i = 0; i < job->n; i++) {                                                     \
            product *= x[i * job->stride[1]];                                                      \
        }                                                                                          \
        *(T *)(void *)at[0] = (T)product;                                                          \
    }

/* dy times the product of all others: of those before, then of those behind. */
#define PROD_GRAD(T)                                                                               \
    static void prod_grad_##T(const line_job *job, char *const *at, int64_t number)                \
    {                                                                                              \
        (void)number;                                                                              \
        T *dx = (T *)(void *)at[0];                                                                \
        const T *x = (const T *)(void *)at[2];                                                     \
        double product = *(const T *)(void *)at[1];                                                \
        for (int64_t i = 0; i < job->n; i++) {                                                     \
            dx[i * job->stride[0]] = (T)product;                                                   \
            product *= x[i * job->stride[2]];                                                      \
        }                                                                                          \
        product = 1.0;                                                                             \
        for (int64_t i = job->n - 1; i >= 0; i--) {                                                \
            dx[i * job->stride[0]] = (T)(dx[i * job->stride[0]] * product);                        \
            product *= x[i * job->stride[2]];                                                      \
        }                                                                                          \
    }

/* The first largest; the first NaN counts as larger than all. For integers the second comparison
 * is always true. */
#define ARGMAX(T)                                                                                  \
    static void argmax_##T(const line_job *job, char *const *at, int64_t number)                   \
    {                                                                                              \
        (void)number;                                                                              \
        const T *x = (const T *)(void *)at[1];                                                     \
        T best = x[0];                                                                             \
        int64_t found = 0;                                                                         \
        for (int64_t i = 1; i < job->n && best == best; i++) {                                     \
            T value = x[i * job->stride[1]];                                                       \
            if (!(value <= best)) {                                                                \
                best = value;                                                                      \
                found = i;                                                                         \
            }                                                                                      \
        }                                                                                          \
        *(int64_t *)(void *)at[0] = found;                                                         \
    }

/* A stable merge sort of indices, from runs of 1 upwards; NaN is larger than all. */
#define ARGSORT(T)                                                                                 \
    static bool before_##T(const line_job *job, T a, T b)                                          \
    {                                                                                              \
        return job->flag ? a > b || (a != a && b == b) : a < b || (b != b && a == a);              \
    }                                                                                              \
    static void argsort_##T(const line_job *job, char *const *at, int64_t number)                  \
    {                                                                                              \
        const T *x = (const T *)(void *)at[1];                                                     \
        int64_t n = job->n, step = job->stride[1];                                                 \
        int64_t *from = job->scratch + 2 * n * number, *to = from + n;                             \
        for (int64_t i = 0; i < n; i++) {                                                          \
            from[i] = i;                                                                           \
        }                                                                                          \
        for (int64_t run = 1; run < n; run *= 2) {                                                 \
            for (int64_t begin = 0; begin < n; begin += 2 * run) {                                 \
                int64_t middle = begin + run < n ? begin + run : n;                                \
                int64_t end = middle + run < n ? middle + run : n, a = begin, b = middle;          \
                for (int64_t i = begin; i < end; i++) {                                            \
                    bool second = a == middle || (b < end && before_##T(job, x[from[b] * step],    \
                                                                        x[from[a] * step]));       \
                    to[i] = from[second ? b++ : a++];                                              \
                }                                                                                  \
            }                                                                                      \
            int64_t *other = from;                                                                 \
            from = to;                                                                             \
            to = other;                                                                            \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            ((int64_t *)(void *)at[0])[i * job->stride[0]] = from[i];                              \
        }                                                                                          \
    }

#define TRIANGLE(W)                                                                                \
    static void triangle_##W(const line_job *job, char *const *at, int64_t number)                 \
    {                                                                                              \
        W *y = (W *)(void *)at[0];                                                                 \
        const W *x = (const W *)(void *)at[1];                                                     \
        int64_t edge = number % job->rows + job->diagonal;                                         \
        for (int64_t i = 0; i < job->n; i++) {                                                     \
            bool inside = job->flag ? i >= edge : i <= edge;                                       \
            y[i * job->stride[0]] = inside ? x[i * job->stride[1]] : 0;                            \
        }                                                                                          \
    }

SCATTER_ADD(float)
SCATTER_ADD(double)
CUMSUM(float, double)
CUMSUM(double, double)
CUMSUM(int64_t, uint64_t)
CUMSUM(int32_t, uint32_t)
CUMSUM(uint8_t, uint32_t)
PROD(float)
PROD(double)
PROD_GRAD(float)
PROD_GRAD(double)
#define OF_EACH_TYPE(KERNEL)                                                                       \
    KERNEL(float) KERNEL(double) KERNEL(int64_t) KERNEL(int32_t) KERNEL(uint8_t)
OF_EACH_TYPE(ARGMAX)
OF_EACH_TYPE(ARGSORT)
TRIANGLE(uint8_t)
TRIANGLE(uint16_t)
TRIANGLE(uint32_t)
TRIANGLE(uint64_t)

/* The loop of a tensor's type: of floats alone, of integers, too. */
#define OF_FLOAT(name, t) ((t)->dtype == TD_F32 ? name##_float : name##_double)
#define OF_TYPE(name, t)                                                                           \
    (td_is_float((t)->dtype) ? OF_FLOAT(name, t)                                                   \
     : (t)->dtype == TD_I64  ? name##_int64_t                                                      \
     : (t)->dtype == TD_I32  ? name##_int32_t                                                      \
                             : name##_uint8_t)

/* ---- the kernels ---- */

void td_cpu_scatter_add(td_tensor *y, const td_tensor *x, const td_tensor *index, int dim)
{
    td_tensor lines = *y; /* those that the index has */
    for (int d = 0; d < y->ndim; d++) {
        lines.shape[d] = index->shape[d];
    }
    line_job job = { .line = OF_FLOAT(scatter_add, y) };
    run_lines(&job, index->shape[dim], dim, 3, (const td_tensor *[]){ &lines, x, index });
}

void td_cpu_cumsum(td_tensor *y, const td_tensor *x, int dim, bool backwards)
{
    line_job job = { .line = OF_TYPE(cumsum, x), .flag = backwards };
    run_lines(&job, x->shape[dim], dim, 2, (const td_tensor *[]){ y, x });
}

void td_cpu_prod(td_tensor *y, const td_tensor *x, int dim)
{
    if (x->shape[dim] == 0) {
        td_cpu_fill(y, 1.0);
        return;
    }
    line_job job = { .line = OF_FLOAT(prod, x) };
    run_lines(&job, x->shape[dim], dim, 2, (const td_tensor *[]){ y, x });
}

void td_cpu_prod_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *x, int dim)
{
    line_job job = { .line = OF_FLOAT(prod_grad, x) };
    run_lines(&job, x->shape[dim], dim, 3, (const td_tensor *[]){ dx, dy, x });
}

void td_cpu_argmax(td_tensor *index, const td_tensor *x, int dim)
{
    line_job job = { .line = OF_TYPE(argmax, x) };
    run_lines(&job, x->shape[dim], dim, 2, (const td_tensor *[]){ index, x });
}

void td_cpu_argsort(td_tensor *index, const td_tensor *x, int dim, bool descending)
{
    td_device device = td_device_of(x);
    size_t count = (size_t)td_numel(x) + 1;
    line_job job = { .line = OF_TYPE(argsort, x),
                     .flag = descending,
                     .scratch = td_scratch(device, 2 * count * sizeof *job.scratch) };
    run_lines(&job, x->shape[dim], dim, 2, (const td_tensor *[]){ index, x });
    td_scratch_free(device, job.scratch);
}

void td_cpu_triangle(td_tensor *y, const td_tensor *x, int64_t diagonal, bool upper)
{
    int64_t size = (int64_t)td_dtype_size(x->dtype);
    line_job job = { .line = size == 1   ? triangle_uint8_t
                             : size == 2 ? triangle_uint16_t
                             : size == 4 ? triangle_uint32_t
                                         : triangle_uint64_t,
                     .flag = upper,
                     .rows = x->shape[x->ndim - 2],
                     .diagonal = diagonal };
    run_lines(&job, x->shape[x->ndim - 1], x->ndim - 1, 2, (const td_tensor *[]){ y, x });
}
