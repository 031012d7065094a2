/*
 * Groups of few channels, with vectors along the pixels. Some rows of the source (pictures and
 * pixels) are transposed: then each channel is a vector, or several, and what a group computes is a
 * product of matrices with that as B, and the few weights as A. The result is transposed back. So
 * rows are read and written as they lie in memory, all groups at once, and no lane is empty,
 * however few channels a group has. Backward-weights transposes x and dy, and vectors run along the
 * sum.
 */
#include "tensor/cpu/conv_internal.h"

#include <math.h>
#include <string.h>

enum {
    MAX_CHANNELS = 32,      /* of a group */
    FAR_BYTES = 16 << 20,   /* of pictures that do not stay in the cache */
    LINE = 64,              /* bytes of the cache's lines */
    AHEAD = 8,              /* rows that are fetched while as many are transposed */
    PANEL_BYTES = 64 << 10, /* of what is transposed */
};

/* Of moving a number, in products of a vector; and what the other ways take times more where rows
 * begin inside a line of the cache. */
static const double MOVE_COST = 0.85, CROSSING_COST = 1.3;

int64_t td_conv_pixels_groups(const td_conv_problem *p, bool reduce)
{
    int64_t rows = reduce ? TD_REDUCE_ROWS : p->kernels->panel;
    int64_t fit = PANEL_BYTES / (rows * (p->ic + p->oc) * (int64_t)p->kernels->size);
    int64_t calls = td_divide_up(p->groups, fit);
    return td_divide_up(p->groups, calls);
}

bool td_conv_pixels_win(const td_conv_problem *p, td_conv2d_pass pass)
{
    bool back = pass == TD_CONV2D_BACKWARD_DATA;
    int64_t from = back ? p->oc : p->ic, to = back ? p->ic : p->oc;
    double x = (double)(p->h.in * p->w.in), y = (double)(p->h.out * p->w.out);
    double met = (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w);
    double bytes = (double)p->n * (x * (double)p->ic + y * (double)p->oc) * (double)p->groups *
                   (double)p->kernels->size;
    bool few = p->groups > 1 && p->ic <= MAX_CHANNELS && p->oc <= MAX_CHANNELS;
    bool once = met <= fmax(x, y); /* no pixel is transposed for many taps */
    if (!few || !once || !p->kernels->grouped || bytes < FAR_BYTES) {
        return false;
    }
    bool crosses = p->groups * p->ic * (int64_t)p->kernels->size % LINE != 0 ||
                   p->groups * p->oc * (int64_t)p->kernels->size % LINE != 0;
    double groups = (back ? x : y) * td_conv_groups_cost(p, from, to);
    double moves = met * (double)from + (back ? x : y) * (double)to;
    /* Sums along the vectors take their time; other products hide behind the moves. */
    double sums =
        pass == TD_CONV2D_BACKWARD_WEIGHTS ? met * (double)(from * to) / p->kernels->lanes : 0;
    return groups * (crosses ? CROSSING_COST : 1) > moves * MOVE_COST + sums;
}

/* ---- forward and backward-data ---- */

/* Rows `step` elements apart: `rows` of them to be transposed; there are `left` from there on. */
typedef struct row_run {
    const char *from;
    int64_t channels, step, rows, left;
} row_run;

/* Each channel to a row of `to`, `to_row` elements apart. The next rows are on their way meanwhile:
 * they lie too far apart for the processor to see them coming. */
static void transpose_rows(const td_gemm_kernels *kernels, char *to, int64_t to_row,
                           const row_run *run)
{
    int64_t size = (int64_t)kernels->size, step = run->step * size;
    for (int64_t row = 0; row < run->rows; row += AHEAD) {
        const char *from = run->from + row * step, *next = from + AHEAD * step;
        for (int64_t i = row + AHEAD; i < td_min64(run->left, row + 2 * AHEAD); i++, next += step) {
            for (int64_t byte = 0; byte < run->channels * size; byte += 64) {
                __builtin_prefetch(next + byte, 0, 2);
            }
        }
        kernels->transpose(to + row * size, to_row, from, run->channels,
                           td_min64(AHEAD, run->rows - row), run->step);
    }
}

/* Sums of `panel` elements for each channel begin with the bias, and what is there. Only f32 has
 * kernels for this way. */
static void add_bias(float *sums, const float *bias, int64_t channels, int64_t panel, int64_t rows,
                     bool add)
{
    for (int64_t c = 0; c < channels; c++, sums += panel) {
        for (int64_t i = 0; i < rows; i++) {
            sums[i] = (add ? sums[i] : 0) + bias[c];
        }
    }
}

/* What the sums of some rows begin with. */
static void begin_sums(const td_gemm_kernels *kernels, const td_gemm_block *g, char *sums,
                       int64_t row, int64_t rows)
{
    int64_t panel = kernels->panel, size = (int64_t)kernels->size;
    if (g->accumulate) {
        kernels->transpose(sums, panel, (char *)g->c + row * g->c_row * size, g->n, rows, g->c_row);
    }
    if (g->bias) {
        add_bias((float *)sums, g->bias, g->n, panel, rows, g->accumulate);
    }
    if (g->count == 0 && !g->accumulate && !g->bias) { /* pixels that meet no tap */
        memset(sums, 0, (size_t)(g->n * panel * size));
    }
}

void td_conv_pixels_multiply(const td_conv_pixels *s, const td_gemm_block *g)
{
    _Alignas(64) char source[PANEL_BYTES];
    const td_gemm_kernels *kernels = s->kernels;
    int64_t panel = kernels->panel, size = (int64_t)kernels->size, groups = g->n / s->to;
    char *sums = source + groups * s->from * panel * size;
    td_gemm_term term;
    td_gemm_block product = { .terms = &term,
                              .count = 1,
                              .a_row = s->w_to,
                              .a_col = s->w_from,
                              .b_row = panel,
                              .c_row = panel,
                              .m = s->to };
    for (int64_t row = 0; row < g->m; row += panel) {
        int64_t rows = td_min64(panel, g->m - row);
        begin_sums(kernels, g, sums, row, rows);
        product.accumulate = g->accumulate || g->bias;
        product.n = (int)rows;
        for (int t = 0; t < g->count; t++, product.accumulate = true) {
            row_run run = { (const char *)g->terms[t].a + row * g->a_row * size, groups * s->from,
                            g->a_row, rows, g->m - row };
            transpose_rows(kernels, source, panel, &run);
            for (int64_t group = 0; group < groups; group++) {
                term = (td_gemm_term){ (const char *)g->terms[t].b + group * s->w_group * size,
                                       source + group * s->from * panel * size, s->from };
                product.c = sums + group * s->to * panel * size;
                kernels->block(&product);
            }
        }
        kernels->transpose((char *)g->c + row * g->c_row * size, g->c_row, sums, rows, g->n, panel);
    }
}

/* ---- backward-weights ---- */

void td_conv_pixels_sum(const td_conv_pixels *s, const td_gemm_block *g)
{
    _Alignas(64) char x[PANEL_BYTES];
    const td_gemm_kernels *kernels = s->kernels;
    int64_t size = (int64_t)kernels->size, groups = g->n / s->to, rows = 0;
    char *dy = x + groups * s->from * TD_REDUCE_ROWS * size;
    for (int t = 0; t < g->count; rows += g->terms[t].k, t++) {
        const td_gemm_term *at = &g->terms[t];
        row_run of_x = { at->a, groups * s->from, g->a_col, at->k, at->k };
        row_run of_dy = { at->b, g->n, g->b_row, at->k, at->k };
        transpose_rows(kernels, x + rows * size, TD_REDUCE_ROWS, &of_x);
        transpose_rows(kernels, dy + rows * size, TD_REDUCE_ROWS, &of_dy);
    }
    td_gemm_term term;
    td_gemm_block product = { .terms = &term,
                              .count = 1,
                              .a_row = TD_REDUCE_ROWS,
                              .a_col = 1,
                              .b_row = TD_REDUCE_ROWS,
                              .c_row = g->c_row,
                              .m = s->from,
                              .n = (int)s->to,
                              .accumulate = g->accumulate };
    for (int64_t group = 0; group < groups; group++) {
        term = (td_gemm_term){ x + group * s->from * TD_REDUCE_ROWS * size,
                               dy + group * s->to * TD_REDUCE_ROWS * size, rows };
        product.c = (char *)g->c + group * s->to * size;
        kernels->dots(&product);
    }
}
