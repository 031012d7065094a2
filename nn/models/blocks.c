/* Blocks that several models are made of. */
#include "nn/models/models.h"

td_module *td_block_conv(int64_t in, int64_t out, int kernel, int stride, int groups)
{
    return td_nn_conv2d(in, out, .kernel = kernel, .stride = stride, .padding = kernel / 2,
                        .groups = groups, .no_bias = true);
}

static td_module *make_activation(td_activation activation)
{
    return activation == TD_SILU_ACTIVATION ? td_nn_silu() : td_nn_relu();
}

td_module *td_block_conv_norm(int64_t in, int64_t out, int kernel, int stride, int groups,
                              td_activation activation)
{
    td_module *m = td_nn_sequential_list(NULL, 0);
    td_module_add(m, "0", td_block_conv(in, out, kernel, stride, groups));
    td_module_add(m, "1", td_nn_batch_norm2d(out));
    if (activation != TD_NO_ACTIVATION) {
        td_module_add(m, "2", make_activation(activation));
    }
    return td_module_finish(m);
}

td_tensor *td_block_conv_norm_fused(td_module *m, td_tensor *x, td_tensor *add, bool relu,
                                    td_site at)
{
    td_nn_batch_norm_then then = { .add = add, .activation = relu ? TD_NORM_RELU : TD_NORM_LINEAR };
    return td_nn_conv2d_batch_norm(m->children[0], m->children[1], x, &then, at);
}

/* ---- squeeze-and-excitation ---- */

typedef struct squeeze_state {
    td_module *avgpool, *fc1, *fc2;
    td_activation activation;
} squeeze_state;

static td_tensor *squeeze_forward(td_module *self, td_tensor *x, td_site at)
{
    const squeeze_state *s = self->state;
    td_tensor *h = td_forward_at(s->avgpool, x, at);
    h = td_forward_at(s->fc1, h, at);
    h = s->activation == TD_SILU_ACTIVATION ? td_silu_at(h, at) : td_relu_at(h, at);
    h = td_forward_at(s->fc2, h, at);
    return td_mul_at(x, td_sigmoid_at(h, at), at);
}

static const td_module_type squeeze_type = { .name = "SqueezeExcitation",
                                             .forward = squeeze_forward };

td_module *td_block_squeeze_excitation(int64_t channels, int64_t squeezed, td_activation activation)
{
    td_module *m = td_module_new(&squeeze_type, sizeof(squeeze_state));
    squeeze_state s = { .activation = activation };
    s.avgpool = td_module_add(m, "avgpool", td_nn_global_avg_pool2d());
    s.fc1 = td_module_add(m, "fc1", td_nn_conv2d(channels, squeezed, .kernel = 1));
    s.fc2 = td_module_add(m, "fc2", td_nn_conv2d(squeezed, channels, .kernel = 1));
    return td_module_finish_with(m, &s);
}
