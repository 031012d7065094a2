/* --leaves: a step is a fixed number of leaves, whatever the number of processes. */
#include "apps/tools/common/train.h"
#include "nn/extra/inspect.h"

#include <stdlib.h>

td_deal train_readers(const train_run *r)
{
    const td_mesh *mesh = r->ranks.mesh; /* test_net has none */
    return mesh != NULL ? (td_deal){ .rank = td_mesh_rank(mesh, "rep+dp"),
                                     .world_size = td_mesh_size(mesh, "rep+dp") }
                        : (td_deal){ .rank = td_dist_rank(), .world_size = td_dist_world_size() };
}

int64_t train_world(const train_run *r)
{
    return r->args.ranks.leaves > 0 ? r->args.ranks.leaves : train_readers(r).world_size;
}

td_status train_check_leaves(const train_run *r)
{
    bool hook = r->args.ranks.comm_hook != NULL && strcmp(r->args.ranks.comm_hook, "none") != 0;
    if (r->args.ranks.leaves == 0) {
        return TD_OK;
    }
    TD_CHECK(td_dist_is_initialized() || ranks_elastic(), TD_E_ARG,
             "--leaves is for processes; one is enough (--spawn 1, or tdrun --nproc-per-node 1)");
    TD_CHECK(!r->args.compute.graph, TD_E_ARG,
             "--leaves, and --graph: the gradients of leaves are written to "
             "other memory in turn, which no graph can record");
    TD_CHECK(r->args.recipe.accumulate <= 1, TD_E_ARG,
             "--leaves, and a step of %" PRId64 " batches: leaves are the batches of a "
             "step; give more leaves instead",
             r->args.recipe.accumulate);
    TD_CHECK(!train_has_stages(r) || r->ranks.zero.stage < TD_SHARD_GRADIENTS ||
                 r->args.ranks.leaves % td_mesh_size(r->ranks.mesh, "rep+dp") == 0,
             TD_E_ARG,
             "--leaves %" PRId64 ", stages, and --shard gradients or parameters: %d "
             "processes along dp do not divide the leaves",
             r->args.ranks.leaves, td_mesh_size(r->ranks.mesh, "rep+dp"));
    return !hook ? TD_OK
                 : td_fail(TD_E_ARG,
                           "--leaves, and --comm-hook %s, which rounds what a process "
                           "sends: that depends on the number of processes",
                           r->args.ranks.comm_hook);
}

td_deal train_deal(const train_run *r)
{
    return td_leaf_count(r->net) > 0 ? td_leaf_deal(r->net, r->args.batch_size) : train_readers(r);
}

td_status train_begin_leaves(train_run *r)
{
    int leaves = td_leaf_count(r->net);
    free(r->ranks.leaves.loss);
    r->ranks.leaves.loss = leaves > 0 ? calloc((size_t)leaves, sizeof(double)) : NULL;
    return leaves == 0 || r->ranks.leaves.loss != NULL
               ? TD_OK
               : td_fail(TD_E_NOMEM, "no memory for the losses of %d leaves", leaves);
}

td_tensor *train_number(double value)
{
    td_tensor *t = td_step_new(TD_SCALAR, TD_F64, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_fill_(t, value);
    return t;
}

/* Sums over leaves are exact: of counts, or of a few f32 as doubles. In an elastic run the
 * optimizer waits until all ranks have the step's results (train_commit). */
td_status train_learn_leaves(void *user, td_tensor *const *inputs, td_tensor **results)
{
    train_run *r = user;
    td_batch all = { .x = inputs[0], .y = inputs[1], .size = inputs[0]->shape[0] };
    double *losses = r->ranks.leaves.loss, totals[TRAIN_SUMS] = { 0 };
    int64_t *targets = &r->so_far.targets[r->state.batch % RUNNER_DEPTH];
    memset(losses, 0, (size_t)td_leaf_count(r->net) * sizeof *losses);
    *targets = 0;
    TD_TRY(train_hash(r, TRAIN_BEFORE));
    for (int leaf; (leaf = td_leaf_next(r->net)) >= 0;) {
        td_batch batch = td_leaf_batch(r->net, &all);
        td_tensor *sums[TD_SUMS] = { NULL };
        td_tensor *loss = train_measure(r->net, &batch, sums, r);
        double value = td_item(loss);
        TD_TRY(train_check_loss(r, value));
        td_backward(td_scaler_loss(r->made.scaler, loss));
        TD_TRY(r->ranks.status);
        for (int i = 0; i < TRAIN_SUMS && td_leaf_counts(r->net); i++) {
            totals[i] += sums[i] != NULL ? td_item(sums[i]) : 0.0;
        }
        losses[leaf] = td_leaf_counts(r->net) ? value : 0.0;
        *targets += td_leaf_counts(r->net) ? batch.size * td_dataset_targets(r->train) : 0;
    }
    TD_TRY(r->ranks.status);
    TD_TRY(train_hash(r, TRAIN_GRADIENTS));
    results[RESULT_LOSS] = train_number(0.0); /* train_sum_leaves has it */
    for (int i = 0; i < TRAIN_SUMS; i++) {
        results[RESULT_SUMS + i] = train_number(totals[i]);
    }
    results[RESULT_OUTCOME] = r->made.scaler != NULL ? td_scaler_outcome(r->made.scaler) : NULL;
    if (r->ranks.elastic == NULL) {
        train_optimize(r);
    }
    return train_hash(r, TRAIN_AFTER);
}

/* The losses are added in the order of leaves. Of processes along tp, which have the same, one
 * counts. */
td_status train_sum_leaves(train_run *r, double *loss)
{
    double *losses = r->ranks.leaves.loss;
    int leaves = td_leaf_count(r->net);
    if (losses == NULL) {
        return TD_OK;
    }
    if (r->ranks.mesh != NULL && td_mesh_rank(r->ranks.mesh, "tp") > 0) {
        memset(losses, 0, (size_t)leaves * sizeof *losses);
    }
    TD_TRY(ranks_sum(losses, leaves));
    *loss = 0.0;
    for (int k = 0; k < leaves; k++) {
        *loss += losses[k] / leaves;
    }
    return TD_OK;
}
