#include "tensor/cpu/conv_order.h"

#include <math.h>

enum {
    LEAST_ROWS = 8, /* that any block costs as much as */
    MAX_CLASSES = 12,
};

/* Cuts pixels [begin, end) of the order into blocks of about equal size. */
static void cut_pixels(td_conv_order *o, int64_t begin, int64_t end)
{
    int64_t pieces = td_divide_up(end - begin, o->most);
    int64_t piece = pieces > 0 ? td_divide_up(end - begin, pieces) : 1;
    piece = td_divide_up(piece, o->unit) * o->unit;
    for (int64_t first = begin; first < end; first += piece) {
        o->blocks[o->block_count++] = (td_conv_order_block){ first, td_min64(piece, end - first) };
    }
}

/* The pixels of an axis in classes: of those that meet the same taps, or of those whose number
 * leaves the same rest on division by the step, which do but for the borders. */
typedef struct classes {
    bool exact;
    int64_t step; /* if not exact */
    int count;
    int64_t first[MAX_CLASSES]; /* a pixel of each */
    int64_t size[MAX_CLASSES];
    int taps[MAX_CLASSES]; /* that they meet, perhaps in zeros */
} classes;

static bool same_taps(const td_conv_taps *t, int64_t q, int64_t other)
{
    for (int tap = 0; tap < t->kernel; tap++) {
        if ((t->source[q * t->kernel + tap] < 0) != (t->source[other * t->kernel + tap] < 0)) {
            return false;
        }
    }
    return true;
}

static bool belongs(const td_conv_taps *t, const classes *c, int i, int64_t q)
{
    return c->exact ? same_taps(t, q, c->first[i]) : q % c->step == c->first[i];
}

static void add_pixel(const td_conv_taps *t, classes *c, int i, int64_t q)
{
    int met = 0;
    for (int tap = 0; tap < t->kernel; tap++) {
        met += t->source[q * t->kernel + tap] >= 0;
    }
    if (i == c->count) {
        c->first[i] = q;
        c->size[i] = 0;
        c->taps[i] = 0;
        c->count++;
    }
    c->size[i]++;
    c->taps[i] = met > c->taps[i] ? met : c->taps[i];
}

/* False if there are too many. */
static bool classify_by_taps(const td_conv_taps *t, classes *c)
{
    *c = (classes){ .exact = true };
    for (int64_t q = 0; q < t->size; q++) {
        int i = 0;
        while (i < c->count && !belongs(t, c, i, q)) {
            i++;
        }
        if (i == MAX_CLASSES) {
            return false;
        }
        add_pixel(t, c, i, q);
    }
    return true;
}

static void classify_by_rest(const td_conv_taps *t, int step, classes *c)
{
    *c = (classes){ .step = step <= MAX_CLASSES ? step : 1 };
    for (int64_t q = 0; q < t->size; q++) {
        add_pixel(t, c, (int)(q % c->step), q);
    }
}

/* Rows times taps; small blocks cost more. */
static int64_t cost(const td_conv_order *o, const classes *h, const classes *w)
{
    int64_t sum = 0;
    for (int i = 0; i < h->count; i++) {
        for (int j = 0; j < w->count; j++) {
            int64_t rows = h->size[i] * w->size[j] * o->n;
            sum += (rows > LEAST_ROWS ? rows : LEAST_ROWS) * h->taps[i] * w->taps[j];
        }
    }
    return sum;
}

static void order(td_conv_order *o, const classes *h, const classes *w)
{
    int64_t count = 0;
    for (int i = 0; i < h->count; i++) {
        for (int j = 0; j < w->count; j++) {
            int64_t begin = count;
            for (int64_t q = h->first[i]; q < o->h.size; q++) {
                for (int64_t r = w->first[j]; belongs(&o->h, h, i, q) && r < o->w.size; r++) {
                    if (belongs(&o->w, w, j, r)) {
                        o->pixels[count++] = (int32_t)(q * o->w.size + r);
                    }
                }
            }
            cut_pixels(o, begin, count);
        }
    }
}

void td_conv_order_take(td_conv_order *o, td_conv_space *space)
{
    int64_t pixels = o->h.size * o->w.size;
    o->pixels = td_conv_take(space, pixels * (int64_t)sizeof *o->pixels);
    o->blocks = td_conv_take(space, pixels * (int64_t)sizeof *o->blocks);
}

/* The classes of least cost, which is returned; INFINITY if there are none. */
static double choose_classes(const td_conv_order *o, bool exact, classes *h, classes *w)
{
    classes by_h[2], by_w[2]; /* by rest, by taps */
    classify_by_rest(&o->h, o->step_h, &by_h[0]);
    classify_by_rest(&o->w, o->step_w, &by_w[0]);
    int ways_h = classify_by_taps(&o->h, &by_h[1]) ? 2 : 1;
    int ways_w = classify_by_taps(&o->w, &by_w[1]) ? 2 : 1;
    double least = INFINITY;
    for (int i = exact; i < ways_h; i++) {
        for (int j = exact; j < ways_w; j++) {
            double this = (double)cost(o, &by_h[i], &by_w[j]);
            if (this < least) {
                least = this;
                *h = by_h[i];
                *w = by_w[j];
            }
        }
    }
    return least;
}

double td_conv_order_cost(const td_conv_order *o, bool exact)
{
    classes h, w;
    return choose_classes(o, exact, &h, &w);
}

void td_conv_order_pixels(td_conv_order *o)
{
    classes h = { 0 }, w = { 0 };
    (void)choose_classes(o, o->exact, &h, &w);
    o->block_count = 0;
    order(o, &h, &w);
}
