/* LSTM (Hochreiter, Schmidhuber 1997) and GRU (Cho et al. 2014), composed of operations; an LSTM's
 * steps are one (autograd/ops/lstm.c) in f32 and f64. With x_t the input of a step, s = sigmoid, W
 * and R the rows of weight_ih and weight_hh that a gate has:
 *     LSTM: i, f, o = s(W x_t + R h);  g = tanh(W x_t + R h);  c = f c + i g;  h = o tanh(c)
 *     GRU:  r, z = s(W x_t + R h);  n = tanh(W x_t + r (R h));  h = (1 - z) n + z h
 * The products with x are made for all steps at once. */
#include "nn/extra/layers.h"
#include "autograd/fused.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <stdio.h>

enum { MOST_LAYERS = 64 }; /* a direction counts as one */

typedef struct recurrent {
    td_nn_recurrent_options options;
    int directions;
    /* Of each layer, of both directions the forward one first; biases NULL: none. */
    td_tensor *weight_ih[MOST_LAYERS], *weight_hh[MOST_LAYERS], *bias_ih[MOST_LAYERS],
        *bias_hh[MOST_LAYERS];
    int gates;
} recurrent;

/* The part of [N, gates hidden] that belongs to gates [first, end). */
static td_tensor *gates_of(const recurrent *r, td_tensor *all, int first, int end, td_site at)
{
    return td_slice_at(all, 1, first * r->options.hidden, end * r->options.hidden, 1, at);
}

/* from_x, from_h: W x_t and R h, with their biases. */
static td_tensor *lstm_step(const recurrent *r, td_tensor *from_x, td_tensor *from_h, td_tensor *h,
                            td_tensor **c, td_site at)
{
    (void)h;
    td_tensor *all = td_add_at(from_x, from_h, at);
    td_tensor *both = td_sigmoid_at(gates_of(r, all, 0, 2, at), at);
    td_tensor *i = gates_of(r, both, 0, 1, at), *f = gates_of(r, both, 1, 2, at);
    td_tensor *g = td_tanh_at(gates_of(r, all, 2, 3, at), at);
    td_tensor *o = td_sigmoid_at(gates_of(r, all, 3, 4, at), at);
    *c = td_add_at(td_mul_at(f, *c, at), td_mul_at(i, g, at), at);
    return td_mul_at(o, td_tanh_at(*c, at), at);
}

static td_tensor *gru_step(const recurrent *r, td_tensor *from_x, td_tensor *from_h, td_tensor *h,
                           td_site at)
{
    td_tensor *both = td_sigmoid_at(
        td_add_at(gates_of(r, from_x, 0, 2, at), gates_of(r, from_h, 0, 2, at), at), at);
    td_tensor *reset = gates_of(r, both, 0, 1, at), *z = gates_of(r, both, 1, 2, at);
    td_tensor *n = td_tanh_at(td_add_at(gates_of(r, from_x, 2, 3, at),
                                        td_mul_at(reset, gates_of(r, from_h, 2, 3, at), at), at),
                              at);
    return td_add_at(n, td_mul_at(z, td_sub_at(h, n, at), at), at);
}

/* run_layer for an LSTM whose steps are one operation. */
static td_tensor *run_lstm_layer(const recurrent *r, int layer, td_tensor *x, td_tensor **h,
                                 td_tensor **c, td_site at)
{
    td_tensor *bias = r->bias_ih[layer];
    if (bias != NULL) {
        bias = td_add_at(bias, r->bias_hh[layer], at);
    }
    td_tensor *from_x = td_linear_at(x, r->weight_ih[layer], bias, at);
    td_tensor *out = td_lstm_steps_at(from_x, r->weight_hh[layer], *h, *c, at);
    int64_t n = x->shape[0], steps = x->shape[1], hidden = r->options.hidden;
    int64_t end = n * steps * hidden;
    td_tensor *y =
        td_reshape_at(td_slice_at(out, 0, 0, end, 1, at), TD_SHAPE(n, steps, hidden), at);
    td_shape shape = TD_SHAPE(n, hidden);
    *h = td_reshape_at(td_slice_at(y, 1, steps - 1, steps, 1, at), shape, at);
    *c = td_reshape_at(td_slice_at(out, 0, end, end + n * hidden, 1, at), shape, at);
    return y;
}

/* x [N,T,in] -> [N,T,hidden] through one layer, which begins with h (and c) and leaves them.
 * An ONNX export observes operations, and so gets those of each step; 16-bit products get them,
 * too, as each of these operations has its own rule of precision. */
static td_tensor *run_layer(const recurrent *r, int layer, td_tensor *x, td_tensor **h,
                            td_tensor **c, td_site at)
{
    bool half = td_is_half(x->dtype) || td_is_half(td_precision_dtype(td_math_now().precision));
    if (r->gates == 4 && !half && !td_operations_observed()) {
        return run_lstm_layer(r, layer, x, h, c, at);
    }
    int64_t n = x->shape[0], steps = x->shape[1], hidden = r->options.hidden;
    td_tensor *from_x = td_linear_at(x, r->weight_ih[layer], r->bias_ih[layer], at);
    td_tensor **outputs = td_step_bytes((size_t)steps * sizeof *outputs);
    for (int64_t t = 0; t < steps; t++) {
        td_tensor *now = td_reshape_at(td_slice_at(from_x, 1, t, t + 1, 1, at),
                                       TD_SHAPE(n, r->gates * hidden), at);
        td_tensor *from_h = td_linear_at(*h, r->weight_hh[layer], r->bias_hh[layer], at);
        *h =
            r->gates == 4 ? lstm_step(r, now, from_h, *h, c, at) : gru_step(r, now, from_h, *h, at);
        outputs[t] = td_reshape_at(*h, TD_SHAPE(n, 1, hidden), at);
    }
    return td_cat_at(outputs, (int)steps, 1, at);
}

/* Part `layer` of a state [layers * directions,N,hidden], or zeros. */
static td_tensor *begin_with(const recurrent *r, td_tensor *state, int layer, const td_tensor *x,
                             td_site at)
{
    td_shape shape = TD_SHAPE(x->shape[0], r->options.hidden);
    if (state == NULL) {
        td_tensor *zeros = td_step_new(shape, x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
        td_fill_(zeros, 0.0);
        return zeros;
    }
    int layers = r->options.layers * r->directions;
    TD_REQUIRE(state->ndim == 3 && state->shape[0] == layers && state->shape[1] == shape.dim[0] &&
                   state->shape[2] == shape.dim[1],
               at, "td_recurrent_forward: the state is %s; it must be [%d,%lld,%lld]",
               td_describe(state), layers, (long long)shape.dim[0], (long long)shape.dim[1]);
    return td_reshape_at(td_slice_at(state, 0, layer, layer + 1, 1, at), shape, at);
}

static td_tensor *forward_from(const recurrent *r, td_tensor *x, td_recurrent_state *state,
                               td_site at)
{
    td_check_tensor(x, "a recurrent layer", "x", at);
    TD_REQUIRE(x->ndim == 3 && x->shape[2] == r->options.in && x->shape[1] > 0, at,
               "a recurrent layer: x is %s; it must be [N,T,%lld] with T at least 1",
               td_describe(x), (long long)r->options.in);
    int layers = r->options.layers * r->directions;
    td_tensor *outputs[2] = { NULL, NULL }; /* of the directions */
    td_tensor *last_h[MOST_LAYERS], *last_c[MOST_LAYERS];
    td_shape one = TD_SHAPE(1, x->shape[0], r->options.hidden);
    for (int i = 0; i < layers; i++) {
        td_tensor *h = begin_with(r, state->h, i, x, at);
        td_tensor *c = r->gates == 4 ? begin_with(r, state->c, i, x, at) : NULL;
        bool reverse = i % r->directions == 1;
        td_tensor *y = run_layer(r, i, reverse ? td_flip_at(x, 1, at) : x, &h, &c, at);
        outputs[reverse] = reverse ? td_flip_at(y, 1, at) : y;
        last_h[i] = td_reshape_at(h, one, at);
        last_c[i] = c != NULL ? td_reshape_at(c, one, at) : NULL;
        if (reverse || r->directions == 1) {
            x = reverse ? td_cat_at(outputs, 2, 2, at) : y;
        }
    }
    state->h = td_cat_at(last_h, layers, 0, at);
    state->c = r->gates == 4 ? td_cat_at(last_c, layers, 0, at) : NULL;
    return x;
}

static td_tensor *recurrent_forward(td_module *self, td_tensor *x, td_site at)
{
    td_recurrent_state state = { NULL, NULL };
    return forward_from(self->state, x, &state, at);
}

static void recurrent_describe(const td_module *self, char *text, size_t size)
{
    const recurrent *r = self->state;
    snprintf(text, size, "%lld, %lld, layers %d%s%s", (long long)r->options.in,
             (long long)r->options.hidden, r->options.layers, r->options.no_bias ? ", no bias" : "",
             r->directions == 2 ? ", bidirectional" : "");
}

static const td_module_type lstm_type = {
    .name = "LSTM",
    .forward = recurrent_forward,
    .describe = recurrent_describe,
};
static const td_module_type gru_type = {
    .name = "GRU",
    .forward = recurrent_forward,
    .describe = recurrent_describe,
};

td_tensor *td_recurrent_forward_at(td_module *m, td_tensor *x, td_recurrent_state *state,
                                   td_site at)
{
    TD_REQUIRE(m != NULL && (m->type == &lstm_type || m->type == &gru_type), at,
               "td_recurrent_forward: the module is %s, not an LSTM or a GRU",
               m != NULL ? m->type->name : "NULL");
    return forward_from(m->state, x, state, at);
}

static td_tensor *new_uniform(td_module *m, const char *name, int layer, td_shape shape)
{
    const recurrent *r = m->state;
    char whole[32];
    snprintf(whole, sizeof whole, "%s_l%d%s", name, layer / r->directions,
             layer % r->directions == 1 ? "_reverse" : "");
    td_tensor *t =
        td_module_new_parameter(m, whole, shape, shape.ndim == 2 ? TD_FILTER : TD_ROW_MAJOR);
    if (t != NULL) {
        td_init_bias_uniform_(t, r->options.hidden);
    }
    return t;
}

static td_module *make(const td_module_type *type, int gates, td_nn_recurrent_options o, td_site at)
{
    o.layers = o.layers != 0 ? o.layers : 1;
    int directions = o.bidirectional ? 2 : 1, most = MOST_LAYERS / directions;
    TD_REQUIRE(o.in > 0 && o.hidden > 0 && o.layers > 0 && o.layers <= most, at,
               "%s(%lld, %lld): both sizes must be positive, and %d layers are not 1 to %d",
               type->name, (long long)o.in, (long long)o.hidden, o.layers, most);
    td_module *m = td_module_new(type, sizeof(recurrent));
    if (m == NULL) {
        return NULL;
    }
    recurrent *r = m->state;
    r->options = o;
    r->gates = gates;
    r->directions = directions;
    for (int i = 0; i < o.layers * directions; i++) {
        int64_t in = i < directions ? o.in : directions * o.hidden, rows = gates * o.hidden;
        r->weight_ih[i] = new_uniform(m, "weight_ih", i, TD_SHAPE(rows, in));
        r->weight_hh[i] = new_uniform(m, "weight_hh", i, TD_SHAPE(rows, o.hidden));
        if (!o.no_bias) {
            r->bias_ih[i] = new_uniform(m, "bias_ih", i, TD_SHAPE(rows));
            r->bias_hh[i] = new_uniform(m, "bias_hh", i, TD_SHAPE(rows));
        }
    }
    return td_module_finish(m);
}

td_module *td_nn_lstm_at(td_nn_recurrent_options options, td_site at)
{
    return make(&lstm_type, 4, options, at);
}

td_module *td_nn_gru_at(td_nn_recurrent_options options, td_site at)
{
    return make(&gru_type, 3, options, at);
}
