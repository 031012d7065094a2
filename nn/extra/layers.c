/* Modules of single operations: their options, and for some a weight and a bias. */
#include "nn/extra/layers.h"
#include "autograd/ops/elements.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "nn/layer.h"

#include <string.h>

/* ---- convolutions ---- */

static int checked_groups(const char *name, int64_t in, int64_t out, int groups, td_site at)
{
    groups = groups != 0 ? groups : 1;
    TD_REQUIRE(in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0, at,
               "%s(%lld, %lld): both channel counts must be positive, and %d groups divide them",
               name, (long long)in, (long long)out, groups);
    return groups;
}

TD_LAYER(conv1d, td_conv1d_options, x, "Conv1d", .describe = NULL);
TD_LAYER(conv3d, td_conv3d_options, x, "Conv3d", .describe = NULL);
TD_LAYER(conv_transpose1d, td_conv_transpose1d_options, x, "ConvTranspose1d", .describe = NULL);
TD_LAYER(conv_transpose2d, td_conv_transpose2d_options, x, "ConvTranspose2d", .describe = NULL);

static int checked_kernel(const char *name, int kernel, td_site at)
{
    TD_REQUIRE(kernel >= 0, at, "%s: the kernel is %d", name, kernel);
    return kernel != 0 ? kernel : 1;
}

td_module *td_nn_conv1d_at(td_nn_conv1d_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv1d", o.in, o.out, o.groups, at);
    int kernel = checked_kernel("td_nn_conv1d", o.kernel, at);
    td_conv1d_options s = { .stride = o.stride,
                            .padding = o.padding,
                            .dilation = o.dilation,
                            .groups = groups,
                            .pads = { o.pads[0], o.pads[1] },
                            .same = o.same };
    td_module *m = td_module_new(&conv1d_type, sizeof s);
    td_layer_weights(m, &s.w, o.no_bias ? NULL : &s.b, TD_SHAPE(o.out, o.in / groups, kernel),
                     o.out);
    return td_module_finish_with(m, &s);
}

td_module *td_nn_conv3d_at(td_nn_conv3d_options o, td_site at)
{
    const char *name = "td_nn_conv3d";
    td_conv3d_options s = { .groups = checked_groups(name, o.in, o.out, o.groups, at),
                            .same = o.same };
    int k[3];
    td_op_triple(o.kernel, o.kernel_dhw, 1, 1, name, "kernel", k, at);
    td_op_triple(o.stride, o.stride_dhw, 1, 1, name, "stride", s.stride_dhw, at);
    td_op_triple(o.padding, o.padding_dhw, 0, 0, name, "padding", s.padding_dhw, at);
    td_op_triple(o.dilation, o.dilation_dhw, 1, 1, name, "dilation", s.dilation_dhw, at);
    memcpy(s.pads, o.pads, sizeof s.pads);
    td_module *m = td_module_new(&conv3d_type, sizeof s);
    td_layer_weights(m, &s.w, o.no_bias ? NULL : &s.b,
                     TD_SHAPE(o.out, o.in / s.groups, k[0], k[1], k[2]), o.out);
    return td_module_finish_with(m, &s);
}

td_module *td_nn_conv_transpose1d_at(td_nn_conv_transpose1d_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv_transpose1d", o.in, o.out, o.groups, at);
    int kernel = checked_kernel("td_nn_conv_transpose1d", o.kernel, at);
    td_conv_transpose1d_options s = { .stride = o.stride,
                                      .padding = o.padding,
                                      .dilation = o.dilation,
                                      .output_padding = o.output_padding,
                                      .groups = groups };
    td_module *m = td_module_new(&conv_transpose1d_type, sizeof s);
    td_layer_weights(m, &s.w, o.no_bias ? NULL : &s.b, TD_SHAPE(o.in, o.out / groups, kernel),
                     o.out);
    return td_module_finish_with(m, &s);
}

td_module *td_nn_conv_transpose2d_at(td_nn_conv_transpose2d_options o, td_site at)
{
    const char *name = "td_nn_conv_transpose2d";
    td_conv_transpose2d_options s = { .groups = checked_groups(name, o.in, o.out, o.groups, at) };
    int k[2];
    td_op_pair(o.kernel, o.kernel_hw, 1, 1, name, "kernel", k, at);
    td_op_pair(o.stride, o.stride_hw, 1, 1, name, "stride", s.stride_hw, at);
    td_op_pair(o.padding, o.padding_hw, 0, 0, name, "padding", s.padding_hw, at);
    td_op_pair(o.dilation, o.dilation_hw, 1, 1, name, "dilation", s.dilation_hw, at);
    td_op_pair(o.output_padding, o.output_padding_hw, 0, 0, name, "output_padding",
               s.output_padding_hw, at);
    td_module *m = td_module_new(&conv_transpose2d_type, sizeof s);
    td_layer_weights(m, &s.w, o.no_bias ? NULL : &s.b, TD_SHAPE(o.in, o.out / s.groups, k[0], k[1]),
                     o.out);
    return td_module_finish_with(m, &s);
}

/* ---- pooling and resizing ---- */

TD_LAYER_BY(leaky_relu, void, "LeakyReLU", td_leaky_relu_at(x, 0.01, at), .describe = NULL);
TD_LAYER(max_pool1d, td_pool1d_options, x, "MaxPool1d", .describe = NULL);
TD_LAYER(avg_pool1d, td_pool1d_options, x, "AvgPool1d", .describe = NULL);
TD_LAYER(interpolate, td_interpolate_options, x, "Upsample", .describe = NULL);

TD_LAYER_BY(adaptive_avg_pool1d, int64_t, "AdaptiveAvgPool1d",
            td_adaptive_avg_pool1d_at(x, s[1], at), .describe = NULL);
TD_LAYER_BY(adaptive_max_pool1d, int64_t, "AdaptiveMaxPool1d",
            td_adaptive_max_pool1d_at(x, s[1], at), .describe = NULL);
TD_LAYER_BY(adaptive_avg_pool2d, int64_t, "AdaptiveAvgPool2d",
            td_adaptive_avg_pool2d_at(x, s[0], s[1], at), .describe = NULL);
TD_LAYER_BY(adaptive_max_pool2d, int64_t, "AdaptiveMaxPool2d",
            td_adaptive_max_pool2d_at(x, s[0], s[1], at), .describe = NULL);

static void check_pool(const td_pool1d_options *o, const char *name, td_site at)
{
    TD_REQUIRE(o->x == NULL && o->kernel > 0, at, "%s: the kernel is %d; give .kernel = 2", name,
               o->kernel);
}

td_module *td_nn_max_pool1d_at(td_pool1d_options options, td_site at)
{
    check_pool(&options, "td_nn_max_pool1d", at);
    return td_module_finish_with(td_module_new(&max_pool1d_type, sizeof options), &options);
}

td_module *td_nn_avg_pool1d_at(td_pool1d_options options, td_site at)
{
    check_pool(&options, "td_nn_avg_pool1d", at);
    return td_module_finish_with(td_module_new(&avg_pool1d_type, sizeof options), &options);
}

td_module *td_nn_upsample_at(td_interpolate_options options, td_site at)
{
    TD_REQUIRE(options.x == NULL, at, "td_nn_upsample: name the options: .scale = 2");
    return td_module_finish_with(td_module_new(&interpolate_type, sizeof options), &options);
}

static td_module *adaptive(const td_module_type *type, int64_t height, int64_t width, td_site at)
{
    TD_REQUIRE(height > 0 && width > 0, at, "%s(%lld, %lld): both sizes must be positive",
               type->name, (long long)height, (long long)width);
    int64_t s[2] = { height, width };
    return td_module_finish_with(td_module_new(type, sizeof s), s);
}

td_module *td_nn_adaptive_avg_pool1d_at(int64_t length, td_site at)
{
    return adaptive(&adaptive_avg_pool1d_type, 1, length, at);
}

td_module *td_nn_adaptive_max_pool1d_at(int64_t length, td_site at)
{
    return adaptive(&adaptive_max_pool1d_type, 1, length, at);
}

td_module *td_nn_adaptive_avg_pool2d_at(int64_t height, int64_t width, td_site at)
{
    return adaptive(&adaptive_avg_pool2d_type, height, width, at);
}

td_module *td_nn_adaptive_max_pool2d_at(int64_t height, int64_t width, td_site at)
{
    return adaptive(&adaptive_max_pool2d_type, height, width, at);
}

/* ---- normalisation ---- */

typedef struct norm_state {
    td_tensor *weight, *bias; /* NULL: none */
    int64_t groups;
    double eps, momentum;
    td_tensor *running[2]; /* of InstanceNorm: mean and variance; NULL: none */
    bool for_products;     /* of RMSNorm */
} norm_state;

/* running = (1 - momentum) running + momentum m, with m the mean over the batch of the images'
 * means and unbiased variances. */
static void track(const norm_state *s, td_tensor *x, td_site at)
{
    td_shape sides = { .ndim = x->ndim - 2 };
    int64_t places = 1;
    for (int d = 0; d < sides.ndim; d++) {
        sides.dim[d] = 2 + d;
        places *= x->shape[2 + d];
    }
    TD_REQUIRE(places > 1, at, "InstanceNorm: x is %s: a variance needs more than one place",
               td_describe(x));
    td_no_grad_begin();
    td_tensor *now[] = { td_mean_dims_at(x, sides, false, at),
                         td_var_at(x, sides, 1.0, false, at) };
    for (int i = 0; i < 2; i++) {
        td_tensor *mean = td_mean_dim_at(now[i], 0, false, at);
        td_mul_scalar_inplace_at(s->running[i], 1.0 - s->momentum, at);
        td_add_inplace_at(s->running[i], td_mul_scalar_at(mean, s->momentum, at), at);
    }
    td_no_grad_end_at(at);
}

static td_tensor *instance_norm_forward(td_module *self, td_tensor *x, td_site at)
{
    const norm_state *s = self->state;
    if (s->running[0] == NULL || self->training) {
        td_tensor *y = td_instance_norm_at(x, s->weight, s->bias, s->eps, at);
        if (s->running[0] != NULL && !td_recomputing()) {
            track(s, x, at);
        }
        return y;
    }
    return td_batch_norm_at((td_batch_norm_options){ .x = x,
                                                     .weight = s->weight,
                                                     .bias = s->bias,
                                                     .running_mean = s->running[0],
                                                     .running_var = s->running[1],
                                                     .eps = s->eps },
                            at);
}

static const td_module_type instance_norm_type = { .name = "InstanceNorm",
                                                   .forward = instance_norm_forward };
TD_LAYER_BY(group_norm, norm_state, "GroupNorm",
            td_group_norm_at(x, s->groups, s->weight, s->bias, s->eps, at), .describe = NULL);
TD_LAYER_BY(rms_norm, norm_state, "RMSNorm",
            td_rms_norm_for(s->for_products, x, s->weight, s->eps, at), .describe = NULL);

static td_module *make_norm(const td_module_type *type, int64_t channels, int64_t groups,
                            double eps, bool no_weight, bool bias, td_site at)
{
    TD_REQUIRE(channels > 0 && groups > 0 && channels % groups == 0 && eps >= 0.0, at,
               "%s: %lld channels, %lld groups and eps %g: groups must divide channels", type->name,
               (long long)channels, (long long)groups, eps);
    norm_state s = { .groups = groups, .eps = eps };
    td_module *m = td_module_new(type, sizeof s);
    td_layer_scales(m, no_weight ? NULL : &s.weight, no_weight || !bias ? NULL : &s.bias,
                    TD_SHAPE(channels));
    return td_module_finish_with(m, &s);
}

td_module *td_nn_group_norm_at(td_nn_group_norm_options o, td_site at)
{
    return make_norm(&group_norm_type, o.channels, o.groups, o.eps, o.no_weight, true, at);
}

td_module *td_nn_instance_norm_at(td_nn_instance_norm_options o, td_site at)
{
    TD_REQUIRE(o.momentum >= 0.0 && o.momentum <= 1.0, at,
               "td_nn_instance_norm: momentum %g must be in [0, 1]", o.momentum);
    td_module *m = make_norm(&instance_norm_type, o.channels, 1, o.eps, o.no_weight, true, at);
    if (m != NULL && o.track_running_stats) {
        norm_state *s = m->state;
        td_shape shape = TD_SHAPE(o.channels);
        s->momentum = td_or_usual(o.momentum, 0.1);
        s->running[0] = td_module_buffer(m, "running_mean", td_zeros(shape, TD_F32, TD_CPU));
        s->running[1] = td_module_buffer(m, "running_var", td_full(shape, 1.0, TD_F32, TD_CPU));
    }
    return td_module_finish(m);
}

td_module *td_nn_rms_norm_at(td_nn_rms_norm_options o, td_site at)
{
    td_module *m = make_norm(&rms_norm_type, o.channels, 1, o.eps, o.no_weight, false, at);
    if (m != NULL) {
        ((norm_state *)m->state)->for_products = o.for_products;
    }
    return m;
}

/* ---- activation ---- */

TD_LAYER_BY(prelu, norm_state, "PReLU", td_prelu_at(x, s->weight, at), .describe = NULL);

td_module *td_nn_leaky_relu(void)
{
    return td_module_finish(td_module_new(&leaky_relu_type, 0));
}

td_module *td_nn_prelu_at(int64_t channels, td_site at)
{
    TD_REQUIRE(channels > 0, at, "td_nn_prelu(%lld): 1, or the channels", (long long)channels);
    norm_state s = { 0 };
    td_module *m = td_module_new(&prelu_type, sizeof s);
    td_layer_scales(m, &s.weight, NULL, TD_SHAPE(channels));
    if (s.weight != NULL) {
        td_fill_(s.weight, 0.25);
    }
    return td_module_finish_with(m, &s);
}
