/*
 * Weights of forward and backward-data as the products read them: panels of B, whose rows are
 * dense. Backward they are transposed. All are packed before the tasks if many rows read them,
 * otherwise by the tasks as they go; or they stay where they are.
 */
#include "tensor/cpu/conv_apply.h"

#include "tensor/cpu/bf16_kernels.h"

static int64_t weights_size_of(const td_apply_plan *p)
{
    return (int64_t)p->problem->kernels->size;
}

bool td_apply_needs_packing(const td_apply_plan *p)
{
    return p->apply->backward || p->whole ||
           (p->problem->oc_all > p->problem->kernels->panel && p->problem->sharing == 0);
}

td_apply_place td_apply_place_of(const td_apply_plan *p, int64_t panel)
{
    const td_conv_problem *problem = p->problem;
    int64_t group = p->group.panels == 1 ? panel : panel / p->group.panels;
    int64_t first = (panel - group * p->group.panels) * problem->kernels->panel;
    int64_t all = (p->apply->backward ? problem->ic : problem->oc) * problem->groups;
    td_apply_place at = { .panel = panel, .from = group * p->group.from_channels };
    at.to = group * p->group.to_channels + first;
    at.weight =
        p->apply->backward ? group * p->group.source_channels + first * problem->oc_all : at.to;
    at.n = td_min64(p->group.to_channels - first, all - at.to); /* the last group may have fewer */
    at.n = td_min64(at.n, problem->kernels->panel);
    return at;
}

const char *td_apply_weights_at(const td_apply_plan *p, const td_apply_place *at, int kh, int kw)
{
    const td_conv_problem *problem = p->problem;
    int64_t tap = (int64_t)kh * problem->w.kernel + kw;
    return (const char *)p->apply->weights +
           (tap * problem->ic * problem->oc_all + at->weight) * p->weight_size;
}

/* Panel after panel, so that the taps of a panel lie together. */
char *td_apply_packed_at(const td_apply_plan *p, const td_apply_place *at, int kh, int kw,
                         int64_t first)
{
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    int64_t tap = (int64_t)h->rank[kh] * w->alive + w->rank[kw];
    int64_t rows = (at->panel * h->alive * w->alive + tap) * p->group.depth + first;
    return p->packed + rows * p->width * weights_size_of(p);
}

/* All rows of a tap as bf16, in pairs; zeros for the source's padding. */
static void pack_pairs(const td_apply_plan *p, int n, const char *from, td_bf16 *to)
{
    int64_t row = p->problem->oc_all, low = p->packed_low;
    td_bf16_source source = { .dtype = p->apply->mixed->weights, .stride = row };
    for (int64_t first = 0; first < p->group.depth; first += TD_BF16_BLOCK, to += TD_BF16_STEP) {
        int rows = (int)td_min64(TD_BF16_BLOCK, p->group.source_channels - first);
        int depth = (int)td_min64(TD_BF16_BLOCK, p->group.depth - first);
        source.data = from + first * (p->apply->backward ? 1 : row) * p->weight_size;
        if (p->apply->backward) {
            td_bf16_pack_b_turned(to, low, &source, rows, n, depth);
        } else {
            td_bf16_pack_b(to, low, &source, rows, n, depth);
        }
    }
}

void td_apply_pack(const td_apply_plan *p, int64_t n, const char *from, int64_t first,
                   int64_t count, char *to)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = weights_size_of(p);
    if (p->whole) {
        pack_pairs(p, (int)n, from, (td_bf16 *)to);
        return;
    }
    if (!p->apply->backward) {
        problem->kernels->pack(to, p->width, from + first * problem->oc_all * size, count, n,
                               problem->oc_all, 1);
        return;
    }
    int64_t each = problem->sharing > 0 ? problem->ic : n; /* group beside group */
    for (int64_t j = 0; j < n; j += each) {
        problem->kernels->pack(to + j * size, p->width,
                               from + (first + j / each * p->group.depth) * size, count, each, 1,
                               problem->oc_all);
    }
}

/* One panel of one tap. */
static void weights_pack_task(void *ctx, int64_t task)
{
    const td_apply_plan *p = ctx;
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    int64_t tap = task / p->group.all_panels;
    int kw = (int)(tap % w->kernel), kh = (int)(tap / w->kernel);
    if (h->rank[kh] < 0 || w->rank[kw] < 0) {
        return;
    }
    td_apply_place at = td_apply_place_of(p, task % p->group.all_panels);
    const char *from = td_apply_weights_at(p, &at, kh, kw);
    for (int64_t first = 0, count; first < p->group.depth; first += count) {
        count = p->whole ? p->group.depth : td_min64(p->group.depth - first, TD_APPLY_DEPTH);
        td_apply_pack(p, at.n, from, first, count, td_apply_packed_at(p, &at, kh, kw, first));
    }
}

void td_apply_pack_ahead(td_pool *pool, const td_apply_plan *p)
{
    int64_t taps = (int64_t)p->problem->h.kernel * p->problem->w.kernel;
    td_pool_run(pool, p->group.all_panels * taps, weights_pack_task, (void *)p);
}
