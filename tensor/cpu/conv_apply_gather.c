/* Forward and backward-data where runs of rows are short: blocks of rows from anywhere. */
#include "tensor/cpu/conv_apply.h"

#include <string.h>

/* Pixels [first, first + count) of the order, in one group and panel. Their sources are copied side
 * by side, with zeros where a pixel does not meet a tap, and the sums are copied back. */
typedef struct gathered {
    const td_conv_apply_plan *plan;
    int64_t group, panel;
    const int32_t *pixels;
    int64_t count;
    td_conv_term_sum sum;
    int64_t depth;
    _Alignas(64) char source[TD_GATHER_ROWS * TD_APPLY_DEPTH * sizeof(double)]; /* `depth` a row */
    _Alignas(64) char result[TD_GATHER_ROWS * TD_GEMM_MAX_PANEL_BYTES];
} gathered;

/* Copies `bytes` for every picture of every pixel, between rows of the block and of the result. */
static void copy_result(gathered *g, bool to_block)
{
    const td_conv_apply_plan *p = g->plan;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    int64_t channel = g->group * p->to_channels + g->panel * p->width;
    int64_t bytes = g->sum.block.n * size, row_bytes = g->sum.block.c_row * size;
    for (int64_t row = 0; row < g->count * n; row++) {
        int64_t pixel = g->pixels[row / n];
        int64_t at = pixel / p->w.size * p->to.row + pixel % p->w.size * p->to.column +
                     row % n * p->to.image + channel;
        char *result = (char *)p->apply->result + at * size;
        char *block = g->result + row * row_bytes;
        memcpy(to_block ? block : result, to_block ? result : block, (size_t)bytes);
    }
}

/* Whether some pixel of the block meets the tap. */
static bool meets(const gathered *g, int kh, int kw)
{
    const td_conv_apply_plan *p = g->plan;
    for (int64_t i = 0; i < g->count; i++) {
        if (p->h.source[g->pixels[i] / p->w.size * p->h.kernel + kh] >= 0 &&
            p->w.source[g->pixels[i] % p->w.size * p->w.kernel + kw] >= 0) {
            return true;
        }
    }
    return false;
}

/* Channels [k0, k0 + k) of the source at a tap, into column `to` of the block. */
static void copy_source(gathered *g, int kh, int kw, int64_t k0, int64_t k, int64_t to)
{
    const td_conv_apply_plan *p = g->plan;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    for (int64_t i = 0; i < g->count; i++) {
        int32_t h = p->h.source[g->pixels[i] / p->w.size * p->h.kernel + kh];
        int32_t w = p->w.source[g->pixels[i] % p->w.size * p->w.kernel + kw];
        int64_t at = h * p->from.row + w * p->from.column + g->group * p->from_channels + k0;
        char *block = g->source + (i * n * g->depth + to) * size;
        for (int64_t image = 0; image < n; image++, block += g->depth * size) {
            if (h < 0 || w < 0) {
                memset(block, 0, (size_t)(k * size));
            } else {
                const char *from = (const char *)p->apply->source + at * size;
                memcpy(block, from + image * p->from.image * size, (size_t)(k * size));
            }
        }
    }
}

static void gather_taps(gathered *g)
{
    const td_conv_apply_plan *p = g->plan;
    int64_t size = (int64_t)p->problem->kernels->size;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (!meets(g, kh, kw)) {
                continue;
            }
            const char *b = td_conv_apply_weights(p, g->group, g->panel, kh, kw);
            for (int64_t k0 = 0, k; k0 < p->from_channels; k0 += k) {
                k = td_min64(g->depth - g->sum.depth, p->from_channels - k0);
                copy_source(g, kh, kw, k0, k, g->sum.depth);
                g->sum.terms[g->sum.block.count++] =
                    (td_gemm_term){ g->source + g->sum.depth * size, b + k0 * g->sum.b_step * size,
                                    k };
                g->sum.depth += k;
                if (g->sum.depth == g->depth || g->sum.block.count == TD_APPLY_TERMS) {
                    td_conv_add_up(&g->sum);
                }
            }
        }
    }
}

void td_conv_gathered_task(void *ctx, int64_t task)
{
    const td_conv_apply_plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t width = p->width, size = (int64_t)problem->kernels->size;
    td_conv_place at = td_conv_apply_place(p, task, 1);
    gathered g;
    g.plan = p;
    g.panel = at.panel;
    g.group = at.group;
    g.pixels = p->order.pixels + p->order.blocks[at.block].first;
    g.count = p->order.blocks[at.block].count;
    g.sum.kernels = problem->kernels;
    g.sum.lanes = NULL;
    g.sum.pixels = NULL;
    g.sum.depth = 0;
    g.sum.dots = p->dots;
    g.sum.b_step = p->dots ? 1 : td_conv_apply_b_row(p);
    g.depth = p->dots ? TD_GATHERED_DOTS_DEPTH : TD_APPLY_DEPTH;
    g.sum.block = (td_gemm_block){
        .terms = g.sum.terms,
        .a_row = g.depth,
        .a_col = 1,
        .b_row = td_conv_apply_b_row(p),
        .c = g.result,
        .c_row = width,
        .m = g.count * problem->n,
        .n = (int)td_min64(width, p->to_channels - g.panel * width),
        .accumulate = p->apply->accumulate,
    };
    if (p->apply->accumulate) {
        copy_result(&g, true);
    }
    gather_taps(&g);
    if (p->apply->bias) {
        int64_t channel = g.group * p->to_channels + g.panel * width;
        g.sum.block.bias = (const char *)p->apply->bias + channel * size;
    }
    td_conv_add_up(&g.sum); /* even without any term: pixels that meet no tap are written too */
    copy_result(&g, false);
}
