/*
 * Where vectors run along the sum: results of few channels, which would leave most lanes of a
 * vector empty, and backward-data of so few pixels that transposing the weights would cost more
 * than the product.
 */
#include "tensor/cpu/conv_internal.h"

#include <math.h>

/* In products of a vector. */
static const double SUM_COST = 6, PACK_COST = 0.75;
/* Of a row at a tap, with some channels of the result. */
static const double TAP_COST = 2;
/* Of a product, with 1, 2, 3 and more channels of the result that share what they read. */
static const double STEP_COST[] = { 2, 1.4, 1.25 };
/* The same where many channels read the source's rows again, and those are too many for the
 * first-level cache. */
static const double MANY_ROWS_COST = 1.9;
/* Of an element that does not stay in the cache until the next tap. */
static const double FAR_COST = 0.3;

enum {
    CHANNELS = 4,    /* of the result at a time */
    MAX_FORWARD = 8, /* channels of the result */
    MANY_ROWS = 24,
    MANY_CHANNELS = 32,
    NEAR_BYTES = 4 << 20, /* of a source that stays in the cache */
};

/* By a pixel of the result, on average. */
static double taps_met(const td_conv_problem *p, bool backward)
{
    double pixels = (double)(backward ? p->h.in * p->w.in : p->h.out * p->w.out);
    return (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w) / pixels;
}

static double step_cost(const td_conv_problem *p, bool backward, int64_t to)
{
    int64_t rows = p->n * (backward ? p->h.in * p->w.in : p->h.out * p->w.out);
    bool many = to > MANY_CHANNELS && rows > MANY_ROWS;
    return many ? MANY_ROWS_COST : STEP_COST[to < 3 ? to - 1 : 2];
}

/* Taps that meet any pixel. */
static int taps_alive(const td_conv_axis *axis)
{
    int alive = 0;
    for (int tap = 0; tap < axis->kernel; tap++) {
        alive += td_conv_tap_meets(axis, tap) > 0;
    }
    return alive;
}

double td_conv_dots_cost(const td_conv_problem *p, bool backward)
{
    int64_t from = backward ? p->oc : p->ic, to = backward ? p->ic : p->oc;
    if (!p->kernels->dots || (!backward && to > MAX_FORWARD)) {
        return INFINITY;
    }
    double met = taps_met(p, backward);
    double steps = met * (double)td_divide_up(from, p->kernels->lanes);
    double cost = (double)to * (steps * step_cost(p, backward, to) + SUM_COST);
    cost += met * TAP_COST * (double)td_divide_up(to, CHANNELS);
    double source = (double)(backward ? p->h.out * p->w.out : p->h.in * p->w.in) *
                    (double)(p->n * from * p->groups) * (double)p->kernels->size;
    bool again = p->h.kernel * p->w.kernel > 1;
    return cost + (again && source > NEAR_BYTES ? FAR_COST * (double)from * met : 0);
}

bool td_conv_dots_win(const td_conv_problem *p, bool backward)
{
    int64_t from = backward ? p->oc : p->ic, to = backward ? p->ic : p->oc;
    double pixels = (double)(backward ? p->h.in * p->w.in : p->h.out * p->w.out);
    double alive = (double)(taps_alive(&p->h) * taps_alive(&p->w)), met = taps_met(p, backward);
    double rows = pixels * (double)p->n, dots = td_conv_dots_cost(p, backward);
    if (dots == INFINITY) {
        return false;
    }
    double direct = met * (double)(from * td_divide_up(to, p->kernels->lanes));
    double packing = alive * (double)(from * to) * PACK_COST;
    return rows * dots + (backward ? 0 : packing) < rows * direct + (backward ? packing : 0);
}
