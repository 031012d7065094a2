/* Data parallelism: DistributedDataParallel, DataParallel, SyncBatchNorm, and (dist/comm/comm.h)
 * process groups, collectives, starting processes. Every process (rank) drives one device, has the
 * same model and reads different data; DDP averages the gradients while backward still runs.
 *
 * A step of a training program on several ranks, and what DDP does in it:
 *
 *   td_forward     broadcasts rank 0's buffers (running statistics), then runs the model
 *   td_backward    sends the gradients in groups, called buckets. A bucket is sent as soon as its
 *                  last gradient is ready and its turn has come, so most of the sending happens
 *                  while backward still computes. When td_backward returns, every rank has the
 *                  mean of all gradients
 *   td_optim_step  computes the same step on every rank: the weights stay equal to the last bit
 *
 * At the end of a program free loaders and optimizers first, then models, then datasets. In the
 * wrong order the program stops with a message.
 *
 *     td_loader_close(loader);
 *     td_optim_free(optim);      (td_ema_free and td_scaler_free likewise)
 *     td_module_free(net);       (ends DDP, too)
 *     td_dataset_free(data);
 *     td_dist_destroy();
 *
 * More functions: dist/comm/collectives.h (groups of some ranks, gather, send, ...),
 * dist/comm/mesh.h, dist/comm/store.h, dist/trace.h, dist/ddp/codec.h, dist/ddp/extra.h,
 * dist/graph/captured.h. tandem.h includes sharding's header, too: dist/shard/zero.h. */
#pragma once

#include "data/data.h"
#include "dist/comm/comm.h"
#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

/* ---- data ---- */

typedef struct td_distributed_options {
    int begin_;           /* for the library */
    int rank, world_size; /* world_size 0: rank and size of the world group */
    bool shuffle;
    uint64_t seed;   /* equal on all ranks */
    bool drop_last;  /* drop the last samples instead of repeating the first ones */
    bool no_padding; /* for evaluation: every sample once; ranks may differ by one sample, and a
                        rank may have none */
    td_deal deal;    /* instead of rank, world_size, drop_last and no_padding */
} td_distributed_options;
/* td_distributed_sampler(...) gives each rank its share of the samples, as PyTorch's
 * DistributedSampler does, number by number. Each epoch permutes the samples with seed + epoch,
 * repeats the first ones until all ranks get equally many, and gives rank r the samples r,
 * r + world_size, ... of that order. The loader owns the sampler and tells it the epoch, so a
 * training loop calls nothing. A rank out of range is a fatal error. (td_distributed_sampler never
 * returns NULL, because a loader without a sampler would read all samples.) */
td_sampler *td_distributed_sampler_at(td_distributed_options options, td_site at);

/* What a task measures on a batch. A td_measure runs the net, returns the loss (the mean over the
 * batch's targets), and sets sums[0], sums[1], ... to scalars that are added over batches and
 * ranks; all are NULL before. td_evaluate calls it in a step; a training loop may, too. For example
 * the mean absolute error:
 *
 *     static td_tensor *mae(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
 *     {
 *         td_tensor *y = td_forward(net, batch->x);
 *         sums[0] = td_l1_loss(y, batch->y, .reduction = TD_LOSS_SUM);
 *         return td_mse_loss(y, batch->y);
 *     }
 *     td_evaluation e = td_evaluate(net, loader, .measure = mae);
 *     printf("%g\n", e.sums[0] / (double)e.seen);                                               */
enum { TD_SUMS = 4 };
typedef td_tensor *(*td_measure)(td_module *net, const td_batch *batch, td_tensor *sums[TD_SUMS],
                                 void *user);

typedef struct td_evaluation {
    double loss, accuracy; /* means over all targets; NaN if there are none */
    int64_t right, seen;   /* seen: the number of targets, which are samples, or, if y is i64 [n,T],
                              tokens. right: targets whose largest logit is their label's */
    double sums[TD_SUMS];  /* the sums of the measure; of a classifier, sums[0] is `right` */
    int64_t batches;       /* of this rank */
    td_status status;      /* TD_OK: the numbers are finite, and of all samples. TD_E_ARG: there are
                              no samples, or the loss is not finite. Otherwise the numbers cover only
                              a part of the samples */
} td_evaluation;

typedef struct td_evaluate_options {
    int begin_; /* for the library */
    td_module *net;
    td_loader *loader;
    td_measure measure; /* NULL: a classifier's: cross-entropy and right labels, of logits [n,
                           classes], or of [n,T,classes] if y is [n,T] */
    /* NULL, or called after each batch of this rank with its numbers so far. false ends the
     * evaluation early: the result has what was seen. */
    bool (*batch_done)(const td_evaluation *so_far, void *user);
    void *user;      /* for measure and batch_done */
    td_group *group; /* the ranks that read different data; NULL: the world. For a pipeline
                        and for slices the mesh's ranks along rep and dp */
} td_evaluate_options;
/* td_evaluate(net, loader, ...): a model's loss and metrics over one epoch of a loader, in
 * evaluation mode and without gradients. Afterwards each module has the mode that it had before.
 * Call td_evaluate outside of steps. It always runs a whole epoch, from the first batch, even if
 * some batches were read before.
 *
 * On several ranks all ranks call it. Give each rank's loader td_distributed_sampler(.no_padding =
 * true), so that every sample counts once. Each rank runs its own batches with rank 0's running
 * statistics, and all ranks get the numbers of all samples. A rank without samples calls
 * td_evaluate, too. If one rank fails, all ranks get an error. Rank 0 warns on stderr if more
 * samples were seen than the dataset has, and if the ranks' parameters differ because td_ddp is
 * missing. */
td_evaluation td_evaluate_at(td_evaluate_options options, td_site at);
/* Gives all ranks of the world rank 0's buffers of a model (running statistics), which differ from
 * rank to rank between two training steps. td_evaluate does that first. */
td_status td_broadcast_buffers(td_module *net);

/* ---- DistributedDataParallel ----
 *
 * dist/ddp/extra.h explains buckets, and in which order and when they are sent. docs/ddp.md
 * explains what DDP measures (waiting, overlap) and compares communication hooks. */

/* A strategy: how the ranks of a model work together if not every rank keeps everything. td_zero in
 * dist/shard/zero.h is one: the ranks divide the optimizer's state, gradients and values among
 * themselves. The struct is the head of a strategy's options; the strategy's macro makes it. */
typedef struct td_strategy {
    const struct td_strategy_type *type;
} td_strategy;

typedef struct td_ddp_options {
    int begin_; /* for the library */
    td_module *model;
    td_group *group;      /* NULL: the world */
    struct td_mesh *mesh; /* instead of group (dist/comm/mesh.h): the ranks along its dimensions rep
                             and dp. Free the mesh after the model */
    double bucket_cap_mb; /* limit of a bucket in MiB; 0: 5 on CPUs, 25 on GPUs */
    bool find_unused_parameters; /* some parameters may get no gradient in a step, and not the same
                                    parameters on each rank. Without this option td_backward ends
                                    the program then, and names the parameter */
    bool no_broadcast_buffers;   /* do not broadcast rank 0's running statistics before each
                                    training forward */
    bool static_graph;           /* the same parameters are unused in all steps: DDP looks once */
    const char *comm_hook;       /* what is sent in place of f32 gradients: NULL, "bf16", "fp16",
                                    "powersgd" (Vogels et al. 2019) */
    const struct td_bucket_codec *codec; /* instead of comm_hook: td_powersgd(...), or a
                                            communication hook of your own (dist/ddp/codec.h) */
    const td_strategy *strategy; /* NULL: every rank has all values, gradients and optimizer state.
                                    td_zero(...) shards them. td_ddp copies what it needs */
} td_ddp_options;

/* td_ddp(net, ...) makes a model train together with the other ranks' copies, and returns the same
 * module. All ranks call td_ddp at the same place. td_ddp checks that names, shapes and dtypes of
 * the parameters are the same on all ranks, copies rank 0's values and buffers to all ranks, and
 * makes the buckets.
 *
 * Use the model as before: td_forward, td_backward, td_optim_step. The names in checkpoints do not
 * change. td_module_free ends DDP, too.
 *
 * NULL with td_last_error() on every rank if one rank's model differs; the model is freed then, as
 * by every constructor that takes a module. A collective that fails in td_backward is a fatal
 * error, unless td_ddp_on_error is set. */
td_module *td_ddp_at(td_ddp_options options, td_site at);
bool td_is_ddp(const td_module *m); /* whether m went through td_ddp */

/* For gradient accumulation: between begin and end, backward adds to this rank's gradients and
 * sends nothing. The first backward after td_ddp_no_sync_end reduces the accumulated gradients. The
 * gradients of several backwards add up: multiply each loss by td_loader_share, so that the sum is
 * the gradient of the mean over all samples, even if the last batch is small. */
void td_ddp_no_sync_begin(td_module *net);
void td_ddp_no_sync_end(td_module *net);

/* ---- DataParallel: one process, several devices ---- */

/* Makes a model run on several devices of one process, one thread for each device, and returns the
 * same module. The parameters live on devices[0]. Every forward copies them to the other GPUs; CPU
 * devices share one memory, so nothing is copied there. It scatters the batch along dimension 0,
 * runs the replicas and gathers the results; after backward the replicas' gradients are summed on
 * devices[0]. Only replica 0's buffers are kept. With one device the model runs directly.
 *
 * DataParallel is slower than td_ddp: copying the parameters (to GPUs), cutting the batch, and
 * collecting results and gradients happen while nothing else runs, in every step. DDP copies no
 * weights, and averages gradients while backward runs.
 *
 * NULL with td_last_error(), and the model is freed: no memory, the model contains SyncBatchNorm,
 * whose statistics are shared between processes (use td_ddp), or the model or a module in it went
 * through td_ddp or td_data_parallel already. */
td_module *td_data_parallel(td_module *model, const td_device *devices, int count);

/* ---- SyncBatchNorm ---- */

/* Makes every BatchNorm2d of a model compute its statistics over the batches of all ranks (group
 * NULL: the world). Call it before td_ddp. Returns the same module, changed. NULL with
 * td_last_error(), and m is freed: memory is short, or m is a DataParallel. */
td_module *td_convert_sync_batch_norm(td_module *m, td_group *group);

TD_END_C

/* ---- what you call ---- */

#define td_distributed_sampler(...)                                                                \
    td_distributed_sampler_at((td_distributed_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_evaluate(...)                                                                           \
    td_evaluate_at((td_evaluate_options){ TD_OPT2(net, loader, __VA_ARGS__) }, TD_HERE)
#define td_ddp(...) td_ddp_at((td_ddp_options){ TD_OPT1(model, __VA_ARGS__) }, TD_HERE)
