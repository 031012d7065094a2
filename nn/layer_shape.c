/* Layers without parameters or draws: activations, pooling, Flatten. */
#include "nn/module.h"

/* ---- activations ---- */

static td_tensor *relu_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return (td_relu)(x, at);
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
    return (td_gelu)(x, at);
}

static const td_module_type gelu_type = { .name = "GELU", .forward = gelu_forward };

td_module *td_nn_gelu(void)
{
    return td_module_finish(td_module_new(&gelu_type, 0));
}

static td_tensor *silu_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return (td_silu)(x, at);
}

static const td_module_type silu_type = { .name = "SiLU", .forward = silu_forward };

td_module *td_nn_silu(void)
{
    return td_module_finish(td_module_new(&silu_type, 0));
}

/* ---- pooling ---- */

static td_tensor *max_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    return (td_max_pool2d)(x, self->state, at);
}

static td_tensor *avg_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    return (td_avg_pool2d)(x, self->state, at);
}

static void pool_describe(const td_module *self, char *text, size_t size)
{
    const td_pool2d_options *o = self->state;
    snprintf(text, size, "kernel %d, stride %d, padding %d", o->kernel[0], o->stride[0],
             o->padding[0]);
}

static const td_module_type max_pool_type = {
    .name = "MaxPool2d",
    .forward = max_pool_forward,
    .describe = pool_describe,
};

const td_pool2d_options *td_max_pool2d_window(const td_module *m)
{
    return m->type == &max_pool_type ? m->state : NULL;
}

static const td_module_type avg_pool_type = {
    .name = "AvgPool2d",
    .forward = avg_pool_forward,
    .describe = pool_describe,
};

static td_module *make_pool(const td_module_type *type, int kernel, int stride, int padding)
{
    TD_REQUIRE(
        kernel > 0 && stride >= 0 && padding >= 0 && padding <= kernel / 2, TD_HERE,
        "%s: kernel %d must be positive, stride %d not negative, padding %d at most half the "
        "kernel",
        type->name, kernel, stride, padding);
    td_module *m = td_module_new(type, sizeof(td_pool2d_options));
    if (m == NULL) {
        return NULL;
    }
    int step = stride != 0 ? stride : kernel;
    *(td_pool2d_options *)m->state = (td_pool2d_options){ .kernel = { kernel, kernel },
                                                          .stride = { step, step },
                                                          .padding = { padding, padding } };
    return td_module_finish(m);
}

td_module *td_nn_max_pool2d(int kernel, int stride, int padding)
{
    return make_pool(&max_pool_type, kernel, stride, padding);
}

td_module *td_nn_avg_pool2d(int kernel, int stride, int padding)
{
    return make_pool(&avg_pool_type, kernel, stride, padding);
}

static td_tensor *global_avg_pool_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return (td_global_avg_pool2d)(x, at);
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
    return (td_flatten)(x, 1, at);
}

static const td_module_type flatten_type = { .name = "Flatten", .forward = flatten_forward };

td_module *td_nn_flatten(void)
{
    return td_module_finish(td_module_new(&flatten_type, 0));
}

/* ---- Scale ---- */

static td_tensor *scale_forward(td_module *self, td_tensor *x, td_site at)
{
    return (td_mul_scalar)(x, *(const double *)self->state, at);
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
