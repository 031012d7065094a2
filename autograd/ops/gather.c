/* Elements picked by indices along one dimension, and added there. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* The indices in the shape of the result: a vector is the same for all other dimensions. */
static td_tensor wide_index(const td_tensor *index, const td_gather_params *p)
{
    td_tensor wide = *index;
    if (index->ndim == 1) {
        for (int d = 0; d < p->shape.ndim; d++) {
            wide.stride[d] = d == p->dim ? index->stride[0] : 0;
        }
    }
    return td_op_with_shape(&wide, p->shape, wide.stride);
}

static void gather_check(const char *op, const td_tensor *x, int dim, const td_tensor *index,
                         td_site at)
{
    td_check_tensor(index, op, "index", at);
    TD_REQUIRE(index->dtype == TD_I64 && td_same_device(td_device_of(index), td_device_of(x)), at,
               "%s: index %s beside x %s: it must be i64, on the same device", op,
               td_describe(index), td_describe(x));
    td_op_check_index(index, x->shape[dim], op, "index", at);
}

/* `index` is not larger than `whole` but along dim. */
static void check_sizes(const char *op, const td_tensor *whole, int dim, const td_tensor *index,
                        td_site at)
{
    bool fits = index->ndim == whole->ndim;
    for (int d = 0; fits && d < whole->ndim; d++) {
        fits = d == dim || index->shape[d] <= whole->shape[d];
    }
    TD_REQUIRE(fits, at,
               "%s: index%s does not fit x%s: it must have as many dimensions, and be at most as "
               "large but along dimension %d",
               op, TD_SHAPE_TEXT(index), TD_SHAPE_TEXT(whole), dim);
}

/* The gradient is added where its element came from; of 16 bits in f32, rounded once. */
static void gather_backward(td_node *node, const td_tensor *dy)
{
    const td_gather_params *p = td_params_of(node);
    const td_tensor *x = td_node_input(node, 0);
    td_site at = td_node_site(node);
    const td_kernels *kernels = td_kernels_for(dy);
    td_tensor wide = wide_index(td_saved(node, 0), p);
    if (!td_is_half(x->dtype)) {
        td_grad_slot slot = td_input_grad(node, 0);
        if (!slot.accumulate) {
            kernels->fill(slot.grad, 0.0);
        }
        kernels->scatter_add(slot.grad, dy, &wide, p->dim);
        return;
    }
    td_tensor *sum = td_op_new(td_shape_of(x), TD_F32, x, at);
    td_tensor *g = td_op_new(td_shape_of(dy), TD_F32, x, at);
    td_tensor *rounded = td_op_new(td_shape_of(x), x->dtype, x, at);
    kernels->copy(g, dy);
    kernels->fill(sum, 0.0);
    kernels->scatter_add(sum, g, &wide, p->dim);
    kernels->copy(rounded, sum);
    td_input_grad_is(node, 0, rounded);
}

static td_tensor *gather(const char *name, td_tensor *x, td_gather_params params, td_tensor *index,
                         td_site at)
{
    td_tensor *y = td_op_new(params.shape, x->dtype, x, at);
    td_tensor wide = wide_index(index, &params);
    td_kernels_for(x)->gather(y, x, &wide, params.dim);
    return TD_RECORD(at, .op = name, .backward = gather_backward, .out = y, .inputs = { x },
                     .saved = { index }, TD_PARAMS(&params));
}

td_tensor *td_op_gather_known(td_tensor *x, int dim, td_tensor *index, td_site at)
{
    return gather("gather_dim", x, (td_gather_params){ dim, td_shape_of(index) }, index, at);
}

td_tensor *td_gather_dim_at(td_tensor *x, int dim, td_tensor *index, td_site at)
{
    td_check_tensor(x, "gather_dim", "x", at);
    dim = td_check_dim(x, dim, at);
    gather_check("gather_dim", x, dim, index, at);
    check_sizes("gather_dim", x, dim, index, at);
    return td_op_gather_known(x, dim, index, at);
}

td_tensor *td_index_select_at(td_tensor *x, int dim, td_tensor *index, td_site at)
{
    td_check_tensor(x, "index_select", "x", at);
    dim = td_check_dim(x, dim, at);
    gather_check("index_select", x, dim, index, at);
    TD_REQUIRE(index->ndim == 1, at, "index_select: index%s must be a vector",
               TD_SHAPE_TEXT(index));
    td_shape shape = td_shape_of(x);
    shape.dim[dim] = index->shape[0];
    return gather("index_select", x, (td_gather_params){ dim, shape }, index, at);
}

/* x keeps its gradient; the source gets that of the places where it went. */
static void scatter_add_backward(td_node *node, const td_tensor *dy)
{
    const int *dim = td_params_of(node);
    td_input_grad_is(node, 0, dy);
    if (td_input_needs_grad(node, 1)) {
        const td_tensor *index = td_saved(node, 0);
        td_tensor *g = td_op_new(td_shape_of(index), dy->dtype, dy, td_node_site(node));
        td_kernels_for(dy)->gather(g, dy, index, *dim);
        td_input_grad_is(node, 1, g);
    }
}

td_tensor *td_scatter_add_at(td_tensor *x, int dim, td_tensor *index, td_tensor *source, td_site at)
{
    x = td_op_input(x, "scatter_add", "x", TD_RULE_OF(scatter_add), at);
    source = td_op_input(source, "scatter_add", "the source", TD_RULE_OF(scatter_add), at);
    td_check_match(x, source, "scatter_add", at);
    dim = td_check_dim(x, dim, at);
    gather_check("scatter_add", x, dim, index, at);
    check_sizes("scatter_add", x, dim, index, at);
    TD_REQUIRE(td_same_shape(index, source), at, "scatter_add: index%s and source%s must be equal",
               TD_SHAPE_TEXT(index), TD_SHAPE_TEXT(source));
    const td_kernels *kernels = td_kernels_for(x);
    td_tensor *y = td_op_new(td_shape_of(x), x->dtype, x, at);
    kernels->copy(y, x);
    kernels->scatter_add(y, source, index, dim);
    return TD_RECORD(at, .op = "scatter_add", .backward = scatter_add_backward, .out = y,
                     .inputs = { x, source }, .saved = { index }, TD_PARAMS(&dim));
}

td_tensor *td_one_hot_at(td_tensor *index, int64_t classes, td_site at)
{
    td_check_tensor(index, "one_hot", "index", at);
    TD_REQUIRE(index->dtype == TD_I64 && classes >= 0, at,
               "one_hot: index %s, %lld classes: it must be i64, and classes not negative",
               td_describe(index), (long long)classes);
    const td_kernels *kernels = td_kernels_for(index);
    td_op_check_index(index, classes, "one_hot", "index", at);
    /* 0, 1, 2, ...: counted up on the device */
    td_device device = td_device_of(index);
    td_tensor *one = td_step_new(TD_SHAPE(classes), TD_I64, TD_ROW_MAJOR, device, at);
    td_tensor *count = td_step_new_like(one, at), *classes_of = td_step_new_like(one, at);
    kernels->fill(one, 1.0);
    kernels->cumsum(count, one, 0, false);
    kernels->binary(TD_BINARY_sub, classes_of, count, one);
    td_tensor *hit = td_eq_at(td_unsqueeze_at(index, -1, at), classes_of, at);
    return td_cast_at(hit, TD_I64, at);
}
