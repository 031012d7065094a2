/* Sharding (ZeRO; FSDP): the ranks divide a model's memory among themselves, instead of each rank
 * keeping all of it. docs/sharding.md explains sharding and counts the bytes. Three words:
 *
 *   window   the part of the parameters (or gradients, or state) that one rank keeps
 *   unit     a part of the model whose values are fetched and dropped together: usually a block,
 *            such as a residual block or a layer of a transformer
 *   slot     a stretch of memory as long as the largest unit, which units use in turn
 *
 *     net = td_ddp(net, .strategy = td_zero(3));
 *     net = td_ddp(net, .strategy = td_zero(3, .offload = "cpu"), .mesh = mesh); */
#pragma once

#include "dist/dist.h"

TD_BEGIN_C

/* What the ranks divide. The number is ZeRO's stage: td_zero(3) is td_zero(TD_SHARD_PARAMETERS). */
typedef enum td_shard {
    TD_SHARD_NONE, /* nothing, as without a strategy */
    /* The optimizer's state. The long array of all parameters is cut into equal windows, one for
     * each rank. td_optim_step changes this rank's window, and keeps momentum or moments only for
     * that window; then an all-gather gives every rank the other ranks' windows. The weights equal
     * the weights under TD_SHARD_NONE, bit for bit. Each step sends 1.5 times as many bytes as
     * without sharding: the all-reduce of gradients costs as much as a reduce-scatter and an
     * all-gather, and the all-gather of the windows comes in addition.
     *
     * All ranks call td_optim_step, and td_checkpoint_save with the optimizer. Make optimizers and
     * averages of weights after td_ddp. Muon cannot be sharded, because it needs whole filters, and
     * ranks cannot end at different steps (td_ddp_join_begin, dist/ddp/extra.h). If td_optim_step
     * cannot get the other ranks' windows, the program ends, or td_ddp_on_error's function is
     * called, as if td_backward had failed. */
    TD_SHARD_OPTIMIZER,
    /* The gradients, too. The model is cut into units: its blocks (a residual block, a layer of a
     * transformer), or the modules that td_zero_options.unit names; all parameters outside of
     * blocks are one more unit. A unit's gradients have memory from the unit's backward until the
     * ranks have averaged them; then each rank keeps its part of them. td_grad still says which
     * parameters have gradients, but do not read the gradients' data: clip with td_clip_grad_norm.
     * The rules of TD_SHARD_OPTIMIZER apply, with one exception: if you accumulate over several
     * backwards, the result is the sum of the means instead of the mean of the sums, so the last
     * bits may differ. Between td_ddp_no_sync_begin and td_ddp_no_sync_end all gradients stay: as
     * much memory as without sharding. There can be no .comm_hook. */
    TD_SHARD_GRADIENTS,
    /* The values, too. All ranks save and load checkpoints, and call td_ema_swap.
     *
     * In place: if the model is on the CPU, all ranks are on one host and the backend is shm, there
     * is one copy of the values on the host, and every rank reads whole tensors from it. A rank may
     * run the model as often as it likes, but not between its td_backward and its td_optim_step:
     * another rank may be changing values then.
     *
     * Gathered: otherwise, or with .gathers, a unit's values come from the other ranks before the
     * unit's forward and before its backward, while the unit before computes. Afterwards the rank
     * drops these values. All ranks must run the units in the same order, and the same number of
     * forwards, in evaluation, too (td_evaluate does that). td_unshard brings all values, for
     * printing or copying. */
    TD_SHARD_PARAMETERS,
} td_shard;

/* Hybrid sharding: with td_ddp's .mesh "rep=2,dp=4" there are two replicas of the model, and four
 * ranks (those "along dp") divide each replica as above. Ranks with the same number along dp keep
 * equal windows. Values and gradients of units travel only between the four ranks of a replica, so
 * put these on one host. Then each rank's window of the gradients is averaged over the replicas.
 * One replica writes checkpoints. There can be no .comm_hook.
 *
 * Bits: TD_SHARD_OPTIMIZER gives the same weights as TD_SHARD_NONE. TD_SHARD_GRADIENTS and
 * TD_SHARD_PARAMETERS sum along dp first and over the replicas next, which rounds differently: both
 * give the same weights on all ranks, but the weights of TD_SHARD_NONE only with dp=1 or rep=1.
 *
 * Accumulation: between td_ddp_no_sync_begin and td_ddp_no_sync_end backward still averages along
 * dp, and adds the average to the window; replicas exchange nothing, and no rank keeps whole
 * gradients. The first backward after td_ddp_no_sync_end averages the windows over the replicas. */

typedef struct td_zero_options {
    td_strategy strategy; /* for the library */
    td_shard stage;
    /* Whether a module is a unit; path: its name in the model. Modules inside a unit are
     * not asked. NULL: the model's blocks (td_module_mark), or, if it has none, its children that
     * have children. */
    bool (*unit)(const td_module *m, const char *path, void *user);
    void *unit_user;
    /* "bf16", with TD_SHARD_PARAMETERS and f32 models: the matrices of Linear and Conv2d travel as
     * bf16, and values are gathered as with .gathers. NULL: all values travel as f32. Vectors,
     * embeddings and weights that modules share travel as f32, and so does a unit that is mostly
     * vectors (docs/sharding.md). The optimizer's windows, checkpoints and td_unshard keep f32.
     * Under TD_PRECISION_BF16, which rounds those matrices itself, the results are the same, bit
     * for bit; otherwise forward and backward use rounded matrices. */
    const char *wire;
    /* With TD_SHARD_PARAMETERS: where this rank's windows of values, gradients, optimizer state and
     * averages are. NULL: in ordinary memory of the model's device.
     *
     * "cpu", for models on GPUs: in the host's memory, so a model may be larger than the GPU's
     * memory. The CPU takes the optimizer's step, and clips. A step cannot be captured (--graph).
     *
     * The name of a folder (for a folder named cpu: "./cpu"): in files there, so a model may be
     * larger than the host's memory. The files have no names, and vanish with the process. If the
     * model is on a GPU, all rules of "cpu" apply, too.
     *
     * Values are gathered as with .gathers. All ranks make optimizers and averages in the same
     * order: if one rank has no memory or cannot make a file, all ranks get NULL with that rank's
     * reason. */
    const char *offload;
    bool gathers; /* with TD_SHARD_PARAMETERS: gather values even if the ranks could read them in
                     place */
    int end_;     /* for the library */
} td_zero_options;

extern const struct td_strategy_type td_zero_type;

/* What this rank keeps of a model that went through td_ddp, in bytes, counted from the memory
 * itself. */
typedef struct td_shard_stats {
    size_t values, gradients;
    size_t state; /* of optimizers and averages of weights */
    size_t slots; /* memory in which units have their values and gradients, in turn */
    size_t unit_values, unit_gradients; /* of the units that are in slots now; changes in a step */
    int units;                          /* 0: there are no units, gradients travel in buckets */
    bool woven;                         /* values are shared in place: all ranks read one copy */
    double gather;                      /* seconds for which the last step waited for values */
    uint64_t wire; /* bytes from other ranks since the model's groups were made, in all their
                      collectives. With shm: bytes read from other ranks' memory or written into it.
                      Not counted on GPUs. The difference of two calls is the bytes of a step */
} td_shard_stats;
td_shard_stats td_ddp_shard_stats(const td_module *net);

/* Collective: brings all values of a model whose parameters are sharded, until td_reshard. Between
 * the two calls you may read the values. td_reshard drops what you wrote into them; only
 * td_optim_step and td_checkpoint_load change values for good. For other models nothing happens.
 * TD_E_NOMEM on all ranks if one rank has no memory for all values; another error if a gather
 * fails. */
td_status td_unshard(td_module *net);
void td_reshard(td_module *net);

TD_END_C

/* For td_ddp_options.strategy, which copies the options. */
#define td_zero(...)                                                                               \
    (&TD_LVALUE(td_zero_options, (td_zero_options){ .strategy = { &td_zero_type },                 \
                                                    TD_NAME(stage) __VA_ARGS__,                    \
                                                    .end_ = 0 })                                   \
          .strategy)
