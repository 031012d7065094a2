/*
 * Backward-weights where x has a handful of channels, as pictures of three colours have: the
 * channels of one tap would fill half of a register block. So the rows of one product are the
 * channels of all taps, and its terms are rows of pixels that meet these taps: blocks of the
 * classes that forward has, too. Such a gradient is small; every piece of the blocks adds up its
 * own.
 */
#include "tensor/cpu/conv_reduce.h"

#include <string.h>

typedef struct work {
    const td_reduce_plan *plan;
    const td_conv_class *of; /* the class whose taps are in the tables */
    int64_t rows;
    int64_t a_row[TD_REDUCE_FEW_ROWS], c_row[TD_REDUCE_FEW_ROWS];
    td_run_list runs;
} work;

/* The rows of the result that a class meets: where x lies from its first tap on, where dw lies. */
static void find_taps(work *w, const td_conv_class *c)
{
    const td_conv_problem *problem = w->plan->problem;
    int64_t size = (int64_t)problem->kernels->size;
    w->of = c;
    w->rows = 0;
    for (int kh = 0; kh < c->h->taps; kh++) {
        for (int kw = 0; kw < c->w->taps; kw++) {
            int64_t x = kh * problem->h.dilation * problem->x.row +
                        kw * problem->w.dilation * problem->x.column;
            int64_t tap = (int64_t)(c->h->tap + kh) * problem->w.kernel + c->w->tap + kw;
            for (int64_t channel = 0; channel < problem->ic; channel++, w->rows++) {
                w->a_row[w->rows] = (x + channel) * size;
                w->c_row[w->rows] = (tap * problem->ic + channel) * problem->oc_all * size;
            }
        }
    }
}

/* Rows [first, first + count) of a class: x at their first tap, beside a panel of dy. */
static void find_runs(work *w, const td_conv_block *block, int64_t channel)
{
    const td_reduce_plan *p = w->plan;
    const td_conv_problem *problem = p->problem;
    const td_conv_class *c = block->of;
    const td_conv_taps *h = &p->classes.h.taps, *v = &p->classes.w.taps;
    int64_t size = (int64_t)problem->kernels->size, n = problem->n;
    int64_t end = block->first + block->rows;
    w->runs.count = 0;
    for (int64_t row = block->first, k; row < end; row += k) {
        int64_t pixel = row / n, image = row % n;
        int64_t qh = p->classes.h.order[c->h->first + pixel / c->w->count];
        int64_t qw = p->classes.w.order[c->w->first + pixel % c->w->count];
        int64_t x = h->source[qh * h->kernel + c->h->tap] * problem->x.row +
                    v->source[qw * v->kernel + c->w->tap] * problem->x.column +
                    image * problem->x.image;
        int64_t dy = qh * problem->y.row + qw * problem->y.column + image * problem->y.image;
        k = td_min64(n - image, end - row);
        td_run_add(&w->runs, (const char *)p->reduce->x + x * size,
                   (const char *)p->reduce->dy + (dy + channel) * size, k);
    }
}

void td_reduce_few_task(void *ctx, int64_t task)
{
    const td_reduce_plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, width = problem->kernels->panel;
    int64_t panel = task % p->panels, piece = task / p->panels, rows = p->dw_size / problem->oc_all;
    int64_t channel = panel * width, n = td_min64(width, problem->oc_all - channel);
    char *dw = p->partial + (piece * p->dw_size + channel) * size;
    for (int64_t i = 0; i < rows; i++) {
        memset(dw + i * problem->oc_all * size, 0, (size_t)(n * size));
    }
    work w;
    w.plan = p;
    w.of = NULL;
    w.runs.x_step = p->a_col * size;
    w.runs.dy_step = problem->oc_all * size;
    int64_t end = td_min64((piece + 1) * p->per_piece, p->blocks);
    for (int64_t i = piece * p->per_piece; i < end; i++) {
        const td_conv_block *block = &p->classes.block_list[i];
        if (block->of != w.of) {
            find_taps(&w, block->of);
        }
        if (w.rows == 0) {
            continue;
        }
        find_runs(&w, block, channel);
        problem->kernels->block(&(td_gemm_block){ .terms = w.runs.terms,
                                                  .count = w.runs.count,
                                                  .a_row = w.a_row,
                                                  .c_row = w.c_row,
                                                  .a_col = p->a_col,
                                                  .b_row = problem->oc_all,
                                                  .c = dw,
                                                  .m = w.rows,
                                                  .n = (int)n,
                                                  .accumulate = true });
    }
}
