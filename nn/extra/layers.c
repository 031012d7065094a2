/* Modules of single operations: their options, and for some a weight and a bias. */
#include "nn/extra/layers.h"
#include "autograd/fused.h"
#include "autograd/norms.h"
#include "autograd/ops/shapes.h"
#include "nn/internal.h"
#include "tensor/extend.h"

#include <string.h>

/* What all of them have: first in each state. */
typedef struct weights {
    td_tensor *weight, *bias; /* NULL: none */
} weights;

/* A module whose state begins with weights, the rest of which is copied from `state`. */
static td_module *make(const td_module_type *type, const void *state, size_t size)
{
    td_module *m = td_module_new(type, size);
    if (m != NULL) {
        memcpy(m->state, state, size);
    }
    return m;
}

/* ---- convolutions ---- */

/* Adds a filter bank and its bias, drawn as PyTorch draws them. */
static td_module *with_filters(td_module *m, td_shape shape, int64_t outputs, bool no_bias)
{
    if (m == NULL) {
        return NULL;
    }
    weights *s = m->state;
    s->weight =
        td_module_new_parameter(m, "weight", shape, shape.ndim == 4 ? TD_FILTER : TD_ROW_MAJOR);
    if (s->weight != NULL) {
        td_init_kaiming_uniform_(s->weight);
    }
    if (!no_bias) {
        s->bias = td_module_new_parameter(m, "bias", TD_SHAPE(outputs), TD_ROW_MAJOR);
        if (s->bias != NULL) {
            td_init_bias_uniform_(s->bias, td_shape_numel(shape) / shape.dim[0]);
        }
    }
    return td_module_finish(m);
}

static int checked_groups(const char *name, int64_t in, int64_t out, int groups, td_site at)
{
    groups = groups != 0 ? groups : 1;
    TD_REQUIRE(in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0, at,
               "%s(%lld, %lld): both channel counts must be positive, and %d groups divide them",
               name, (long long)in, (long long)out, groups);
    return groups;
}

typedef struct conv1d_state {
    weights own;
    td_conv1d_options options;
} conv1d_state;

static td_tensor *conv1d_forward(td_module *self, td_tensor *x, td_site at)
{
    const conv1d_state *s = self->state;
    td_conv1d_options o = s->options;
    o.x = x;
    o.w = s->own.weight;
    o.b = s->own.bias;
    return td_conv1d_at(o, at);
}

static const td_module_type conv1d_type = { .name = "Conv1d", .forward = conv1d_forward };

td_module *td_nn_conv1d_at(td_nn_conv_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv1d", o.in, o.out, o.groups, at);
    int kernel = o.kernel != 0 ? o.kernel : 1;
    TD_REQUIRE(kernel > 0, at, "td_nn_conv1d: the kernel is %d", kernel);
    conv1d_state s = { .options = { .stride = o.stride,
                                    .padding = o.padding,
                                    .dilation = o.dilation,
                                    .groups = groups,
                                    .pads = { o.pads[0], o.pads[1] },
                                    .same = o.same } };
    return with_filters(make(&conv1d_type, &s, sizeof s), TD_SHAPE(o.out, o.in / groups, kernel),
                        o.out, o.no_bias);
}

typedef struct conv3d_state {
    weights own;
    td_conv3d_options options;
} conv3d_state;

static td_tensor *conv3d_forward(td_module *self, td_tensor *x, td_site at)
{
    const conv3d_state *s = self->state;
    td_conv3d_options o = s->options;
    o.x = x;
    o.w = s->own.weight;
    o.b = s->own.bias;
    return td_conv3d_at(o, at);
}

static const td_module_type conv3d_type = { .name = "Conv3d", .forward = conv3d_forward };

td_module *td_nn_conv3d_at(td_nn_conv_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv3d", o.in, o.out, o.groups, at);
    conv3d_state s = { .options = { .stride = o.stride,
                                    .padding = o.padding,
                                    .dilation = o.dilation,
                                    .groups = groups,
                                    .same = o.same } };
    memcpy(s.options.stride_dhw, o.stride_dhw, sizeof o.stride_dhw);
    memcpy(s.options.padding_dhw, o.padding_dhw, sizeof o.padding_dhw);
    memcpy(s.options.dilation_dhw, o.dilation_dhw, sizeof o.dilation_dhw);
    int k[3];
    for (int d = 0; d < 3; d++) {
        k[d] = o.kernel != 0 ? o.kernel : o.kernel_dhw[d] != 0 ? o.kernel_dhw[d] : 1;
        TD_REQUIRE(k[d] > 0, at, "td_nn_conv3d: the kernel is %d", k[d]);
    }
    return with_filters(make(&conv3d_type, &s, sizeof s),
                        TD_SHAPE(o.out, o.in / groups, k[0], k[1], k[2]), o.out, o.no_bias);
}

typedef struct conv_transpose_state {
    weights own;
    td_conv_transpose2d_options options;
} conv_transpose_state;

static td_tensor *conv_transpose2d_forward(td_module *self, td_tensor *x, td_site at)
{
    const conv_transpose_state *s = self->state;
    td_conv_transpose2d_options o = s->options;
    o.x = x;
    o.w = s->own.weight;
    o.b = s->own.bias;
    return td_conv_transpose2d_at(o, at);
}

static td_tensor *conv_transpose1d_forward(td_module *self, td_tensor *x, td_site at)
{
    const conv_transpose_state *s = self->state;
    const td_conv_transpose2d_options *o = &s->options;
    td_conv_transpose1d_options one = { .x = x,
                                        .w = s->own.weight,
                                        .b = s->own.bias,
                                        .stride = o->stride,
                                        .padding = o->padding,
                                        .dilation = o->dilation,
                                        .output_padding = o->output_padding,
                                        .groups = o->groups };
    return td_conv_transpose1d_at(one, at);
}

static const td_module_type conv_transpose1d_type = { .name = "ConvTranspose1d",
                                                      .forward = conv_transpose1d_forward };
static const td_module_type conv_transpose2d_type = { .name = "ConvTranspose2d",
                                                      .forward = conv_transpose2d_forward };

static conv_transpose_state read_transpose(const td_nn_conv_transpose_options *o, int groups)
{
    conv_transpose_state s = { .options = { .stride = o->stride,
                                            .padding = o->padding,
                                            .dilation = o->dilation,
                                            .output_padding = o->output_padding,
                                            .groups = groups } };
    memcpy(s.options.stride_hw, o->stride_hw, sizeof o->stride_hw);
    memcpy(s.options.padding_hw, o->padding_hw, sizeof o->padding_hw);
    memcpy(s.options.dilation_hw, o->dilation_hw, sizeof o->dilation_hw);
    memcpy(s.options.output_padding_hw, o->output_padding_hw, sizeof o->output_padding_hw);
    return s;
}

td_module *td_nn_conv_transpose1d_at(td_nn_conv_transpose_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv_transpose1d", o.in, o.out, o.groups, at);
    int kernel = o.kernel != 0 ? o.kernel : 1;
    TD_REQUIRE(kernel > 0, at, "td_nn_conv_transpose1d: the kernel is %d", kernel);
    conv_transpose_state s = read_transpose(&o, groups);
    return with_filters(make(&conv_transpose1d_type, &s, sizeof s),
                        TD_SHAPE(o.in, o.out / groups, kernel), o.out, o.no_bias);
}

td_module *td_nn_conv_transpose2d_at(td_nn_conv_transpose_options o, td_site at)
{
    int groups = checked_groups("td_nn_conv_transpose2d", o.in, o.out, o.groups, at), kernel[2];
    td_op_pair(o.kernel, o.kernel_hw, 1, 1, "td_nn_conv_transpose2d", "kernel", kernel, at);
    conv_transpose_state s = read_transpose(&o, groups);
    return with_filters(make(&conv_transpose2d_type, &s, sizeof s),
                        TD_SHAPE(o.in, o.out / groups, kernel[0], kernel[1]), o.out, o.no_bias);
}

/* ---- pooling and resizing ---- */

static td_tensor *max_pool1d_forward(td_module *self, td_tensor *x, td_site at)
{
    td_pool1d_options o = *(const td_pool1d_options *)self->state;
    o.x = x;
    return td_max_pool1d_at(o, at);
}

static td_tensor *avg_pool1d_forward(td_module *self, td_tensor *x, td_site at)
{
    td_pool1d_options o = *(const td_pool1d_options *)self->state;
    o.x = x;
    return td_avg_pool1d_at(o, at);
}

static td_tensor *upsample_forward(td_module *self, td_tensor *x, td_site at)
{
    td_interpolate_options o = *(const td_interpolate_options *)self->state;
    o.x = x;
    return td_interpolate_at(o, at);
}

static td_tensor *adaptive_avg_forward(td_module *self, td_tensor *x, td_site at)
{
    const int64_t *size = self->state;
    return td_adaptive_avg_pool2d_at(x, size[0], size[1], at);
}

static td_tensor *adaptive_max_forward(td_module *self, td_tensor *x, td_site at)
{
    const int64_t *size = self->state;
    return td_adaptive_max_pool2d_at(x, size[0], size[1], at);
}

static const td_module_type max_pool1d_type = { .name = "MaxPool1d",
                                                .forward = max_pool1d_forward };
static const td_module_type avg_pool1d_type = { .name = "AvgPool1d",
                                                .forward = avg_pool1d_forward };
static const td_module_type upsample_type = { .name = "Upsample", .forward = upsample_forward };
static const td_module_type adaptive_avg_type = { .name = "AdaptiveAvgPool2d",
                                                  .forward = adaptive_avg_forward };
static const td_module_type adaptive_max_type = { .name = "AdaptiveMaxPool2d",
                                                  .forward = adaptive_max_forward };

static void check_pool(const td_pool1d_options *o, const char *name, td_site at)
{
    TD_REQUIRE(o->x == NULL && o->kernel > 0, at, "%s: the kernel is %d; give .kernel = 2", name,
               o->kernel);
}

td_module *td_nn_max_pool1d_at(td_pool1d_options options, td_site at)
{
    check_pool(&options, "td_nn_max_pool1d", at);
    return td_module_finish(make(&max_pool1d_type, &options, sizeof options));
}

td_module *td_nn_avg_pool1d_at(td_pool1d_options options, td_site at)
{
    check_pool(&options, "td_nn_avg_pool1d", at);
    return td_module_finish(make(&avg_pool1d_type, &options, sizeof options));
}

td_module *td_nn_upsample_at(td_interpolate_options options, td_site at)
{
    TD_REQUIRE(options.x == NULL, at, "td_nn_upsample: name the options: .scale = 2");
    return td_module_finish(make(&upsample_type, &options, sizeof options));
}

static td_module *adaptive(const td_module_type *type, int64_t height, int64_t width, td_site at)
{
    TD_REQUIRE(height > 0 && width > 0, at, "%s(%lld, %lld): both sizes must be positive",
               type->name, (long long)height, (long long)width);
    return td_module_finish(make(type, (int64_t[]){ height, width }, 2 * sizeof height));
}

td_module *td_nn_adaptive_avg_pool2d_at(int64_t height, int64_t width, td_site at)
{
    return adaptive(&adaptive_avg_type, height, width, at);
}

td_module *td_nn_adaptive_max_pool2d_at(int64_t height, int64_t width, td_site at)
{
    return adaptive(&adaptive_max_type, height, width, at);
}

/* ---- normalisation ---- */

typedef struct norm_state {
    weights own;
    int64_t groups;
    double eps, momentum;
    td_tensor *running[2]; /* of InstanceNorm: mean and variance; NULL: none */
} norm_state;

static td_tensor *group_norm_forward(td_module *self, td_tensor *x, td_site at)
{
    const norm_state *s = self->state;
    return td_group_norm_at(x, s->groups, s->own.weight, s->own.bias, s->eps, at);
}

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
        td_tensor *y = td_instance_norm_at(x, s->own.weight, s->own.bias, s->eps, at);
        if (s->running[0] != NULL && !td_recomputing()) {
            track(s, x, at);
        }
        return y;
    }
    return td_batch_norm_at((td_batch_norm_options){ .x = x,
                                                     .weight = s->own.weight,
                                                     .bias = s->own.bias,
                                                     .running_mean = s->running[0],
                                                     .running_var = s->running[1],
                                                     .eps = s->eps },
                            at);
}

static td_tensor *rms_norm_forward(td_module *self, td_tensor *x, td_site at)
{
    const norm_state *s = self->state;
    return td_rms_norm_at(x, s->own.weight, s->eps, at);
}

static const td_module_type group_norm_type = { .name = "GroupNorm",
                                                .forward = group_norm_forward };
static const td_module_type instance_norm_type = { .name = "InstanceNorm",
                                                   .forward = instance_norm_forward };
static const td_module_type rms_norm_type = { .name = "RMSNorm", .forward = rms_norm_forward };

static td_module *make_norm(const td_module_type *type, int64_t channels, int64_t groups,
                            double eps, bool no_weight, bool bias, td_site at)
{
    TD_REQUIRE(channels > 0 && groups > 0 && channels % groups == 0 && eps >= 0.0, at,
               "%s: %lld channels, %lld groups and eps %g: groups must divide channels", type->name,
               (long long)channels, (long long)groups, eps);
    norm_state state = { .groups = groups, .eps = eps };
    td_module *m = make(type, &state, sizeof state);
    if (m == NULL) {
        return NULL;
    }
    weights *s = m->state;
    td_shape shape = TD_SHAPE(channels);
    if (!no_weight) {
        s->weight = td_module_parameter(m, "weight", td_full(shape, 1.0, TD_F32, TD_CPU));
    }
    if (!no_weight && bias) {
        s->bias = td_module_parameter(m, "bias", td_zeros(shape, TD_F32, TD_CPU));
    }
    return td_module_finish(m);
}

td_module *td_nn_group_norm_at(td_nn_group_norm_options o, td_site at)
{
    return make_norm(&group_norm_type, o.channels, o.groups, o.eps, o.no_weight, true, at);
}

td_module *td_nn_instance_norm_at(td_nn_norm_options o, td_site at)
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

td_module *td_nn_rms_norm_at(td_nn_norm_options o, td_site at)
{
    return make_norm(&rms_norm_type, o.channels, 1, o.eps, o.no_weight, false, at);
}
