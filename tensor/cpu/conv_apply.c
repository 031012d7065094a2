/*
 * Forward and backward-data. docs/convolutions.md has the ideas; conv_classes.h says what taps, row
 * blocks and classes are. A panel is as many channels of the result as a register tile is wide.
 *
 * A task computes some rows of the result in some panels, in one of two ways; conv_apply_plan.c
 * counts which one costs less:
 *
 *   class  The rows are a block of one class, so all of them meet the same taps. Each sum runs over
 *          all taps, and is built in registers.
 *   strip  Where classes have few rows: the rows are a strip of neighbouring pixels. Each tap is a
 *          row block of its own, of those rows that meet it, and is added to the result. So a tap's
 *          weights are read once for the whole strip.
 */
#include "tensor/cpu/conv_apply.h"

#include "tensor/cpu/bf16_kernels.h"

enum {
    TERMS = 64,          /* pieces of a sum; a piece has three terms if factors are split */
    MAX_DEPTH = 1 << 30, /* of sums that are not cut */
    ONCE_ROWS = 12,      /* a block of so many rows packs its weights if nobody has */
    PACK_COST = 8,       /* of packing a weight, in multiply-adds */
};

static int64_t apply_size_of(const td_apply_plan *p)
{
    return (int64_t)p->problem->kernels->size;
}

/* ---- a row block ---- */

/* Rows of the result, and the taps that all of them meet: of the taps [kh, kh_end) x [kw, kw_end)
 * those that pixel (qh, qw), one of the rows, meets. a_row, c_row: td_gemm_block's tables. */
typedef struct row_block {
    int64_t rows;
    int64_t qh, qw;
    int kh, kh_end, kw, kw_end;
    int64_t a_row[TD_APPLY_ROWS], c_row[TD_APPLY_ROWS];
} row_block;

/* A piece of a tap: channels [first, first + count) of the source. `apart`: bytes from the source
 * of the row block's first tap to this tap's. */
typedef struct piece {
    int kh, kw;
    int64_t apart, first, count;
} piece;

/* A sum that is being built, in panels [panel, end): pieces are collected until they have `most`
 * products, and then multiplied and added to the rows. */
typedef struct sum {
    const td_apply_plan *plan;
    const row_block *block;
    int64_t panel, end;
    bool started; /* the rows hold something already */
    bool packs;   /* this sum packs the weights that it reads */
    bool joins;   /* neighbouring taps become one piece, as they lie side by side in memory */
    int count;    /* of pieces */
    int64_t depth, most; /* products of the pieces, and at most */
    piece pieces[TERMS];
    td_gemm_term terms[TERMS * TD_BF16_TERMS];
    _Alignas(64) char packed[TD_APPLY_DEPTH * TD_GEMM_MAX_PANEL_BYTES];
} sum;

/* The pieces as terms of the product of one panel; returns how many. */
static int find_terms(sum *s, const td_apply_place *at, int64_t b_row)
{
    const td_apply_plan *p = s->plan;
    int64_t size = apply_size_of(p);
    const char *source = (const char *)p->apply->source + at->from * size, *a, *b;
    char *to = s->packed;
    int terms = 0;
    for (int i = 0; i < s->count; i++) {
        const piece *t = &s->pieces[i];
        a = source + t->apart + t->first * size;
        if (p->packed) {
            b = td_apply_packed_at(p, at, t->kh, t->kw, t->first);
        } else if (s->packs) {
            td_apply_pack(p, at->n, td_apply_weights_at(p, at, t->kh, t->kw), t->first, t->count,
                          to);
            b = to;
            to += t->count * b_row * size;
        } else {
            b = td_apply_weights_at(p, at, t->kh, t->kw) + t->first * b_row * size;
        }
        if (p->whole) {
            terms += td_bf16_terms(&s->terms[terms], (const td_bf16 *)a, p->apply->mixed->low,
                                   (const td_bf16 *)b, p->packed_low, t->count);
        } else {
            s->terms[terms++] = (td_gemm_term){ a, b, t->count };
        }
    }
    return terms;
}

/* Multiplies the pieces, panel after panel, so that the rows of the source stay in the cache.
 * `all`: no pieces follow. */
static void apply_add_up(sum *s, bool all)
{
    const td_apply_plan *p = s->plan;
    const td_gemm_kernels *kernels = p->problem->kernels;
    for (int64_t panel = s->panel; panel < s->end; panel++) {
        td_apply_place at = td_apply_place_of(p, panel);
        const char *bias = s->started ? NULL : p->apply->bias;
        td_gemm_block product = {
            .terms = s->terms,
            .a_row = s->block->a_row,
            .c_row = s->block->c_row,
            .a_col = 1,
            .b_row = p->packed || s->packs ? p->width : p->problem->oc_all,
            .c = (char *)p->apply->result + at.to * p->to_size,
            .dtype = p->whole ? p->apply->mixed->result : TD_F32,
            .m = s->block->rows,
            .n = (int)at.n,
            .accumulate = s->started,
            .past = p->past && all && !s->started,
            .bias = bias ? bias + at.to * apply_size_of(p) * kernels->pairs : NULL,
        };
        product.count = find_terms(s, &at, product.b_row);
        if (p->problem->sharing > 0) {
            td_gemm_lanes lanes = p->lanes; /* the last group may have fewer channels */
            lanes.window = (int)(product.n * p->group.from_channels / p->group.to_channels);
            kernels->grouped(&product, &lanes);
        } else {
            kernels->block(&product);
        }
    }
    s->started = true;
    s->count = 0;
    s->depth = 0;
}

static void add_tap(sum *s, int kh, int kw, int64_t apart)
{
    int64_t depth = s->plan->group.depth, most = s->plan->whole ? depth : TD_APPLY_DEPTH;
    piece *last = s->count > 0 ? &s->pieces[s->count - 1] : NULL;
    if (s->joins && last && last->kh == kh &&
        last->apart + last->count * apply_size_of(s->plan) == apart &&
        s->depth + depth <= s->most) {
        last->count += depth;
        s->depth += depth;
        return;
    }
    for (int64_t first = 0, count; first < depth; first += count) {
        count = td_min64(depth - first, most);
        if (s->depth + count > s->most || s->count == TERMS) {
            apply_add_up(s, false);
        }
        s->pieces[s->count++] = (piece){ kh, kw, apart, first, count };
        s->depth += count;
    }
}

/* Panels [panel, end) of a row block. `started`: the rows hold something already. */
static void apply_multiply(const td_apply_plan *p, const row_block *block, int64_t panel,
                           int64_t end, bool started)
{
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    const int32_t *from_h = h->source + block->qh * h->kernel;
    const int32_t *from_w = w->source + block->qw * w->kernel;
    int64_t first = -1;
    sum s; /* field by field: to clear it all would take as long as a short sum */
    s.plan = p;
    s.block = block;
    s.panel = panel;
    s.end = end;
    s.started = started;
    s.packs =
        !p->packed && td_apply_needs_packing(p) && (p->apply->backward || block->rows >= ONCE_ROWS);
    s.joins = !td_apply_needs_packing(p) && p->problem->groups == 1 &&
              p->problem->w.dilation == 1 && p->from.column == p->group.depth * apply_size_of(p);
    s.most = p->whole ? MAX_DEPTH : TD_APPLY_DEPTH;
    s.count = 0;
    s.depth = 0;
    for (int kh = block->kh; kh < block->kh_end; kh++) {
        for (int kw = block->kw; kw < block->kw_end && from_h[kh] >= 0; kw++) {
            if (from_w[kw] >= 0) {
                int64_t at = from_h[kh] * p->from.row + from_w[kw] * p->from.column;
                first = first < 0 ? at : first;
                add_tap(&s, kh, kw, at - first);
            }
        }
    }
    if (s.count > 0 || !s.started) { /* all rows are written, even if they meet nothing */
        apply_add_up(&s, true);
    }
}

/* ---- tasks ---- */

/* A block of a class, and all of its taps. */
static void class_task(const td_apply_plan *p, int64_t index, int64_t panel, int64_t end)
{
    const td_conv_block *b = &p->classes.block_list[index];
    const td_conv_class *c = b->of;
    row_block block;
    block.rows = b->rows;
    block.qh = p->classes.h.order[c->h->first];
    block.qw = p->classes.w.order[c->w->first];
    block.kh = block.kw = 0;
    block.kh_end = p->problem->h.kernel;
    block.kw_end = p->problem->w.kernel;
    td_conv_class_rows(&p->classes, c, b->first, block.rows, &p->from, &p->to, block.a_row,
                       block.c_row);
    for (int64_t next; panel < end; panel = next) {
        next = td_min64(panel + p->beside, end);
        apply_multiply(p, &block, panel, next, p->apply->accumulate);
    }
}

/* The rows of pixels [pixel, end) that meet a tap; kh < 0: all of them. */
static void find_rows(const td_apply_plan *p, int64_t pixel, int64_t end, int kh, int kw,
                      row_block *block)
{
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    int64_t n = p->problem->n;
    block->rows = block->qh = block->qw = 0;
    block->kh = block->kh_end = block->kw = block->kw_end = 0;
    for (; pixel < end; pixel++) {
        int64_t qh = pixel / w->size, qw = pixel % w->size, a = 0;
        if (kh >= 0) {
            int64_t ih = h->source[qh * h->kernel + kh], iw = w->source[qw * w->kernel + kw];
            if (ih < 0 || iw < 0) {
                continue;
            }
            a = ih * p->from.row + iw * p->from.column;
            block->qh = qh;
            block->qw = qw;
            block->kh = kh;
            block->kh_end = kh + 1;
            block->kw = kw;
            block->kw_end = kw + 1;
        }
        int64_t c = qh * p->to.row + qw * p->to.column;
        for (int64_t i = 0; i < n; i++, block->rows++) {
            block->a_row[block->rows] = a + i * p->from.image;
            block->c_row[block->rows] = c + i * p->to.image;
        }
    }
}

/* A strip of pixels: first the bias, or zeros, in all rows, and then tap by tap. */
static void apply_strip_task(const td_apply_plan *p, int64_t index, int64_t panel, int64_t end)
{
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    int64_t pixel = index * p->strip_pixels;
    int64_t last = td_min64(pixel + p->strip_pixels, h->size * w->size);
    row_block block;
    if (!p->apply->accumulate) {
        find_rows(p, pixel, last, -1, -1, &block);
        apply_multiply(p, &block, panel, end, false);
    }
    for (int kh = 0; kh < h->kernel; kh++) {
        for (int kw = 0; kw < w->kernel; kw++) {
            find_rows(p, pixel, last, kh, kw, &block);
            if (block.rows > 0) {
                apply_multiply(p, &block, panel, end, true);
            }
        }
    }
}

static void task(void *ctx, int64_t task)
{
    const td_apply_plan *p = ctx;
    int64_t block, span;
    td_turn(&p->turns, task, &block, &span);
    int64_t panel = span * p->span, end = td_min64(panel + p->span, p->group.all_panels);
    if (p->by_taps) {
        apply_strip_task(p, block, panel, end);
    } else {
        class_task(p, block, panel, end);
    }
    if (p->problem->kernels->end) {
        p->problem->kernels->end();
    }
}

/* ---- running ---- */

void td_conv_apply_run(td_pool *pool, const td_conv_apply *apply, td_conv_space *space)
{
    td_apply_plan p = td_apply_plan_make(apply, space);
    if (!space->base) {
        return;
    }
    const td_conv_taps *h = &p.classes.h.taps, *w = &p.classes.w.taps;
    double weights = (double)(p.group.depth * p.group.to_channels * p.group.count) *
                     (double)(h->alive * w->alive);
    double rows = (double)(h->size * w->size) * (double)apply->problem->n;
    if (weights * (rows + (p.packed ? PACK_COST : 0)) < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (p.packed) {
        td_apply_pack_ahead(pool, &p);
    }
    int64_t spans = td_divide_up(p.group.all_panels, p.span);
    p.turns = td_conv_turns(apply->problem, h, w, p.blocks, spans, td_pool_threads(pool));
    td_pool_run(pool, p.blocks * spans, task, &p);
}
