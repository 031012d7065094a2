/* Layers without parameters or draws: activations, pooling, Flatten. */
#include "nn/internal.h"

/* ---- activations ---- */

static td_tensor *relu_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return td_relu_at(x, at);
}

static const td_module_type relu_type = { .name = "ReLU", .forward = relu_forward };

td_module *td_nn_relu(void)
{
    return td_module_finish(td_module_new(&relu_type, 0));
}

bool td_is_relu(const td_module *m)
{
    return m->type == &relu_type;
}

static td_tensor *gelu_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return td_gelu_at(x, at);
}

static const td_module_type gelu_type = { .name = "GELU", .forward = gelu_forward };

td_module *td_nn_gelu(void)
{
    return td_module_finish(td_module_new(&gelu_type, 0));
}

static td_tensor *silu_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return td_silu_at(x, at);
}

static const td_module_type silu_type = { .name = "SiLU", .forward = silu_forward };

td_module *td_nn_silu(void)
{
    return td_module_finish(td_module_new(&silu_type, 0));
}

/* ---- pooling ---- */

static td_tensor *max_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    td_pool2d_options options = *(const td_pool2d_options *)self->state;
    options.x = x;
    return td_max_pool2d_at(options, at);
}

static td_tensor *avg_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    td_pool2d_options options = *(const td_pool2d_options *)self->state;
    options.x = x;
    return td_avg_pool2d_at(options, at);
}

/* "3", or "3x2" where height and width differ. */
static const char *pair_text(const int pair[2], char text[32])
{
    snprintf(text, 32, pair[0] == pair[1] ? "%d" : "%dx%d", pair[0], pair[1]);
    return text;
}

static void pool_describe(const td_module *self, char *text, size_t size)
{
    const td_pool2d_options *o = self->state;
    char kernel[32], stride[32], padding[32];
    snprintf(text, size, "kernel %s, stride %s, padding %s", pair_text(o->kernel_hw, kernel),
             pair_text(o->stride_hw, stride), pair_text(o->padding_hw, padding));
}

static const td_module_type max_pool_type = {
    .name = "MaxPool2d",
    .forward = max_pool_forward,
    .describe = pool_describe,
};

const td_pool2d_options *td_max_pool2d_window(const td_module *m)
{
    const td_pool2d_options *o = m->type == &max_pool_type ? m->state : NULL;
    bool simple =
        o != NULL && o->dilation <= 1 && o->kernel_hw[0] * (int64_t)o->kernel_hw[1] <= 255;
    return simple ? o : NULL;
}

static const td_module_type avg_pool_type = {
    .name = "AvgPool2d",
    .forward = avg_pool_forward,
    .describe = pool_describe,
};

static td_module *make_pool(const td_module_type *type, const td_nn_pool2d_options *o, td_site at)
{
    td_pool2d_options pool = { .exclude_pad = o->exclude_pad,
                               .ceil_mode = o->ceil_mode,
                               .dilation = o->dilation };
    td_op_pair(o->kernel, o->kernel_hw, 0, 1, type->name, "kernel", pool.kernel_hw, at);
    td_op_pair(o->padding, o->padding_hw, 0, 0, type->name, "padding", pool.padding_hw, at);
    bool given = o->stride != 0 || o->stride_hw[0] != 0 || o->stride_hw[1] != 0;
    const int *other = given ? o->stride_hw : pool.kernel_hw;
    td_op_pair(o->stride, other, 0, 1, type->name, "stride", pool.stride_hw, at);
    for (int d = 0; d < 2; d++) {
        TD_REQUIRE(2 * pool.padding_hw[d] <= pool.kernel_hw[d], at,
                   "%s: padding %d with a kernel of %d: at most half the kernel", type->name,
                   pool.padding_hw[d], pool.kernel_hw[d]);
    }
    td_module *m = td_module_new(type, sizeof pool);
    if (m != NULL) {
        *(td_pool2d_options *)m->state = pool;
    }
    return td_module_finish(m);
}

td_module *td_nn_max_pool2d_at(td_nn_pool2d_options options, td_site at)
{
    return make_pool(&max_pool_type, &options, at);
}

td_module *td_nn_avg_pool2d_at(td_nn_pool2d_options options, td_site at)
{
    return make_pool(&avg_pool_type, &options, at);
}

static td_tensor *global_avg_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return td_global_avg_pool2d_at(x, at);
}

static const td_module_type global_avg_pool_type = {
    .name = "GlobalAvgPool2d",
    .forward = global_avg_pool_forward,
};

td_module *td_nn_global_avg_pool2d(void)
{
    return td_module_finish(td_module_new(&global_avg_pool_type, 0));
}

/* ---- Flatten ---- */

static td_tensor *flatten_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return td_flatten_at(x, 1, at);
}

static const td_module_type flatten_type = { .name = "Flatten", .forward = flatten_forward };

td_module *td_nn_flatten(void)
{
    return td_module_finish(td_module_new(&flatten_type, 0));
}

/* ---- Scale ---- */

static td_tensor *scale_forward(td_module *self, td_tensor *x, td_site at)
{
    return td_mul_scalar_at(x, *(const double *)self->state, at);
}

static void scale_describe(const td_module *self, char *text, size_t size)
{
    snprintf(text, size, "%g", *(const double *)self->state);
}

static const td_module_type scale_type = { .name = "Scale",
                                           .forward = scale_forward,
                                           .describe = scale_describe };

td_module *td_nn_scale(double factor)
{
    td_module *m = td_module_new(&scale_type, sizeof(double));
    if (m != NULL) {
        *(double *)m->state = factor;
    }
    return td_module_finish(m);
}
