/* Element operations: unary, binary, their gradients, comparisons, choices. What is computed stands
 * in tensor/elementwise.def; here only how tensors are gone over. */
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_half.h"
#include "tensor/cpu/ops_integers.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/storage.h"

typedef struct element_job element_job;
struct element_job {
    td_walk walk;
    td_dtype dtype;
    char *base[TD_WALK_OPERANDS]; /* 0 is the result */
    int64_t size[TD_WALK_OPERANDS];
    /* Computes n elements at at[k], stride[k] apart. */
    void (*loop)(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                 const int64_t *stride);
    int op, input;
    double p, q;
    bool accumulate;
};

static void unary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                       const int64_t *stride)
{
    loops->unary[job->op](n, at[0], stride[0], at[1], stride[1], job->p, job->q);
}

static void unary_grad_loop(const element_job *job, const td_loops *loops, int64_t n,
                            void *const *at, const int64_t *stride)
{
    loops->unary_grad[job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2], at[3],
                               stride[3], job->p, job->q, job->accumulate);
}

static void binary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                        const int64_t *stride)
{
    loops->binary[job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2]);
}

static void binary_grad_loop(const element_job *job, const td_loops *loops, int64_t n,
                             void *const *at, const int64_t *stride)
{
    loops->binary_grad[job->input][job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2],
                                            at[3], stride[3], 0.0, 0.0, false);
}

static void compare_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                         const int64_t *stride)
{
    loops->compare[job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2]);
}

/* Integers, and comparisons of f16, which have no tables. */
static void integer_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                         const int64_t *stride)
{
    (void)loops;
    td_integer_loop((td_binary_op)job->op, job->dtype)(n, at[0], stride[0], at[1], stride[1], at[2],
                                                       stride[2]);
}

static void slow_compare_loop(const element_job *job, const td_loops *loops, int64_t n,
                              void *const *at, const int64_t *stride)
{
    (void)loops;
    td_integer_compare_loop((td_compare_op)job->op, job->dtype)(n, at[0], stride[0], at[1],
                                                                stride[1], at[2], stride[2]);
}

#define CHOOSE(W)                                                                                  \
    static void choose_##W(const element_job *job, const td_loops *loops, int64_t n,               \
                           void *const *at, const int64_t *stride)                                 \
    {                                                                                              \
        (void)job, (void)loops;                                                                    \
        W *y = at[0];                                                                              \
        const uint8_t *condition = at[1];                                                          \
        const W *a = at[2], *b = at[3];                                                            \
        if (stride[0] == 1 && stride[1] == 1 && stride[2] == 1 && stride[3] == 1) {                \
            for (int64_t i = 0; i < n; i++) {                                                      \
                W yes = a[i], no = b[i];                                                           \
                y[i] = condition[i] != 0 ? yes : no;                                               \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            W yes = a[i * stride[2]], no = b[i * stride[3]];                                       \
            y[i * stride[0]] = condition[i * stride[1]] != 0 ? yes : no;                           \
        }                                                                                          \
    }
CHOOSE(uint8_t)
CHOOSE(uint16_t)
CHOOSE(uint32_t)
CHOOSE(uint64_t)

/* f16: piece by piece through floats. */
static void half_run(const element_job *job, int64_t n, void *const *at, const int64_t *stride)
{
    static const int64_t dense[TD_WALK_OPERANDS] = { 1, 1, 1, 1 };
    float buffer[TD_WALK_OPERANDS][TD_HALF_PIECE];
    void *const buffers[TD_WALK_OPERANDS] = { buffer[0], buffer[1], buffer[2], buffer[3] };
    for (int64_t begin = 0; begin < n; begin += TD_HALF_PIECE) {
        int64_t m = n - begin < TD_HALF_PIECE ? n - begin : TD_HALF_PIECE;
        for (int k = job->accumulate ? 0 : 1; k < job->walk.operands; k++) {
            td_half_load(TD_F16, m, buffer[k], (const uint16_t *)at[k] + begin * stride[k],
                         stride[k]);
        }
        job->loop(job, td_loops_of(TD_F32), m, buffers, dense);
        td_half_store(TD_F16, m, (uint16_t *)at[0] + begin * stride[0], stride[0], buffer[0]);
    }
}

static bool has_tables(td_dtype dtype)
{
    return dtype == TD_F32 || dtype == TD_F64 || dtype == TD_BF16;
}

static void element_range(void *ctx, int64_t begin, int64_t end)
{
    const element_job *job = ctx;
    const td_loops *loops = has_tables(job->dtype) ? td_loops_of(job->dtype) : NULL;
    bool half = job->dtype == TD_F16 && job->size[0] == job->size[1];
    int64_t stride[TD_WALK_OPERANDS] = { 0 };
    for (int k = 0; k < job->walk.operands; k++) {
        stride[k] = job->walk.stride[k][0];
    }
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        void *at[TD_WALK_OPERANDS] = { job->base[0] + c.offset[0] * job->size[0] };
        for (int k = 1; k < job->walk.operands; k++) {
            at[k] = job->base[k] + c.offset[k] * job->size[k];
        }
        if (half) {
            half_run(job, n, at, stride);
        } else {
            job->loop(job, loops, n, at, stride);
        }
    }
}

/* dtype: the loop's. */
static void run_elements(element_job *job, td_dtype dtype, int operands,
                         const td_tensor *const *tensors)
{
    td_walk_init(&job->walk, operands, tensors);
    job->dtype = dtype;
    for (int k = 0; k < operands; k++) {
        job->base[k] = td_ptr(tensors[k]);
        job->size[k] = (int64_t)td_dtype_size(tensors[k]->dtype);
    }
    td_parallel(td_device_of(tensors[0]), job->walk.count, td_element_chunk(job->walk.count),
                element_range, job);
}

void td_cpu_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p, double q)
{
    if (op == TD_UNARY_pow && p == 2.0) { /* the common power, without the library's pow */
        td_cpu_binary(TD_BINARY_mul, y, x, x);
        return;
    }
    element_job job = { .loop = unary_loop, .op = (int)op, .p = p, .q = q };
    run_elements(&job, x->dtype, 2, (const td_tensor *[]){ y, x });
}

void td_cpu_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                       const td_tensor *y, double p, double q, bool accumulate)
{
    element_job job = {
        .loop = unary_grad_loop, .op = (int)op, .p = p, .q = q, .accumulate = accumulate
    };
    /* An operation whose slope needs only one of x and y may have saved only that one. */
    const td_tensor *any_x = x ? x : (y ? y : dy), *any_y = y ? y : any_x;
    run_elements(&job, dy->dtype, 4, (const td_tensor *[]){ dx, dy, any_x, any_y });
}

void td_cpu_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    element_job job = { .loop = td_is_float(a->dtype) ? binary_loop : integer_loop, .op = (int)op };
    run_elements(&job, a->dtype, 3, (const td_tensor *[]){ y, a, b });
}

void td_cpu_binary_grad(td_binary_op op, int input, td_tensor *dx, const td_tensor *g,
                        const td_tensor *a, const td_tensor *b)
{
    element_job job = { .loop = binary_grad_loop, .op = (int)op, .input = input };
    run_elements(&job, g->dtype, 4, (const td_tensor *[]){ dx, g, a ? a : g, b ? b : g });
}

void td_cpu_compare(td_compare_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    element_job job = { .loop = has_tables(a->dtype) ? compare_loop : slow_compare_loop,
                        .op = (int)op };
    run_elements(&job, a->dtype, 3, (const td_tensor *[]){ y, a, b });
}

void td_cpu_where(td_tensor *y, const td_tensor *condition, const td_tensor *a, const td_tensor *b)
{
    static uint64_t zero;
    td_tensor *const operands[] = { y, (td_tensor *)condition, (td_tensor *)a, (td_tensor *)b };
    element_job job = { .dtype = y->dtype };
    td_walk_init(&job.walk, 4, (const td_tensor *const *)operands);
    for (int k = 0; k < 4; k++) { /* NULL: one zero, with strides of 0 */
        const td_tensor *t = operands[k];
        job.base[k] = t != NULL ? td_ptr(t) : (void *)&zero;
        job.size[k] = (int64_t)td_dtype_size(t != NULL ? t->dtype : y->dtype);
    }
    job.loop = job.size[0] == 1   ? choose_uint8_t
               : job.size[0] == 2 ? choose_uint16_t
               : job.size[0] == 4 ? choose_uint32_t
                                  : choose_uint64_t;
    td_parallel(td_device_of(y), job.walk.count, td_element_chunk(job.walk.count), element_range,
                &job);
}
