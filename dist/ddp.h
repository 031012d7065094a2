/* DistributedDataParallel, seen from inside. The pieces:
 *   ddp.c          the wrapper module: construction, forward, figures
 *   ddp_check.c    whether all ranks have the same model
 *   ddp_buckets.c  which gradients travel together, and the order of ready gradients
 *   ddp_reduce.c   the grad-ready hooks: launching, waiting, unused parameters
 *   codec*.c       communication hooks (codec.h)
 *   ddp_join.c     uneven inputs
 *   ddp_figures.c  what a step spent on communication */
#ifndef TD_DIST_DDP_H
#define TD_DIST_DDP_H

#include "dist/codec.h"
#include "dist/dist.h"

typedef struct td_ddp_state td_ddp_state;

/* A bucket on its way. */
typedef struct td_ddp_bucket {
    td_bucket b;
    int first;     /* the first parameter's place in memory; the others follow */
    int pending;   /* gradients that are not ready yet */
    void *part;    /* the codec's */
    int round;     /* of the codec, that is under way */
    td_work *work; /* the same */
    char name[48]; /* for the trace */
} td_ddp_bucket;

/* What a ready hook is called with. */
typedef struct td_ddp_watch {
    td_ddp_state *ddp;
    int param;
    int hook;
} td_ddp_watch;

/* Uneven inputs: what the ranks tell each other before each collective of the model. */
typedef struct td_ddp_join {
    bool on;
    bool ran_out;          /* this rank: it shadows the others */
    bool by_initial_world; /* divide sums by the world's size, not by the ranks that are left */
    int live;              /* ranks that are left */
    int root;              /* the first of them */
} td_ddp_join;

/* Seconds on CLOCK_MONOTONIC, and counts at the beginning of the forward under way. */
typedef struct td_ddp_meter {
    double buffers_begin, forward_begin, forward_end, wait_begin;
    double buffers;          /* how long their broadcast took */
    double lost;             /* by forward and backward, to communication */
    double launches, packed; /* in backward: sending buckets off, and of that, packing them */
    double packed_late;      /* packing and unpacking after it */
    double delay;            /* that this thread waited for a core */
    double system;           /* that it spent in the kernel */
    double engine;           /* CPU that communication used */
    int delays;              /* file with this thread's waits for a core */
    int thread;              /* whose it is; 0: none is open */
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
    int *bucket_of; /* of each parameter */
    bool rebuilt;   /* in the order in which gradients became ready */
    int layout;     /* td_params_reorders when the buckets were made */

    const td_bucket_codec *codec; /* NULL: gradients travel as they are */
    void *codec_state;
    td_tensor *kept; /* gradients that the loss may have reached nowhere, flat; or NULL */

    td_tensor **buffer_list;
    int buffer_count;
    td_tensor *buffers; /* all of them as bytes, for one broadcast; NULL: there are none */
    td_tensor *numbers; /* i32 [world + 1]: for join */
    td_tensor *usage;   /* u8 [count] */

    /* The backward under way. */
    bool active;        /* a gradient of ours became ready */
    bool launched;      /* the others have been told that a reduction begins */
    bool *ready, *used; /* in this backward; since the last reduction */
    bool *never_used;   /* static graph: known after the first reduction */
    bool usage_known;
    int *ready_order, ready_count;
    int next; /* bucket to launch */
    td_status status;
    char message[1024]; /* the first failure */

    int no_sync_depth;
    td_ddp_join join;
    void (*on_error)(td_status status, const char *message, void *user);
    void *error_user;

    td_ddp_meter meter;
    td_ddp_figures figures;
};

/* Part of a flat tensor, by value: a header that takes no hold. */
static inline td_tensor td_ddp_stretch(const td_tensor *flat, int64_t begin, int64_t count)
{
    td_tensor view = *flat;
    view.offset += begin;
    view.shape[0] = count;
    return view;
}

td_ddp_state *td_ddp_state_of(const td_module *ddp); /* fatal if it is none */

/* ddp_check.c: TD_E_MISMATCH, on every rank, with the first difference. */
td_status td_ddp_check_same(td_group *group, const td_module *model, const td_ddp_options *options);

/* Rank 0's text on every rank, malloc'ed also if that fails; `length` bytes, which all ranks know.
 * `mine` is read on rank 0 only. A rank without memory ends the group. */
td_status td_text_of_root(td_group *group, const char *mine, int64_t length, char **text);

/* ddp_buckets.c */
td_status td_ddp_first_order(td_ddp_state *s);  /* collective */
td_status td_ddp_make_buckets(td_ddp_state *s); /* none is armed */
void td_ddp_free_buckets(td_ddp_state *s);
td_status td_ddp_rebuild(td_ddp_state *s); /* collective; once all ranks can */
/* A checkpoint has brought its order of the parameters: that is as good as having rebuilt. */
td_status td_ddp_follow_layout(td_ddp_state *s);

/* ddp.c: zeroed memory for collectives where the model lies. */
td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype);
/* A tensor over elements of flat memory. */
td_tensor *td_ddp_part(const td_tensor *flat, int64_t begin, int64_t count);

/* ddp_reduce.c */
bool td_ddp_watch_gradients(td_ddp_state *s); /* false: no memory */
void td_ddp_arm(td_ddp_state *s);
/* Launches all buckets that are left and finishes the reduction: what ranks that ran out do, too.
 */
void td_ddp_finish(td_ddp_state *s);
/* Averages a tensor over the ranks, or over those that are left; scale: done already. */
td_status td_ddp_average(td_ddp_state *s, td_tensor *t, td_work **work);
double td_ddp_divisor(const td_ddp_state *s);
/* Keeps the first failure. */
void td_ddp_note(td_ddp_state *s, td_status status);
/* Tells it: to the user's function, or as a fatal error. */
void td_ddp_report(td_ddp_state *s);

/* ddp.c: rank root's buffers for everybody. */
td_status td_ddp_broadcast_buffers(td_ddp_state *s, int root);
td_status td_ddp_broadcast_all(td_ddp_state *s, int root); /* parameters, too */

/* ddp_figures.c, in the order of a step. */
void td_ddp_begin_buffers(td_ddp_state *s);
void td_ddp_begin_forward(td_ddp_state *s);
void td_ddp_end_forward(td_ddp_state *s);
void td_ddp_begin_wait(td_ddp_state *s);
/* Since `begin`, of td_ddp_mark, this thread has sent a bucket off, or packed or unpacked one. */
double td_ddp_mark(const td_ddp_state *s);
void td_ddp_note_launch(td_ddp_state *s, double begin);
void td_ddp_note_packing(td_ddp_state *s, double begin);
void td_ddp_keep_figures(td_ddp_state *s);
void td_ddp_free_meter(td_ddp_state *s);

/* ddp_join.c: what comes next, told by the ranks that are left. */
typedef enum td_ddp_event { TD_DDP_BUFFERS, TD_DDP_REDUCTION } td_ddp_event;
td_status td_ddp_announce(td_ddp_state *s, td_ddp_event event);

#endif
