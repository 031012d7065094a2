/* Element operations: unary, binary, their gradients, comparisons, choices. What is computed stands
 * in tensor/kernels/elementwise.def; here only how tensors are gone over. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_half.h"
#include "tensor/cpu/ops_integers.h"

typedef struct element_job element_job;
struct element_job {
    td_walk walk;
    td_dtype dtype;
    char *base[TD_WALK_OPERANDS]; /* 0 is the result */
    int64_t size[TD_WALK_OPERANDS];
    /* Computes n elements at at[k], side by side; 16-bit floats as f32. */
    void (*loop)(const element_job *job, const td_loops *loops, int64_t n, void *const *at);
    int op, input;
    double p, q;
    bool half; /* 16-bit floats */
    bool accumulate;
};

static void unary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at)
{
    loops->unary[job->op](n, at[0], at[1], job->p, job->q);
}

static void unary_grad_loop(const element_job *job, const td_loops *loops, int64_t n,
                            void *const *at)
{
    loops->unary_grad[job->op](n, at[0], at[1], at[2], at[3], job->p, job->q);
}

static void binary_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at)
{
    loops->binary[job->op](n, at[0], at[1], at[2]);
}

static void binary_grad_loop(const element_job *job, const td_loops *loops, int64_t n,
                             void *const *at)
{
    loops->binary_grad[job->input][job->op](n, at[0], at[1], at[2], at[3], 0.0, 0.0);
}

static void compare_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at)
{
    loops->compare[job->op](n, at[0], at[1], at[2]);
}

static void integer_loop(const element_job *job, const td_loops *loops, int64_t n, void *const *at)
{
    (void)loops;
    td_integer_loop((td_binary_op)job->op, job->dtype)(n, at[0], at[1], at[2]);
}

static void integer_compare_loop(const element_job *job, const td_loops *loops, int64_t n,
                                 void *const *at)
{
    (void)loops;
    td_integer_compare_loop((td_compare_op)job->op, job->dtype)(n, at[0], at[1], at[2]);
}

/* For each size of an element. */
#define CHOOSE(W)                                                                                  \
    static void choose_##W(const element_job *job, const td_loops *loops, int64_t n,               \
                           void *const *at)                                                        \
    {                                                                                              \
        (void)job, (void)loops;                                                                    \
        W *y = at[0];                                                                              \
        const uint8_t *condition = at[1];                                                          \
        const W *a = at[2], *b = at[3];                                                            \
        for (int64_t i = 0; i < n; i++) {                                                          \
            W yes = a[i], no = b[i];                                                               \
            y[i] = condition[i] != 0 ? yes : no;                                                   \
        }                                                                                          \
    }
CHOOSE(uint8_t)
CHOOSE(uint16_t)
CHOOSE(uint32_t)
CHOOSE(uint64_t)

typedef struct element_buffer {
    _Alignas(64) char at[TD_HALF_PIECE * sizeof(double)];
} element_buffer;

static bool is_half(const element_job *job, int k)
{
    return job->half && job->size[k] == 2;
}

/* A piece of operand k as a loop wants it: in its place, or in the buffer, which it fills. */
static void *take(const element_job *job, int k, int64_t n, void *from, int64_t stride,
                  element_buffer *buffer)
{
    if (!is_half(job, k)) {
        if (stride == 1) {
            return from;
        }
        td_copy_run((size_t)job->size[k], n, buffer->at, 1, from, stride);
    } else if (job->dtype == TD_BF16 && stride == 1) {
        td_loops_of(TD_BF16)->widen(n, (float *)buffer->at, from);
    } else {
        td_half_load(job->dtype, n, (float *)buffer->at, from, stride);
    }
    return buffer->at;
}

/* The other way: n elements of the result from the buffer to their place. */
static void elements_put(const element_job *job, int64_t n, void *to, int64_t stride,
                         const element_buffer *buffer)
{
    if (!is_half(job, 0)) {
        td_copy_run((size_t)job->size[0], n, to, stride, buffer->at, 1);
    } else if (job->dtype == TD_BF16 && stride == 1) {
        td_loops_of(TD_BF16)->narrow(n, to, (const float *)buffer->at);
    } else {
        td_half_store(job->dtype, n, to, stride, (const float *)buffer->at);
    }
}

/* A run, piece by piece through buffers. Of an operand that stands still, one piece serves all. */
static void run_pieces(const element_job *job, const td_loops *loops, int64_t n, char *const *base,
                       const int64_t *stride)
{
    element_buffer buffer[TD_WALK_OPERANDS], sum;
    void *at[TD_WALK_OPERANDS];
    for (int64_t begin = 0; begin < n; begin += TD_HALF_PIECE) {
        int64_t m = n - begin < TD_HALF_PIECE ? n - begin : TD_HALF_PIECE;
        for (int k = 1; k < job->walk.operands; k++) {
            bool again = k > 1 && base[k] == base[k - 1] && stride[k] == stride[k - 1];
            if (again) {
                at[k] = at[k - 1];
            } else if (begin == 0 || stride[k] != 0) {
                at[k] = take(job, k, m, base[k] + begin * stride[k] * job->size[k], stride[k],
                             &buffer[k]);
            }
        }
        char *to = base[0] + begin * stride[0] * job->size[0];
        bool direct = stride[0] == 1 && !is_half(job, 0);
        at[0] = direct && !job->accumulate ? (void *)to : buffer[0].at;
        job->loop(job, loops, m, at);
        if (job->accumulate) {
            void *old = take(job, 0, m, to, stride[0], &sum);
            loops->binary[TD_BINARY_add](m, direct ? (void *)to : buffer[0].at, old, at[0]);
        }
        if (!direct) {
            elements_put(job, m, to, stride[0], &buffer[0]);
        }
    }
}

static void element_range(void *ctx, int64_t begin, int64_t end)
{
    const element_job *job = ctx;
    const td_loops *loops = td_loops_of(job->half ? TD_F32 : job->dtype);
    bool in_place = !job->half && !job->accumulate;
    int64_t stride[TD_WALK_OPERANDS] = { 0 };
    for (int k = 0; k < job->walk.operands; k++) {
        stride[k] = job->walk.stride[k][0];
        in_place = in_place && stride[k] == 1;
    }
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        char *at[TD_WALK_OPERANDS] = { NULL };
        for (int k = 0; k < job->walk.operands; k++) {
            at[k] = job->base[k] + c.offset[k] * job->size[k];
        }
        if (in_place) {
            job->loop(job, loops, n, (void *const *)at);
        } else {
            run_pieces(job, loops, n, at, stride);
        }
    }
}

/* dtype: the loop's. An operand that is NULL is one zero, with strides of 0. */
static void run_elements(element_job *job, td_dtype dtype, int operands,
                         const td_tensor *const *tensors)
{
    static uint64_t zero;
    td_walk_init(&job->walk, operands, tensors);
    job->dtype = dtype;
    job->half = dtype == TD_BF16 || dtype == TD_F16;
    for (int k = 0; k < operands; k++) {
        const td_tensor *t = tensors[k];
        job->base[k] = t != NULL ? td_ptr(t) : (void *)&zero;
        job->size[k] = (int64_t)td_dtype_size((t != NULL ? t : tensors[0])->dtype);
    }
    td_parallel(td_device_of(tensors[0]), job->walk.count, 1, element_range, job);
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

/* n elements of each operand, side by side. */
static void run_dense(element_job *job, td_dtype dtype, int64_t n, char *const *at)
{
    static const int64_t side_by_side[TD_WALK_OPERANDS] = { 1, 1, 1, 1 };
    job->dtype = dtype;
    job->half = dtype == TD_BF16 || dtype == TD_F16;
    for (int k = 0; k < job->walk.operands; k++) {
        job->size[k] = (int64_t)td_dtype_size(dtype);
    }
    const td_loops *loops = td_loops_of(job->half ? TD_F32 : dtype);
    if (job->half) {
        run_pieces(job, loops, n, at, side_by_side);
    } else {
        job->loop(job, loops, n, (void *const *)at);
    }
}

void td_cpu_unary_run(td_unary_op op, td_dtype dtype, int64_t n, void *y, const void *x)
{
    element_job job = { .walk.operands = 2, .loop = unary_loop, .op = (int)op };
    run_dense(&job, dtype, n, (char *[]){ y, (char *)(uintptr_t)x });
}

void td_cpu_unary_grad_run(td_unary_op op, td_dtype dtype, int64_t n, void *dx, const void *dy,
                           const void *x)
{
    element_job job = { .walk.operands = 4, .loop = unary_grad_loop, .op = (int)op };
    char *from = (char *)(uintptr_t)x;
    run_dense(&job, dtype, n, (char *[]){ dx, (char *)(uintptr_t)dy, from, from });
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
    element_job job = { .loop = td_is_float(a->dtype) ? compare_loop : integer_compare_loop,
                        .op = (int)op };
    run_elements(&job, a->dtype, 3, (const td_tensor *[]){ y, a, b });
}

void td_cpu_where(td_tensor *y, const td_tensor *condition, const td_tensor *a, const td_tensor *b)
{
    size_t size = td_dtype_size(y->dtype);
    element_job job = { .loop = size == 1   ? choose_uint8_t
                                : size == 2 ? choose_uint16_t
                                : size == 4 ? choose_uint32_t
                                            : choose_uint64_t };
    run_elements(&job, TD_U8, 4,
                 (const td_tensor *[]){ y, condition, a, b }); /* bits, no numbers */
}
