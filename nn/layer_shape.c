/* Layers without parameters or draws: activations, pooling, Flatten. */
#include "nn/layer.h"

/* A layer without options: td_nn_NAME(), which computes `result` from x. */
#define LAYER(name, type_name, result)                                                             \
    TD_LAYER_BY(name, void, type_name, result, .describe = NULL);                                  \
    td_module *td_nn_##name(void)                                                                  \
    {                                                                                              \
        return td_module_finish(td_module_new(&name##_type, 0));                                   \
    }
LAYER(relu, "ReLU", td_relu_at(x, at))
LAYER(gelu, "GELU", td_gelu_at(x, at))
LAYER(silu, "SiLU", td_silu_at(x, at))
LAYER(sigmoid, "Sigmoid", td_sigmoid_at(x, at))
LAYER(tanh, "Tanh", td_tanh_at(x, at))
LAYER(softmax, "Softmax", td_softmax_at(x, 1, at))
LAYER(flatten, "Flatten", td_flatten_at(x, 1, at))
LAYER(global_avg_pool2d, "GlobalAvgPool2d", td_global_avg_pool2d_at(x, at))

td_norm_activation td_activation_of(const td_module *m)
{
    td_norm_activation activation = m->type == &relu_type   ? TD_NORM_RELU
                                    : m->type == &gelu_type ? TD_NORM_GELU
                                                            : TD_NORM_LINEAR;
    return td_is_surrounded(m) ? TD_NORM_LINEAR : activation;
}

/* ---- pooling ---- */

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

TD_LAYER(max_pool2d, td_pool2d_options, x, "MaxPool2d", .describe = pool_describe);
TD_LAYER(avg_pool2d, td_pool2d_options, x, "AvgPool2d", .describe = pool_describe);

const td_pool2d_options *td_max_pool2d_window(const td_module *m)
{
    const td_pool2d_options *o = m->type == &max_pool2d_type ? m->state : NULL;
    bool simple =
        o != NULL && o->dilation <= 1 && o->kernel_hw[0] * (int64_t)o->kernel_hw[1] <= 255;
    return simple ? o : NULL;
}

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
    return td_module_finish_with(td_module_new(type, sizeof pool), &pool);
}

td_module *td_nn_max_pool2d_at(td_nn_pool2d_options options, td_site at)
{
    return make_pool(&max_pool2d_type, &options, at);
}

td_module *td_nn_avg_pool2d_at(td_nn_pool2d_options options, td_site at)
{
    return make_pool(&avg_pool2d_type, &options, at);
}
