/* Conv2d: a convolution over [N,C,H,W]. */
#include "nn/internal.h"
#include "tensor/extend.h"

typedef struct conv2d_state {
    int64_t in, out;
    int kernel[2];
    td_conv2d_options options;
    bool no_bias;
    td_tensor *weight, *bias;
} conv2d_state;

/* The convolution of x by this layer's weights. */
static td_conv2d_options apply_to(const conv2d_state *s, td_tensor *x)
{
    td_conv2d_options options = s->options;
    options.x = x;
    options.w = s->weight;
    options.b = s->bias;
    return options;
}

static td_tensor *conv2d_forward(td_module *self, td_tensor *x, td_site at)
{
    return td_conv2d_at(apply_to(self->state, x), at);
}

td_tensor *td_conv2d_module_run(td_module *conv, td_tensor *x, td_tensor **sums, td_site at)
{
    td_context_push(td_node_of(conv)->label);
    td_tensor *y = td_conv2d_sums_at(apply_to(conv->state, x), sums, at);
    td_context_pop();
    return y;
}

/* ", stride 2x2" where the two differ from what is usual. */
static int describe_pair(char *text, size_t size, const char *what, const int pair[2], int usual)
{
    if (pair[0] == usual && pair[1] == usual) {
        return 0;
    }
    return snprintf(text, size, ", %s %dx%d", what, pair[0], pair[1]);
}

static void conv2d_describe(const td_module *self, char *text, size_t size)
{
    const conv2d_state *s = self->state;
    char stride[48] = "", padding[48] = "", dilation[48] = "", groups[32] = "";
    describe_pair(stride, sizeof stride, "stride", s->options.stride_hw, 1);
    describe_pair(padding, sizeof padding, "padding", s->options.padding_hw, 0);
    describe_pair(dilation, sizeof dilation, "dilation", s->options.dilation_hw, 1);
    if (s->options.groups > 1) {
        snprintf(groups, sizeof groups, ", groups %d", s->options.groups);
    }
    snprintf(text, size, "%lld, %lld, kernel %dx%d%s%s%s%s%s", (long long)s->in, (long long)s->out,
             s->kernel[0], s->kernel[1], stride, s->options.same ? ", same padding" : padding,
             dilation, groups, s->no_bias ? ", no bias" : "");
}

static int64_t conv2d_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)in;
    const conv2d_state *s = self->state;
    int64_t terms = s->in / s->options.groups * s->kernel[0] * s->kernel[1];
    return td_shape_numel(out) * terms;
}

static const td_module_type conv2d_type = {
    .name = "Conv2d",
    .forward = conv2d_forward,
    .describe = conv2d_describe,
    .multiply_adds = conv2d_multiply_adds,
};

bool td_is_conv2d(const td_module *m)
{
    return m->type == &conv2d_type;
}

static conv2d_state read_options(const td_nn_conv2d_options *o, td_site at)
{
    const char *name = "td_nn_conv2d";
    int64_t groups = o->groups != 0 ? o->groups : 1;
    TD_REQUIRE(o->in > 0 && o->out > 0, at, "%s(%lld, %lld): both channel counts must be positive",
               name, (long long)o->in, (long long)o->out);
    TD_REQUIRE(groups > 0 && o->in % groups == 0 && o->out % groups == 0, at,
               "%s(%lld, %lld): %lld groups do not divide both channel counts", name,
               (long long)o->in, (long long)o->out, (long long)groups);
    conv2d_state s = { .in = o->in, .out = o->out, .no_bias = o->no_bias };
    s.options.groups = (int)groups;
    s.options.same = o->same;
    td_op_pair(o->kernel, o->kernel_hw, 1, 1, name, "kernel", s.kernel, at);
    td_op_pair(o->stride, o->stride_hw, 1, 1, name, "stride", s.options.stride_hw, at);
    td_op_pair(o->padding, o->padding_hw, 0, 0, name, "padding", s.options.padding_hw, at);
    td_op_pair(o->dilation, o->dilation_hw, 1, 1, name, "dilation", s.options.dilation_hw, at);
    return s;
}

td_module *td_nn_conv2d_at(td_nn_conv2d_options options, td_site at)
{
    conv2d_state checked = read_options(&options, at);
    td_module *m = td_module_new(&conv2d_type, sizeof(conv2d_state));
    if (m == NULL) {
        return NULL;
    }
    conv2d_state *s = m->state;
    *s = checked;
    int64_t in_per_group = s->in / s->options.groups;
    td_shape shape = TD_SHAPE(s->out, in_per_group, s->kernel[0], s->kernel[1]);
    s->weight = td_module_new_parameter(m, "weight", shape, TD_FILTER);
    if (s->weight != NULL) {
        td_init_kaiming_uniform_(s->weight);
    }
    if (!s->no_bias) {
        s->bias = td_module_new_parameter(m, "bias", TD_SHAPE(s->out), TD_ROW_MAJOR);
        if (s->bias != NULL) {
            td_init_bias_uniform_(s->bias, in_per_group * s->kernel[0] * s->kernel[1]);
        }
    }
    return td_module_finish(m);
}
