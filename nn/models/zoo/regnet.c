/* RegNet (Radosavovic et al. 2020): bottlenecks with grouped convolutions, in Y also with
 * squeeze-and-excitation. As torchvision builds it: names, initialisation and order of draws. */
#include "nn/models/models.h"

#include <math.h>

/* Widths and depths are what the paper's rule (a quantised line) gives for each model. */
typedef struct regnet_plan {
    const char *name;
    int width[4], blocks[4];
    int group_width;
    bool squeeze;
} regnet_plan;

static const regnet_plan plans[] = {
    { "regnet_x_16gf", { 256, 512, 896, 2048 }, { 2, 6, 13, 1 }, 128, false },
    { "regnet_y_16gf", { 224, 448, 1232, 3024 }, { 2, 4, 11, 1 }, 112, true },
    { "regnet_y_32gf", { 232, 696, 1392, 3712 }, { 2, 5, 12, 1 }, 232, true },
};

enum { STEM_WIDTH = 32 };

/* ---- the block ---- */

typedef struct block_state {
    td_module *proj; /* NULL: the shortcut is x itself */
    td_module *a, *b, *se, *c;
} block_state;

/* relu(shortcut(x) + c(se(b(a x)))) */
static td_tensor *regnet_block(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    int64_t scope = td_scope_begin();
    td_tensor *h = td_forward_at(s->b, td_forward_at(s->a, x, at), at);
    if (s->se != NULL) {
        h = td_forward_at(s->se, h, at);
    }
    td_scope_end(scope, h);
    td_tensor *shortcut = s->proj != NULL ? td_forward_at(s->proj, x, at) : x;
    return td_block_conv_norm_fused(s->c, h, shortcut, true, at);
}

static const td_module_type block_type = { .name = "ResBottleneckBlock", .forward = regnet_block };

static td_module *regnet_make_block(const regnet_plan *plan, int64_t in, int64_t out, int stride)
{
    td_module *m = td_module_new(&block_type, sizeof(block_state));
    block_state s = { 0 };
    if (in != out || stride != 1) {
        s.proj =
            td_module_add(m, "proj", td_block_conv_norm(in, out, 1, stride, 1, TD_NO_ACTIVATION));
    }
    td_module *f = td_nn_sequential_list(NULL, 0);
    int groups = (int)(out / plan->group_width);
    s.a = td_module_add(f, "a", td_block_conv_norm(in, out, 1, 1, 1, TD_RELU_ACTIVATION));
    s.b =
        td_module_add(f, "b", td_block_conv_norm(out, out, 3, stride, groups, TD_RELU_ACTIVATION));
    if (plan->squeeze) { /* a quarter of the block's inputs, halves to the even number */
        s.se = td_module_add(f, "se",
                             td_block_squeeze_excitation(out, (int64_t)nearbyint(0.25 * (double)in),
                                                         TD_RELU_ACTIVATION));
    }
    s.c = td_module_add(f, "c", td_block_conv_norm(out, out, 1, 1, 1, TD_NO_ACTIVATION));
    td_module_add(m, "f", td_module_finish(f));
    return td_module_finish_with(td_module_mark(m, TD_PART_BLOCK), &s);
}

static td_module *make_stage(const regnet_plan *plan, int stage, int64_t in)
{
    td_module *m = td_nn_sequential_list(NULL, 0);
    int64_t out = plan->width[stage];
    for (int i = 0; i < plan->blocks[stage]; i++) {
        char name[32];
        snprintf(name, sizeof name, "block%d-%d", stage + 1, i);
        td_module_add(m, name, regnet_make_block(plan, i == 0 ? in : out, out, i == 0 ? 2 : 1));
    }
    return td_module_finish(td_module_mark(m, TD_PART_STAGE));
}

/* ---- the whole ---- */

typedef struct regnet_state {
    td_module *stem, *trunk, *avgpool, *fc;
} regnet_state;

static td_tensor *regnet_forward(td_module *self, td_tensor *x, td_site at)
{
    const regnet_state *s = self->state;
    x = td_forward_at(s->trunk, td_forward_at(s->stem, x, at), at);
    x = td_flatten_at(td_forward_at(s->avgpool, x, at), 1, at);
    return td_forward_at(s->fc, x, at);
}

static const td_module_type regnet_type = { .name = "RegNet", .forward = regnet_forward };

/* Weights are drawn a second time when all is built. Convolutions with a bias (those of
 * squeeze-and-excitation) keep it as it was; the classifier's becomes 0. */
static void regnet_init(td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_tensor *weight = m->tensor_count > 0 ? m->tensors[0].tensor : NULL;
        if (weight != NULL && weight->ndim == 4) {
            int64_t fan_out = weight->shape[2] * weight->shape[3] * weight->shape[0];
            td_init_normal_(weight, sqrt(2.0 / (double)fan_out));
        } else if (weight != NULL && weight->ndim == 2) {
            td_init_normal_(weight, 0.01);
            td_fill_(m->tensors[1].tensor, 0.0);
        }
    }
}

static td_module *regnet_make(const void *regnet, const td_model_options *options)
{
    const regnet_plan *plan = regnet;
    td_module *m = td_module_new(&regnet_type, sizeof(regnet_state));
    regnet_state s = { 0 };
    s.stem =
        td_module_add(m, "stem", td_block_conv_norm(3, STEM_WIDTH, 3, 2, 1, TD_RELU_ACTIVATION));
    td_module_mark(s.stem, TD_PART_STEM);
    td_module *trunk = td_nn_sequential_list(NULL, 0);
    int64_t in = STEM_WIDTH;
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof name, "block%d", i + 1);
        td_module_add(trunk, name, make_stage(plan, i, in));
        in = plan->width[i];
    }
    s.trunk = td_module_add(m, "trunk_output", td_module_finish(trunk));
    s.avgpool = td_module_add(m, "avgpool", td_nn_global_avg_pool2d());
    s.fc = td_module_add(m, "fc", td_nn_linear(in, options->classes));
    m = td_module_finish_with(m, &s);
    regnet_init(m);
    return m;
}

const td_model_family td_regnet_family = { TD_PLANS(plans), regnet_make };
