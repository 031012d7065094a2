/* DenseNet (Huang et al. 2016): every layer sees the outputs of all layers before it in its block.
 * As torchvision builds it: names, initialisation and order of draws. */
#include "nn/models/models.h"

typedef struct densenet_plan {
    const char *name;
    int growth; /* channels that a layer adds */
    int blocks[4];
    int first; /* channels of the stem */
} densenet_plan;

static const densenet_plan plans[] = {
    { "densenet121", 32, { 6, 12, 24, 16 }, 64 },
    { "densenet161", 48, { 6, 12, 36, 24 }, 96 },
    { "densenet169", 32, { 6, 12, 32, 32 }, 64 },
    { "densenet201", 32, { 6, 12, 48, 32 }, 64 },
};

enum { BOTTLENECK = 4 }; /* a layer's 1x1 convolution gives this many times the growth */

/* Under names of the state_dict that end in a number. */
static td_module *add_numbered(td_module *m, const char *name, int number, td_module *child)
{
    char text[32];
    snprintf(text, sizeof text, "%s%d", name, number);
    return td_module_add(m, text, child);
}

/* ---- a layer, a block, a transition ---- */

static td_module *densenet_make_layer(int64_t in, int growth)
{
    td_module *m = td_nn_sequential_list(NULL, 0);
    int64_t width = (int64_t)BOTTLENECK * growth;
    td_module_add(m, "norm1", td_nn_batch_norm2d(in));
    td_module_add(m, "relu1", td_nn_relu());
    td_module_add(m, "conv1", td_block_conv(in, width, 1, 1, 1));
    td_module_add(m, "norm2", td_nn_batch_norm2d(width));
    td_module_add(m, "relu2", td_nn_relu());
    td_module_add(m, "conv2", td_block_conv(width, growth, 3, 1, 1));
    return td_module_finish(td_module_mark(m, TD_PART_BLOCK));
}

static td_tensor *dense_forward(td_module *self, td_tensor *x, td_site at)
{
    int64_t scope = td_scope_begin();
    for (int i = 0; i < self->child_count; i++) {
        td_tensor *added = td_forward_at(self->children[i], x, at);
        x = td_cat_at((td_tensor *[]){ x, added }, 2, 1, at);
        td_scope_keep(scope, x);
    }
    td_scope_end(scope, x);
    return x;
}

static const td_module_type block_type = { .name = "DenseBlock", .forward = dense_forward };

static td_module *dense_make_block(int64_t in, int growth, int layers)
{
    td_module *m = td_module_new(&block_type, 0);
    for (int i = 0; i < layers; i++) {
        add_numbered(m, "denselayer", i + 1, densenet_make_layer(in + (int64_t)i * growth, growth));
    }
    return td_module_finish(td_module_mark(m, TD_PART_STAGE));
}

static td_module *make_transition(int64_t in, int64_t out)
{
    td_module *m = td_nn_sequential_list(NULL, 0);
    td_module_add(m, "norm", td_nn_batch_norm2d(in));
    td_module_add(m, "relu", td_nn_relu());
    td_module_add(m, "conv", td_block_conv(in, out, 1, 1, 1));
    td_module_add(m, "pool", td_nn_avg_pool2d(2));
    return td_module_finish(td_module_mark(m, TD_PART_STAGE));
}

/* ---- the whole ---- */

typedef struct densenet_state {
    td_module *features, *classifier;
} densenet_state;

static td_tensor *densenet_forward(td_module *self, td_tensor *x, td_site at)
{
    const densenet_state *s = self->state;
    x = td_forward_at(s->features, x, at);
    x = td_flatten_at(td_global_avg_pool2d_at(x, at), 1, at);
    return td_forward_at(s->classifier, x, at);
}

static const td_module_type densenet_type = { .name = "DenseNet", .forward = densenet_forward };

static td_module *densenet_make_features(const densenet_plan *plan, int64_t *channels)
{
    td_module *m = td_nn_sequential_list(NULL, 0);
    td_module_add(m, "conv0", td_block_conv(3, plan->first, 7, 2, 1));
    td_module_add(m, "norm0", td_nn_batch_norm2d(plan->first));
    td_module_add(m, "relu0", td_nn_relu());
    td_module_add(m, "pool0", td_nn_max_pool2d(3, .stride = 2, .padding = 1));
    int64_t in = plan->first;
    for (int i = 0; i < 4; i++) {
        add_numbered(m, "denseblock", i + 1, dense_make_block(in, plan->growth, plan->blocks[i]));
        in += (int64_t)plan->blocks[i] * plan->growth;
        if (i < 3) {
            add_numbered(m, "transition", i + 1, make_transition(in, in / 2));
            in /= 2;
        }
    }
    td_module_add(m, "norm5", td_nn_batch_norm2d(in));
    td_module_add(m, "relu5", td_nn_relu()); /* torchvision's forward does it, without a module */
    *channels = in;
    return td_module_finish(m);
}

/* Convolutions are drawn a second time when all is built, and the classifier's bias becomes 0. */
static void densenet_init(td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_tensor *weight = m->tensor_count > 0 ? m->tensors[0].tensor : NULL;
        if (weight != NULL && weight->ndim == 4) {
            td_init_kaiming_normal_fan_in_(weight);
        } else if (weight != NULL && weight->ndim == 2) {
            td_fill_(m->tensors[1].tensor, 0.0);
        }
    }
}

static td_module *densenet_make(const void *densenet, const td_model_options *options)
{
    const densenet_plan *plan = densenet;
    td_module *m = td_module_new(&densenet_type, sizeof(densenet_state));
    densenet_state s = { 0 };
    int64_t channels;
    s.features = td_module_add(m, "features", densenet_make_features(plan, &channels));
    s.classifier = td_module_add(m, "classifier", td_nn_linear(channels, options->classes));
    m = td_module_finish_with(m, &s);
    densenet_init(m);
    return m;
}

const td_model_family td_densenet_family = { TD_PLANS(plans), densenet_make };
