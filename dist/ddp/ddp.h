/* DistributedDataParallel, seen from inside. The core:
 *   ddp.c         td_ddp: construction, forward, settings
 *   events.c      what a step tells its parts, and its first failure
 *   memory.c      memory that the ranks reduce in place
 *   buffers.c     broadcasts of buffers and of parameters
 *   units.c       which gradients travel together, and in which order
 *   reducer.c     sending while backward runs, and waiting
 *   codec.h       what travels in place of a bucket's gradients
 * Everything else hangs on events of a step (td_ddp_part) and lies in ddp/extra/: the check that
 * all ranks have the same model, statistics, unused parameters, uneven inputs. */
#pragma once

#include "dist/ddp/codec.h"
#include "dist/dist.h"
#include "nn/around.h"

typedef struct td_ddp_state td_ddp_state;

/* What is reduced by one collective: a bucket of DDP, or what a strategy makes a unit. */
typedef struct td_ddp_unit {
    td_bucket b;
    int first;     /* the first parameter's place in the order of memory; the others follow */
    int pending;   /* gradients that are not ready yet */
    void *part;    /* the codec's state of this bucket */
    int round;     /* the codec's current round */
    td_work *work; /* that round's collective; NULL: none runs */
    char name[48]; /* for the trace */
} td_ddp_unit;

typedef struct td_ddp_units {
    td_ddp_unit *list;
    int count;
    bool rebuilt; /* units have the order in which gradients became ready */
    bool stays;   /* no rebuild: a strategy's state belongs to places in memory */
    int layout;   /* td_params_reorders when the units were made */
    /* Set by a strategy: the unit of each parameter, and what sets a unit's name and gradients.
     * NULL: units are buckets, slices of the flat gradients that are filled by size. */
    const int *of_param;
    void (*describe)(td_ddp_state *s, td_ddp_unit *u);
} td_ddp_units;

/* What the reducer knows of a parameter; also its ready hook's user data. */
typedef struct td_ddp_param {
    td_ddp_state *ddp;
    int number, unit, hook;
    bool expected; /* the unit waits for this gradient */
    bool ready;    /* the gradient became ready in this backward */
    bool used;     /* in any backward since the last reduction */
} td_ddp_param;

typedef struct td_reducer {
    td_ddp_param *params;
    int end_hook;
    /* Starts a collective that averages the ranks' `t`, the unit's gradients. */
    td_status (*average)(td_ddp_state *s, td_ddp_unit *u, td_tensor *t);
    const td_bucket_codec *codec; /* own_codec; NULL: gradients travel as they are */
    td_bucket_codec own_codec;    /* a copy of the options' */
    void *codec_state;
    double divisor; /* of the sum over all ranks: the number of ranks that have data */
    int *ready_order, ready_count; /* parameters that became ready in this backward */
    int next;                      /* the next unit to launch */
    bool active;                   /* a backward runs, and a gradient of this model became ready */
    bool launched;                 /* the reduction has begun */
    bool always; /* set by a strategy: each backward reduces, also after td_ddp_no_sync_begin,
                    because no rank keeps whole gradients */
} td_reducer;

typedef struct td_ddp_buffers {
    td_tensor **list;
    int count;
    td_tensor *bytes; /* all buffers, for one broadcast; NULL: there are none */
} td_ddp_buffers;

/* The first failure of a step, and who is told. */
typedef struct td_ddp_failure {
    td_status status;
    char message[1024];
    void (*on_error)(td_status status, const char *message, void *user);
    void *user;
} td_ddp_failure;

/* ---- strategies: who keeps what ---- */

/* What each rank keeps a part of; each includes those before. */
typedef enum td_divided {
    TD_DIVIDES_NOTHING,
    TD_DIVIDES_STATE, /* the optimizer's */
    TD_DIVIDES_GRADIENTS,
    TD_DIVIDES_VALUES,
} td_divided;

/* What td_ddp asks a strategy. A strategy's struct begins with its td_strategy; it is gone when
 * td_ddp returns. */
typedef struct td_strategy_type {
    /* A fatal error at `at` if the options do not go together. */
    td_divided (*check)(const td_strategy *self, const td_ddp_options *options, td_site at);
    /* Writes its options, which must be equal on all ranks. */
    void (*describe)(const td_strategy *self, FILE *out);
    /* Lays out memory in place of td_ddp_move_memory; adds a part, which ends with DDP; may set
     * groups, units and reducer.average, and surround the model. Collective. */
    td_status (*open)(const td_strategy *self, td_ddp_state *s);
} td_strategy_type;

typedef struct td_ddp_part td_ddp_part;

/* ---- a step of several turns ---- */

/* A forward (F) of a part of the model, its backward (B), or backward's halves: gradients of what
 * was computed (I), then those of weights (W). */
typedef struct td_ddp_pass {
    char kind;
    int part, turn;
} td_ddp_pass;

/* Who runs the passes in an order of its own. */
typedef struct td_ddp_runner {
    int parts;
    int (*part_of)(void *user, const td_tensor *parameter); /* the same in every step */
    void *user;
    int open; /* the most backwards of a part that have begun and not ended at a time */
} td_ddp_runner;

/* What a runner calls if a strategy's steps have several turns, each with gradients of its own. In
 * each part backwards begin in the order of turns, and end in the same order. td_reducer_finish
 * exchanges the gradients; or the last backward does, if it is a backward of the whole model. */
typedef struct td_ddp_turns {
    int (*count)(const td_ddp_state *s); /* this rank's, in a step */
    td_status (*begin_step)(td_ddp_state *s, const td_ddp_runner *runner);
    int (*begin)(td_ddp_state *s,
                 td_ddp_pass pass); /* returns the turn's number among all ranks' */
    void (*end)(td_ddp_state *s, td_ddp_pass pass);
    void (*end_step)(td_ddp_state *s);
} td_ddp_turns;

enum { TD_DDP_GROUPS = 3 };

struct td_ddp_state {
    td_module *model;
    td_ddp_options options;
    td_divided divided;
    td_group *group;
    td_group *groups[TD_DDP_GROUPS]; /* all that a step uses: group, and a strategy's; NULL: none,
                                        or the same as another */
    int root;                        /* the rank whose buffers and order count */
    td_params *params;
    int count; /* parameters */
    td_ddp_units units;
    td_reducer reducer;
    const td_ddp_turns *turns; /* set by a strategy; NULL: a step is one forward and backward, or
                                  some whose gradients add up */
    td_ddp_buffers buffers;
    td_ddp_part *parts;
    td_ddp_failure failure;
    int no_sync_depth;
};

/* ---- parts: what hangs on a step ---- */

/* In the order of a step. Those with a unit say so. */
typedef enum td_ddp_event {
    TD_DDP_FORWARD,    /* a forward with gradients begins */
    TD_DDP_BUFFERS,    /* the buffers are broadcast next */
    TD_DDP_MODEL,      /* the model's forward runs next */
    TD_DDP_MODEL_DONE, /* the model's forward has run */
    TD_DDP_LAUNCH,     /* a unit is launched, in backward or at its end */
    TD_DDP_REDUCTION,  /* the first collective of a reduction comes next */
    TD_DDP_CODEC,      /* the codec computes for a unit */
    TD_DDP_CODEC_DONE,
    TD_DDP_LAUNCHED, /* the unit of TD_DDP_LAUNCH is on its way */
    TD_DDP_FINISH,   /* backward is over, and the wait begins */
    TD_DDP_ALL_SENT, /* all units are on their way; not after a failure */
    TD_DDP_WAIT,     /* a unit is waited for */
    TD_DDP_WAITED,   /* the unit's collective has ended; a part may start another one (unit->work),
                        which is waited for next */
    TD_DDP_SUMMED,   /* the mean gradients are there; not after a failure */
    TD_DDP_REDUCED,  /* the reduction has ended, perhaps by a failure */
} td_ddp_event;

/* Told all events, in the order in which the parts were added. A failure fails the step. */
typedef td_status (*td_ddp_on_fn)(td_ddp_part *part, td_ddp_state *s, td_ddp_event event,
                                  td_ddp_unit *unit);

/* The head of a part's own struct. Parts are added and removed between two steps only. */
struct td_ddp_part {
    td_ddp_on_fn on;                 /* NULL: it needs no events */
    void (*free)(td_ddp_part *part); /* with DDP's end, or by td_ddp_remove_part */
    td_ddp_part *next;
};

void td_ddp_add_part(td_ddp_state *s, td_ddp_part *part);
void td_ddp_remove_part(td_ddp_state *s, td_ddp_part *part);
/* The part with this function; NULL: there is none. */
td_ddp_part *td_ddp_find_part(const td_ddp_state *s, td_ddp_on_fn on);
void td_ddp_tell(td_ddp_state *s, td_ddp_event event, td_ddp_unit *unit);

/* extra/parts.c: collective. Compares the ranks' models, and adds the parts of a new DDP. */
td_status td_ddp_open_parts(td_ddp_state *s);

/* ---- the core ---- */

td_ddp_state *td_ddp_state_of(const td_module *net); /* fatal without td_ddp */

/* td_ddp; but the caller keeps a model whose td_ddp fails. */
td_status td_ddp_join(td_ddp_options options, td_site at);
/* Ends td_ddp, or a td_ddp_join that has failed: the gradients leave the group's memory, and so do
 * the values if a strategy has moved them (td_params_unspread). td_dist_destroy may follow, and
 * td_ddp_join in another world. TD_E_NOMEM: what leaves has no memory of its own. */
td_status td_ddp_leave(td_module *model);

/* Keeps the first failure; reports the failure to the user's function, or as a fatal error. Before
 * that td_ddp_break breaks a mesh's groups: ranks that a failure in one group has not reached would
 * wait for this rank in the other. */
void td_ddp_note(td_ddp_state *s, td_status status);
void td_ddp_break(td_ddp_state *s);
void td_ddp_abort(const td_ddp_state *s, const char *cause); /* the groups other than .group */
void td_ddp_report(td_ddp_state *s);

/* buffers.c: broadcast the buffers of rank root; td_ddp_broadcast_all: its parameters, too. */
td_status td_ddp_list_buffers(td_ddp_state *s);
void td_ddp_free_buffers(td_ddp_state *s);
td_status td_ddp_broadcast_buffers(td_ddp_state *s);
/* Copies all buffers into the bytes that are broadcast, or back. */
void td_ddp_copy_buffers(td_ddp_state *s, bool in);
td_status td_ddp_broadcast_all(td_ddp_state *s);

/* units.c. After td_units_make call td_reducer_arm. */
td_status td_units_first_order(td_ddp_state *s); /* collective */
td_status td_units_make(td_ddp_state *s);
void td_units_free(td_ddp_state *s);
int64_t td_unit_bytes(const td_ddp_unit *u);
/* Collective. Orders parameters and units as gradients became ready, if all ranks can move them. */
td_status td_units_rebuild(td_ddp_state *s);
/* If a checkpoint has reordered the parameters: makes the units again; no other rebuild follows. */
td_status td_units_follow_layout(td_ddp_state *s);

/* reducer.c */
td_status td_reducer_make(td_ddp_state *s);  /* its tables */
td_status td_reducer_watch(td_ddp_state *s); /* its hooks */
void td_reducer_free(td_ddp_state *s);
void td_reducer_arm(td_ddp_state *s);
/* Waits for a unit that has been launched; false: it was waited for already. */
bool td_reducer_wait(td_ddp_state *s, td_ddp_unit *u);
/* Launches the remaining units and finishes the reduction. Ranks without data call it, too. */
void td_reducer_finish(td_ddp_state *s);

/* ---- memory ---- */

/* memory.c: zeroed memory for collectives, on the model's device: memory that the group reduces
 * without copies, registered on CPUs, a GPU's own on GPUs. */
td_tensor *td_ddp_new_memory(td_group *group, td_device device, int64_t count, td_dtype dtype);
/* Moves the gradients, and the values if they are wanted there, into such memory, of a length that
 * is at least theirs. */
td_status td_ddp_move_memory(td_ddp_state *s, bool with_values, int64_t length);
/* A tensor over elements of flat memory. */
td_tensor *td_ddp_slice(const td_tensor *flat, int64_t begin, int64_t count);

/* The same by value: it does not retain the storage. */
static inline td_tensor td_ddp_stretch(const td_tensor *flat, int64_t begin, int64_t count)
{
    td_tensor view = *flat;
    view.offset += begin;
    view.shape[0] = count;
    return view;
}
