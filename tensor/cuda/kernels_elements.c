/* Operations on elements. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_elements.h"
#include "tensor/lstm.h"

void td_cuda_axpy(td_tensor *y, double alpha, const td_tensor *x)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, x };
    td_cuda_launch_axpy(y->dtype, td_ptr(y), alpha, td_ptr(x), td_cuda_walk_of(2, operands),
                        td_cuda_stream(y));
    td_cuda_launched("axpy");
}

void td_cuda_unary(td_unary_op op, td_tensor *y, const td_tensor *x, double p, double q)
{
    if (op == TD_UNARY_pow && p == 2.0) { /* the common power, as the CPU does it */
        td_cuda_binary(TD_BINARY_mul, y, x, x);
        return;
    }
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, x };
    td_cuda_launch_unary((int)op, y->dtype, td_ptr(y), td_ptr(x), p, q,
                         td_cuda_walk_of(2, operands), td_cuda_stream(y));
    td_cuda_launched("unary");
}

void td_cuda_unary_grad(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                        const td_tensor *y, double p, double q, bool accumulate)
{
    if (td_numel(dx) == 0) {
        return;
    }
    /* An operation whose slope needs only one of x and y may have saved only that one. */
    const td_tensor *any_x = x ? x : (y ? y : dy), *any_y = y ? y : any_x;
    const td_tensor *operands[] = { dx, dy, any_x, any_y };
    td_cuda_launch_unary_grad((int)op, dx->dtype, td_ptr(dx), td_ptr(dy), td_ptr(any_x),
                              td_ptr(any_y), p, q, accumulate, td_cuda_walk_of(4, operands),
                              td_cuda_stream(dx));
    td_cuda_launched("unary_grad");
}

void td_cuda_binary(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, a, b };
    td_cuda_launch_binary((int)op, y->dtype, td_ptr(y), td_ptr(a), td_ptr(b),
                          td_cuda_walk_of(3, operands), td_cuda_stream(y));
    td_cuda_launched("binary");
}

void td_cuda_binary_grad(td_binary_op op, int input, td_tensor *dx, const td_tensor *g,
                         const td_tensor *a, const td_tensor *b)
{
    if (td_numel(dx) == 0) {
        return;
    }
    const td_tensor *operands[] = { dx, g, a ? a : g, b ? b : g };
    td_cuda_launch_binary_grad((int)op, input, dx->dtype, td_ptr(dx), td_ptr(g),
                               td_ptr(operands[2]), td_ptr(operands[3]),
                               td_cuda_walk_of(4, operands), td_cuda_stream(dx));
    td_cuda_launched("binary_grad");
}

void td_cuda_compare(td_compare_op op, td_tensor *y, const td_tensor *a, const td_tensor *b)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, a, b };
    td_cuda_launch_compare((int)op, a->dtype, td_ptr(y), td_ptr(a), td_ptr(b),
                           td_cuda_walk_of(3, operands), td_cuda_stream(y));
    td_cuda_launched("compare");
}

void td_cuda_where(td_tensor *y, const td_tensor *condition, const td_tensor *a, const td_tensor *b)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, condition, a ? a : y, b ? b : y };
    td_cuda_launch_where(y->dtype, td_ptr(y), td_ptr(condition), a ? td_ptr(a) : NULL,
                         b ? td_ptr(b) : NULL, td_cuda_walk_of(4, operands), td_cuda_stream(y));
    td_cuda_launched("where");
}

/* Composed of other kernels: the products of an LSTM's step take longer than the gates. */
void td_cuda_lstm_gates(td_tensor *gates, td_tensor *cells, td_tensor *h, const td_tensor *c)
{
    td_lstm_gates(td_cuda_kernels(), gates, cells, h, c);
}

void td_cuda_lstm_gates_grad(td_tensor *dgates, td_tensor *dc, const td_tensor *dh,
                             const td_tensor *gates, const td_tensor *cells, const td_tensor *c)
{
    td_lstm_gates_grad(td_cuda_kernels(), dgates, dc, dh, gates, cells, c);
}
