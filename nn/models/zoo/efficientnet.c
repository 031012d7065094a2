/* EfficientNet-B0 (Tan and Le 2019): inverted bottlenecks with depthwise convolutions,
 * squeeze-and-excitation and stochastic depth. As torchvision builds it: names, initialisation and
 * order of draws. */
#include "nn/models/models.h"

#include <math.h>

/* A stage: blocks of one kind; the first has the stride. */
typedef struct stage_plan {
    int expand, kernel, stride;
    int in, out, blocks;
} stage_plan;

static const stage_plan stages[] = {
    { 1, 3, 1, 32, 16, 1 },   { 6, 3, 2, 16, 24, 2 },  { 6, 5, 2, 24, 40, 2 },
    { 6, 3, 2, 40, 80, 3 },   { 6, 5, 1, 80, 112, 3 }, { 6, 5, 2, 112, 192, 4 },
    { 6, 3, 1, 192, 320, 1 },
};
enum { STAGES = sizeof stages / sizeof *stages, ALL_BLOCKS = 16, LAST_CHANNELS = 1280 };
static const double own_dropout = 0.2, own_stochastic_depth = 0.2;

/* ---- the block ---- */

typedef struct block_state {
    td_module *block, *stochastic_depth;
    bool residual;
} block_state;

/* x + drop(project(se(depthwise(expand x)))); the sum only where x has the result's shape. */
static td_tensor *mbconv_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    td_tensor *y = td_forward_at(s->block, x, at);
    if (!s->residual) {
        return y;
    }
    return td_add_at(td_forward_at(s->stochastic_depth, y, at), x, at);
}

static const td_module_type block_type = { .name = "MBConv", .forward = mbconv_forward };

static td_module *mbconv_make(const stage_plan *stage, bool first, double drop)
{
    int64_t in = first ? stage->in : stage->out, wide = in * stage->expand;
    int stride = first ? stage->stride : 1;
    td_module *m = td_module_new(&block_type, sizeof(block_state));
    td_module *parts[4];
    int count = 0;
    if (wide != in) {
        parts[count++] = td_block_conv_norm(in, wide, 1, 1, 1, TD_SILU_ACTIVATION);
    }
    parts[count++] =
        td_block_conv_norm(wide, wide, stage->kernel, stride, (int)wide, TD_SILU_ACTIVATION);
    parts[count++] = td_block_squeeze_excitation(wide, in / 4, TD_SILU_ACTIVATION);
    parts[count++] = td_block_conv_norm(wide, stage->out, 1, 1, 1, TD_NO_ACTIVATION);
    block_state s = { .residual = stride == 1 && in == stage->out };
    s.block = td_module_add(m, "block", td_nn_sequential_list(parts, count));
    s.stochastic_depth = td_module_add(m, "stochastic_depth", td_nn_stochastic_depth(drop));
    return td_module_finish_with(td_module_mark(m, TD_PART_BLOCK), &s);
}

/* ---- the whole ---- */

typedef struct efficientnet_state {
    td_module *features, *avgpool, *classifier;
} efficientnet_state;

static td_tensor *efficientnet_forward(td_module *self, td_tensor *x, td_site at)
{
    const efficientnet_state *s = self->state;
    x = td_forward_at(s->features, x, at);
    x = td_flatten_at(td_forward_at(s->avgpool, x, at), 1, at);
    return td_forward_at(s->classifier, x, at);
}

static const td_module_type efficientnet_type = { .name = "EfficientNet",
                                                  .forward = efficientnet_forward };

static td_module *efficientnet_make_features(double stochastic_depth)
{
    td_module *parts[STAGES + 2];
    int count = 0, done = 0;
    parts[count++] = td_block_conv_norm(3, stages[0].in, 3, 2, 1, TD_SILU_ACTIVATION);
    for (int i = 0; i < STAGES; i++) {
        td_module *blocks[4];
        for (int b = 0; b < stages[i].blocks; b++, done++) { /* later blocks drop more often */
            blocks[b] = mbconv_make(&stages[i], b == 0, stochastic_depth * done / ALL_BLOCKS);
        }
        parts[count++] = td_nn_sequential_list(blocks, stages[i].blocks);
    }
    parts[count++] =
        td_block_conv_norm(stages[STAGES - 1].out, LAST_CHANNELS, 1, 1, 1, TD_SILU_ACTIVATION);
    for (int i = 0; i < count; i++) {
        td_module_mark(parts[i], TD_PART_STAGE);
    }
    return td_nn_sequential_list(parts, count);
}

/* Everything is drawn a second time when all is built; biases become 0. */
static void efficientnet_init_layer(td_module *m)
{
    if (m->tensor_count == 0 || m->tensors[0].tensor->ndim == 1) {
        return;
    }
    td_tensor *weight = m->tensors[0].tensor;
    if (weight->ndim == 4) {
        td_init_kaiming_normal_fan_out_(weight);
    } else {
        td_init_uniform_(weight, 1.0 / sqrt((double)weight->shape[0]));
    }
    if (m->tensor_count > 1) {
        td_fill_(m->tensors[1].tensor, 0.0);
    }
}

static td_module *efficientnet_make(const void *plan, const td_model_options *options)
{
    (void)plan; /* there is one */
    td_module *net = td_module_new(&efficientnet_type, sizeof(efficientnet_state));
    efficientnet_state s = { 0 };
    double drop = td_or_usual(options->stochastic_depth, own_stochastic_depth);
    s.features = td_module_add(net, "features", efficientnet_make_features(drop));
    s.avgpool = td_module_add(net, "avgpool", td_nn_global_avg_pool2d());
    td_module *dropout = td_nn_dropout(td_or_usual(options->dropout, own_dropout));
    td_module *linear = td_nn_linear(LAST_CHANNELS, options->classes);
    s.classifier = td_module_add(net, "classifier", td_nn_sequential(dropout, linear));
    net = td_module_finish_with(net, &s);
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        efficientnet_init_layer(m);
    }
    return net;
}

static const char *const names[] = { "efficientnet_b0" };

const td_model_family td_efficientnet_family = { TD_PLANS(names), efficientnet_make };
