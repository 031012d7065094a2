/* ResNet (He et al. 2015), ResNeXt (Xie et al. 2016) and Wide ResNet (Zagoruyko and Komodakis
 * 2016), as torchvision builds them: names, initialisation and order of draws. */
#include "nn/models/models.h"

#include <string.h>

/* ---- the two blocks ---- */

typedef struct block_state {
    td_module *conv1, *bn1, *conv2, *bn2, *conv3, *bn3;
    td_module *downsample; /* NULL: the shortcut is x itself */
} block_state;

static td_tensor *shortcut(const block_state *s, td_tensor *x, td_site at)
{
    return s->downsample != NULL ? td_forward_at(s->downsample, x, at) : x;
}

/* relu(bn(conv(x)) [+ add]) */
static td_tensor *norm_relu(td_module *conv, td_module *bn, td_tensor *x, td_tensor *add,
                            td_site at)
{
    td_nn_batch_norm_then then = { .add = add, .activation = TD_NORM_RELU };
    return td_nn_conv2d_batch_norm(conv, bn, x, &then, at);
}

/* y = relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut(x)) */
static td_tensor *basic_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    td_tensor *h = norm_relu(s->conv1, s->bn1, x, NULL, at);
    return norm_relu(s->conv2, s->bn2, h, shortcut(s, x, at), at);
}

/* The same with a 1x1 convolution before and behind the 3x3 one. */
static td_tensor *bottleneck_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    int64_t scope = td_scope_begin();
    td_tensor *h = norm_relu(s->conv1, s->bn1, x, NULL, at);
    h = norm_relu(s->conv2, s->bn2, h, NULL, at);
    td_scope_end(scope, h);
    return norm_relu(s->conv3, s->bn3, h, shortcut(s, x, at), at);
}

static const td_module_type basic_type = { .name = "BasicBlock", .forward = basic_forward };
static const td_module_type bottleneck_type = { .name = "Bottleneck",
                                                .forward = bottleneck_forward };

static td_module *resnet_make_block(const td_resnet_plan *plan, int64_t in, int64_t width,
                                    int64_t out, int stride)
{
    /* The shortcut is built, and draws, before the block that it belongs to. */
    bool changes = stride != 1 || in != out;
    td_module *downsample =
        changes ? td_block_conv_norm(in, out, 1, stride, 1, TD_NO_ACTIVATION) : NULL;
    bool bottleneck = plan->bottleneck;
    td_module *m = td_module_new(bottleneck ? &bottleneck_type : &basic_type, sizeof(block_state));
    block_state s = { 0 };
    s.conv1 = td_module_add(m, "conv1",
                            bottleneck ? td_block_conv(in, width, 1, 1, 1)
                                       : td_block_conv(in, width, 3, stride, 1));
    s.bn1 = td_module_add(m, "bn1", td_nn_batch_norm2d(width));
    s.conv2 = td_module_add(m, "conv2",
                            td_block_conv(width, width, 3, bottleneck ? stride : 1, plan->groups));
    s.bn2 = td_module_add(m, "bn2", td_nn_batch_norm2d(width));
    if (bottleneck) {
        s.conv3 = td_module_add(m, "conv3", td_block_conv(width, out, 1, 1, 1));
        s.bn3 = td_module_add(m, "bn3", td_nn_batch_norm2d(out));
    }
    if (changes) {
        s.downsample = td_module_add(m, "downsample", downsample);
    }
    return td_module_finish_with(td_module_mark(m, TD_PART_BLOCK), &s);
}

/* ---- the whole ---- */

typedef struct resnet_state {
    td_module *conv1, *bn1, *maxpool, *layer[4], *avgpool, *fc;
} resnet_state;

static td_tensor *stem_forward(td_module *self, td_tensor *x, td_site at)
{
    const resnet_state *s = self->state;
    td_nn_batch_norm_then then = { .activation = TD_NORM_RELU, .max_pool = s->maxpool };
    return td_nn_conv2d_batch_norm(s->conv1, s->bn1, x, &then, at);
}

static td_tensor *run_stem(td_module *self, td_tensor *x, td_site at)
{
    const resnet_state *s = self->state;
    return td_node_of(s->conv1)->recompute
               ? td_module_recompute(self, stem_forward, (td_module *[]){ s->conv1, s->bn1 }, 2, x,
                                     at)
               : stem_forward(self, x, at);
}

static td_tensor *resnet_head(td_module *self, td_tensor *x, td_site at)
{
    const resnet_state *s = self->state;
    x = td_forward_at(s->avgpool, x, at);
    return td_forward_at(s->fc, td_flatten_at(x, 1, at), at);
}

static td_tensor *resnet_forward(td_module *self, td_tensor *x, td_site at)
{
    const resnet_state *s = self->state;
    int64_t scope = td_scope_begin();
    x = run_stem(self, x, at);
    for (int i = 0; i < 4; i++) {
        x = td_forward_at(s->layer[i], x, at);
        td_scope_keep(scope, x);
    }
    td_scope_end(scope, x);
    return resnet_head(self, x, at);
}

/* Stem, blocks, head. The image, and so the uses of a filter, has a quarter of the pixels in each
 * layer after the first. */
static int resnet_chain(td_module *self, td_chain_link *links)
{
    const resnet_state *s = self->state;
    double uses = 1.0;
    int count = 1;
    for (int i = 0; i < 4; i++, uses /= 4.0) {
        int blocks = td_module_chain(s->layer[i], links != NULL ? links + count : NULL);
        for (int k = count; links != NULL && k < count + blocks; k++) {
            links[k].uses = uses;
        }
        count += blocks;
    }
    if (links != NULL) {
        links[0] = (td_chain_link){ .parts = { s->conv1, s->bn1, s->maxpool },
                                    .self = self,
                                    .run = run_stem,
                                    .uses = s->maxpool != NULL ? 4.0 : 1.0 };
        links[count] = (td_chain_link){
            .parts = { s->avgpool, s->fc }, .self = self, .run = resnet_head, .uses = 1.0 / 1024
        };
    }
    return count + 1;
}

static const td_module_type resnet_type = { .name = "ResNet",
                                            .forward = resnet_forward,
                                            .chain = resnet_chain };

/* Outputs of the blocks of layer i. */
static int64_t outputs_of(const td_resnet_plan *plan, int i)
{
    return ((int64_t)64 << i) * (plan->bottleneck ? 4 : 1);
}

/* One of the four: the first block halves the image (but for layer1), the others keep its size. */
static td_module *resnet_make_layer(const td_resnet_plan *plan, int index, int64_t in,
                                    const td_model_options *options)
{
    int64_t width = ((int64_t)plan->base_width << index) * plan->groups;
    int64_t out = outputs_of(plan, index);
    int count = plan->blocks[index];
    if (index == 3 && plan->last_layer != NULL) {
        return plan->last_layer(in, out, count, options);
    }
    td_module *layer = td_nn_sequential_list(NULL, 0);
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        int stride = i == 0 && index > 0 ? 2 : 1;
        td_module_add(layer, name, resnet_make_block(plan, i == 0 ? in : out, width, out, stride));
    }
    return td_module_finish(layer);
}

/* Convolutions are drawn a second time, when all is built, in the order of the modules. */
static void init_convolutions(td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        for (int i = 0; i < m->tensor_count; i++) {
            if (m->tensors[i].tensor->ndim == 4) {
                td_init_kaiming_normal_fan_out_(m->tensors[i].tensor);
            }
        }
    }
}

td_module *td_resnet_build(const void *resnet_plan, const td_model_options *options)
{
    const td_resnet_plan *plan = resnet_plan;
    td_module *m = td_module_new(&resnet_type, sizeof(resnet_state));
    resnet_state s = { 0 };
    bool imagenet = options->stem == TD_STEM_IMAGENET;
    s.conv1 = td_module_add(
        m, "conv1", imagenet ? td_block_conv(3, 64, 7, 2, 1) : td_block_conv(3, 64, 3, 1, 1));
    td_module_mark(s.conv1, TD_PART_STEM); /* for all of the stem: see run_stem */
    s.bn1 = td_module_add(m, "bn1", td_nn_batch_norm2d(64));
    if (imagenet) {
        s.maxpool = td_module_add(m, "maxpool", td_nn_max_pool2d(3, .stride = 2, .padding = 1));
    }
    int64_t in = 64;
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof name, "layer%d", i + 1);
        s.layer[i] = td_module_add(
            m, name, td_module_mark(resnet_make_layer(plan, i, in, options), TD_PART_STAGE));
        in = outputs_of(plan, i);
    }
    s.avgpool = td_module_add(m, "avgpool", td_nn_global_avg_pool2d());
    s.fc = td_module_add(m, "fc", td_nn_linear(in, options->classes));
    m = td_module_finish_with(m, &s);
    init_convolutions(m);
    return m;
}

/* ---- the family ---- */

static const td_resnet_plan plans[] = {
    { "resnet18", false, { 2, 2, 2, 2 }, 1, 64, NULL },
    { "resnet34", false, { 3, 4, 6, 3 }, 1, 64, NULL },
    { "resnet50", true, { 3, 4, 6, 3 }, 1, 64, NULL },
    { "resnet101", true, { 3, 4, 23, 3 }, 1, 64, NULL },
    { "resnet152", true, { 3, 8, 36, 3 }, 1, 64, NULL },
    { "resnext50_32x4d", true, { 3, 4, 6, 3 }, 32, 4, NULL },
    { "resnext101_32x8d", true, { 3, 4, 23, 3 }, 32, 8, NULL },
    { "wide_resnet50_2", true, { 3, 4, 6, 3 }, 1, 128, NULL },
    { "wide_resnet101_2", true, { 3, 4, 23, 3 }, 1, 128, NULL },
};

const td_model_family td_resnet_family = { TD_PLANS(plans), td_resnet_build, .stems = true };
