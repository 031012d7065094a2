#include "tensor/cpu/conv_order.h"

enum {
    LEAST_ROWS = 8, /* that any block costs as much as */
    MAX_CLASSES = 12,
};

/* Cuts pixels [begin, end) of the order into blocks of about equal size. */
static void cut_pixels(td_conv_order *o, int64_t begin, int64_t end)
{
    int64_t pieces = td_divide_up(end - begin, o->most);
    int64_t piece = pieces > 0 ? td_divide_up(end - begin, pieces) : 1;
    for (int64_t first = begin; first < end; first += piece) {
        o->blocks[o->block_count++] = (td_conv_order_block){ first, td_min64(piece, end - first) };
    }
}

/* Those whose number leaves the same rest on division by the
 * stride meet the same taps, but for the borders. */
static void order_by_rest(td_conv_order *o)
{
    int64_t count = 0;
    for (int64_t rest = 0; rest < (int64_t)o->step_h * o->step_w; rest++) {
        int64_t begin = count;
        for (int64_t h = rest / o->step_w; h < o->h.size; h += o->step_h) {
            for (int64_t w = rest % o->step_w; w < o->w.size; w += o->step_w) {
                o->pixels[count++] = (int32_t)(h * o->w.size + w);
            }
        }
        cut_pixels(o, begin, count);
    }
}

/* The pixels of an axis by the taps that they meet. */
typedef struct classes {
    int count;
    int64_t first[MAX_CLASSES]; /* a pixel of each */
    int64_t size[MAX_CLASSES];
    int taps[MAX_CLASSES]; /* that they meet */
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

/* False if there are too many. */
static bool classify(const td_conv_taps *t, classes *c)
{
    c->count = 0;
    for (int64_t q = 0; q < t->size; q++) {
        int i = 0;
        while (i < c->count && !same_taps(t, q, c->first[i])) {
            i++;
        }
        if (i == MAX_CLASSES) {
            return false;
        }
        if (i == c->count) {
            c->first[i] = q;
            c->size[i] = 0;
            c->taps[i] = 0;
            for (int tap = 0; tap < t->kernel; tap++) {
                c->taps[i] += t->source[q * t->kernel + tap] >= 0;
            }
            c->count++;
        }
        c->size[i]++;
    }
    return true;
}

/* Rows times taps if pixels go by class: none of them meets zeros, but small blocks cost more. */
static int64_t cost_by_class(const td_conv_order *o, const classes *h, const classes *w)
{
    int64_t cost = 0;
    for (int i = 0; i < h->count; i++) {
        for (int j = 0; j < w->count; j++) {
            int64_t rows = h->size[i] * w->size[j] * o->n;
            cost += (rows > LEAST_ROWS ? rows : LEAST_ROWS) * h->taps[i] * w->taps[j];
        }
    }
    return cost;
}

/* The same for one axis if they do not: every pixel meets the taps that some pixel with the same
 * rest does, perhaps in zeros. */
static int64_t taps_by_rest(const td_conv_taps *t, int step)
{
    int64_t sum = 0;
    for (int rest = 0; rest < step; rest++) {
        int most = 0;
        for (int64_t q = rest; q < t->size; q += step) {
            int met = 0;
            for (int tap = 0; tap < t->kernel; tap++) {
                met += t->source[q * t->kernel + tap] >= 0;
            }
            most = met > most ? met : most;
        }
        sum += most * ((t->size - rest + step - 1) / step);
    }
    return sum;
}

static void order_by_class(td_conv_order *o, const classes *h, const classes *w)
{
    int64_t count = 0;
    for (int i = 0; i < h->count; i++) {
        for (int j = 0; j < w->count; j++) {
            int64_t begin = count;
            for (int64_t q = h->first[i]; q < o->h.size; q++) {
                for (int64_t r = w->first[j]; same_taps(&o->h, q, h->first[i]) && r < o->w.size;
                     r++) {
                    if (same_taps(&o->w, r, w->first[j])) {
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

void td_conv_order_pixels(td_conv_order *o)
{
    int64_t by_rest = taps_by_rest(&o->h, o->step_h) * taps_by_rest(&o->w, o->step_w) * o->n;
    classes h, w;
    o->block_count = 0;
    if (classify(&o->h, &h) && classify(&o->w, &w) && cost_by_class(o, &h, &w) < by_rest) {
        order_by_class(o, &h, &w);
    } else {
        order_by_rest(o);
    }
}
