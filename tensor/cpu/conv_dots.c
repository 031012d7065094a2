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
/* Of an element that does not stay in the cache until the next tap. */
static const double FAR_COST = 0.3;

enum {
    CHANNELS = 4,         /* of the result at a time */
    MAX_FORWARD = 8,      /* channels of the result */
    NEAR_BYTES = 4 << 20, /* of a source that stays in the cache */
};

/* By a pixel of the result, on average. */
static double taps_met(const td_conv_problem *p, bool backward)
{
    double pixels = (double)(backward ? p->h.in * p->w.in : p->h.out * p->w.out);
    return (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w) / pixels;
}

double td_conv_dots_cost(const td_conv_problem *p, bool backward)
{
    int64_t from = backward ? p->oc : p->ic, to = backward ? p->ic : p->oc;
    if (!p->kernels->dots || (!backward && to > MAX_FORWARD)) {
        return INFINITY;
    }
    double met = taps_met(p, backward);
    double steps = met * (double)td_divide_up(from, p->kernels->lanes);
    double cost = (double)to * (steps * STEP_COST[to < 3 ? to - 1 : 2] + SUM_COST);
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
    double all = (double)(p->h.kernel * p->w.kernel), met = taps_met(p, backward);
    double rows = pixels * (double)p->n, dots = td_conv_dots_cost(p, backward);
    if (dots == INFINITY) {
        return false;
    }
    double direct = met * (double)(from * td_divide_up(to, p->kernels->lanes));
    double packing = all * (double)(from * to) * PACK_COST;
    return rows * dots + (backward ? 0 : packing) < rows * direct + (backward ? packing : 0);
}
