/*
 * Groups of few channels. A group alone would fill some lanes of a vector and be over after a few
 * products. There are two ways out. Several groups taken as one, with zeros between them in the
 * weights, cost no more instructions as long as they share a vector, and fewer calls. Or groups
 * share a vector and stay apart: a permutation of the source's lanes before each product brings
 * every group its own channel, so that nothing is multiplied by zero.
 */
#include "tensor/cpu/conv_internal.h"

#include <string.h>

enum {
    CALL_COST = 12, /* of a row in a call of the kernel, in products of one vector */
};

/* Of a product with its permutation, in products. */
static const double PERMUTED_COST = 1.5;

/* Of the groups taken as one: the cost for each group. */
static double joined_cost(const td_conv_problem *p, int64_t from, int64_t to, int64_t joined)
{
    int64_t lanes = p->kernels->panel >= 32 ? p->kernels->panel / 4 : p->kernels->panel / 2;
    double taps = (double)(p->h.kernel * p->w.kernel);
    double vectors = (double)td_divide_up(joined * to, lanes);
    return vectors * ((double)(joined * from) * taps + CALL_COST) / (double)joined;
}

int64_t td_conv_groups_joined(const td_conv_problem *p, int64_t from, int64_t to)
{
    int64_t best = 1;
    double least = joined_cost(p, from, to, 1);
    for (int64_t joined = 2; joined <= p->groups; joined++) {
        double cost = joined_cost(p, from, to, joined);
        if (p->groups % joined == 0 && cost < 0.8 * least) {
            least = cost;
            best = joined;
        }
    }
    return best;
}

/* Of groups that share a vector: how many, and the cost for each. */
static int64_t most_sharing(const td_conv_problem *p, int64_t from, int64_t to, double *cost)
{
    int64_t widest = from > to ? from : to;
    if (p->groups == 1 || !p->kernels->grouped || widest > p->kernels->lanes) {
        return 0;
    }
    int64_t sharing = td_min64(p->kernels->lanes / widest, p->groups);
    double products = (double)(p->h.kernel * p->w.kernel * from) * PERMUTED_COST;
    *cost = (products + CALL_COST) / (double)sharing;
    return sharing;
}

int64_t td_conv_groups_sharing(const td_conv_problem *p, int64_t from, int64_t to)
{
    double cost = 0;
    int64_t sharing = most_sharing(p, from, to, &cost);
    return cost < joined_cost(p, from, to, td_conv_groups_joined(p, from, to)) ? sharing : 0;
}

double td_conv_groups_cost(const td_conv_problem *p, int64_t from, int64_t to)
{
    double cost, joined = joined_cost(p, from, to, td_conv_groups_joined(p, from, to));
    return most_sharing(p, from, to, &cost) > 0 && cost < joined ? cost : joined;
}

td_gemm_lanes td_conv_groups_lanes(int64_t sharing, int64_t from, int64_t to)
{
    td_gemm_lanes lanes = { .window = (int)(sharing * from) };
    for (int64_t lane = 0; lane < sharing * to; lane++) {
        lanes.first[lane] = (int32_t)(lane / to * from);
    }
    return lanes;
}

td_conv_problem td_conv_groups_join(const td_conv_problem *problem, int64_t joined)
{
    td_conv_problem p = *problem;
    p.groups /= joined;
    p.ic *= joined;
    p.oc *= joined;
    return p;
}

/* Weights are [tap][channel of x in a group][channel of y]. */
int64_t td_conv_groups_bytes(const td_conv_problem *p, int64_t joined)
{
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    int64_t bytes = taps * p->ic * joined * p->oc_all * (int64_t)p->kernels->size;
    return (bytes + 63) / 64 * 64;
}

/* Row `i` of the weights of a tap holds, for every channel of y, the i-th channel of x of its
 * group. Joined, that is channel (the group's number among those joined) * ic + i: row and column
 * of the joined weights for a run of p->oc channels. */
typedef struct run_of_group {
    int64_t grouped, joined; /* first elements */
} run_of_group;

static run_of_group find_run(const td_conv_problem *p, int64_t joined, int64_t tap, int64_t i,
                             int64_t group)
{
    int64_t column = group * p->oc;
    int64_t row = group % joined * p->ic + i;
    return (run_of_group){ (tap * p->ic + i) * p->oc_all + column,
                           (tap * p->ic * joined + row) * p->oc_all + column };
}

void td_conv_groups_spread(const td_conv_problem *p, int64_t joined, void *to, const void *w)
{
    size_t size = p->kernels->size;
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    memset(to, 0, (size_t)td_conv_groups_bytes(p, joined));
    for (int64_t n = 0; n < taps * p->ic * p->groups; n++) {
        run_of_group run =
            find_run(p, joined, n / p->groups / p->ic, n / p->groups % p->ic, n % p->groups);
        memcpy((char *)to + (size_t)run.joined * size, (const char *)w + (size_t)run.grouped * size,
               (size_t)p->oc * size);
    }
}

#define COLLECT(name, elem)                                                                        \
    static void name(elem *restrict dw, const elem *restrict from, int64_t count, bool accumulate) \
    {                                                                                              \
        for (int64_t i = 0; i < count; i++) {                                                      \
            dw[i] = accumulate ? dw[i] + from[i] : from[i];                                        \
        }                                                                                          \
    }

COLLECT(collect_f32, float)
COLLECT(collect_f64, double)

void td_conv_groups_collect(const td_conv_problem *p, int64_t joined, void *dw, const void *from,
                            bool accumulate)
{
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    for (int64_t n = 0; n < taps * p->ic * p->groups; n++) {
        run_of_group run =
            find_run(p, joined, n / p->groups / p->ic, n / p->groups % p->ic, n % p->groups);
        if (p->dtype == TD_F32) {
            collect_f32((float *)dw + run.grouped, (const float *)from + run.joined, p->oc,
                        accumulate);
        } else {
            collect_f64((double *)dw + run.grouped, (const double *)from + run.joined, p->oc,
                        accumulate);
        }
    }
}
