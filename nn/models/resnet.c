/* ResNet (He et al. 2015), as torchvision builds it: names, initialisation and order of draws. */
#include "nn/module.h"

static td_module *conv(int64_t in, int64_t out, int kernel, int stride)
{
    return td_nn_conv2d(in, out,
                        &(td_nn_conv2d_options){ .kernel = { kernel, kernel },
                                                 .stride = { stride, stride },
                                                 .padding = { kernel / 2, kernel / 2 },
                                                 .no_bias = true });
}

/* ---- the two blocks ---- */

typedef struct block_state {
    td_module *conv1, *bn1, *conv2, *bn2, *conv3, *bn3;
    td_module *downsample; /* NULL: the shortcut is x itself */
} block_state;

static td_tensor *shortcut(const block_state *s, td_tensor *x, td_site at)
{
    return s->downsample != NULL ? (td_forward)(s->downsample, x, at) : x;
}

/* y = relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut(x)) */
static td_tensor *basic_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    td_tensor *h = (td_forward)(s->conv1, x, at);
    h = td_nn_batch_norm2d_fused(s->bn1, h, NULL, true, at);
    h = (td_forward)(s->conv2, h, at);
    return td_nn_batch_norm2d_fused(s->bn2, h, shortcut(s, x, at), true, at);
}

/* The same with a 1x1 convolution before and behind the 3x3 one. */
static td_tensor *bottleneck_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    td_tensor *h = (td_forward)(s->conv1, x, at);
    h = td_nn_batch_norm2d_fused(s->bn1, h, NULL, true, at);
    h = (td_forward)(s->conv2, h, at);
    h = td_nn_batch_norm2d_fused(s->bn2, h, NULL, true, at);
    h = (td_forward)(s->conv3, h, at);
    return td_nn_batch_norm2d_fused(s->bn3, h, shortcut(s, x, at), true, at);
}

static const td_module_type basic_type = { .name = "BasicBlock", .forward = basic_forward };
static const td_module_type bottleneck_type = { .name = "Bottleneck",
                                                .forward = bottleneck_forward };

static td_module *make_block(const td_module_type *type, int64_t in, int64_t width, int64_t out,
                             int stride)
{
    /* The shortcut is built, and draws, before the block that it belongs to. */
    bool changes = stride != 1 || in != out;
    td_module *downsample =
        changes ? td_nn_sequential(conv(in, out, 1, stride), td_nn_batch_norm2d(out)) : NULL;
    td_module *m = td_module_new(type, sizeof(block_state));
    if (m == NULL) {
        td_module_free(downsample);
        return NULL;
    }
    block_state *s = m->state;
    bool bottleneck = type == &bottleneck_type;
    s->conv1 =
        td_module_add(m, "conv1", bottleneck ? conv(in, width, 1, 1) : conv(in, width, 3, stride));
    s->bn1 = td_module_add(m, "bn1", td_nn_batch_norm2d(width));
    s->conv2 = td_module_add(m, "conv2", conv(width, width, 3, bottleneck ? stride : 1));
    s->bn2 = td_module_add(m, "bn2", td_nn_batch_norm2d(width));
    if (bottleneck) {
        s->conv3 = td_module_add(m, "conv3", conv(width, out, 1, 1));
        s->bn3 = td_module_add(m, "bn3", td_nn_batch_norm2d(out));
    }
    if (changes) {
        s->downsample = td_module_add(m, "downsample", downsample);
    }
    return td_module_finish(m);
}

/* ---- the whole ---- */

typedef struct resnet_plan {
    int depth;
    const td_module_type *block;
    int expansion; /* a block's outputs are this many times its width */
    int blocks[4]; /* in each of the four layers */
} resnet_plan;

static const resnet_plan plans[] = {
    { 18, &basic_type, 1, { 2, 2, 2, 2 } },
    { 34, &basic_type, 1, { 3, 4, 6, 3 } },
    { 50, &bottleneck_type, 4, { 3, 4, 6, 3 } },
};

typedef struct resnet_state {
    td_module *conv1, *bn1, *maxpool, *layer[4], *avgpool, *fc;
} resnet_state;

static td_tensor *resnet_forward(td_module *self, td_tensor *x, td_site at)
{
    const resnet_state *s = self->state;
    x = (td_forward)(s->conv1, x, at);
    x = td_nn_batch_norm2d_fused(s->bn1, x, NULL, true, at);
    if (s->maxpool != NULL) {
        x = (td_forward)(s->maxpool, x, at);
    }
    for (int i = 0; i < 4; i++) {
        x = (td_forward)(s->layer[i], x, at);
    }
    x = (td_forward)(s->avgpool, x, at);
    return (td_forward)(s->fc, (td_flatten)(x, 1, at), at);
}

static const td_module_type resnet_type = { .name = "ResNet", .forward = resnet_forward };

/* One of the four: the first block halves the picture (but for layer1), the others keep its size.
 */
static td_module *make_layer(const resnet_plan *plan, int index, int64_t in)
{
    enum { MOST_BLOCKS = 6 };
    td_module *blocks[MOST_BLOCKS];
    int64_t width = (int64_t)64 << index, out = width * plan->expansion;
    int count = plan->blocks[index];
    for (int i = 0; i < count; i++) {
        blocks[i] =
            make_block(plan->block, i == 0 ? in : out, width, out, i == 0 && index > 0 ? 2 : 1);
    }
    return td_nn_sequential_list(blocks, count);
}

static const resnet_plan *find_plan(int depth)
{
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        if (plans[i].depth == depth) {
            return &plans[i];
        }
    }
    return NULL;
}

/* Convolutions are drawn a second time, when all is built, in the order of the modules. */
static void init_convolution(td_module *m, const char *path, void *user)
{
    (void)path, (void)user;
    for (int i = 0; i < m->tensor_count; i++) {
        if (m->tensors[i].tensor->ndim == 4) {
            td_init_kaiming_normal_fan_out_(m->tensors[i].tensor);
        }
    }
}

td_module *td_resnet(int depth, int64_t classes, td_stem stem)
{
    const resnet_plan *plan = find_plan(depth);
    if (plan == NULL || classes < 1) {
        td_fail(TD_E_ARG,
                "td_resnet(%d, %lld): the depth must be 18, 34 or 50, and there must be a "
                "class",
                depth, (long long)classes);
        return NULL;
    }
    td_module *m = td_module_new(&resnet_type, sizeof(resnet_state));
    if (m == NULL) {
        return NULL;
    }
    resnet_state *s = m->state;
    bool imagenet = stem == TD_STEM_IMAGENET;
    s->conv1 = td_module_add(m, "conv1", imagenet ? conv(3, 64, 7, 2) : conv(3, 64, 3, 1));
    s->bn1 = td_module_add(m, "bn1", td_nn_batch_norm2d(64));
    if (imagenet) {
        s->maxpool = td_module_add(m, "maxpool", td_nn_max_pool2d(3, 2, 1));
    }
    int64_t in = 64;
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof name, "layer%d", i + 1);
        s->layer[i] = td_module_add(m, name, make_layer(plan, i, in));
        in = ((int64_t)64 << i) * plan->expansion;
    }
    s->avgpool = td_module_add(m, "avgpool", td_nn_global_avg_pool2d());
    s->fc = td_module_add(m, "fc", td_nn_linear(in, classes));
    m = td_module_finish(m);
    if (m != NULL) {
        td_module_each(m, init_convolution, NULL);
    }
    return m;
}
