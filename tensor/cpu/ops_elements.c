/* Element operations: unary, their gradients, binary. What is computed stands in
 * tensor/elementwise.def; here only how tensors are gone over. */
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_half.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/storage.h"

typedef struct element_job element_job;
struct element_job {
    td_walk walk;
    td_dtype dtype;
    char *base[TD_WALK_OPERANDS]; /* 0 is the result */
    /* Computes n elements at at[k], stride[k] apart. */
    void (*loop)(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                 const int64_t *stride);
    int op;
    double p;
    bool accumulate;
};

static void unary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                       const int64_t *stride)
{
    loops->unary[job->op](n, at[0], stride[0], at[1], stride[1], job->p);
}

static void unary_grad_loop(const element_job *job, const td_loops *loops, int64_t n,
                            void *const *at, const int64_t *stride)
{
    loops->unary_grad[job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2], at[3],
                               stride[3], job->p, job->accumulate);
}

static void binary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at,
                        const int64_t *stride)
{
    loops->binary[job->op](n, at[0], stride[0], at[1], stride[1], at[2], stride[2]);
}

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

static void element_range(void *ctx, int64_t begin, int64_t end)
{
    const element_job *job = ctx;
    int64_t size = (int64_t)td_dtype_size(job->dtype);
    int64_t stride[TD_WALK_OPERANDS] = { 0 };
    for (int k = 0; k < job->walk.operands; k++) {
        stride[k] = job->walk.stride[k][0];
    }
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        void *at[TD_WALK_OPERANDS] = { job->base[0] + c.offset[0] * size };
        for (int k = 1; k < job->walk.operands; k++) {
            at[k] = job->base[k] + c.offset[k] * size;
        }
        if (job->dtype == TD_F16) {
            half_run(job, n, at, stride);
        } else {
            job->loop(job, td_loops_of(job->dtype), n, at, stride);
        }
    }
}

static void run_elements(element_job *job, int operands, const td_tensor *const *tensors)
{
    td_walk_init(&job->walk, operands, tensors);
    job->dtype = tensors[0]->dtype;
    for (int k = 0; k < operands; k++) {
        job->base[k] = td_ptr(tensors[k]);
    }
    td_parallel(td_device_of(tensors[0]), job->walk.count, td_element_chunk(job->walk.count),
                element_range, job);
}

void td_cpu_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p)
{
    if (op == TD_UNARY_POW && p == 2.0) { /* the common power, without the library's pow */
        td_cpu_binary(TD_BINARY_MUL, y, x, x);
        return;
    }
    element_job job = { .loop = unary_loop, .op = (int)op, .p = p };
    run_elements(&job, 2, (const td_tensor *[]){ y, x });
}

void td_cpu_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                       const td_tensor *y, double p, bool accumulate)
{
    element_job job = { .loop = unary_grad_loop, .op = (int)op, .p = p, .accumulate = accumulate };
    /* An operation whose slope needs only one of x and y may have saved only that one. */
    const td_tensor *any_x = x ? x : (y ? y : dy), *any_y = y ? y : any_x;
    run_elements(&job, 4, (const td_tensor *[]){ dx, dy, any_x, any_y });
}

void td_cpu_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    element_job job = { .loop = binary_loop, .op = (int)op };
    run_elements(&job, 3, (const td_tensor *[]){ y, a, b });
}
