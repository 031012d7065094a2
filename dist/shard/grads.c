/* Gradients of which each rank keeps its window (ZeRO-2). A unit's part of backward begins with a
 * slot for the unit's gradients. When all of them are ready, a reduce-scatter averages the ranks'
 * slots: each rank gets the mean of its piece, while backward goes on with another slot. Then the
 * piece moves into the window, and the slot is free again.
 *
 * Replicas average that part of their windows next. That all-reduce begins when the following unit
 * has been launched, and nowhere else. For two groups of NCCL may wait for each other forever
 * unless all ranks launch the collectives of both groups in one order; and a rank that leaves a
 * parameter unused launches units later than other ranks. */
#include "dist/shard/shard.h"

#include "autograd/hooks.h"
#include "tensor/kernels/kernels.h"

/* A free slot. If there is none: without replicas, waits for the first unit whose average is under
 * way, and takes that unit's slot. If no average is under way (after td_ddp_no_sync_begin, or where
 * units run in another order than they are averaged), the unit gets memory of its own until it is
 * averaged. */
static td_slot *grads_find_slot(td_shard_unit *u)
{
    td_sharding *sh = u->sharding;
    td_ddp_state *s = sh->ddp;
    for (int k = -1; u->home.grad.memory == NULL && k < s->units.count; k++) {
        if (k >= 0 && sh->replicas == NULL && sh->units[k].grad_slot != NULL) {
            td_reducer_wait(s, &s->units.list[k]);
        }
        for (int i = 0; i < TD_SLOTS; i++) {
            if (sh->slots[i].grad.memory != NULL && sh->slots[i].grad.unit == NULL) {
                return &sh->slots[i].grad;
            }
        }
    }
    if (u->home.grad.memory == NULL) {
        u->home.grad.memory = td_zeros(TD_SHAPE(u->count), u->grads->dtype, sh->device);
        TD_REQUIRE(u->home.grad.memory != NULL, TD_HERE, "td_backward: %s", td_last_error());
    }
    return &u->home.grad;
}

/* A gradient that a parameter already has is in the window, and the next average is added to it.
 * Meanwhile the parameter's gradient is zeros: so the parameter still has one, and td_zero_grad can
 * take it away. */
void td_shard_begin_grads(td_shard_unit *u)
{
    td_sharding *sh = u->sharding;
    const td_bucket *b = &sh->ddp->units.list[u->number].b;
    bool fresh = u->grad_slot == NULL;
    if (fresh) {
        td_slot_give(grads_find_slot(u), u, u->grads, &u->grad_slot);
    }
    for (int k = 0; k < b->param_count; k++) {
        int i = b->params[k];
        td_tensor *grad = td_grad(td_params_get(sh->ddp->params, i)->tensor);
        if (fresh && grad != NULL) {
            td_fill_(grad, 0.0);
        }
        sh->held[i] = grad != NULL && (fresh || sh->held[i]);
    }
}

td_status td_shard_average(td_ddp_state *s, td_ddp_unit *unit, td_tensor *t)
{
    const td_sharding *sh = td_sharding_of(s);
    int64_t piece = td_numel(t) / sh->ranks;
    td_tensor mine = td_ddp_stretch(t, sh->rank * piece, piece);
    return td_reduce_scatter(sh->group, &mine, t, TD_AVERAGE, &unit->work);
}

void td_shard_keep_grads(td_shard_unit *u)
{
    td_sharding *sh = u->sharding;
    td_params *params = sh->ddp->params;
    const td_bucket *b = &sh->ddp->units.list[u->number].b;
    td_tensor *window = td_params_flat_grad(params);
    int64_t count = u->count / sh->ranks, first = u->begin / sh->ranks; /* of the window */
    td_tensor piece = td_ddp_stretch(u->grads, sh->rank * count, count);
    if (sh->landing != NULL) {
        td_tensor landed = td_ddp_stretch(sh->landing, 0, count);
        td_copy_(&landed, &piece);
        piece = landed;
    }
    for (int k = 0; k < b->param_count; k++) {
        td_window here = td_params_here(params, b->params[k]);
        td_tensor from = td_ddp_stretch(&piece, here.place - first, here.count);
        td_tensor to = td_ddp_stretch(window, here.place, here.count);
        if (here.count > 0 && sh->held[b->params[k]]) {
            td_kernels_of(td_device_of(window))->axpy(&to, 1.0, &from);
        } else if (here.count > 0) {
            td_copy_(&to, &from);
        }
    }
}

/* The unit's part of the window, which the ranks of this replica have averaged: over all replicas.
 */
td_status td_shard_average_replicas(td_shard_unit *u, td_work **work)
{
    const td_sharding *sh = u->sharding;
    td_tensor part = td_ddp_stretch(td_params_flat_grad(sh->ddp->params), u->begin / sh->ranks,
                                    u->count / sh->ranks);
    return td_all_reduce(sh->replicas, &part, TD_AVERAGE, work);
}

void td_shard_drop_grads(td_shard_unit *u)
{
    if (u->grad_slot == NULL) {
        return;
    }
    td_slot_take(u->grads, &u->grad_slot);
    if (u != u->sharding->root) {
        td_free(u->home.grad.memory);
        u->home.grad.memory = NULL;
    }
}
