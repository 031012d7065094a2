/* Data parallelism: stores, process groups, collectives, DistributedDataParallel, DataParallel,
 * SyncBatchNorm, spawning. One process per device, the same model, different data, gradients
 * averaged while backward still runs.
 *
 * Errors: whatever the world does (a peer dies, a link breaks, a time-out) comes back as a negative
 * td_status with a message that names rank and cause. After a failed collective the group is
 * broken: every later call fails at once with the first cause; recovery is a new group. */
#ifndef TD_DIST_DIST_H
#define TD_DIST_DIST_H

#include "data/data.h"
#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

/* ---- process groups ---- */

typedef struct td_group td_group;

typedef struct td_dist_options {
    int begin_;          /* lets the macro take an empty list; not for you */
    const char *backend; /* "shm", "gloo", "mpi", "nccl"; NULL: $TANDEM_BACKEND, otherwise shm if
                            all ranks are on one host, gloo if not */
    const char *init_method; /* "env://", "tcp://host:port", "file:///path"; NULL: env://, or
                                Slurm's or MPI's environment if RANK is not set but theirs is */
    int rank, world_size;    /* for tcp:// and file://, unless the URL has ?rank=..&world_size=..;
                                env://    and the others bring their own. world_size 0: not given */
    double timeout;          /* seconds, of the rendezvous and of each collective; 0: 300 */
    struct td_store *store; /* dist/store.h: instead of init_method: with rank and world_size; stays
                               the caller's */
} td_dist_options;

/* Meets the others and makes the world group, which is also the default of this process. All ranks
 * wait for the last; on a time-out the message says which have come and which have not. NULL: all
 * defaults. The ranks of a host share its CPUs: without OMP_NUM_THREADS and td_set_threads each
 * computes in CPUs / local ranks threads. */
td_status td_dist_init_at(td_dist_options options, td_site at);
/* Ends it: waits for nothing outstanding, leaves no shared memory, port or thread. Init may follow.
 */
void td_dist_destroy(void);
bool td_dist_is_initialized(void);
/* Whether the environment says that a launcher or td_spawn has started this process as one of
 * several: RANK is set, or Slurm's variables of a step, or those of mpirun. Then td_dist_init(NULL)
 * can join. */
bool td_dist_is_launched(void);
td_group *td_dist_world(void); /* fatal before td_dist_init */
int td_dist_rank(void);        /* 0 before td_dist_init */
int td_dist_world_size(void);  /* 1 before td_dist_init */
int td_dist_local_rank(void);  /* $LOCAL_RANK or its like; otherwise the rank */
int td_dist_local_world_size(void);

int td_group_rank(const td_group *group);
int td_group_size(const td_group *group);
const char *td_group_backend(const td_group *group);
/* A group of some ranks of the world, ascending. Collective over the world: all ranks call it with
 * the same list, members or not; *group is NULL for those who are not. */
td_status td_group_new(const int *ranks, int count, td_group **group);
void td_group_free(td_group *group); /* not the world */
/* Breaks the group on purpose: outstanding and later collectives of all ranks fail with the reason.
 * Any thread, any number of times. */
void td_group_abort(td_group *group, const char *reason);

/* ---- collectives ----
 *
 * Tensors are persistent, dense, on the CPU (or where the backend works), of f32, f64, bf16, f16,
 * i64, i32 or u8, of equal shape and dtype on all ranks; elements go in memory order. All ranks
 * call the same collectives of a group in the same order; sequence number, operation, dtype and
 * size are compared when TANDEM_DIST_DEBUG is set, and in the stall report always. Sums of floats
 * are taken in rank order, so results are the same bits on all ranks and from run to run.
 *
 * A call with work == NULL blocks. Otherwise it is queued, runs on the group's communication
 * thread, and *work must be given to td_work_wait, exactly once; if the call itself fails, *work is
 * NULL. Sends and receives that follow each other in the queue are under way at the same time.
 * Denormals count as zero, as in all kernels. Group NULL: the world. */

typedef enum td_reduction {
    TD_SUM,
    TD_AVERAGE, /* floats: scaled by 1/size before the sum */
    TD_MIN,
    TD_MAX,
    TD_PRODUCT,
} td_reduction;

typedef struct td_work td_work;
/* Ends work. timeout 0: the group's. For a GPU's tensors it makes the GPU's later work wait and
 * returns at once, unless there is a time-out: then the host waits for the collective, too. */
td_status td_work_wait(td_work *work, double timeout);
bool td_work_test(const td_work *work); /* whether it is done, well or badly */
td_status td_all_reduce(td_group *group, td_tensor *t, td_reduction op, td_work **work);
td_status td_broadcast(td_group *group, td_tensor *t, int root, td_work **work);
td_status td_reduce(td_group *group, td_tensor *t, td_reduction op, int root, td_work **work);
/* out[rank] of `size` tensors, each like in; or, as one tensor, [size, in...]. */
td_status td_all_gather(td_group *group, td_tensor *out, const td_tensor *in, td_work **work);
/* in [size, out...]: out gets the reduction of every rank's in[rank]. */
td_status td_reduce_scatter(td_group *group, td_tensor *out, const td_tensor *in, td_reduction op,
                            td_work **work);
td_status td_gather(td_group *group, td_tensor *out, const td_tensor *in, int root,
                    td_work **work); /* out [size, in...] on root, NULL elsewhere */
td_status td_scatter(td_group *group, td_tensor *out, const td_tensor *in, int root,
                     td_work **work); /* in [size, out...] on root, NULL elsewhere */
td_status td_all_to_all(td_group *group, td_tensor *out, const td_tensor *in, td_work **work);
td_status td_send(td_group *group, const td_tensor *t, int to, td_work **work);
td_status td_recv(td_group *group, td_tensor *t, int from, td_work **work);
td_status td_barrier(td_group *group);
/* A barrier that names the ranks that have not come within the time. */
td_status td_monitored_barrier(td_group *group, double timeout);

/* Memory that the group's backend reduces without copies (shm: the registered heap): a persistent
 * 1-d tensor, zeroed. All ranks call it in the same order with the same size. Freed by td_free,
 * before the group ends. Backends without such memory give ordinary memory. */
td_tensor *td_group_memory(td_group *group, int64_t count, td_dtype dtype);

/* Numbers of this rank summed over all ranks, in place: metrics as sums and counts. */
td_status td_all_reduce_numbers(td_group *group, double *values, int count);

/* ---- data ---- */

typedef struct td_distributed_options {
    int begin_;
    int rank, world_size; /* world_size 0: of the world group */
    bool shuffle;
    uint64_t seed;
    bool drop_last;
    bool no_padding; /* evaluation: every sample once, ranks may differ by one sample */
} td_distributed_options;
/* PyTorch's DistributedSampler, bit for bit: each epoch permutes the samples with seed + epoch,
 * repeats the first ones until all ranks get equally many, and gives rank r the samples r,
 * r + world_size, ... of that order. The loader tells the sampler its epoch, so no call in the
 * training loop is needed; td_loader_set_epoch is for resuming a run. */
td_sampler *td_distributed_sampler_at(td_distributed_options options, td_site at);

/* ---- what a training loop asks of all ranks; without td_dist_init, of the one there is ---- */

typedef struct td_evaluation {
    double loss, accuracy; /* means over the samples; NaN if there is none */
    int64_t right, seen;   /* samples whose largest logit is their label's; all samples */
    td_status status;      /* not TD_OK: the numbers are those of a part */
} td_evaluation;
/* A classifier's loss (cross-entropy) and accuracy over one epoch of a loader, in evaluation mode,
 * without gradients; then td_train, if the net was in training mode. The net gives logits [n,
 * classes]. Not within a step. In a world of several ranks all call it: each runs its own loader's
 * batches with rank 0's running statistics, and all get the numbers of the whole; with
 * td_distributed_sampler(.no_padding) every sample counts once. A rank that fails makes all fail.
 */
td_evaluation td_evaluate_at(td_module *net, td_loader *loader, td_site at);
#define td_evaluate(...) td_evaluate_at(__VA_ARGS__, TD_HERE)

/* The mean of all ranks' x; all must call it. NaN with td_last_error() if that fails. */
double td_all_reduce_mean(double x);

/* printf on rank 0, written at once; nothing on the other ranks. */
void td_printf_rank0(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- DistributedDataParallel ---- */

typedef struct td_ddp_options {
    int begin_;
    td_module *model;
    td_group *group;      /* NULL: the world */
    double bucket_cap_mb; /* MiB; 0: 5 on CPUs, 25 on GPUs; the first and the last are 1 */
    bool find_unused_parameters;
    bool no_broadcast_buffers; /* do not broadcast running statistics before a training forward */
    bool static_graph;         /* which parameters are used never changes: found out once */
    const char *comm_hook;     /* NULL, "bf16", "fp16", "powersgd" */
    int powersgd_rank;         /* 0: 1 */
    int64_t powersgd_start;    /* plain all-reduces before it; 0: 1000 */
} td_ddp_options;

/* Wraps a model: checks that all ranks have the same parameters, broadcasts rank 0's parameters and
 * buffers, lays gradients out in buckets, and hangs all-reduce on the grad-ready hook. The wrapper
 * owns the model (child "module"; checkpoint names carry no prefix). NULL with td_last_error() on
 * every rank if one differs; the model is then gone, as with every constructor that takes a module.
 * Use it like the model: td_forward, td_backward, td_optim_step. The end of td_backward waits for
 * the buckets; a failed collective is then a fatal error, unless td_ddp_on_error is set. */
td_module *td_ddp_at(td_ddp_options options, td_site at);
bool td_is_ddp(const td_module *m);
td_module *td_ddp_model(td_module *ddp); /* what is inside */
/* What went wrong in the last backward (a peer died, an unused parameter): called instead of
 * td_fatal; gradients are then not to be used. */
void td_ddp_on_error(td_module *ddp, void (*fn)(td_status status, const char *message, void *user),
                     void *user);

/* Between these, backward accumulates locally; the first backward outside reduces the whole. */
void td_ddp_no_sync_begin(td_module *ddp);
void td_ddp_no_sync_end(td_module *ddp);

/* Uneven inputs: between begin and end, a rank that has run out calls td_ddp_join_end and shadows
 * the others' collectives with zeros until all are done; then everybody has the last one's model,
 * and its state of the optimizers (momentum, moments, step counts; a learning rate is yours to
 * set). Optimizers are made on all ranks, in the same order. */
void td_ddp_join_begin(td_module *ddp, bool divide_by_initial_world_size);
td_status td_ddp_join_end(td_module *ddp);

/* Seconds of the last step. Communication is that of buckets and buffers, from the moment when it
 * begins to run until it is done, waiting for slower ranks included. Exposed is the part by which
 * it makes the step longer: what was waited for, what sending cost, and what forward and backward
 * lost because communication ran on their core. (That last part is measured on the thread that
 * calls them: with several computing threads it is a lower bound. Linux counts in ticks of some
 * milliseconds here, so look at means of many steps.) */
typedef struct td_ddp_figures {
    int buckets;
    int64_t bucket_bytes[64]; /* the first 64 */
    bool rebuilt;
    double forward, backward, communication, exposed;
    double overlap; /* 1 - exposed/communication */
    /* The parts of `exposed`: for buckets and buffers; in the hooks of gradients, to send buckets
     * off; what communication hooks compute (casts, factors); what forward and backward lost. */
    double waiting, hooks, packing, lost;
    double cpu; /* that communication used in threads of its own */
    int64_t steps;
} td_ddp_figures;
td_ddp_figures td_ddp_last_figures(const td_module *ddp);
void td_ddp_print_figures(const td_module *ddp, FILE *out);

/* ---- DataParallel: one process, several devices ---- */

/* Replicas on devices[1..], run in one thread each; the parameters live on devices[0]. Forward
 * scatters the batch along dimension 0, runs, gathers; backward sums the replicas' gradients into
 * the originals. Only replica 0's buffers survive. One device: runs the model directly. Owns the
 * model. A model with SyncBatchNorm is refused: its statistics are those of processes (td_ddp). */
td_module *td_data_parallel(td_module *model, const td_device *devices, int count);

/* ---- SyncBatchNorm ---- */

/* Replaces every BatchNorm2d's statistics by those of all ranks. Returns the same module, changed;
 * NULL with td_last_error() if memory is short or m is a DataParallel, and m is then gone. */
td_module *td_convert_sync_batch_norm(td_module *m, td_group *group);

/* ---- starting ---- */

typedef struct td_spawn_options {
    int begin_;
    int (*fn)(int local_rank, void *arg);
    void *arg;
    int nprocs;
    const char *log_dir; /* NULL: output is this process's own */
    double stop_timeout; /* seconds from SIGTERM to SIGKILL; 0: 30 */
    int *stopped_by;     /* NULL, or gets the signal that stopped it, else 0 */
} td_spawn_options;
/* Forks nprocs processes that run fn(local_rank, arg) and waits for all. td_dist_init(NULL) in them
 * makes a world of these processes (RANK, MASTER_PORT and the other variables of env:// are set);
 * with other options they meet elsewhere, and may be part of a larger world. The first that fails
 * (non-zero, a signal) ends the others, and its rank and cause are the message. TERM, INT, HUP and
 * QUIT go to the children, and when these have ended it is TD_E_INTERRUPTED. Children die with the
 * parent. Call it before threads exist (no step, no loader, no pool yet). */
td_status td_spawn_at(td_spawn_options options, td_site at);

/* A free TCP port on this host, or negative. */
int td_free_port(void);

#define td_dist_init(...) td_dist_init_at((td_dist_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_distributed_sampler(...)                                                                \
    td_distributed_sampler_at((td_distributed_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_ddp(...) td_ddp_at((td_ddp_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_spawn(...) td_spawn_at((td_spawn_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

TD_END_C

#endif
