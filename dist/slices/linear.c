/* The two operations of tensor slices: a Linear whose outputs are cut (COLUMN), and one whose
 * inputs are (ROW). A sum over slices is taken in a tree that is the same on any number of ranks: a
 * rank adds the products of its own slices, then the ranks' sums are added. */
#include "dist/slices/internal.h"

#include "autograd/ops/op.h"
#include "dist/comm/collectives.h"

void td_slices_require(const td_slices *s, td_status status, td_site at)
{
    if (status != TD_OK) {
        td_fatal(at, "tensor slices, rank %d of %d: %s", s->slicing.rank, s->slicing.ranks,
                 td_last_error());
    }
}

void td_slices_sum(const td_slices *s, td_tensor *t, td_site at)
{
    if (s->slicing.ranks > 1) {
        td_slices_require(s, td_all_reduce(s->group, t, TD_SUM, NULL), at);
    }
}

void td_slices_pass_on(td_node *node, const td_tensor *dy)
{
    td_input_grad_is(node, 0, dy);
}

/* The slices [begin, end) of this rank. */
static void add_products(const td_sliced *m, td_tensor *out, const td_tensor *x, const td_tensor *w,
                         int begin, int end, td_math math, td_site at)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(out));
    if (end - begin > 1) {
        int middle = (begin + end) / 2;
        int64_t scope = td_scope_begin();
        td_tensor *right = td_step_new_like(out, at);
        add_products(m, out, x, w, begin, middle, math, at);
        add_products(m, right, x, w, middle, end, math, at);
        kernels->axpy(out, 1.0, right);
        td_scope_end(scope, NULL);
        return;
    }
    for (int part = 0; part < TD_CUT_PARTS && m->cut->parts[part] > 0; part++) {
        td_run run = td_cut_here(&m->slices->slicing, m->cut, part, begin);
        td_tensor xs = td_cut_view(x, 1, run), ws = td_cut_view(w, 0, run);
        kernels->matmul(out, &xs, &ws, NULL, part > 0, math);
    }
}

void td_slices_product(const td_sliced *m, td_tensor *out, const td_tensor *x, const td_tensor *w,
                       td_math math, td_site at)
{
    td_tensor matrix = td_op_matrix(out, at);
    add_products(m, &matrix, x, w, 0, m->slices->here, math, at);
}

/* The sum of all ranks' t; of a module of rows this rank's rows of it. */
static td_tensor *linear_sum(const td_sliced *m, td_tensor *t, td_site at)
{
    if (m->rows) {
        return td_slices_sum_rows(m->slices, t, at);
    }
    td_slices_sum(m->slices, t, at);
    return t;
}

typedef struct linear_params {
    const td_sliced *module;
    td_math math;
} linear_params;

/* dw = dy^T x, db = the column sums of dy */
static void weight_gradients(td_node *node, const td_tensor *x, const td_tensor *dy, td_math math)
{
    td_site at = td_node_site(node);
    if (td_input_needs_grad(node, 1)) {
        td_tensor xm = td_op_matrix(x, at), turned = td_op_swapped(dy, 0, 1);
        td_op_grad_matmul(node, 1, &turned, &xm, math);
    }
    if (td_input_needs_grad(node, 2)) {
        td_op_grad_channel_sum(node, 2, dy, 1);
    }
}

/* dx = dy w, a sum over the slices */
static void column_backward(td_node *node, const td_tensor *dy)
{
    const linear_params *p = td_params_of(node);
    const td_slices *s = p->module->slices;
    td_site at = td_node_site(node);
    td_tensor matrix = td_op_matrix(dy, at);
    if (td_input_needs_grad(node, 0)) {
        const td_tensor *x = td_node_input(node, 0);
        td_shape shape = td_shape_of(x);
        shape.dim[0] *= p->module->rows ? s->slicing.ranks : 1;
        td_tensor *dx = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
        td_slices_product(p->module, dx, &matrix, td_saved(node, 1), p->math, at);
        td_input_grad_is(node, 0, linear_sum(p->module, dx, at));
    }
    td_tensor *x = (td_tensor *)(uintptr_t)td_saved(node, 0); /* the others' rows come again */
    x = x != NULL && p->module->rows ? td_slices_gather_rows(s, x, at) : x;
    weight_gradients(node, x, &matrix, p->math);
}

static void row_backward(td_node *node, const td_tensor *dy)
{
    const linear_params *p = td_params_of(node);
    td_site at = td_node_site(node);
    td_tensor *all = (td_tensor *)(uintptr_t)dy;
    all = p->module->rows ? td_slices_gather_rows(p->module->slices, all, at) : all;
    td_tensor matrix = td_op_matrix(all, at);
    if (td_input_needs_grad(node, 0)) {
        td_op_grad_matmul(node, 0, &matrix, td_saved(node, 1), p->math);
    }
    weight_gradients(node, td_saved(node, 0), &matrix, p->math);
}

/* x checked and cast. */
static td_tensor *linear_input(const td_around_rest *rest, const td_tensor *w, td_tensor *x)
{
    x = td_op_input(x, "linear", "x", TD_RULE_OF(linear), rest->at);
    td_check_mixed(x, w, "linear", rest->at);
    TD_REQUIRE(x->ndim >= 1 && x->shape[x->ndim - 1] == w->shape[1], rest->at,
               "'%s' is cut into slices: x%s must have %lld features on this rank",
               td_node_of(rest->m)->label, TD_SHAPE_TEXT(x), (long long)w->shape[1]);
    return x;
}

td_tensor *td_slices_column(const td_around_rest *rest, td_tensor *x, void *user)
{
    const td_sliced *m = user;
    td_tensor *w = m->weight, *b = m->bias;
    x = linear_input(rest, w, x);
    td_tensor *all = m->rows ? td_slices_gather_rows(m->slices, x, rest->at) : x;
    td_shape shape = m->rows ? m->slices->shape : td_shape_of(x);
    shape.dim[shape.ndim - 1] = w->shape[0];
    td_tensor *y = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), rest->at);
    td_tensor xm = td_op_matrix(all, rest->at), ym = td_op_matrix(y, rest->at);
    td_tensor turned = td_op_swapped(w, 0, 1);
    linear_params p = { m, td_math_now() };
    td_kernels_of(td_device_of(x))->matmul(&ym, &xm, &turned, b, false, p.math);
    return TD_RECORD(rest->at, .op = "column", .backward = column_backward, .can_split = true,
                     .out = y, .inputs = { x, w, b },
                     .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL },
                     .params = &p, .params_size = sizeof p);
}

td_tensor *td_slices_row(const td_around_rest *rest, td_tensor *x, void *user)
{
    const td_sliced *m = user;
    td_site at = rest->at;
    td_tensor *w = m->weight, *b = m->bias;
    x = linear_input(rest, w, x);
    td_tensor xm = td_op_matrix(x, at), turned = td_op_swapped(w, 0, 1);
    td_shape shape = m->rows ? TD_SHAPE(xm.shape[0], 0) : td_shape_of(x);
    shape.dim[shape.ndim - 1] = w->shape[0];
    td_tensor *y = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
    linear_params p = { m, td_math_now() };
    td_slices_product(m, y, &xm, &turned, p.math, at);
    y = linear_sum(m, y, at);
    y = TD_RECORD(at, .op = "row", .backward = row_backward, .can_split = true, .out = y,
                  .inputs = { x, w },
                  .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL },
                  .params = &p, .params_size = sizeof p);
    return b == NULL ? y
           : m->rows ? td_slices_add_bias(m->slices, y, b, at)
                     : td_add_at(y, b, at); /* once, and equal on all ranks */
}
