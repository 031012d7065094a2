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
 * The end of a program: free what uses another thing before the thing that it uses. If a dataset
 * goes before its loader, or a model before its optimizer, the program stops with a message.
 *
 *     td_loader_close(loader);
 *     td_optim_free(optim);      (td_ema_free and td_scaler_free likewise)
 *     td_module_free(net);       (ends DDP, too)
 *     td_dataset_free(data);
 *     td_dist_destroy();
 *
 * More functions: dist/comm/collectives.h (groups of some ranks, gather, send, ...),
 * dist/comm/mesh.h, dist/comm/store.h, dist/trace.h, dist/ddp/codec.h, dist/ddp/extra.h,
 * dist/graph/captured.h. */
#ifndef TD_DIST_DIST_H
#define TD_DIST_DIST_H

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
} td_distributed_options;
/* td_distributed_sampler(...) gives each rank its share of the samples, as PyTorch's
 * DistributedSampler does, number by number. Each epoch permutes the samples with seed + epoch,
 * repeats the first ones until all ranks get equally many, and gives rank r the samples r,
 * r + world_size, ... of that order. The loader owns the sampler and tells it the epoch, so a
 * training loop needs no call; td_loader_seek is for resuming a run. It never returns NULL,
 * because a loader would then read all samples; a rank out of range is a fatal error instead. */
td_sampler *td_distributed_sampler_at(td_distributed_options options, td_site at);

typedef struct td_evaluation {
    double loss, accuracy; /* means over the samples; NaN if there are none */
    int64_t right, seen;   /* samples whose largest logit is their label's; all samples */
    td_status status;      /* TD_OK: the numbers are finite, and of all samples. TD_E_ARG: there are
                              no samples, or the loss is not finite. Otherwise the numbers cover only
                              a part of the samples */
} td_evaluation;
/* Loss (cross-entropy) and accuracy of a classifier over one epoch of a loader, in evaluation mode
 * and without gradients. The net gives logits [n, classes]. Afterwards each module is in the mode
 * in which it was before. Call td_evaluate outside of steps. On several ranks all ranks call it:
 * each rank runs the batches of its own loader with rank 0's running statistics, and all ranks get
 * the numbers of all samples; a rank without samples takes part with none. td_evaluate always runs
 * a whole epoch, from its first batch, even if some batches were read before. Give the loader
 * td_distributed_sampler(.no_padding = true), so that every sample counts once. If one rank fails,
 * all ranks get a failure. Rank 0 warns on stderr if more samples were seen than the dataset has,
 * and if the ranks' parameters differ because td_ddp is missing. */
td_evaluation td_evaluate_at(td_module *net, td_loader *loader, td_site at);

/* ---- DistributedDataParallel ----
 *
 * Buckets. All gradients lie in one long array (td_parameters). A bucket is one stretch of that
 * array, so a bucket is sent in one piece and without a copy. There are several buckets, so that
 * sending can start before backward is over. A bucket is closed when it has reached its limit
 * (bucket_cap_mb); a parameter is never split, so a bucket can be larger than the limit. The first
 * bucket, and every bucket that reaches into the last 5 MiB of the array, has the limit 1 MiB:
 * communication begins early, and little is left to send when backward is over.
 *
 * Order. All ranks send the buckets in the same fixed order, starting with the last layers, whose
 * gradients backward computes first. After the first backward DDP rebuilds the buckets once, in the
 * order in which gradients became ready. Results do not depend on the buckets.
 *
 * When. td_backward queues a bucket's all-reduce when the bucket's last gradient is ready and all
 * buckets before it are queued. (A ready hook does that, autograd/hooks.h, on td_backward's
 * thread.) The group's communication thread (or NCCL's stream) carries it out, while backward goes
 * on. The end of td_backward waits for all buckets.
 *
 * docs/ddp.md explains what DDP measures (waiting, overlap) and compares communication hooks. */

/* Sharding (ZeRO): what the ranks divide among themselves, instead of each rank keeping all of it.
 * docs/sharding.md explains sharding and counts the bytes. */
typedef enum td_shard {
    TD_SHARD_NONE,
    /* The optimizer's state. The flat parameters are cut into equal windows, one for each rank.
     * td_optim_step changes this rank's window, and keeps momentum or moments of that window alone;
     * then an all-gather gives every rank the other ranks' windows. The weights equal the weights
     * under TD_SHARD_NONE, bit for bit. Each step sends 1.5 times as many bytes as without
     * sharding: the all-reduce of gradients costs as much as a reduce-scatter and an all-gather,
     * and the all-gather of the windows comes in addition.
     *
     * All ranks call td_optim_step, and td_checkpoint_save with the optimizer. Optimizers (SGD,
     * Adam, AdamW) and averages of weights are made after td_ddp. Not with Muon, which needs whole
     * filters, nor with ranks that end at different steps (td_ddp_join_begin, dist/ddp/extra.h). If
     * td_optim_step cannot get the other ranks' windows, the program ends as when td_backward
     * fails, or td_ddp_on_error's function is called. */
    TD_SHARD_OPTIMIZER,
    /* The gradients, too. The model is cut into units: its blocks (a residual block, a layer of a
     * transformer), or the modules that td_ddp_options.unit names; all parameters outside of blocks
     * are one more unit. A unit's gradients have memory from the unit's backward until the ranks
     * have averaged them; then each rank keeps its piece. td_grad still says which parameters have
     * gradients, but do not read the gradients' data: clip with td_clip_grad_norm. The rules of
     * TD_SHARD_OPTIMIZER hold, with one exception: if you accumulate over several backwards, the
     * sum of the means is taken instead of the mean of the sums, so the last bits may differ.
     * Between td_ddp_no_sync_begin and td_ddp_no_sync_end all gradients stay: as much memory as
     * without sharding. Not with .comm_hook. */
    TD_SHARD_GRADIENTS,
    /* The values, too. All ranks save and load checkpoints, and call td_ema_swap.
     *
     * In place: if the model is on the CPU, all ranks are on one host and the backend is shm, the
     * ranks share one copy of the values, which looks like whole tensors to every rank. A rank may
     * run the model as often as it likes, but not between its td_backward and its td_optim_step:
     * another rank may be changing values then.
     *
     * Gathered: otherwise, or with .gathers, a unit's values come from the other ranks just before
     * the unit's forward and before its backward, while the unit before computes; afterwards the
     * rank drops these values. All ranks must run the units in the same order and equally many
     * forwards, also in evaluation (td_evaluate does that). td_unshard brings all values, for
     * printing or copying. */
    TD_SHARD_PARAMETERS,
} td_shard;

/* Hybrid sharding: with .mesh "rep=2,dp=4" the four ranks along dp share as above, and two such
 * sets of ranks (replicas) keep equal windows. Values and gradients of units travel along dp alone,
 * best inside a host. Each rank's window of the gradients is then averaged over the replicas. One
 * replica writes checkpoints. Not with .comm_hook.
 *
 * Bits: TD_SHARD_OPTIMIZER gives the same weights as TD_SHARD_NONE. TD_SHARD_GRADIENTS and
 * TD_SHARD_PARAMETERS sum along dp first and along rep next, which rounds differently: both give
 * the same weights on all ranks, but the weights of TD_SHARD_NONE only with dp=1 or rep=1.
 *
 * Accumulation: between td_ddp_no_sync_begin and td_ddp_no_sync_end backward still averages along
 * dp, and adds the average to the window; replicas exchange nothing, and no rank keeps whole
 * gradients. The first backward after td_ddp_no_sync_end averages the windows over the replicas. */

typedef struct td_ddp_options {
    int begin_; /* for the library */
    td_module *model;
    td_group *group;      /* NULL: the world */
    struct td_mesh *mesh; /* in place of group (dist/comm/mesh.h): all ranks along rep and dp. With
                             .shard, ranks along dp share, and ranks along rep are replicas. The
                             mesh is freed after the model */
    double bucket_cap_mb; /* limit of a bucket in MiB; 0: 5 on CPUs, 25 on GPUs */
    bool find_unused_parameters; /* allow that some parameters get no gradient in a step, on each
                                    rank others. Otherwise td_backward ends the program then,
                                    and names the parameter */
    bool no_broadcast_buffers;   /* do not broadcast rank 0's running statistics before each
                                    training forward */
    bool static_graph;           /* the set of unused parameters never changes: found out once */
    const char *comm_hook;       /* what is sent in place of f32 gradients: NULL, "bf16", "fp16",
                                    "powersgd" (Vogels et al. 2019) */
    const struct td_bucket_codec *codec; /* instead: a communication hook of your own
                                            (dist/ddp/codec.h) */
    int powersgd_rank;                   /* 0: 1 */
    int64_t powersgd_start;              /* so many steps use a plain all-reduce first; 0: 1000 */
    td_shard shard;                      /* what the ranks share; usual: TD_SHARD_NONE */
    /* Whether a module is a unit, for shard; path: its name in the model. Modules inside a unit are
     * not asked. NULL: the blocks of a model by td_model, or else the model's children that have
     * children. */
    bool (*unit)(const td_module *m, const char *path, void *user);
    void *unit_user;
    /* "bf16", with TD_SHARD_PARAMETERS and f32 models: the matrices of Linear and Conv2d
     * travel as bf16, and values are gathered as with .gathers. NULL: all values travel as f32.
     * Vectors, embeddings and weights that modules share travel as f32, and so does a unit whose
     * vectors fill more than half of the last rank's piece. The optimizer's windows, checkpoints
     * and td_unshard keep f32. Under TD_PRECISION_BF16, which rounds those matrices itself, the
     * results are the same, bit for bit; otherwise forward and backward use rounded matrices. */
    const char *wire;
    /* With TD_SHARD_PARAMETERS: where this rank's windows of values, gradients, optimizer state and
     * averages lie. NULL: in ordinary memory of the model's device.
     *
     * "cpu", of models on GPUs: in the host's memory, so a model may be larger than the GPU's. The
     * CPU takes the optimizer's step, and clips. A step cannot be captured (--graph).
     *
     * A folder ("./cpu" if it has that name): in files there, so a model may be larger than the
     * host's memory. The files have no names, and vanish with the process. Of a model on a GPU all
     * that is said of "cpu" holds, too.
     *
     * Values are gathered as with .gathers. All ranks make optimizers and averages in the same
     * order: if one rank has no memory or cannot make a file, all ranks get NULL with that rank's
     * reason. */
    const char *offload;
    bool gathers; /* with TD_SHARD_PARAMETERS: gather values also where ranks could share them in
                     place */
} td_ddp_options;

/* td_ddp(net, ...) makes a model train together with the other ranks' copies, and returns the same
 * module. All ranks call td_ddp at the same place. It checks that names,
 * shapes and dtypes of the parameters are the same on all ranks, copies rank 0's values and buffers
 * to all, makes the buckets and adds a ready hook to every parameter.
 *
 * The model is used as before: td_forward, td_backward, td_optim_step. The names in checkpoints
 * stay as they were. td_module_free ends DDP, too.
 *
 * NULL with td_last_error() on every rank if one rank's model differs; the model is freed then, as
 * by every constructor that takes a module. A collective that fails in td_backward is a fatal
 * error, unless td_ddp_on_error is set. */
td_module *td_ddp_at(td_ddp_options options, td_site at);
bool td_is_ddp(const td_module *m); /* whether m went through td_ddp */

/* For gradient accumulation: between begin and end, backward adds to this rank's gradients and
 * sends nothing. The first backward after td_ddp_no_sync_end reduces the accumulated gradients. The
 * gradients of several backwards add up: multiply each loss by td_loader_share, so that the sum is
 * the gradient of the mean over all samples, also if the last batch is small. */
void td_ddp_no_sync_begin(td_module *net);
void td_ddp_no_sync_end(td_module *net);

/* What this rank keeps of a model that went through td_ddp, in bytes, counted from the memory
 * itself. */
typedef struct td_shard_stats {
    size_t values, gradients;
    size_t state; /* of optimizers and averages of weights */
    size_t slots; /* memory for whole units' values and gradients, used in turn */
    size_t unit_values, unit_gradients; /* of whole units in slots now; changes during a step */
    int units;                          /* 0: the whole model travels in buckets */
    bool woven;                         /* the ranks share values in place */
    double gather;                      /* seconds for which the last step waited for values */
    uint64_t wire; /* bytes from other ranks since the model's groups began, in all collectives of
                      these groups, as the engines count them (shm: bytes read from other ranks'
                      memory or written into it); not on GPUs. Subtract two calls for the bytes of
                      a step */
} td_shard_stats;
td_shard_stats td_ddp_shard_stats(const td_module *net);

/* Collective: brings all values of a model whose parameters are sharded, until td_reshard. Between
 * the two calls you may read the values. td_reshard drops what you wrote into them; only
 * td_optim_step and td_checkpoint_load change values for good. For other models nothing happens.
 * TD_E_NOMEM on all ranks if one rank has no memory for all values; another error if a gather
 * fails. */
td_status td_unshard(td_module *net);
void td_reshard(td_module *net);

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
#define td_evaluate(...) td_evaluate_at(__VA_ARGS__, TD_HERE)
#define td_ddp(...) td_ddp_at((td_ddp_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
