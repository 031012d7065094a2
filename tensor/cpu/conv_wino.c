/*
 * Winograd's F(4x4, 3x3): convolutions of 3x3 taps and stride 1 with about a quarter of the
 * multiplications, at some cost in precision (a relative error of 2e-6 where plain f32 has 4e-7).
 *
 * The result is cut into tiles of 4x4 pixels. A tile of one picture is a row of 36 matrices of
 * channels ("points", wino_kernels.h), and the convolution becomes 36 products of matrices. Rows
 * are taken in blocks small enough for the points to stay in the second-level cache; deep layers,
 * whose weights do not, go in rounds of many rows (conv_wino_rounds.c).
 *
 * Backward-data is a convolution as well: of dy with the filter turned by half a turn, and with
 * 2 - pad pixels of padding. Backward-weights sums over the rows; the rows are cut into pieces that
 * depend on the shapes only, and their sums are added in order.
 */
#include "tensor/cpu/conv_wino.h"

#include "tensor/cpu/conv_wino_internal.h"
#include "tensor/cpu/cpus.h"

#include <sched.h>
#include <string.h>

enum {
    TAPS = TD_WINO_TAPS * TD_WINO_TAPS,
    MIN_ROWS = 24,            /* in a block */
    MAX_ROWS = 96,            /* and in backward-weights: a panel of dy stays in the L1 cache */
    BLOCK_BYTES = 1536 << 10, /* points of a block, source and result */
    WANTED_BLOCKS = 16,       /* for several threads */
    PACK_DEPTH = 16,          /* channels of weights in a task */
    MAX_PIECES = 8,           /* of backward-weights */
    PIECE_BLOCKS = 3,         /* at least */
    PIECE_BYTES = 16 << 20,   /* all pieces together, at least 2 */
    MAX_SLOTS = 64,
};

typedef td_wino_plan plan;
typedef td_wino_picture picture;

/* ---- the plan ---- */

static void plan_pictures(plan *p, const td_conv2d_desc *d)
{
    const td_conv2d_call *call = p->call;
    bool back = call->pass == TD_CONV2D_BACKWARD_DATA;
    p->in = (picture){ (char *)call->x, d->ih, d->iw, d->ic };
    p->out = (picture){ (char *)call->y, d->oh, d->ow, d->oc };
    p->pad = d->pad_h;
    if (back) {
        picture in = p->in;
        p->in = p->out;
        p->out = in;
        p->pad = TD_WINO_TAPS - 1 - d->pad_h;
    }
}

static void plan_blocks(plan *p)
{
    int64_t channels = p->in.channels + p->out.channels;
    int64_t fitting = BLOCK_BYTES / (TD_WINO_POINTS * (int64_t)sizeof(float) * channels);
    int64_t most = td_min64(td_divide_up(p->rows, WANTED_BLOCKS), MAX_ROWS);
    int64_t wanted = td_min64(fitting, most);
    p->blocks = td_divide_up(p->rows, wanted > MIN_ROWS ? wanted : MIN_ROWS);
    p->block_rows = td_wino_round_up(td_divide_up(p->rows, p->blocks), TD_WINO_UNIT);
    p->blocks = td_divide_up(p->rows, p->block_rows);
    p->in_step = p->block_rows * p->in.channels + TD_WINO_PAD;
    p->out_step = p->block_rows * p->out.channels + TD_WINO_PAD;
}

static void plan_pieces(plan *p)
{
    int64_t bytes = TD_WINO_POINTS * p->in.channels * p->out.channels * (int64_t)sizeof(float);
    int64_t most = td_min64(MAX_PIECES, PIECE_BYTES / bytes);
    int64_t pieces = td_min64(most > 2 ? most : 2, td_divide_up(p->blocks, PIECE_BLOCKS));
    p->blocks_per_piece = td_divide_up(p->blocks, pieces);
    p->pieces = td_divide_up(p->blocks, p->blocks_per_piece);
}

static int64_t plan_tasks(plan *p, td_conv_space *space)
{
    if (p->call->pass != TD_CONV2D_BACKWARD_WEIGHTS) {
        return p->blocks;
    }
    plan_pieces(p);
    p->sums = td_wino_floats(space, p->pieces * TD_WINO_POINTS * p->in.channels * p->out.channels);
    return p->pieces;
}

static plan make_plan(const td_conv2d_call *call, td_conv_space *space)
{
    const td_conv2d_desc *d = call->desc;
    plan p = {
        .call = call, .desc = d, .gemm = td_gemm_kernels_for(TD_F32), .wino = td_wino_kernels_now()
    };
    p.bias = call->pass == TD_CONV2D_FORWARD ? call->bias : NULL;
    plan_pictures(&p, d);
    p.tiles_w = td_divide_up(p.out.w, TD_WINO_OUT);
    p.rows = td_divide_up(p.out.h, TD_WINO_OUT) * p.tiles_w * d->n;
    p.panels = td_divide_up(p.out.channels, p.gemm->panel);
    if (call->pass != TD_CONV2D_BACKWARD_WEIGHTS) {
        p.weights_step = p.panels * p.in.channels * p.gemm->panel + TD_WINO_PAD;
        p.weights = td_wino_floats(space, TD_WINO_POINTS * p.weights_step);
    }
    p.in_rounds = td_wino_in_rounds(d, call->pass);
    if (p.in_rounds) {
        td_wino_plan_rounds(&p, space);
    } else {
        plan_blocks(&p);
        int64_t tasks = plan_tasks(&p, space);
        td_wino_plan_slots(&p, space, tasks, TD_WINO_POINTS * (p.in_step + p.out_step));
    }
    return p;
}

/* ---- memory for threads ---- */

void td_wino_plan_slots(plan *p, td_conv_space *space, int64_t tasks, int64_t size)
{
    p->slots = (int)td_min64(tasks, td_min64(td_default_threads(), MAX_SLOTS));
    p->slot_size = td_wino_round_up(size, TD_WINO_PAD);
    p->slot_memory = td_wino_floats(space, p->slots * p->slot_size);
    p->taken = td_conv_take(space, p->slots * (int64_t)sizeof *p->taken);
    for (int i = 0; space->base && i < p->slots; i++) {
        atomic_flag_clear(&p->taken[i]);
    }
}

/* Waits only if more threads are at work than td_default_threads says. */
int td_wino_take_slot(const plan *p)
{
    for (;;) {
        for (int i = 0; i < p->slots; i++) {
            if (!atomic_flag_test_and_set_explicit(&p->taken[i], memory_order_acquire)) {
                return i;
            }
        }
        sched_yield();
    }
}

void td_wino_give_slot(const plan *p, int slot)
{
    atomic_flag_clear_explicit(&p->taken[slot], memory_order_release);
}

/* ---- tiles ---- */

/* The pixels of a tile of size x size at (h, w); outside of the picture there are none. */
static void find_pixels(td_wino_tile *tile, const picture *from, int64_t n, int64_t h, int64_t w,
                        int size)
{
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++) {
            bool inside = h + i >= 0 && h + i < from->h && w + j >= 0 && w + j < from->w;
            int64_t at = ((h + i) * from->w + w + j) * n * from->channels;
            tile->pixel[i * size + j] = inside ? (float *)from->data + at : NULL;
        }
    }
}

void td_wino_transform(const plan *p, void (*fn)(const td_wino_tile *), bool wide,
                       const td_wino_part *part, td_wino_tile tile)
{
    const picture *from = wide ? &p->in : &p->out;
    int64_t n = p->desc->n;
    tile.image = from->channels;
    tile.count = part->channels;
    tile.row = part->row;
    tile.step = part->step;
    tile.bias = tile.bias ? tile.bias + part->channel : NULL;
    for (int64_t row = 0; row < part->rows; row += tile.images) {
        int64_t number = (part->first + row) / n, image = (part->first + row) % n;
        int64_t h = number / p->tiles_w * TD_WINO_OUT, w = number % p->tiles_w * TD_WINO_OUT;
        tile.images = td_min64(n - image, part->rows - row);
        tile.points = part->points + row * tile.row;
        if (wide) {
            find_pixels(&tile, from, n, h - p->pad, w - p->pad, TD_WINO_IN);
        } else {
            find_pixels(&tile, from, n, h, w, TD_WINO_OUT);
        }
        for (int i = 0; i < TD_WINO_POINTS; i++) {
            if (tile.pixel[i]) {
                tile.pixel[i] += image * tile.image + part->channel;
            }
        }
        fn(&tile);
    }
}

/* All channels of some rows, their points in a block's memory. */
static td_wino_part block_part(const plan *p, bool wide, float *points, int64_t first, int64_t rows)
{
    int64_t channels = wide ? p->in.channels : p->out.channels;
    return (td_wino_part){ .first = first,
                           .rows = rows,
                           .channels = channels,
                           .points = points,
                           .step = wide ? p->in_step : p->out_step,
                           .row = channels };
}

/* ---- forward and backward-data ---- */

/* PACK_DEPTH channels of `in`, one panel of `out`: collects the nine taps, and transforms them. */
static void weights_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv2d_desc *d = p->desc;
    bool back = p->call->pass == TD_CONV2D_BACKWARD_DATA;
    int64_t width = p->gemm->panel, panel = task % p->panels;
    int64_t k0 = task / p->panels * PACK_DEPTH, first = panel * width;
    int64_t k = td_min64(PACK_DEPTH, p->in.channels - k0);
    int64_t n = td_min64(width, p->out.channels - first);
    _Alignas(64) float taps[TAPS * PACK_DEPTH * TD_GEMM_MAX_PANEL_BYTES / sizeof(float)];
    if (n < width) {
        memset(taps, 0, sizeof taps);
    }
    for (int tap = 0; tap < TAPS; tap++) {
        const float *from = (const float *)p->call->w + tap * d->ic * d->oc;
        from += back ? first * d->oc + k0 : k0 * d->oc + first;
        int to = back ? TAPS - 1 - tap : tap; /* turned by half a turn */
        p->gemm->pack(taps + to * PACK_DEPTH * width, from, k, n, back ? 1 : d->oc,
                      back ? d->oc : 1);
    }
    p->wino->w_to_points(p->weights + (panel * p->in.channels + k0) * width, p->weights_step, taps,
                         PACK_DEPTH * width, k * width);
}

void td_wino_weights(td_pool *pool, plan *p)
{
    td_pool_run(pool, td_divide_up(p->in.channels, PACK_DEPTH) * p->panels, weights_task, p);
}

void td_wino_multiply(const plan *p, const float *a, const float *b, float *c, int64_t rows, int n)
{
    td_gemm_term term;
    td_gemm_block block = {
        .terms = &term,
        .count = 1,
        .a_col = 1,
        .b_row = p->gemm->panel,
        .c = c,
        .m = rows,
        .n = n,
    };
    for (int64_t k = 0; k < p->in.channels; k += TD_WINO_MAX_DEPTH) {
        term = (td_gemm_term){ a + k, b + k * block.b_row,
                               td_min64(TD_WINO_MAX_DEPTH, p->in.channels - k) };
        td_gemm_strided(p->gemm, &block, p->in.channels, p->out.channels);
        block.accumulate = true;
    }
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int slot = td_wino_take_slot(p);
    float *in = p->slot_memory + slot * p->slot_size;
    float *out = in + TD_WINO_POINTS * p->in_step;
    int64_t first = task * p->block_rows, rows = td_min64(p->block_rows, p->rows - first);
    int64_t width = p->gemm->panel;
    td_wino_part part = block_part(p, true, in, first, rows);
    td_wino_transform(p, p->wino->x_to_points, true, &part, (td_wino_tile){ .images = 0 });
    for (int point = 0; point < TD_WINO_POINTS; point++) {
        for (int64_t panel = 0; panel < p->panels; panel++) {
            td_wino_multiply(p, in + point * p->in_step,
                             p->weights + point * p->weights_step + panel * p->in.channels * width,
                             out + point * p->out_step + panel * width, rows,
                             (int)td_min64(width, p->out.channels - panel * width));
        }
    }
    part = block_part(p, false, out, first, rows);
    td_wino_transform(p, p->wino->y_from_points, false, &part,
                      (td_wino_tile){ .bias = p->bias, .accumulate = p->call->accumulate });
    td_wino_give_slot(p, slot);
}

/* ---- backward-weights ---- */

/* sums += points of x^T times points of dy, for a block of rows. */
static void add_block(const plan *p, const float *in, const float *out, float *sums, int64_t rows,
                      bool accumulate)
{
    int64_t width = p->gemm->panel;
    for (int point = 0; point < TD_WINO_POINTS; point++) {
        for (int64_t panel = 0; panel < p->panels; panel++) {
            td_gemm_term term = { in + point * p->in_step,
                                  out + point * p->out_step + panel * width, rows };
            td_gemm_block block = {
                .terms = &term,
                .count = 1,
                .a_col = p->in.channels,
                .b_row = p->out.channels,
                .c = sums + point * p->in.channels * p->out.channels + panel * width,
                .m = p->in.channels,
                .n = (int)td_min64(width, p->out.channels - panel * width),
                .accumulate = accumulate,
            };
            td_gemm_strided(p->gemm, &block, 1, p->out.channels);
        }
    }
}

static void piece_task(void *ctx, int64_t piece)
{
    const plan *p = ctx;
    int slot = td_wino_take_slot(p);
    float *in = p->slot_memory + slot * p->slot_size;
    float *out = in + TD_WINO_POINTS * p->in_step;
    float *sums = p->sums + piece * TD_WINO_POINTS * p->in.channels * p->out.channels;
    int64_t begin = piece * p->blocks_per_piece;
    int64_t end = td_min64(p->blocks, begin + p->blocks_per_piece);
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * p->block_rows, rows = td_min64(p->block_rows, p->rows - first);
        td_wino_part x = block_part(p, true, in, first, rows);
        td_wino_part dy = block_part(p, false, out, first, rows);
        td_wino_transform(p, p->wino->x_to_points, true, &x, (td_wino_tile){ .images = 0 });
        td_wino_transform(p, p->wino->dy_to_points, false, &dy, (td_wino_tile){ .images = 0 });
        add_block(p, in, out, sums, rows, block > begin);
    }
    td_wino_give_slot(p, slot);
}

/* Some input channels of dw, from the sums of all pieces. */
static void combine_task(void *ctx, int64_t channel)
{
    const plan *p = ctx;
    int64_t oc = p->desc->oc, size = p->desc->ic * oc, at = channel * oc;
    p->wino->dw_from_points((float *)p->call->w + at, size, p->sums + at, size, p->pieces,
                            TD_WINO_POINTS * size, oc, p->call->accumulate);
}

/* ---- the door ---- */

bool td_wino_possible(const td_conv2d_desc *d)
{
    return d->dtype == TD_F32 && d->kh == TD_WINO_TAPS && d->kw == TD_WINO_TAPS &&
           d->stride_h == 1 && d->stride_w == 1 && d->dil_h == 1 && d->dil_w == 1 &&
           d->pad_h == d->pad_w && d->pad_h < TD_WINO_TAPS && d->groups == 1 && d->n > 0;
}

/*
 * The transform multiplies 36 times for each tile, the direct way once for each tap that meets the
 * picture. What that saves must pay for the transforms: of pixels, which need some channels to
 * multiply with afterwards, and of the weights, which need rows to share them. Backward-weights
 * also adds its sums to memory in every block. Measured on the 3x3 convolutions of ResNets.
 */
bool td_wino_wins(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    td_conv_problem p = td_conv_problem_of(d);
    double direct = (double)td_conv_meetings(&p.h) * (double)td_conv_meetings(&p.w);
    int64_t h = pass == TD_CONV2D_BACKWARD_DATA ? d->ih : d->oh;
    int64_t w = pass == TD_CONV2D_BACKWARD_DATA ? d->iw : d->ow;
    double tiles = (double)(td_divide_up(h, TD_WINO_OUT) * td_divide_up(w, TD_WINO_OUT));
    double rows = tiles * (double)d->n;
    bool weights = pass == TD_CONV2D_BACKWARD_WEIGHTS;
    double gain = direct / (tiles * TD_WINO_POINTS);
    double channels = (double)td_min64(d->ic, d->oc);
    double least = td_wino_in_rounds(d, pass) ? 48 : weights ? 128 : 96;
    return channels >= 16 && rows >= least && gain > (weights ? 2.2 : 1.8);
}

int64_t td_wino_workspace(const td_conv2d_call *call)
{
    td_conv_space space = { 0 };
    make_plan(call, &space);
    return space.used;
}

void td_wino_run(td_pool *pool, const td_conv2d_call *call, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(call, &space);
    if (p.weights) {
        td_wino_weights(pool, &p);
    }
    if (p.in_rounds) {
        td_wino_run_rounds(pool, &p);
    } else if (call->pass == TD_CONV2D_BACKWARD_WEIGHTS) {
        td_pool_run(pool, p.pieces, piece_task, &p);
        td_pool_run(pool, p.in.channels, combine_task, &p);
    } else {
        td_pool_run(pool, p.blocks, apply_task, &p);
    }
}
