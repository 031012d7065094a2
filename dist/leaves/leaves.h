/* Leaves: the same weights, bit for bit, on any number of ranks. docs/leaves.md explains them.
 *
 * The global batch of a step is cut into a fixed number of slices, the leaves. A leaf is what one
 * rank of td_ddp computes in a step: forward, loss and backward of its samples, with batch
 * statistics of its own. A rank computes one leaf after another; then the gradients of all leaves
 * are added in one fixed tree, wherever they were computed. So a run on one rank, on three or on
 * eight gives the same weights, and the weights of td_ddp on as many ranks as there are leaves.
 *
 *     net = td_ddp(net, .strategy = td_leaves(8));
 *     net = td_ddp(net, .strategy = td_leaves(8, .strategy = td_zero(2)));
 *
 *     td_deal deal = td_leaf_deal(net, 32);
 *     loader = td_loader_open(data, .batch_size = 32 * deal.parts,
 *                             .sampler = td_distributed_sampler(.deal = deal, .shuffle = true));
 *     for (td_batch all; td_loader_next(loader, &all);) {
 *         while (td_leaf_next(net) >= 0) {
 *             TD_STEP {
 *                 td_batch batch = td_leaf_batch(net, &all);
 *                 td_backward(td_cross_entropy(td_forward(net, batch.x), batch.y));
 *             }
 *         }
 *         td_optim_step(optim);
 *     }                                                                                         */
#pragma once

#include "dist/dist.h"

TD_BEGIN_C

enum { TD_LEAVES_MOST = 65536 };

typedef struct td_leaves_options {
    td_strategy head;            /* for the library */
    int count;                   /* leaves of a step, at least as many as there are ranks */
    const td_strategy *strategy; /* how the ranks divide the model: td_zero(...), without replicas
                                    from stage 2 on; NULL: every rank has all */
    int end_;                    /* for the library */
} td_leaves_options;

extern const struct td_strategy_type td_leaves_type;

/* A model cut into stages (dist/pipeline/pipeline.h) runs its leaves in td_pipeline_step.
 *
 * What is the same for every number of ranks: weights, optimizer state, running statistics, losses.
 *
 * Gradients: each leaf begins without any, so td_zero_grad is not needed, and a model accumulates
 * by having more leaves. Their mean counts all leaves alike: if leaves have different numbers of
 * samples, multiply a leaf's loss by its samples * leaves / all samples. A leaf without a
 * td_backward counts as zeros (not where td_zero gathers values, because there all ranks run the
 * same forwards).
 *
 * Running statistics are those of leaf 0. Dropout draws what a rank of td_ddp with the leaf's
 * number would draw. td_clip_grad_norm adds the squares in one order. SyncBatchNorm, communication
 * hooks and .no_broadcast_buffers are fatal errors in td_ddp; more ranks than leaves are TD_E_ARG.
 *
 * td_leaf_next(net) begins this rank's next leaf, and returns its number. -1: the step has no
 * further leaf for this rank, and its gradients are there, the mean of all leaves; the call after
 * that begins the next step. A td_backward outside of a leaf fails like a collective. */
int td_leaf_next(td_module *net);

/* Whether the running leaf counts. If gradients are divided (td_zero(2)) and the number of ranks
 * does not divide the number of leaves, a rank may run a leaf that another rank has: then its
 * gradients are dropped, and its metrics should be. */
bool td_leaf_counts(const td_module *net);

/* The number of leaves of a step; 0: the model has none. */
int td_leaf_count(const td_module *net);

/* How a loader shares samples if each leaf has `samples` of a batch: leaf l gets the samples of
 * rank l of td_ddp. .parts is the number of leaves of this rank, and its batches have `samples` for
 * each. An epoch is padded, or cut with deal.drop_last, so that all leaves have equally many. */
td_deal td_leaf_deal(const td_module *net, int64_t samples);

/* The running leaf's samples of a batch of such a loader. In a step; x and y last as long. */
td_batch td_leaf_batch(const td_module *net, const td_batch *batch);

TD_END_C

/* For td_ddp_options.strategy, which copies the options. */
#define td_leaves(...)                                                                             \
    (&TD_LVALUE(td_leaves_options, (td_leaves_options){ .head = { &td_leaves_type },               \
                                                        TD_NAME(count) __VA_ARGS__,                \
                                                        .end_ = 0 })                               \
          .head)
