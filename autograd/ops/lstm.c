/* The steps of an LSTM layer as one operation: its views need no tape, and the gradient of the
 * recurrent weight is one product over all steps. With s = sigmoid and R the rows of w that a gate
 * has:
 *     i, f, o = s(from_x_t + R h);  g = tanh(from_x_t + R h);  c = f c + i g;  h = o tanh(c) */
#include "autograd/fused.h"
#include "autograd/ops/op.h"
#include "tensor/extend.h"

/* Columns [first, first + count) of step t of [N,T,...]. */
static td_tensor part(const td_tensor *all, int64_t t, int64_t first, int64_t count)
{
    td_tensor view = *all;
    view.ndim = 2;
    view.shape[1] = count;
    view.stride[1] = all->stride[2];
    view.offset += t * all->stride[1] + first * all->stride[2];
    return view;
}

/* A copy of a matrix that each step multiplies by. The rows' distance is no power of two, which
 * would put them into few sets of a cache. */
static td_tensor spread(const td_tensor *w, td_site at)
{
    enum { PAD = 16 };
    td_shape shape = TD_SHAPE(w->shape[0], w->shape[1] + PAD);
    td_tensor view = *td_step_new(shape, w->dtype, TD_ROW_MAJOR, td_device_of(w), at);
    view.shape[1] = w->shape[1];
    td_kernels_of(td_device_of(w))->copy(&view, w);
    return view;
}

/* The steps of a result, or of its gradient: [N,T,H]. */
static td_tensor steps_of(const td_tensor *out, const td_tensor *gates)
{
    int64_t n = gates->shape[0], steps = gates->shape[1], hidden = gates->shape[2] / 4;
    int64_t unit = out->stride[0];
    return td_op_with_shape(out, TD_SHAPE(n, steps, hidden),
                            (int64_t[]){ steps * hidden * unit, hidden * unit, unit });
}

/* The last c in a result, or its gradient: [N,H]. */
static td_tensor last_cell_of(const td_tensor *out, const td_tensor *gates)
{
    int64_t n = gates->shape[0], hidden = gates->shape[2] / 4, unit = out->stride[0];
    td_tensor view = td_op_with_shape(out, TD_SHAPE(n, hidden), (int64_t[]){ hidden * unit, unit });
    view.offset += n * gates->shape[1] * hidden * unit;
    return view;
}

/* ---- backward ---- */

/* dw = the sum over steps of dgates_t^T h_(t-1), as one product. */
static void weight_backward(td_node *node, const td_tensor *dgates, const td_tensor *h,
                            const td_tensor *h0, td_math math)
{
    if (!td_input_needs_grad(node, 1)) {
        return;
    }
    td_site at = td_node_site(node);
    const td_kernels *kernels = td_kernels_of(td_device_of(h));
    td_tensor *before = td_step_new(td_shape_of(h), h->dtype, TD_ROW_MAJOR, td_device_of(h), at);
    td_tensor first = part(before, 0, 0, h->shape[2]), to = *before, from = *h;
    kernels->copy(&first, h0);
    to.shape[1] = from.shape[1] = h->shape[1] - 1;
    to.offset += to.stride[1];
    kernels->copy(&to, &from);
    td_tensor dgates_matrix = td_op_matrix(dgates, at), matrix = td_op_matrix(before, at);
    td_tensor turned = td_op_swapped(&dgates_matrix, 0, 1);
    td_op_grad_matmul(node, 1, &turned, &matrix, math);
}

static void lstm_backward(td_node *node, const td_tensor *dout)
{
    const td_tensor *gates = td_saved(node, 0), *cells = td_saved(node, 1);
    const td_tensor *h0 = td_saved(node, 3), *c0 = td_saved(node, 4);
    td_math math = *(const td_math *)td_params_of(node);
    td_site at = td_node_site(node);
    const td_kernels *kernels = td_kernels_of(td_device_of(gates));
    int64_t steps = gates->shape[1], hidden = h0->shape[1];
    td_tensor dy = steps_of(dout, gates), dc_last = last_cell_of(dout, gates);
    td_tensor *dgates = td_step_new_like(gates, at);
    td_tensor w = spread(td_saved(node, 5), at);
    td_tensor *dh = td_step_new(td_shape_of(h0), h0->dtype, TD_ROW_MAJOR, td_device_of(h0), at);
    td_tensor *dc = td_step_new_like(dh, at), from = *dgates; /* from: dgates of step t + 1 */
    kernels->copy(dc, &dc_last);
    for (int64_t t = steps - 1; t >= 0; t--) {
        td_tensor from_y = part(&dy, t, 0, hidden), to = part(dgates, t, 0, 4 * hidden);
        kernels->copy(dh, &from_y);
        if (t + 1 < steps) {
            kernels->matmul(dh, &from, &w, NULL, true, math);
        }
        td_tensor gates_t = part(gates, t, 0, 4 * hidden), cells_t = part(cells, t, 0, 2 * hidden);
        td_tensor c = t > 0 ? part(cells, t - 1, 0, hidden) : *c0;
        kernels->lstm_gates_grad(&to, dc, dh, &gates_t, &cells_t, &c);
        from = to;
    }
    td_tensor h = steps_of(td_saved(node, 2), gates);
    weight_backward(node, dgates, &h, h0, math);
    td_op_grad_matmul(node, 2, &from, &w, math);
    td_input_grad_is(node, 3, dc);
    td_input_grad_is(node, 0, dgates);
}

/* ---- forward ---- */

static void check(const td_tensor *from_x, const td_tensor *w, const td_tensor *h,
                  const td_tensor *c, td_site at)
{
    const td_tensor *others[] = { w, h, c };
    for (int i = 0; i < 3; i++) {
        td_check_tensor(others[i], "lstm", i == 0 ? "the weight" : "the state", at);
        td_check_match(from_x, others[i], "lstm", at);
    }
}

td_tensor *td_lstm_steps_at(td_tensor *from_x, td_tensor *w, td_tensor *h0, td_tensor *c0,
                            td_site at)
{
    from_x = td_op_input(from_x, "lstm", "x", TD_RULE_IS_WIDENS, at);
    check(from_x, w, h0, c0, at);
    int64_t n = from_x->shape[0], steps = from_x->shape[1], hidden = h0->shape[1];
    td_device device = td_device_of(from_x);
    const td_kernels *kernels = td_kernels_of(device);
    td_tensor *out =
        td_step_new(TD_SHAPE((steps + 1) * n * hidden), from_x->dtype, TD_ROW_MAJOR, device, at);
    td_tensor *cells = td_step_new(TD_SHAPE(n, steps, 2 * hidden), from_x->dtype, TD_ROW_MAJOR,
                                   device, at); /* c and tanh(c) */
    td_tensor y = steps_of(out, from_x), last = last_cell_of(out, from_x);
    td_tensor h = *h0, c = *c0, turned = td_op_swapped(w, 0, 1), w_t = spread(&turned, at);
    td_math math = td_math_now();
    for (int64_t t = 0; t < steps; t++) {
        td_tensor gates = part(from_x, t, 0, 4 * hidden), next = part(&y, t, 0, hidden);
        td_tensor cells_t = part(cells, t, 0, 2 * hidden);
        kernels->matmul(&gates, &h, &w_t, NULL, true, math);
        kernels->lstm_gates(&gates, &cells_t, &next, &c);
        h = next;
        c = part(cells, t, 0, hidden);
    }
    kernels->copy(&last, &c);
    return TD_RECORD(at, .op = "lstm", .backward = lstm_backward, .out = out,
                     .inputs = { from_x, w, h0, c0 }, .saved = { from_x, cells, out, h0, c0, w },
                     .params = &math, .params_size = sizeof math);
}
