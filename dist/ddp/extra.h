/* More of DDP (td_ddp in dist/dist.h) than most training programs need: errors, uneven inputs,
 * statistics. tandem.h does not include this header.
 *
 * Buckets. All gradients are in one long array (td_parameters). A bucket is one stretch of that
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
 * on. The end of td_backward waits for all buckets. */
#pragma once

#include "dist/dist.h"

TD_BEGIN_C

/* ---- errors ---- */

/* Calls fn, instead of ending the program, if a backward fails (a rank died, a parameter got no
 * gradient). The gradients of that backward are not valid: td_backward returns, and the program
 * should leave its loop without td_optim_step. */
void td_ddp_on_error(td_module *net, void (*fn)(td_status status, const char *message, void *user),
                     void *user);

/* ---- uneven inputs ---- */

/* For ranks with different numbers of batches: put the epoch between begin and end. A rank that has
 * no batches left calls td_ddp_join_end. There it takes part in the other ranks' collectives with
 * zeros until all ranks are done. Then all ranks get the model of the rank that finished last, and
 * the state of its optimizers (momentum, moments, step counts), but not its learning rate. All
 * ranks must make their optimizers in the same order. divide_by_initial_world_size: divide
 * gradients by the size of the world, not by the number of ranks that still have batches. */
void td_ddp_join_begin(td_module *net, bool divide_by_initial_world_size);
td_status td_ddp_join_end(td_module *net);

/* ---- statistics ---- */

/* Statistics of the last step; times are in seconds. */
typedef struct td_ddp_stats {
    int buckets;
    int64_t bucket_bytes[64]; /* of the first 64 buckets */
    bool rebuilt;             /* the buckets have the order in which gradients became ready */
    double forward, backward; /* backward: without waiting at its end */
    double communication; /* the time of all buckets and of the broadcast of buffers, each from its
                             begin to its end; includes waiting for slower ranks */
    double exposed;       /* by how much communication makes the step longer: the sum of waiting,
                             hooks, packing and lost */
    double overlap;       /* 1 - exposed/communication: the share that backward hides */
    double waiting;       /* time of waiting for buckets at the end of backward, and for buffers */
    double hooks;         /* time in ready hooks, which start buckets */
    double packing;       /* time in communication hooks: casts, factors */
    double lost;          /* time that forward and backward lost because communication ran on their
                             core. It is measured on the thread that calls them: a lower bound if several
                             threads compute. Linux counts in ticks of some milliseconds, so use
                             means over many steps */
    double cpu;           /* CPU time of the communication threads */
    int64_t steps;        /* steps so far */
} td_ddp_stats;
td_ddp_stats td_ddp_last_stats(const td_module *net);
/* Of a pipeline, whose forwards and backwards are not td_ddp's: communication alone. */
void td_ddp_print_stats(const td_module *net, FILE *out);

TD_END_C
