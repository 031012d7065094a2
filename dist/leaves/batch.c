/* Which samples are a leaf's. */
#include "autograd/ops.h"
#include "dist/leaves/tree.h"
#include "tensor/extend.h"

td_deal td_leaf_deal(const td_module *net, int64_t samples)
{
    const td_leaves *v = td_leaves_required(net, "td_leaf_deal");
    TD_REQUIRE(samples > 0, TD_HERE, "td_leaf_deal: a leaf has %lld samples", (long long)samples);
    return (td_deal){ .rank = v->way->leaf(v, v->rank, 0),
                      .world_size = v->count,
                      .parts = v->way->turns(v, v->rank),
                      .stride = v->way->dealt ? v->ranks : 1,
                      .each = samples };
}

/* Rows of a batch, without gaps: a kernel's order may depend on them. */
static td_tensor *rows_of(td_tensor *t, int64_t from, int64_t to)
{
    td_tensor *part = td_slice(t, 0, from, to, 1);
    td_tensor *dense = td_step_new_like(part, TD_HERE);
    td_copy_(dense, part);
    return dense;
}

td_batch td_leaf_batch(const td_module *net, const td_batch *batch)
{
    const td_leaves *v = td_leaves_required(net, "td_leaf_batch");
    int64_t parts = v->way->turns(v, v->rank), size = batch->size / parts;
    TD_REQUIRE(v->turn >= 0 && size > 0 && batch->size % parts == 0, TD_HERE,
               "td_leaf_batch: a batch of %lld samples for %lld leaves%s: the loader's batch size "
               "is a multiple of td_leaf_deal's .parts, and the leaf begins with td_leaf_next",
               (long long)batch->size, (long long)parts, v->turn < 0 ? " of which none runs" : "");
    int64_t from = v->turn * size;
    return parts == 1
               ? *batch
               : (td_batch){ .x = rows_of(batch->x, from, from + size),
                             .y = rows_of(batch->y, from, from + size),
                             .size = size,
                             .index = batch->index,
                             .samples = batch->samples != NULL ? batch->samples + from : NULL };
}
