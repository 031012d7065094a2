/* Conv2d: a convolution over [N,C,H,W]. */
#include "nn/module.h"

typedef struct conv2d_state {
    int64_t in, out;
    int kernel[2];
    td_conv2d_options options;
    bool no_bias;
    td_tensor *weight, *bias;
} conv2d_state;

static td_tensor *conv2d_forward(td_module *self, td_tensor *x, td_site at)
{
    const conv2d_state *s = self->state;
    return (td_conv2d)(x, s->weight, s->bias, &s->options, at);
}

td_tensor *td_conv2d_module_run(td_module *conv, td_tensor *x, td_tensor **sums, td_site at)
{
    const conv2d_state *s = conv->state;
    td_context_push(td_node_of(conv)->label);
    td_conv2d_options options = s->options;
    options.sums = sums;
    td_tensor *y = (td_conv2d)(x, s->weight, s->bias, &options, at);
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
    describe_pair(stride, sizeof stride, "stride", s->options.stride, 1);
    int pad[2] = { s->options.padding[0], s->options.padding[1] };
    pad[1] = pad[1] == TD_PAD_NONE ? 0 : pad[1];
    describe_pair(padding, sizeof padding, "padding", pad, 0);
    describe_pair(dilation, sizeof dilation, "dilation", s->options.dilation, 1);
    if (s->options.groups > 1) {
        snprintf(groups, sizeof groups, ", groups %d", s->options.groups);
    }
    snprintf(text, size, "%lld, %lld, kernel %dx%d%s%s%s%s%s", (long long)s->in, (long long)s->out,
             s->kernel[0], s->kernel[1], stride, padding, dilation, groups,
             s->no_bias ? ", no bias" : "");
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

/* Both 0: the usual value; a width of 0 beside a height means the same as the height. */
static void fill_pair(int to[2], const int from[2], int usual)
{
    to[0] = from[0] != 0 ? from[0] : usual;
    to[1] = from[1] != 0 ? from[1] : from[0] != 0 ? from[0] : usual;
}

static void read_options(conv2d_state *s, const td_nn_conv2d_options *options)
{
    static const td_nn_conv2d_options usual;
    const td_nn_conv2d_options *o = options != NULL ? options : &usual;
    fill_pair(s->kernel, o->kernel, 1);
    fill_pair(s->options.stride, o->stride, 1);
    fill_pair(s->options.padding, o->padding, 0);
    fill_pair(s->options.dilation, o->dilation, 1);
    s->options.groups = o->groups != 0 ? o->groups : 1;
    s->no_bias = o->no_bias;
}

static void check_options(const conv2d_state *s)
{
    TD_REQUIRE(s->in > 0 && s->out > 0, TD_HERE,
               "td_nn_conv2d(%lld, %lld): both channel counts must be positive", (long long)s->in,
               (long long)s->out);
    int64_t groups = s->options.groups;
    TD_REQUIRE(groups > 0 && s->in % groups == 0 && s->out % groups == 0, TD_HERE,
               "td_nn_conv2d(%lld, %lld): %lld groups do not divide both channel counts",
               (long long)s->in, (long long)s->out, (long long)groups);
    for (int i = 0; i < 2; i++) {
        TD_REQUIRE(
            s->kernel[i] > 0 && s->options.stride[i] > 0 && s->options.dilation[i] > 0 &&
                (s->options.padding[i] >= 0 || (i == 1 && s->options.padding[i] == TD_PAD_NONE)),
            TD_HERE,
            "td_nn_conv2d: kernel %d, stride %d and dilation %d must be positive, padding %d "
            "not negative",
            s->kernel[i], s->options.stride[i], s->options.dilation[i], s->options.padding[i]);
    }
}

td_module *td_nn_conv2d(int64_t in, int64_t out, const td_nn_conv2d_options *options)
{
    conv2d_state checked = { .in = in, .out = out };
    read_options(&checked, options);
    check_options(&checked);
    td_module *m = td_module_new(&conv2d_type, sizeof(conv2d_state));
    if (m == NULL) {
        return NULL;
    }
    conv2d_state *s = m->state;
    *s = checked;
    int64_t in_per_group = in / s->options.groups;
    td_shape shape = TD_SHAPE(out, in_per_group, s->kernel[0], s->kernel[1]);
    s->weight = td_module_new_parameter(m, "weight", shape, TD_FILTER);
    if (s->weight != NULL) {
        td_init_kaiming_uniform_(s->weight);
    }
    if (!s->no_bias) {
        s->bias = td_module_new_parameter(m, "bias", TD_SHAPE(out), TD_ROW_MAJOR);
        if (s->bias != NULL) {
            td_init_bias_uniform_(s->bias, in_per_group * s->kernel[0] * s->kernel[1]);
        }
    }
    return td_module_finish(m);
}
