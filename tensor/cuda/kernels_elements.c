/* Operations on elements. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_elements.h"

/* Runs a job over y and its inputs, which may be NULL. */
static void cuda_elements_run(td_cuda_elements job, const char *name, td_tensor *y,
                              const td_tensor *a, const td_tensor *b, const td_tensor *c)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *in[3] = { a, b, c }, *operands[4] = { y };
    for (int k = 0; k < 3; k++) {
        job.in[k] = in[k] != NULL ? td_ptr(in[k]) : NULL;
        operands[k + 1] = in[k] != NULL ? in[k] : y;
    }
    job.y = td_ptr(y);
    job.walk = td_cuda_walk_of(4, operands);
    td_cuda_launch_elements(&job, td_cuda_stream(y));
    td_cuda_launched(name);
}

static td_cuda_elements elements_job(td_cuda_elements_kind kind, int op, const td_tensor *t)
{
    return (td_cuda_elements){ .kind = kind, .op = op, .dtype = t->dtype };
}

void td_cuda_axpy(td_tensor *y, double alpha, const td_tensor *x)
{
    td_cuda_elements job = elements_job(TD_CUDA_AXPY, 0, y);
    job.p = alpha;
    job.accumulate = true;
    cuda_elements_run(job, "axpy", y, x, NULL, NULL);
}

void td_cuda_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p, double q)
{
    if (op == TD_UNARY_pow && p == 2.0) { /* the common power, as the CPU does it */
        td_cuda_binary(TD_BINARY_mul, y, x, x);
        return;
    }
    td_cuda_elements job = elements_job(TD_CUDA_UNARY, (int)op, y);
    job.p = p;
    job.q = q;
    cuda_elements_run(job, "unary", y, x, NULL, NULL);
}

void td_cuda_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                        const td_tensor *y, double p, double q, bool accumulate)
{
    /* An operation whose slope needs only one of x and y may have saved only that one. */
    const td_tensor *any = x != NULL ? x : y != NULL ? y : dy;
    td_cuda_elements job = elements_job(TD_CUDA_UNARY_GRAD, (int)op, dx);
    job.p = p;
    job.q = q;
    job.accumulate = accumulate;
    cuda_elements_run(job, "unary_grad", dx, dy, x != NULL ? x : any, y != NULL ? y : any);
}

void td_cuda_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(elements_job(TD_CUDA_BINARY, (int)op, y), "binary", y, a, b, NULL);
}

void td_cuda_binary_grad(td_binary_op op, int input, td_tensor *dx, const td_tensor *g,
                         const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(elements_job(TD_CUDA_BINARY_GRAD, (int)op + input * TD_BINARY_COUNT, dx),
                      "binary_grad", dx, g, a != NULL ? a : g, b != NULL ? b : g);
}

void td_cuda_compare(td_compare_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(elements_job(TD_CUDA_COMPARE, (int)op, a), "compare", y, a, b, NULL);
}

void td_cuda_where(td_tensor *y, const td_tensor *condition, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(elements_job(TD_CUDA_WHERE, 0, y), "where", y, condition, a, b);
}
