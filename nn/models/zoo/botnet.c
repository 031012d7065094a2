/* BoTNet-50 (Srinivas et al. 2021): a ResNet-50 whose last layer looks everywhere at once:
 * multi-head self-attention with relative positions in the place of the 3x3 convolutions, at stride
 * 1. torchvision has none; the sizes are distribuuuu's (20,859,176 parameters at 224). */
#include "nn/models/models.h"

#include <math.h>

enum { HEADS = 4, HEAD_SIZE = 128, WIDTH = HEADS * HEAD_SIZE, USUAL_SIDE = 224 };

/* ---- relative positions ----
 *
 * The query at (x,y) gives the key at (i,j) q[x,y].height[i-x] + q[x,y].width[j-y], where height
 * and width are learned vectors for every distance from -(side-1) to side-1. */

typedef struct positions_state {
    int64_t side;
    td_tensor *height, *width; /* [2 side - 1, HEAD_SIZE] */
} positions_state;

/* The rows of a table [2 side - 1, d] that belong to (place, other place), as [side, d, side]. */
static td_tensor *rows_by_distance(td_tensor *table, int64_t side, td_site at)
{
    td_tensor *index =
        td_step_new(TD_SHAPE(side, side), TD_I64, TD_ROW_MAJOR, td_device_of(table), at);
    int64_t *rows = td_step_bytes((size_t)(side * side) * sizeof *rows);
    for (int64_t x = 0; x < side; x++) {
        for (int64_t i = 0; i < side; i++) {
            rows[x * side + i] = i - x + side - 1;
        }
    }
    td_write(index, rows, TD_I64);
    return td_transpose_at(
        td_embedding_at((td_embedding_options){ .index = index, .table = table }, at), 1, 2, at);
}

/* q[N,heads,side*side,d] -> [N,heads,side*side,side*side] */
static td_tensor *positions_forward(td_module *self, td_tensor *q, td_site at)
{
    const positions_state *s = self->state;
    int64_t n = q->shape[0], side = s->side, all = side * side;
    TD_REQUIRE(q->shape[2] == all, at,
               "the relative positions are for %lld x %lld places, and the image gives %lld: make "
               "the model for images of this size (td_model_options.image_size)",
               (long long)side, (long long)side, (long long)q->shape[2]);
    q = td_reshape_at(q, TD_SHAPE(n, HEADS, side, side, HEAD_SIZE), at);
    td_tensor *h = td_matmul_at(q, rows_by_distance(s->height, side, at), at); /* [n,heads,x,y,i] */
    td_tensor *turned = td_transpose_at(q, 2, 3, at);
    td_tensor *w = td_matmul_at(turned, rows_by_distance(s->width, side, at), at);
    w = td_transpose_at(w, 2, 3, at); /* [n,heads,x,y,j] */
    h = td_reshape_at(h, TD_SHAPE(n, HEADS, side, side, side, 1), at);
    w = td_reshape_at(w, TD_SHAPE(n, HEADS, side, side, 1, side), at);
    return td_reshape_at(td_add_at(h, w, at), TD_SHAPE(n, HEADS, all, all), at);
}

static void positions_describe(const td_module *self, char *text, size_t size)
{
    const positions_state *s = self->state;
    snprintf(text, size, "%lldx%lld", (long long)s->side, (long long)s->side);
}

static int64_t positions_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)out;
    return td_shape_numel(in) * 2 * ((const positions_state *)self->state)->side;
}

static const td_module_type positions_type = { .name = "RelativePositions",
                                               .forward = positions_forward,
                                               .describe = positions_describe,
                                               .multiply_adds = positions_multiply_adds };

static td_tensor *new_table(td_module *m, const char *name, int64_t rows)
{
    td_tensor *t = td_module_new_parameter(m, name, TD_SHAPE(rows, HEAD_SIZE), TD_ROW_MAJOR);
    if (t != NULL) {
        td_init_normal_(t, 1.0 / sqrt((double)HEAD_SIZE));
    }
    return t;
}

static td_module *make_positions(int64_t side)
{
    td_module *m = td_module_new(&positions_type, sizeof(positions_state));
    positions_state s = { .side = side };
    s.height = new_table(m, "rel_height", 2 * side - 1);
    s.width = new_table(m, "rel_width", 2 * side - 1);
    return td_module_finish_with(m, &s);
}

/* ---- attention over the places of an image ---- */

typedef struct attention_state {
    td_module *to_qk, *to_v, *positions;
} attention_state;

/* Channels [first, first + WIDTH) of x[N,C,H,W] as [N,heads,d,H*W]: a view. */
static td_tensor *heads_of(td_tensor *x, int64_t first, td_site at)
{
    x = td_slice_at(x, 1, first, first + WIDTH, 1, at);
    return td_reshape_at(x, TD_SHAPE(x->shape[0], HEADS, HEAD_SIZE, x->shape[2] * x->shape[3]), at);
}

/* softmax(q k / sqrt(d) + positions(q)) v */
static td_tensor *attention_forward(td_module *self, td_tensor *x, td_site at)
{
    const attention_state *s = self->state;
    td_tensor *qk = td_forward_at(s->to_qk, x, at);
    td_tensor *v = heads_of(td_forward_at(s->to_v, x, at), 0, at);
    td_tensor *q = td_transpose_at(heads_of(qk, 0, at), 2, 3, at), *k = heads_of(qk, WIDTH, at);
    q = td_mul_scalar_at(q, 1.0 / sqrt((double)HEAD_SIZE), at);
    td_tensor *scores = td_matmul_at(q, k, at);
    scores = td_add_at(scores, td_forward_at(s->positions, q, at), at);
    td_tensor *y = td_matmul_at(td_softmax_at(scores, -1, at), td_transpose_at(v, 2, 3, at), at);
    y = td_transpose_at(y, 2, 3, at); /* [N,heads,d,H*W] */
    return td_reshape_at(y, TD_SHAPE(x->shape[0], WIDTH, x->shape[2], x->shape[3]), at);
}

static void attention_describe(const td_module *self, char *text, size_t size)
{
    (void)self;
    snprintf(text, size, "%d heads of %d", HEADS, HEAD_SIZE);
}

/* The two products of attention; the convolutions and positions count themselves. */
static int64_t attention_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)self, (void)in;
    return 2 * td_shape_numel(out) * out.dim[2] * out.dim[3];
}

static const td_module_type attention_type = { .name = "SelfAttention",
                                               .forward = attention_forward,
                                               .describe = attention_describe,
                                               .multiply_adds = attention_multiply_adds };

static td_module *make_attention(int64_t side)
{
    td_module *m = td_module_new(&attention_type, sizeof(attention_state));
    attention_state s = { 0 };
    s.to_qk = td_module_add(m, "to_qk", td_block_conv(WIDTH, 2 * (int64_t)WIDTH, 1, 1, 1));
    s.to_v = td_module_add(m, "to_v", td_block_conv(WIDTH, WIDTH, 1, 1, 1));
    s.positions = td_module_add(m, "pos_emb", make_positions(side));
    return td_module_finish_with(m, &s);
}

/* ---- the block ---- */

typedef struct block_state {
    td_module *conv1, *bn1, *attention, *bn2, *conv3, *bn3;
    td_module *downsample; /* NULL: the shortcut is x itself */
} block_state;

static td_tensor *botnet_block_forward(td_module *self, td_tensor *x, td_site at)
{
    const block_state *s = self->state;
    td_nn_batch_norm_then then = { .activation = TD_NORM_RELU };
    td_tensor *h = td_nn_conv2d_batch_norm(s->conv1, s->bn1, x, &then, at);
    h = td_forward_at(s->attention, h, at);
    h = td_nn_batch_norm2d_fused(s->bn2, h, NULL, TD_NORM_RELU, at);
    then.add = s->downsample != NULL ? td_forward_at(s->downsample, x, at) : x;
    return td_nn_conv2d_batch_norm(s->conv3, s->bn3, h, &then, at);
}

static const td_module_type block_type = { .name = "BottleneckTransformer",
                                           .forward = botnet_block_forward };

static td_module *botnet_make_block(int64_t in, int64_t out, int64_t side)
{
    td_module *m = td_module_new(&block_type, sizeof(block_state));
    block_state s = { 0 };
    s.conv1 = td_module_add(m, "conv1", td_block_conv(in, WIDTH, 1, 1, 1));
    s.bn1 = td_module_add(m, "bn1", td_nn_batch_norm2d(WIDTH));
    s.attention = td_module_add(m, "attention", make_attention(side));
    s.bn2 = td_module_add(m, "bn2", td_nn_batch_norm2d(WIDTH));
    s.conv3 = td_module_add(m, "conv3", td_block_conv(WIDTH, out, 1, 1, 1));
    s.bn3 = td_module_add(m, "bn3", td_nn_batch_norm2d(out));
    if (s.bn3 != NULL) { /* a block starts as its shortcut */
        td_fill_(s.bn3->tensors[0].tensor, 0.0);
    }
    if (in != out) {
        s.downsample = td_module_add(m, "downsample",
                                     td_block_conv_norm(in, out, 1, 1, 1, TD_RELU_ACTIVATION));
    }
    return td_module_finish_with(td_module_mark(m, TD_PART_BLOCK), &s);
}

static td_module *make_last_layer(int64_t in, int64_t out, int blocks,
                                  const td_model_options *options)
{
    int64_t pixels = options->image_size != 0 ? options->image_size : USUAL_SIDE;
    int64_t stride = options->stem == TD_STEM_IMAGENET ? 16 : 4; /* of stem, layer2 and layer3 */
    int64_t side = (pixels + stride - 1) / stride;
    td_module *m = td_nn_sequential_list(NULL, 0);
    for (int i = 0; i < blocks; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        td_module_add(m, name, botnet_make_block(i == 0 ? in : out, out, side));
    }
    return td_module_finish(m);
}

static const td_resnet_plan plans[] = {
    { "botnet50", true, { 3, 4, 6, 3 }, 1, 64, make_last_layer },
};

const td_model_family td_botnet_family = { TD_PLANS(plans), td_resnet_build, .stems = true };
