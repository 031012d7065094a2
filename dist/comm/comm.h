/* Communication between processes: joining a world of ranks, collectives, starting processes. Every
 * process (rank) calls the same collectives in the same order.
 *
 * Errors. If another rank dies, a connection breaks or a call takes longer than `timeout`, a
 * collective returns a negative td_status, and td_last_error() names the rank and the cause.
 * (td_backward ends the program instead, unless td_ddp_on_error is set, dist/ddp/extra.h.) If a
 * rank dies on the same host, the others notice at once; on another host, when its connections
 * break. If a rank hangs, they notice after `timeout` seconds (default 300). After a failed
 * collective the group is broken: every later call fails at once with the first cause. To recover,
 * start the program again from a checkpoint (tdrun does that). Or, if neither td_spawn nor tdrun
 * has started the ranks, call td_dist_destroy and then td_dist_init with a new rank and world_size
 * in all ranks that are left. tests/comm/test_dist_faults.c checks these promises.
 *
 * More functions: dist/comm/collectives.h (groups of some ranks, gather, ...), dist/comm/mesh.h,
 * dist/comm/store.h. */
#pragma once

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

/* ---- joining the other ranks ---- */

typedef struct td_group td_group; /* a process group: ranks that call collectives together */

typedef struct td_dist_options {
    int begin_;          /* for the library: lets the macro take an empty list */
    const char *backend; /* "shm", "gloo", "mpi", "nccl"; NULL: $TANDEM_BACKEND, otherwise shm in a
                            group whose ranks are all on one host, gloo in others */
    const char *init_method; /* where the ranks meet: "env://", "tcp://host:port", "file:///path".
                                NULL: env://, or, if RANK is not set, Slurm's or MPI's variables */
    int rank, world_size;    /* needed for tcp:// and file://, unless the URL ends in
                                ?rank=..&world_size=..; 0 and 0: not given */
    double timeout;          /* seconds, for joining and for each collective; 0: 300 */
    struct td_store *store;  /* dist/comm/store.h: the ranks meet in this store instead of at
                                init_method. Needs rank and world_size. You close the store */
    const struct td_gathering *gathering; /* dist/comm/store.h: for worlds that follow each other in
                                             one store; NULL: none does */
} td_dist_options;

/* td_dist_init() joins the other ranks and makes the world group, which contains all ranks and is
 * the default group of this process. The call returns when all ranks have joined. After `timeout`
 * the call fails, and the message says which ranks have joined and which have not. The ranks of a
 * host share its CPUs: unless OMP_NUM_THREADS or td_set_threads says otherwise, the number of
 * threads of each rank is the number of CPUs divided by the number of ranks on this host. */
td_status td_dist_init_at(td_dist_options options, td_site at);
/* Leaves the world and frees it. td_dist_destroy does not wait for other ranks or for unfinished
 * collectives. No shared memory, port or thread is left afterwards. td_dist_init may follow. */
void td_dist_destroy(void);
bool td_dist_is_initialized(void); /* from td_dist_init to td_dist_destroy */
/* Whether a launcher (tdrun, Slurm, mpirun) or td_spawn has started this process as one of several:
 * RANK is set, or the variables of a Slurm step or of mpirun are. td_dist_init() can join then. */
bool td_dist_is_launched(void);

/* "shm", "gloo", ...; group NULL: the world. The group owns the text. */
const char *td_group_backend(const td_group *group);
int td_dist_rank(void);             /* 0 before td_dist_init */
int td_dist_world_size(void);       /* 1 before td_dist_init */
int td_dist_local_rank(void);       /* the rank among the ranks of this host ($LOCAL_RANK) */
int td_dist_local_world_size(void); /* the number of ranks on this host */

/* ---- collectives ----
 *
 * Tensors are dense, are on the CPU (or on a GPU, if the backend supports that), are of any dtype,
 * and have the same shape and dtype on all ranks. They are persistent; a collective that blocks
 * (work NULL) takes tensors of a step, too. Elements are taken in memory order.
 *
 * All ranks call the same collectives of a group in the same order. Every collective of CPU memory
 * checks that sequence number, operation, dtype and size agree; NCCL's collectives do not.
 *
 * Sums of floats are taken in a fixed tree over the ranks (a range of ranks is split at its
 * middle): all ranks get the same bits, in every run. Denormal numbers count as zero, as in all
 * kernels.
 *
 * If work is NULL, a collective blocks. Otherwise the collective is queued and runs on the group's
 * communication thread, and you pass *work to td_work_wait exactly once. If the call fails, *work
 * is NULL. Group NULL means the world. */

typedef enum td_reduction {
    TD_SUM,
    TD_AVERAGE, /* floats only: each rank's values are multiplied by 1/size before the sum */
    TD_MIN,
    TD_MAX,
    TD_PRODUCT,
} td_reduction;

typedef struct td_work td_work; /* a collective that was queued */
/* Waits for a collective, returns its status, and frees work. timeout in seconds; 0: the group's.
 * For a tensor on a GPU td_work_wait does not block: it makes GPU work that is queued later wait
 * for the collective. If a timeout is given, the CPU waits as well. */
td_status td_work_wait(td_work *work, double timeout);

/* Every rank's t becomes the reduction of all ranks' t. */
td_status td_all_reduce(td_group *group, td_tensor *t, td_reduction op, td_work **work);
/* Every rank's t becomes rank root's t. */
td_status td_broadcast(td_group *group, td_tensor *t, int root, td_work **work);
/* Every rank gets the tensors `in` of all ranks: out has the shape [size, in...]. */
td_status td_all_gather(td_group *group, td_tensor *out, const td_tensor *in, td_work **work);
/* Sends t to a rank, which receives it by td_recv with the same shape and dtype. To exchange
 * tensors, queue a send and a receive one after the other (work not NULL): they run at the same
 * time, so two ranks that send to each other do not wait for each other forever. */
td_status td_send(td_group *group, const td_tensor *t, int to, td_work **work);
td_status td_recv(td_group *group, td_tensor *t, int from, td_work **work);
/* Returns when all ranks of the group have called td_barrier. */
td_status td_barrier(td_group *group);

/* Sums `count` numbers of this rank over all ranks, in place. For metrics, sum the counts, and
 * divide afterwards. */
td_status td_all_reduce_numbers(td_group *group, double *values, int count);
/* The mean of x over all ranks of the world; all ranks call td_all_reduce_mean. NaN with
 * td_last_error() if the collective fails. Without td_dist_init: x. */
double td_all_reduce_mean(double x);

/* Prints like printf on rank 0 and flushes; prints nothing on other ranks. */
void td_printf_rank0(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- starting processes ---- */

typedef struct td_spawn_options {
    int begin_;                           /* for the library */
    int (*fn)(int local_rank, void *arg); /* what each process runs; its result is the exit code */
    void *arg;
    int nprocs;
    const char *log_dir; /* a folder for a log file per process, made if it is missing; NULL: they
                            print where this process prints */
    double stop_timeout; /* seconds between SIGTERM and SIGKILL; 0: 30 */
    int *stopped_by;     /* receives the signal that stopped td_spawn, or 0; may be NULL */
} td_spawn_options;
/* td_spawn(fn, arg, nprocs, ...) forks nprocs processes that run fn(local_rank, arg), and waits for
 * all of them. In these processes td_dist_init() makes a world of them (RANK, MASTER_PORT and the
 * other variables of env:// are set); with other options they may meet elsewhere and belong to a
 * larger world.
 *
 * If a process fails (exit code not 0, or a signal), td_spawn stops the others and returns an error
 * that names the rank and the cause. SIGTERM, SIGINT, SIGHUP, SIGQUIT, and the warnings SIGUSR1,
 * SIGUSR2 and SIGXCPU are passed on to the processes; td_spawn returns TD_E_INTERRUPTED when they
 * have ended. SIGKILL follows after stop_timeout, but not after a warning. SIGTSTP (Ctrl-Z) stops
 * the processes and this one; SIGCONT continues all. If this process dies, the processes end. They
 * do not call functions that were registered with atexit. Call td_spawn before this process has
 * threads: before any step, loader or operation. */
td_status td_spawn_at(td_spawn_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_dist_init(...) td_dist_init_at((td_dist_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_spawn(...)                                                                              \
    td_spawn_at((td_spawn_options){ TD_OPT3(fn, arg, nprocs, __VA_ARGS__) }, TD_HERE)
