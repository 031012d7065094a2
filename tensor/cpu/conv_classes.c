/* Pixels sorted by the taps that they meet. */
#include "tensor/cpu/conv_classes.h"

/* The taps a pixel meets; they are equally far apart, so their number and the first one tell all.
 */
static td_conv_set classes_taps_of(const td_conv_taps *t, int64_t q)
{
    td_conv_set set = { .tap = 0, .taps = 0 };
    for (int tap = t->kernel - 1; tap >= 0; tap--) {
        if (t->source[q * t->kernel + tap] >= 0) {
            set.tap = tap;
            set.taps++;
        }
    }
    return set;
}

static bool same_taps(const td_conv_set *a, const td_conv_set *b)
{
    return a->tap == b->tap && a->taps == b->taps;
}

/* set_of: room for each pixel's set. */
static void sort_pixels(td_conv_sets *s, int32_t *set_of)
{
    const td_conv_taps *t = &s->taps;
    int i = 0; /* mostly the set of the pixel before */
    for (int64_t q = 0; q < t->size; q++) {
        td_conv_set set = classes_taps_of(t, q);
        if (i == s->count || !same_taps(&s->list[i], &set)) {
            for (i = 0; i < s->count && !same_taps(&s->list[i], &set);) {
                i++;
            }
        }
        if (i == s->count) {
            s->list[s->count++] = set;
        }
        s->list[i].count++;
        set_of[q] = i;
    }
    int64_t first = 0;
    for (i = 0; i < s->count; i++) {
        s->list[i].first = first;
        first += s->list[i].count;
        s->list[i].count = 0;
    }
    for (int64_t q = 0; q < t->size; q++) {
        td_conv_set *set = &s->list[set_of[q]];
        s->order[set->first + set->count++] = (int32_t)q;
    }
}

td_conv_sets td_conv_sets_make(const td_conv_axis *axis, bool backward, td_conv_space *space)
{
    td_conv_sets s = { .taps = td_conv_taps_make(axis, backward, space) };
    s.order = td_conv_take(space, s.taps.size * (int64_t)sizeof *s.order);
    /* The first tap and their number change at the borders, and with the rest of a stride. */
    s.most = td_min64(s.taps.size, 2 * ((int64_t)axis->kernel + axis->stride + 1));
    s.list = td_conv_take(space, s.most * (int64_t)sizeof *s.list);
    int32_t *set_of = td_conv_take(space, s.taps.size * (int64_t)sizeof *set_of);
    if (space->base) {
        sort_pixels(&s, set_of);
    }
    return s;
}

static int64_t most_classes(const td_conv_classes *all)
{
    return all->h.most * all->w.most;
}

void td_conv_classes_make(td_conv_classes *all, const td_conv_problem *problem, bool backward,
                          td_conv_space *space)
{
    *all = (td_conv_classes){ .n = problem->n };
    all->h = td_conv_sets_make(&problem->h, backward, space);
    all->w = td_conv_sets_make(&problem->w, backward, space);
    all->list = td_conv_take(space, most_classes(all) * (int64_t)sizeof *all->list);
    all->queue = td_conv_take(space, most_classes(all) * (int64_t)sizeof *all->queue);
    for (int i = 0; space->base && i < all->h.count; i++) {
        for (int j = 0; j < all->w.count; j++) {
            const td_conv_set *h = &all->h.list[i], *w = &all->w.list[j];
            all->list[all->count++] =
                (td_conv_class){ .h = h, .w = w, .rows = h->count * w->count * problem->n };
        }
    }
}

void td_conv_classes_take(td_conv_classes *all, int64_t block_rows, int64_t unit,
                          td_conv_space *space)
{
    all->block_rows = block_rows;
    all->unit = unit;
    int64_t rows = all->h.taps.size * all->w.taps.size * all->n;
    all->most = td_min64(2 * td_divide_up(rows, block_rows) + most_classes(all), rows);
    all->block_list = td_conv_take(space, all->most * (int64_t)sizeof *all->block_list);
}

/* The pixel with which row `first` of a class begins. */
static int64_t pixel_of(const td_conv_classes *all, const td_conv_class *c, int64_t first)
{
    int64_t pixel = first / all->n;
    return all->h.order[c->h->first + pixel / c->w->count] * all->w.taps.size +
           all->w.order[c->w->first + pixel % c->w->count];
}

/* Moves the first class of a queue, whose next block begins later now, to its place. */
static void move_back(td_conv_class **queue, int64_t count)
{
    td_conv_class *moved = queue[0];
    int64_t i = 0;
    for (; i + 1 < count && queue[i + 1]->at < moved->at; i++) {
        queue[i] = queue[i + 1];
    }
    queue[i] = moved;
}

/* Cuts classes into equal blocks of whole tiles. Neighbouring classes take turns, because they read
 * the same pixels: the next block is of the class whose next pixel is the first. */
void td_conv_classes_cut(td_conv_classes *all)
{
    td_conv_class **queue = all->queue + all->count;
    for (int64_t i = all->count - 1; i >= 0; i--) {
        td_conv_class *c = &all->list[i];
        int64_t even = td_divide_up(c->rows, td_divide_up(c->rows, all->block_rows));
        c->each = td_divide_up(even, all->unit) * all->unit;
        c->done = 0;
        c->at = pixel_of(all, c, 0);
        *--queue = c;
        move_back(queue, all->count - i);
    }
    all->blocks = 0;
    for (int64_t left = all->count; left > 0;) {
        td_conv_class *c = *queue;
        int64_t rows = td_min64(c->each, c->rows - c->done);
        all->block_list[all->blocks++] = (td_conv_block){ c, c->done, rows };
        c->done += rows;
        if (c->done == c->rows) {
            queue++;
            left--;
        } else {
            c->at = pixel_of(all, c, c->done);
            move_back(queue, left);
        }
    }
}

/* to[i] = first + i * step */
static void progress(int64_t *to, int64_t count, int64_t first, int64_t step)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = first + i * step;
    }
}

void td_conv_class_rows(const td_conv_classes *all, const td_conv_class *c, int64_t first,
                        int64_t count, const td_conv_strides *from, const td_conv_strides *to,
                        int64_t *a_row, int64_t *c_row)
{
    const td_conv_taps *h = &all->h.taps, *w = &all->w.taps;
    int64_t image = first % all->n, pixel = first / all->n;
    int64_t i = pixel / c->w->count, j = pixel % c->w->count;
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t qh = all->h.order[c->h->first + i], qw = all->w.order[c->w->first + j];
        int64_t a = h->source[qh * h->kernel + c->h->tap] * from->row +
                    w->source[qw * w->kernel + c->w->tap] * from->column + image * from->image;
        run = td_min64(all->n - image, count - done);
        progress(a_row + done, run, a, from->image);
        progress(c_row + done, run, qh * to->row + qw * to->column + image * to->image, to->image);
        image = 0;
        if (++j == c->w->count) {
            j = 0;
            i++;
        }
    }
}
