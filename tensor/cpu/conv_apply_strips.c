/*
 * Forward and backward-data of few pictures: strips.
 *
 * A strip is some pixel rows, or parts of them, in one panel. Its taps are taken one after the
 * other, and of a tap some channels at a time, so few that the weights stay in the first-level
 * cache while all lines of the strip meet them, however short those are. Of every line only the
 * pixels that do meet the tap are multiplied; they lie side by side.
 */
#include "tensor/cpu/conv_apply.h"

#include <string.h>

enum {
    STRIP_ROWS = 64, /* about so many rows of the result */
    STRIP_TASKS = 8, /* at least, if there are enough rows */
    STRIP_DEPTH = 128,
    MIN_DEPTH = 24, /* channels of the source; below that calls of the kernel are too short */
    LATENCY = 6,    /* vectors that a call must sum at once, to be fast */
};

/* Of strips, in products of a row: always, and for reading and writing the sums. */
static const double OVERHEAD = .03, CALL_COST = 8;

/* Lines [line, line + lines) and columns [column, column + columns). A line is a row of pixels, of
 * one picture or of all. */
typedef struct strip {
    const td_conv_apply_plan *plan;
    int64_t group, panel;
    int64_t line, lines;
    int64_t column, columns;
    td_gemm_block block;
    td_gemm_term term;
} strip;

bool td_conv_strips_possible(const td_conv_apply_plan *p)
{
    return !p->dots && p->problem->sharing == 0 && p->depth >= MIN_DEPTH;
}

td_conv_strips td_conv_strips_make(const td_conv_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t n = problem->n;
    td_conv_strips s = { .apart = p->apply->backward ? problem->w.stride : 1 };
    bool together = s.apart == 1 && p->step * p->from.column == n * p->from.image;
    s.per_pixel = together || p->w.size / s.apart < n ? n : 1;
    s.pixels_together = together || s.per_pixel == 1;
    s.images = n / s.per_pixel;
    s.a_row = s.per_pixel == 1 ? p->step * p->from.column : p->from.image;
    s.c_row = s.per_pixel == 1 ? s.apart * p->to.column : p->to.image;

    int64_t rows = p->h.size * p->w.size * n;
    int64_t strips = td_divide_up(rows, STRIP_ROWS), tasks = p->groups * p->panels;
    if (strips * tasks < STRIP_TASKS) {
        strips =
            td_min64(td_divide_up(STRIP_TASKS, tasks), td_divide_up(rows, problem->kernels->rows));
    }
    int64_t wanted = td_divide_up(rows, strips); /* rows of a strip */
    int64_t line_rows = p->w.size * s.per_pixel, lines = p->h.size * s.images;
    int64_t parts = td_divide_up(line_rows, wanted);
    s.columns = td_divide_up(p->w.size, td_min64(parts, p->w.size));
    s.column_parts = td_divide_up(p->w.size, s.columns);
    s.lines = wanted > line_rows ? wanted / line_rows : 1;
    s.lines = td_divide_up(lines, td_divide_up(lines, s.lines));
    s.line_parts = td_divide_up(lines, s.lines);
    return s;
}

double td_conv_strips_cost(const td_conv_apply_plan *p)
{
    const td_conv_strips *s = &p->strips;
    int vecs = (int)td_divide_up(td_min64(p->width, p->to_channels), p->problem->kernels->lanes);
    int64_t least = td_divide_up(LATENCY, vecs);
    double rows = 0;
    for (int kw = 0; kw < p->w.kernel; kw++) {
        int64_t pixels = td_divide_up(p->w.end[kw] - p->w.first[kw], s->apart);
        if (pixels == 0) {
            continue;
        }
        int64_t calls = s->pixels_together ? 1 : pixels;
        int64_t met = (s->pixels_together ? pixels : 1) * s->per_pixel;
        rows += (double)calls * (double)(met > least ? met : least);
    }
    double overhead = CALL_COST / (double)td_min64(p->depth * vecs, STRIP_DEPTH * vecs);
    return rows * (double)s->images * (1 + OVERHEAD + overhead);
}

static char *result_at(const strip *s, int64_t line, int64_t column)
{
    const td_conv_apply_plan *p = s->plan;
    int64_t channel = s->group * p->to_channels + s->panel * p->width;
    int64_t at = line / p->strips.images * p->to.row + line % p->strips.images * p->to.image +
                 column * p->to.column + channel;
    return (char *)p->apply->result + at * (int64_t)p->problem->kernels->size;
}

/* Where the sums begin. */
static void begin(const strip *s)
{
    const td_conv_apply_plan *p = s->plan;
    int64_t size = (int64_t)p->problem->kernels->size, bytes = s->block.n * size;
    const char *bias = p->apply->bias;
    if (bias) {
        bias += (s->group * p->to_channels + s->panel * p->width) * size;
    }
    for (int64_t line = s->line; line < s->line + s->lines; line++) {
        for (int64_t column = s->column; column < s->column + s->columns; column++) {
            char *to = result_at(s, line, column);
            for (int64_t i = 0; i < p->strips.per_pixel; i++, to += p->to.image * size) {
                if (bias) {
                    memcpy(to, bias, (size_t)bytes);
                } else {
                    memset(to, 0, (size_t)bytes);
                }
            }
        }
    }
}

/* The pixels of a line that meet a tap. */
static void add_line(strip *s, int64_t line, int kh, int kw, const char *source)
{
    const td_conv_apply_plan *p = s->plan;
    const td_conv_strips *strips = &p->strips;
    int64_t size = (int64_t)p->problem->kernels->size;
    int64_t h = p->h.source[line / strips->images * p->h.kernel + kh];
    int64_t first = p->w.first[kw], end = td_min64(s->column + s->columns, p->w.end[kw]);
    if (first < s->column) {
        first += td_divide_up(s->column - first, strips->apart) * strips->apart;
    }
    if (h < 0 || first >= end) {
        return;
    }
    int64_t w = p->w.source[first * p->w.kernel + kw];
    int64_t pixels = td_divide_up(end - first, strips->apart);
    s->term.a =
        source +
        (h * p->from.row + w * p->from.column + line % strips->images * p->from.image) * size;
    s->block.c = result_at(s, line, first);
    if (strips->pixels_together) {
        s->block.m = pixels * strips->per_pixel;
        p->problem->kernels->block(&s->block);
        return;
    }
    s->block.m = strips->per_pixel;
    for (int64_t i = 0; i < pixels; i++) {
        p->problem->kernels->block(&s->block);
        s->term.a = (const char *)s->term.a + p->step * p->from.column * size;
        s->block.c = (char *)s->block.c + strips->apart * p->to.column * size;
    }
}

void td_conv_strip_task(void *ctx, int64_t task)
{
    const td_conv_apply_plan *p = ctx;
    const td_conv_strips *strips = &p->strips;
    int64_t size = (int64_t)p->problem->kernels->size;
    td_conv_place at = td_conv_apply_place(p, task, 1);
    strip s = { .plan = p, .group = at.group, .panel = at.panel };
    s.line = at.pixel_row * strips->lines;
    s.lines = td_min64(strips->lines, p->h.size * strips->images - s.line);
    s.column = at.block * strips->columns;
    s.columns = td_min64(strips->columns, p->w.size - s.column);
    s.block = (td_gemm_block){
        .terms = &s.term,
        .count = 1,
        .a_row = strips->a_row,
        .a_col = 1,
        .b_row = td_conv_apply_b_row(p),
        .c_row = strips->c_row,
        .n = (int)td_min64(p->width, p->to_channels - s.panel * p->width),
        .accumulate = true,
    };
    if (!p->apply->accumulate) {
        begin(&s);
    }
    const char *source = (const char *)p->apply->source + s.group * p->from_channels * size;
    for (int tap = 0; tap < p->h.kernel * p->w.kernel; tap++) {
        int kh = tap / p->w.kernel, kw = tap % p->w.kernel;
        if (p->h.rank[kh] < 0 || p->w.rank[kw] < 0) {
            continue;
        }
        const char *b = td_conv_apply_weights(p, s.group, s.panel, kh, kw);
        for (int64_t k0 = 0; k0 < p->depth; k0 += STRIP_DEPTH) {
            s.term.k = td_min64(STRIP_DEPTH, p->depth - k0);
            s.term.b = b + k0 * s.block.b_row * size;
            for (int64_t line = s.line; line < s.line + s.lines; line++) {
                add_line(&s, line, kh, kw, source + k0 * size);
            }
        }
    }
}
