#include "tensor/cpu/conv_classes.h"

static td_conv_span taps_of(const td_conv_axis *axis, int64_t q)
{
    int64_t start = q * axis->stride - axis->pad, d = axis->dilation; /* where tap 0 is */
    int64_t first = start < 0 ? td_divide_up(-start, d) : 0;
    int64_t end = start < axis->in ? td_min64(td_divide_up(axis->in - start, d), axis->kernel) : 0;
    return first < end ? (td_conv_span){ q, q + 1, (int)first, (int)(end - first) }
                       : (td_conv_span){ q, q + 1, 0, 0 };
}

static td_conv_span next_span(const td_conv_axis *axis, int64_t q)
{
    td_conv_span s = taps_of(axis, q);
    while (s.end < axis->out) {
        td_conv_span next = taps_of(axis, s.end);
        if (next.tap != s.tap || next.taps != s.taps) {
            break;
        }
        s.end++;
    }
    return s;
}

/* At most: the first and the last tap move towards 0, and there may be none before and after. */
static int64_t most_spans(const td_conv_axis *axis)
{
    return td_min64(axis->out, 2 * (int64_t)axis->kernel + 3);
}

static void classify(td_conv_classes *all)
{
    const td_conv_problem *problem = all->problem;
    for (int64_t h = 0; h < problem->h.out;) {
        td_conv_span row = next_span(&problem->h, h);
        for (int64_t w = 0; w < problem->w.out;) {
            td_conv_span column = next_span(&problem->w, w);
            int64_t pixels = (row.end - row.first) * (column.end - column.first) * problem->n;
            all->list[all->count++] = (td_conv_class){ row, column, pixels, all->blocks };
            all->blocks += td_divide_up(pixels, all->block);
            w = column.end;
        }
        h = row.end;
    }
}

td_conv_classes td_conv_classes_make(const td_conv_problem *problem, int64_t block,
                                     td_conv_space *space)
{
    td_conv_classes all = { .problem = problem, .block = block };
    all.list = td_conv_take(space, most_spans(&problem->h) * most_spans(&problem->w) *
                                       (int64_t)sizeof *all.list);
    if (space->base) {
        classify(&all);
    }
    return all;
}

const td_conv_class *td_conv_class_of(const td_conv_classes *all, int64_t block)
{
    int64_t first = 0, end = all->count;
    while (end - first > 1) {
        int64_t middle = (first + end) / 2;
        if (all->list[middle].block <= block) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return &all->list[first];
}

/* to[i] = first + i * step */
static void progress(int64_t *to, int64_t count, int64_t first, int64_t step)
{
    for (int64_t i = 0; i < count; i++, first += step) {
        to[i] = first;
    }
}

void td_conv_class_pixels(const td_conv_problem *problem, const td_conv_class *c, int64_t first,
                          int64_t count, int64_t *x_at, int64_t *y_at)
{
    enum { SIZE = sizeof(float) };
    const td_conv_axis *ah = &problem->h, *aw = &problem->w;
    int64_t n = 0, h = c->h.first, w = c->w.first;
    if (first > 0) { /* divisions take long */
        int64_t width = c->w.end - c->w.first, pixel = first / problem->n;
        n = first % problem->n;
        h += pixel / width;
        w += pixel % width;
    }
    bool row = problem->n == 1; /* at once, otherwise the pictures of a pixel */
    int64_t x_step = (row ? aw->stride * problem->x.column : problem->x.image) * SIZE;
    int64_t y_step = (row ? problem->y.column : problem->y.image) * SIZE;
    for (int64_t done = 0; done < count;) {
        int64_t in_h = h * ah->stride - ah->pad + (int64_t)c->h.tap * ah->dilation;
        int64_t in_w = w * aw->stride - aw->pad + (int64_t)c->w.tap * aw->dilation;
        int64_t x = in_h * problem->x.row + in_w * problem->x.column + n * problem->x.image;
        int64_t y = h * problem->y.row + w * problem->y.column + n * problem->y.image;
        int64_t run = td_min64(row ? c->w.end - w : problem->n - n, count - done);
        progress(x_at + done, run, x * SIZE, x_step);
        progress(y_at + done, run, y * SIZE, y_step);
        done += run;
        n = 0;
        w += row ? run : 1;
        if (w == c->w.end) {
            w = c->w.first;
            h++;
        }
    }
}

void td_conv_classes_cut(const td_conv_classes *all, int64_t pieces, int64_t *first_block)
{
    double work = 0, done = 0;
    for (int64_t i = 0; i < all->count; i++) {
        const td_conv_class *c = &all->list[i];
        work += (double)(c->pixels * c->h.taps * c->w.taps);
    }
    int64_t piece = 0;
    for (int64_t i = 0; i < all->count; i++) {
        const td_conv_class *c = &all->list[i];
        for (int64_t first = 0, block = c->block; first < c->pixels; first += all->block, block++) {
            while (piece < pieces && done * (double)pieces >= work * (double)piece) {
                first_block[piece++] = block;
            }
            int64_t pixels = td_min64(all->block, c->pixels - first);
            done += (double)(pixels * c->h.taps * c->w.taps);
        }
    }
    while (piece <= pieces) {
        first_block[piece++] = all->blocks;
    }
}
