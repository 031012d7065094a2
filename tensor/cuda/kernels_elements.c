/* Operations on elements. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_elements.h"

/* Runs a job over y and its inputs, of which the last may be NULL. */
static void cuda_elements_run(td_cuda_elements job, const char *name, td_tensor *y,
                              const td_tensor *const in[3])
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[4] = { y };
    for (int k = 0; k < 3; k++) {
        job.in[k] = in[k] != NULL ? td_ptr(in[k]) : NULL;
        operands[k + 1] = in[k] != NULL ? in[k] : y;
    }
    job.y = td_ptr(y);
    job.walk = td_cuda_walk_of(4, operands);
    td_cuda_launch_elements(&job, td_cuda_stream(y));
    td_cuda_launched(name);
}

void td_cuda_axpy(td_tensor *y, double alpha, const td_tensor *x)
{
    cuda_elements_run(
        (td_cuda_elements){
            .kind = TD_CUDA_AXPY, .dtype = y->dtype, .p = alpha, .accumulate = true },
        "axpy", y, (const td_tensor *[3]){ x });
}

void td_cuda_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p, double q)
{
    if (op == TD_UNARY_pow && p == 2.0) { /* the common power, as the CPU does it */
        td_cuda_binary(TD_BINARY_mul, y, x, x);
        return;
    }
    cuda_elements_run(
        (td_cuda_elements){
            .kind = TD_CUDA_UNARY, .op = (int)op, .dtype = y->dtype, .p = p, .q = q },
        "unary", y, (const td_tensor *[3]){ x });
}

void td_cuda_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                        const td_tensor *y, double p, double q, bool accumulate)
{
    /* An operation whose slope needs only one of x and y may have saved only that one. */
    const td_tensor *any = x != NULL ? x : y != NULL ? y : dy;
    cuda_elements_run((td_cuda_elements){ .kind = TD_CUDA_UNARY_GRAD,
                                          .op = (int)op,
                                          .dtype = dx->dtype,
                                          .p = p,
                                          .q = q,
                                          .accumulate = accumulate },
                      "unary_grad", dx,
                      (const td_tensor *[3]){ dy, x != NULL ? x : any, y != NULL ? y : any });
}

void td_cuda_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(
        (td_cuda_elements){ .kind = TD_CUDA_BINARY, .op = (int)op, .dtype = y->dtype }, "binary", y,
        (const td_tensor *[3]){ a, b });
}

void td_cuda_binary_grad(td_binary_op op, int input, td_tensor *dx, const td_tensor *g,
                         const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run((td_cuda_elements){ .kind = TD_CUDA_BINARY_GRAD,
                                          .op = (int)op + input * TD_BINARY_COUNT,
                                          .dtype = dx->dtype },
                      "binary_grad", dx,
                      (const td_tensor *[3]){ g, a != NULL ? a : g, b != NULL ? b : g });
}

void td_cuda_compare(td_compare_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run(
        (td_cuda_elements){ .kind = TD_CUDA_COMPARE, .op = (int)op, .dtype = a->dtype }, "compare",
        y, (const td_tensor *[3]){ a, b });
}

void td_cuda_where(td_tensor *y, const td_tensor *condition, const td_tensor *a, const td_tensor *b)
{
    cuda_elements_run((td_cuda_elements){ .kind = TD_CUDA_WHERE, .dtype = y->dtype }, "where", y,
                      (const td_tensor *[3]){ condition, a, b });
}
