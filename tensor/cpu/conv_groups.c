/*
 * Groups of few channels. A group alone would fill some lanes of a vector and be over after a few
 * products. So groups share a vector and stay apart: a permutation of the source's lanes before
 * each product brings every group its own channel, so that nothing is multiplied by zero.
 */
#include "tensor/cpu/conv_internal.h"

int64_t td_conv_groups_sharing(const td_conv_problem *p)
{
    int64_t widest = p->ic > p->oc ? p->ic : p->oc;
    if (!p->kernels->grouped || 2 * widest > p->kernels->lanes) {
        return 0;
    }
    int64_t sharing = widest > 0 ? td_min64(p->kernels->lanes / widest, p->groups) : 0;
    return sharing > 1 ? sharing : 0;
}

td_gemm_lanes td_conv_groups_lanes(int64_t sharing, int64_t from, int64_t to)
{
    td_gemm_lanes lanes = { .window = (int)(sharing * from) };
    for (int64_t lane = 0; lane < sharing * to; lane++) {
        lanes.first[lane] = (int32_t)(lane / to * from);
    }
    return lanes;
}
