/* Linear: y = x w^T + b. */
#include "nn/internal.h"
#include "tensor/extend.h"

typedef struct linear_state {
    int64_t in, out;
    td_tensor *weight, *bias; /* bias NULL: none */
} linear_state;

static td_tensor *linear_forward(td_module *self, td_tensor *x, td_site at)
{
    const linear_state *s = self->state;
    return td_linear_at(x, s->weight, s->bias, at);
}

static void linear_describe(const td_module *self, char *text, size_t size)
{
    const linear_state *s = self->state;
    snprintf(text, size, "%lld, %lld%s", (long long)s->in, (long long)s->out,
             s->bias == NULL ? ", no bias" : "");
}

static int64_t linear_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)in;
    const linear_state *s = self->state;
    return td_shape_numel(out) * s->in;
}

static const td_module_type linear_type = {
    .name = "Linear",
    .forward = linear_forward,
    .describe = linear_describe,
    .multiply_adds = linear_multiply_adds,
};

td_module *td_nn_linear_at(td_nn_linear_options options, td_site at)
{
    int64_t in = options.in, out = options.out;
    TD_REQUIRE(in > 0 && out > 0, at, "td_nn_linear(%lld, %lld): both sizes must be positive",
               (long long)in, (long long)out);
    td_module *m = td_module_new(&linear_type, sizeof(linear_state));
    if (m == NULL) {
        return NULL;
    }
    linear_state *s = m->state;
    s->in = in;
    s->out = out;
    s->weight = td_module_new_parameter(m, "weight", TD_SHAPE(out, in), TD_FILTER);
    if (s->weight != NULL) {
        td_init_kaiming_uniform_(s->weight);
    }
    if (!options.no_bias) {
        s->bias = td_module_new_parameter(m, "bias", TD_SHAPE(out), TD_ROW_MAJOR);
        if (s->bias != NULL) {
            td_init_bias_uniform_(s->bias, in);
        }
    }
    return td_module_finish(m);
}
