/* SEQUENCE: between the products a rank computes some rows alone. A COLUMN layer gathers all ranks'
 * rows; a ROW layer's sum leaves each rank its rows (Korthikanti et al. 2022). Norms, biases and
 * whatever else has parameters get gradients of a rank's rows, which are added over the slices. */
#include "dist/slices/internal.h"

#include "autograd/ops/op.h"
#include "dist/comm/collectives.h"

/* ---- rows of other ranks ---- */

td_tensor *td_slices_gather_rows(const td_slices *s, td_tensor *rows, td_site at)
{
    if (s->slicing.ranks == 1) {
        return rows;
    }
    rows = td_op_row_major(rows, at);
    td_shape shape = td_shape_of(rows);
    shape.dim[0] *= s->slicing.ranks;
    td_tensor *all = td_step_new(shape, rows->dtype, TD_ROW_MAJOR, td_device_of(rows), at);
    td_slices_require(s, td_all_gather(s->group, all, rows, NULL), at);
    return all;
}

td_tensor *td_slices_sum_rows(const td_slices *s, td_tensor *all, td_site at)
{
    if (s->slicing.ranks == 1) {
        return all;
    }
    td_shape shape = td_shape_of(all);
    shape.dim[0] /= s->slicing.ranks;
    td_tensor *rows = td_step_new(shape, all->dtype, TD_ROW_MAJOR, td_device_of(all), at);
    td_slices_require(s, td_reduce_scatter(s->group, rows, all, TD_SUM, NULL), at);
    return rows;
}

static td_tensor *rows_view(td_tensor *t, td_site at)
{
    return td_step_view(t, t->offset, td_shape_of(t), t->stride, at);
}

static td_tensor *own_rows(const td_slices *s, const td_tensor *all, td_site at)
{
    td_shape shape = td_shape_of(all);
    shape.dim[0] /= s->slicing.ranks;
    return td_step_view(all, all->offset + s->slicing.rank * shape.dim[0] * all->stride[0], shape,
                        all->stride, at);
}

static const td_slices *slices_of_node(const td_node *node)
{
    return *(const td_slices *const *)td_params_of(node);
}

static void take_rows_backward(td_node *node, const td_tensor *dy)
{
    td_tensor *rows = (td_tensor *)(uintptr_t)dy;
    td_input_grad_is(node, 0,
                     td_slices_gather_rows(slices_of_node(node), rows, td_node_site(node)));
}

static void give_rows_backward(td_node *node, const td_tensor *dy)
{
    td_input_grad_is(node, 0, own_rows(slices_of_node(node), dy, td_node_site(node)));
}

td_tensor *td_slices_sequence(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_slices *s = ((const td_sliced *)user)->slices;
    td_site at = rest->at;
    td_shape shape = td_shape_of(x);
    int64_t d = shape.dim[shape.ndim - 1], rows = td_numel(x) / d;
    TD_REQUIRE(rows % s->slicing.slices == 0, at,
               "'%s' spreads rows: the %lld rows of x%s are not divisible by %d slices",
               td_node_of(rest->m)->label, (long long)rows, TD_SHAPE_TEXT(x), s->slicing.slices);
    s->shape = shape;
    x = td_reshape_at(x, TD_SHAPE(rows, d), at);
    x = TD_RECORD(at, .op = "take_rows", .backward = take_rows_backward, .out = own_rows(s, x, at),
                  .inputs = { x }, .params = &s, .params_size = sizeof s);
    td_tensor *y = td_run_rest(rest, x), *all = td_slices_gather_rows(s, y, at);
    if (all == y) {
        all = rows_view(y, at);
    }
    y = TD_RECORD(at, .op = "give_rows", .backward = give_rows_backward, .out = all,
                  .inputs = { y }, .params = &s, .params_size = sizeof s);
    shape.dim[shape.ndim - 1] = y->shape[1];
    return td_reshape_at(y, shape, at);
}

/* ---- parameters of rows ---- */

/* A view for each slice [begin, end); their gradients are added in the tree. */
static void fan_out(td_tensor *w, int begin, int end, td_tensor **views, td_site at)
{
    int middle = (begin + end) / 2;
    if (end - begin == 1) {
        views[begin] = w;
        return;
    }
    for (int half = 0; half < 2; half++) {
        td_tensor *v = TD_RECORD(at, .op = "joint", .backward = td_slices_pass_on,
                                 .out = rows_view(w, at), .inputs = { w });
        fan_out(v, half == 0 ? begin : middle, half == 0 ? middle : end, views, at);
    }
}

static void leaf_backward(td_node *node, const td_tensor *dy)
{
    td_site at = td_node_site(node);
    td_tensor *sum = td_step_new(td_shape_of(dy), dy->dtype, TD_ROW_MAJOR, td_device_of(dy), at);
    td_kernels_of(td_device_of(dy))->copy(sum, dy);
    td_slices_sum(slices_of_node(node), sum, at);
    td_input_grad_is(node, 0, sum);
}

/* views[i]: a parameter for the rows of slice i. */
static void spread(const td_slices *s, td_tensor *leaf, td_tensor **views, td_site at)
{
    td_tensor *w =
        TD_RECORD(at, .op = "rows_parameter", .backward = leaf_backward, .out = rows_view(leaf, at),
                  .inputs = { leaf }, .params = &s, .params_size = sizeof s);
    fan_out(w, 0, s->here, views, at);
}

static td_tensor *rows_of_slice(const td_slices *s, td_tensor *x, int i, td_site at)
{
    int64_t n = x->shape[0] / s->here;
    return s->here == 1 ? x : td_slice_at(x, 0, i * n, (i + 1) * n, 1, at);
}

td_tensor *td_slices_add_bias(const td_slices *s, td_tensor *x, td_tensor *b, td_site at)
{
    td_tensor *views[TD_SLICES_HERE], *parts[TD_SLICES_HERE];
    spread(s, b, views, at);
    for (int i = 0; i < s->here; i++) {
        parts[i] = td_add_at(rows_of_slice(s, x, i, at), views[i], at);
    }
    return s->here == 1 ? parts[0] : td_cat_at(parts, s->here, 0, at);
}

td_tensor *td_slices_rows(const td_around_rest *rest, td_tensor *x, void *user)
{
    const td_slices *s = ((const td_sliced *)user)->slices;
    const td_module *m = rest->m;
    TD_REQUIRE(x->ndim == 2 && x->shape[0] * s->slicing.ranks * s->shape.dim[s->shape.ndim - 1] ==
                                   td_shape_numel(s->shape),
               rest->at,
               "'%s' is between a COLUMN and a ROW layer, or adds rows up: x%s are not rows",
               td_node_of(m)->label, TD_SHAPE_TEXT(x));
    td_tensor *views[TD_SLICES_ROW_PARAMETERS][TD_SLICES_HERE] = { { NULL } };
    td_tensor *parts[TD_SLICES_HERE];
    for (int k = 0; k < m->tensor_count; k++) {
        spread(s, m->tensors[k].tensor, views[k], rest->at);
    }
    for (int i = 0; i < s->here; i++) {
        for (int k = 0; k < m->tensor_count; k++) {
            td_exchange_gradients(m->tensors[k].tensor, views[k][i]);
        }
        parts[i] = td_run_rest(rest, rows_of_slice(s, x, i, rest->at));
        for (int k = 0; k < m->tensor_count; k++) {
            td_exchange_gradients(m->tensors[k].tensor, views[k][i]);
        }
    }
    return s->here == 1 ? parts[0] : td_cat_at(parts, s->here, 0, rest->at);
}
