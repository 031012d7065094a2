/* DistributedDataParallel, seen from inside. The pieces:
 *   ddp.c          the wrapper module: construction, forward, statistics
 *   ddp/check.c    whether all ranks have the same model
 *   units.c  which gradients travel together, and the order of ready gradients
 *   reducer.c   the grad-ready hooks: launching, waiting, unused parameters
 *   ddp/codec*.c       communication hooks (codec.h)
 *   ddp/join.c     uneven inputs
 *   ddp/stats.c  what a step spent on communication */
#ifndef TD_DIST_DDP_H
#define TD_DIST_DDP_H

#include "dist/codec.h"
#include "dist/dist.h"

typedef struct td_ddp_state td_ddp_state;

/* A bucket and its reduction. */
typedef struct td_ddp_bucket {
    td_bucket b;
    int first;     /* the first parameter's place in the order of memory; the others follow */
    int pending;   /* gradients that are not ready yet */
    void *part;    /* the codec's state of this bucket */
    int round;     /* the codec's current round */
    td_work *work; /* that round's all-reduce; NULL: none runs */
    char name[48]; /* for the trace */
} td_ddp_bucket;

/* A ready hook's user data. */
typedef struct td_ddp_watch {
    td_ddp_state *ddp;
    int param;
    int hook;
} td_ddp_watch;

/* Uneven inputs (ddp/join.c). */
typedef struct td_ddp_join {
    bool on;
    bool ran_out;          /* this rank has no data any more and takes part with zeros */
    bool by_initial_world; /* divide sums by the world's size, not by `live` */
    int live;              /* number of ranks that still train */
    int root;              /* the first of these ranks */
} td_ddp_join;

/* Measurements of the current step, in seconds; times of day on CLOCK_MONOTONIC. */
typedef struct td_ddp_meter {
    double buffers_begin, forward_begin, forward_end, wait_begin;
    double buffers;          /* the broadcast of buffers */
    double lost;             /* what communication took from forward and backward */
    double launches, packed; /* in backward: launching buckets, and packing as a part of that */
    double packed_late;      /* packing and unpacking after backward */
    /* At the beginning of forward: */
    double delay;  /* this thread's time without a core */
    double system; /* this thread's time in the kernel */
    double engine; /* CPU time of communication */
    int delays;    /* the thread's schedstat file */
    int thread;    /* the thread whose file is open; 0: none */
} td_ddp_meter;

struct td_ddp_state {
    td_module *model;
    td_ddp_options options;
    td_group *group;
    int rank, world;
    td_params *params;
    int count; /* parameters */
    td_ddp_watch *watches;
    int end_hook;

    td_ddp_bucket *buckets;
    int bucket_count;
    int *bucket_of; /* each parameter's bucket */
    bool rebuilt;   /* buckets have the order in which gradients became ready */
    int layout;     /* td_params_reorders when the buckets were made */

    const td_bucket_codec *codec; /* NULL: gradients travel as they are */
    void *codec_state;
    td_tensor *kept; /* copies of gradients that perhaps no rank adds to, flat; or NULL */

    td_tensor **buffer_list;
    int buffer_count;
    td_tensor *buffers; /* all buffers as bytes, for one broadcast; NULL: there are none */
    td_tensor *numbers; /* i32 [world + 1]: for ddp/join.c */
    td_tensor *usage;   /* u8 [count] */

    /* The current backward. */
    bool active;        /* a gradient of this model became ready */
    bool launched;      /* the reduction has been announced */
    bool *ready, *used; /* per parameter: in this backward; since the last reduction */
    bool *never_used;   /* per parameter: by no rank, in the last reduction */
    bool usage_known;
    int *ready_order, ready_count;
    int next; /* the next bucket to launch */
    td_status status;
    char message[1024]; /* the first failure */

    int no_sync_depth;
    td_ddp_join join;
    void (*on_error)(td_status status, const char *message, void *user);
    void *error_user;

    td_ddp_meter meter;
    td_ddp_stats stats;
};

/* A view of a part of a flat tensor, by value: it does not retain the storage. */
static inline td_tensor td_ddp_stretch(const td_tensor *flat, int64_t begin, int64_t count)
{
    td_tensor view = *flat;
    view.offset += begin;
    view.shape[0] = count;
    return view;
}

td_ddp_state *td_ddp_state_of(const td_module *ddp); /* fatal if ddp is no DDP wrapper */

/* ddp/check.c: TD_E_MISMATCH, on every rank, with the first difference. */
td_status td_ddp_check_same(td_group *group, const td_module *model, const td_ddp_options *options);

/* Rank 0's text on every rank, malloc'ed also if that fails; `length` bytes, which all ranks know.
 * `mine` is read on rank 0 only. A rank without memory ends the group. */
td_status td_text_of_root(td_group *group, const char *mine, int64_t length, char **text);

/* units.c */
td_status td_ddp_first_order(td_ddp_state *s);  /* collective */
td_status td_ddp_make_buckets(td_ddp_state *s); /* td_ddp_arm comes next */
void td_ddp_free_buckets(td_ddp_state *s);
/* Collective. Orders parameters and buckets as gradients became ready, if all ranks can move them.
 */
td_status td_ddp_rebuild(td_ddp_state *s);
/* If a checkpoint has reordered the parameters: makes the buckets again; no other rebuild follows.
 */
td_status td_ddp_follow_layout(td_ddp_state *s);

/* ddp.c: zeroed memory for collectives, on the model's device. */
td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype);
/* A tensor over elements of flat memory. */
td_tensor *td_ddp_part(const td_tensor *flat, int64_t begin, int64_t count);

/* reducer.c */
bool td_ddp_watch_gradients(td_ddp_state *s); /* false: no memory */
void td_ddp_arm(td_ddp_state *s);
/* Launches the remaining buckets and finishes the reduction. Ranks without data call it, too. */
void td_ddp_finish(td_ddp_state *s);
/* Averages a tensor: divides the ranks' sum by td_ddp_divisor. */
td_status td_ddp_average(td_ddp_state *s, td_tensor *t, td_work **work);
double td_ddp_divisor(const td_ddp_state *s);
/* Keeps the first failure. */
void td_ddp_note(td_ddp_state *s, td_status status);
/* Reports the failure to the user's function, or as a fatal error. */
void td_ddp_report(td_ddp_state *s);

/* ddp.c: broadcast the buffers of rank root; td_ddp_broadcast_all: its parameters, too. */
td_status td_ddp_broadcast_buffers(td_ddp_state *s, int root);
td_status td_ddp_broadcast_all(td_ddp_state *s, int root);

/* ddp/stats.c, in the order of a step. */
void td_ddp_begin_buffers(td_ddp_state *s);
void td_ddp_begin_forward(td_ddp_state *s);
void td_ddp_end_forward(td_ddp_state *s);
void td_ddp_begin_wait(td_ddp_state *s);
/* The time since `begin` (td_ddp_mark) went into launching a bucket, or into packing or unpacking.
 */
double td_ddp_mark(const td_ddp_state *s);
void td_ddp_note_launch(td_ddp_state *s, double begin);
void td_ddp_note_packing(td_ddp_state *s, double begin);
void td_ddp_keep_stats(td_ddp_state *s);
void td_ddp_free_meter(td_ddp_state *s);

/* ddp/join.c: tells ranks without data which collective comes next. */
typedef enum td_ddp_event { TD_DDP_BUFFERS, TD_DDP_REDUCTION } td_ddp_event;
td_status td_ddp_announce(td_ddp_state *s, td_ddp_event event);

#endif
