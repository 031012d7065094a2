/* Linear: y = x w^T + b. */
#include "nn/layer.h"

typedef struct linear_state {
    td_tensor *weight, *bias; /* [out,in] and [out]; bias NULL: none */
} linear_state;

static void linear_describe(const td_module *self, char *text, size_t size)
{
    const linear_state *s = self->state;
    snprintf(text, size, "%lld, %lld%s", (long long)s->weight->shape[1],
             (long long)s->weight->shape[0], s->bias == NULL ? ", no bias" : "");
}

static int64_t linear_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)in;
    const linear_state *s = self->state;
    return td_shape_numel(out) * s->weight->shape[1];
}

TD_LAYER_BY(linear, linear_state, "Linear", td_linear_at(x, s->weight, s->bias, at),
            .describe = linear_describe, .multiply_adds = linear_multiply_adds);

bool td_is_linear(const td_module *m)
{
    return m->type == &linear_type;
}

td_tensor *td_nn_linear_add(td_module *linear, td_tensor *x, td_tensor *add, td_site at)
{
    if (td_is_surrounded(linear)) {
        td_tensor *y = td_forward_at(linear, x, at);
        return add != NULL ? td_add_at(add, y, at) : y;
    }
    const linear_state *s = linear->state;
    td_context_push(td_node_of(linear)->label);
    td_tensor *y = td_linear_add_at(x, s->weight, s->bias, add, at);
    td_context_pop();
    return y;
}

td_module *td_nn_linear_at(td_nn_linear_options o, td_site at)
{
    TD_REQUIRE(o.in > 0 && o.out > 0, at, "td_nn_linear(%lld, %lld): both sizes must be positive",
               (long long)o.in, (long long)o.out);
    linear_state s = { NULL, NULL };
    td_module *m = td_module_new(&linear_type, sizeof s);
    td_layer_weights(m, &s.weight, o.no_bias ? NULL : &s.bias, TD_SHAPE(o.out, o.in), o.out);
    return td_module_finish_with(m, &s);
}
