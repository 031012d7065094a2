/*
 * Forward and backward-data where runs of rows are short: blocks of pixels that meet the same taps,
 * wherever they lie, as in conv_apply_gather.c; but the product finds its operands in tables, so
 * that nothing is copied, and nothing is multiplied that is not there.
 */
#include "tensor/cpu/conv_apply.h"

enum {
    PACK_ROWS = 12, /* of a block; from there on the weights are laid out side by side first */
};

/* Pixels of the order that meet the same taps, in one group and panel. */
typedef struct listed {
    const td_conv_apply_plan *plan;
    td_conv_place at;
    const int32_t *pixels;
    int64_t count;
    td_gemm_indexed product;
    bool packs, multiplied;
    int64_t a_row[TD_GATHER_ROWS], c_row[TD_GATHER_ROWS];
    int64_t a_col[TD_APPLY_DEPTH], b_row[TD_APPLY_DEPTH];
    _Alignas(64) char packed[TD_APPLY_DEPTH * TD_GEMM_MAX_PANEL_BYTES];
} listed;

/* Where the tap's pixel of the source is, seen from a pixel of the result; -1: it meets none. */
static int64_t source_at(const listed *l, int64_t pixel, int kh, int kw)
{
    const td_conv_apply_plan *p = l->plan;
    int64_t h = p->h.source[pixel / p->w.size * p->h.kernel + kh];
    int64_t w = p->w.source[pixel % p->w.size * p->w.kernel + kw];
    return h < 0 || w < 0 ? -1 : h * p->from.row + w * p->from.column;
}

/* The pixels' places in all pictures, and where that tap's are in the source, if they meet it. */
static void find_rows(listed *l, int kh, int kw)
{
    const td_conv_apply_plan *p = l->plan;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size, row = 0;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t pixel = l->pixels[i], from = source_at(l, pixel, kh, kw);
        int64_t to = pixel / p->w.size * p->to.row + pixel % p->w.size * p->to.column;
        for (int64_t image = 0; image < n; image++, row++) {
            l->a_row[row] = (from + image * p->from.image) * size;
            l->c_row[row] = (to + image * p->to.image) * size;
        }
    }
}

static void multiply(listed *l)
{
    l->plan->problem->kernels->indexed(&l->product);
    l->product.accumulate = l->multiplied = true;
    l->product.k = 0;
}

/* Adds a tap, whose source lies `apart` elements from that of the first. */
static void add_tap(listed *l, int kh, int kw, int64_t apart)
{
    const td_conv_apply_plan *p = l->plan;
    const td_gemm_kernels *kernels = p->problem->kernels;
    int64_t size = (int64_t)kernels->size, row = td_conv_apply_b_row(p) * size;
    const char *b = td_conv_apply_weights(p, l->at.group, l->at.panel, kh, kw);
    for (int64_t k0 = 0, k; k0 < p->depth; k0 += k) {
        int64_t at = l->product.k;
        k = td_min64(TD_APPLY_DEPTH - at, p->depth - k0);
        int64_t first = b + k0 * row - (const char *)l->product.b, step = row;
        if (l->packs) {
            first = at * kernels->panel * size;
            step = kernels->panel * size;
            kernels->pack(l->packed + first, b + k0 * row, k, l->product.n, p->problem->oc_all, 1);
        }
        for (int64_t i = 0; i < k; i++) {
            l->a_col[at + i] = (apart + k0 + i) * size;
            l->b_row[at + i] = first + i * step;
        }
        l->product.k += k;
        if (l->product.k == TD_APPLY_DEPTH) {
            multiply(l);
        }
    }
}

void td_conv_listed_task(void *ctx, int64_t task)
{
    const td_conv_apply_plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    listed l;
    l.plan = p;
    l.at = td_conv_apply_place(p, task, 1);
    const td_conv_order_block *block = &p->order.blocks[l.at.block];
    l.pixels = p->order.pixels + block->first;
    l.count = block->count;
    l.multiplied = false;
    l.packs = !p->packed && l.count * problem->n >= PACK_ROWS;
    int64_t channel = l.at.group * p->to_channels + l.at.panel * p->width;
    const char *bias = p->apply->bias;
    l.product = (td_gemm_indexed){
        .a = (const char *)p->apply->source + l.at.group * p->from_channels * size,
        .b = p->packed ? p->packed
             : l.packs ? l.packed
                       : p->apply->weights,
        .c = (char *)p->apply->result + channel * size,
        .a_row = l.a_row,
        .a_col = l.a_col,
        .b_row = l.b_row,
        .c_row = l.c_row,
        .m = l.count * problem->n,
        .n = (int)td_min64(p->width, p->to_channels - l.at.panel * p->width),
        .accumulate = p->apply->accumulate,
        .bias = bias ? bias + channel * size : NULL,
    };
    int64_t first = -1; /* source of the first tap that is met */
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            int64_t source = source_at(&l, l.pixels[0], kh, kw);
            if (source < 0) {
                continue;
            }
            if (first < 0) {
                first = source;
                find_rows(&l, kh, kw);
            }
            add_tap(&l, kh, kw, source - first);
        }
    }
    if (first < 0) {
        find_rows(&l, 0, 0);
    }
    if (!l.multiplied || l.product.k > 0) { /* even without any term: all pixels are written */
        multiply(&l);
    }
}
