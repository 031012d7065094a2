/* Kernels along one dimension. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_lines.h"

/* The lines of operands along dim, each of n elements. */
static td_cuda_line cuda_lines_of(td_dtype dtype, int64_t n, int dim, int operands,
                                  const td_tensor *const *tensors)
{
    td_tensor rest[3];
    const td_tensor *without[3];
    td_cuda_line line = { .dtype = dtype, .n = n };
    for (int k = 0; k < operands; k++) {
        rest[k] = *tensors[k];
        rest[k].shape[dim] = 1;
        without[k] = &rest[k];
        line.stride[k] = tensors[k]->stride[dim];
    }
    line.walk = td_cuda_walk_of(operands, without);
    return line;
}

void td_cuda_gather(td_tensor *y, const td_tensor *x, const td_tensor *index, int dim)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_tensor rest = *x;
    rest.stride[dim] = 0;
    td_cuda_launch_gather(
        x->dtype, td_ptr(y), td_ptr(index), td_ptr(x), x->shape[dim], x->stride[dim],
        td_cuda_walk_of(3, (const td_tensor *[]){ y, index, &rest }), td_cuda_stream(y));
    td_cuda_launched("gather");
}

void td_cuda_scatter_add(td_tensor *y, const td_tensor *x, const td_tensor *index, int dim)
{
    if (td_numel(index) == 0) {
        return;
    }
    td_tensor lines = *y; /* those that the index has */
    for (int d = 0; d < y->ndim; d++) {
        lines.shape[d] = index->shape[d];
    }
    const td_tensor *operands[] = { &lines, x, index };
    td_cuda_line line = cuda_lines_of(y->dtype, index->shape[dim], dim, 3, operands);
    td_cuda_launch_scatter_add(&line, td_ptr(y), td_ptr(x), td_ptr(index), y->shape[dim],
                               td_cuda_stream(y));
    td_cuda_launched("scatter_add");
}

void td_cuda_cumsum(td_tensor *y, const td_tensor *x, int dim, bool backwards)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_cuda_line line =
        cuda_lines_of(x->dtype, x->shape[dim], dim, 2, (const td_tensor *[]){ y, x });
    td_cuda_launch_cumsum(&line, td_ptr(y), td_ptr(x), backwards, td_cuda_stream(y));
    td_cuda_launched("cumsum");
}

void td_cuda_prod(td_tensor *y, const td_tensor *x, int dim)
{
    if (x->shape[dim] == 0) {
        td_cuda_fill(y, 1.0);
        return;
    }
    if (td_numel(y) == 0) {
        return;
    }
    td_cuda_line line =
        cuda_lines_of(x->dtype, x->shape[dim], dim, 2, (const td_tensor *[]){ y, x });
    td_cuda_launch_prod(&line, td_ptr(y), td_ptr(x), td_cuda_stream(y));
    td_cuda_launched("prod");
}

void td_cuda_prod_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *x, int dim)
{
    if (td_numel(dx) == 0) {
        return;
    }
    td_cuda_line line =
        cuda_lines_of(x->dtype, x->shape[dim], dim, 3, (const td_tensor *[]){ dx, dy, x });
    td_cuda_launch_prod_grad(&line, td_ptr(dx), td_ptr(dy), td_ptr(x), td_cuda_stream(dx));
    td_cuda_launched("prod_grad");
}

void td_cuda_argsort(td_tensor *index, const td_tensor *x, int dim, bool descending)
{
    if (td_numel(x) == 0) {
        return;
    }
    td_cuda_line line =
        cuda_lines_of(x->dtype, x->shape[dim], dim, 2, (const td_tensor *[]){ index, x });
    td_cuda_launch_argsort(&line, td_ptr(index), td_ptr(x), descending, td_cuda_stream(x));
    td_cuda_launched("argsort");
}

void td_cuda_triangle(td_tensor *y, const td_tensor *x, int64_t diagonal, bool upper)
{
    if (td_numel(y) == 0) {
        return;
    }
    int last = x->ndim - 1;
    td_cuda_line line =
        cuda_lines_of(x->dtype, x->shape[last], last, 2, (const td_tensor *[]){ y, x });
    td_cuda_launch_triangle(&line, td_ptr(y), td_ptr(x), x->shape[last - 1], diagonal, upper,
                            td_cuda_stream(y));
    td_cuda_launched("triangle");
}
