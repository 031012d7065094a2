/* A pipeline from the inside. */
#pragma once

#include "dist/comm/collectives.h"
#include "dist/pipeline/pipeline.h"
#include "dist/pipeline/schedule.h"
#include "nn/module.h"
#include "nn/params.h"

#include <stddef.h>

/* A place for one micro-batch. */
typedef struct td_pipe_slot {
    td_tensor *in;                 /* what the stage before has computed: a leaf */
    td_tensor *out, *gradient;     /* a copy of the result, to be sent; the result's gradient */
    td_work *sends_out, *sends_in; /* sending the copy, and the gradient of `in` */
    td_tensor *y;                  /* of the step: the result, or the loss */
    td_rest *rest;                 /* of backward's first half */
} td_pipe_slot;

/* A stage of this rank. */
typedef struct td_pipe_chunk {
    int begin, end; /* links */
    td_pipe_slot *slots;
    int count; /* slots; micro-batch k is in slot k % count */
    int done;  /* micro-batches of this step of which nothing is kept any more */
    td_tensor *shape_in, *shape_out; /* i64 [PIPE_SHAPE]: what arrives, and what is sent */
    bool knows_in, knows_out;        /* in this step, or since an earlier one */
    td_work *tells;
} td_pipe_chunk;

/* What another rank sends this one in a step, in the order in which it sends it. */
typedef struct td_pipe_stream {
    td_action *items; /* F: input of the chunk; B: gradient of its result; G: of the shared weight
                         with the chunk's number, what the micro-batch has given it so far */
    td_work **works;
    int count, posted, taken; /* posted: receives that have been asked for */
} td_pipe_stream;

/* A weight that several stages have. */
typedef struct td_pipe_shared {
    td_tensor *weight;
    unsigned char *has; /* whether a rank has it */
    td_tensor **parts;  /* [ranks]: what micro-batch k has given it, at k % ranks; NULL: not yet */
    td_work **sends;
} td_pipe_shared;

/* In the order of the model, the same on all ranks. */
typedef struct td_pipe_ties {
    td_pipe_shared *list; /* of weights that several ranks have */
    int count, here;      /* here: of this rank's */
    bool several;         /* stages share weights, perhaps stages of one rank */
} td_pipe_ties;

/* Memory that lasts as long as the pipeline. */
typedef struct td_pipe_room {
    struct td_pipe_room *next;
    max_align_t bytes[];
} td_pipe_room;

typedef struct td_pipe {
    td_module *model;
    td_group *group;
    int rank;
    td_plan plan;
    td_chain_link *links;
    int link_count;
    int *cuts;          /* [stages + 1]: the links at which stages begin */
    td_action *actions; /* with the times of the last step; NULL: there are no lists yet */
    double arrived;     /* when what an action waited for was there */
    td_pipe_chunk *chunks;
    td_pipe_stream *streams; /* by rank */
    td_pipe_ties ties;
    td_staging staging; /* for clipping and checkpoints */
    int now;            /* the chunk that td_forward runs */
    bool stepping;
    bool turns;     /* micro-batches of this step have gradients of their own */
    td_shape batch; /* of the last step's x */
    td_pipe_room *rooms;
} td_pipe;

/* pipeline.c: the pipeline of a model; fatal if there is none. */
td_pipe *td_pipe_of(const td_module *net, const char *function, td_site at);
/* The tables of a step, once the number of micro-batches is known. */
td_status td_pipe_make_lists(td_pipe *p);

/* cut.c: zeroed memory that lasts as long as the pipeline; NULL with td_last_error(). */
void *td_pipe_new(td_pipe *p, int64_t count, size_t size);
/* The links of the model and the stages; takes what is elsewhere out of memory. */
td_status td_pipe_cut(td_pipe *p, const char *cut);
/* Dropout in other stages has drawn for this many micro-batches: a checkpoint has its place. */
void td_pipe_skip_draws(const td_pipe *p, int micro);
/* Runs a chunk's links; second: labels for the end of the last one, or NULL. */
td_tensor *td_pipe_run(td_pipe *p, int chunk, td_tensor *x, td_tensor *second, td_site at);
/* Which chunk of this rank's has a parameter; pipe: the td_pipe. */
int td_pipe_chunk_of(void *pipe, const td_tensor *parameter);
/* messages.c. SHAPE: numbers that tell a shape. AHEAD: messages that are asked for before they are
 * needed. */
typedef struct td_pipe_text {
    char text[24];
} td_pipe_text;
enum { TD_PIPE_SHAPE = 3 + TD_MAX_DIMS, TD_PIPE_AHEAD = 2 };
td_status td_pipe_begin_messages(td_pipe *p);
td_status td_pipe_need(td_pipe *p, td_action what, int from);
td_status td_pipe_send(td_pipe *p, td_action a, td_tensor *y);
td_status td_pipe_send_gradient(td_pipe *p, td_action a);
td_status td_pipe_end_messages(td_pipe *p);
td_pipe_text td_pipe_name(td_action message);
td_status td_pipe_finish(td_work **work); /* waits, unless it is NULL, which it then is */
td_status td_pipe_evaluate(td_pipe *p, td_tensor *x, td_tensor *second, td_site at, td_tensor **y);

/* shared.c. In turns a backward begins with what the micro-batch has given shared weights on later
 * stages, and sends the sum on; after the step the first rank that has a weight sends the others
 * the gradient. */
td_status td_pipe_begin_shared(td_pipe *p, int micro);
td_status td_pipe_send_shared(td_pipe *p, int micro);
td_status td_pipe_share_gradients(const td_pipe *p);
/* The rank to which `from` sends what each micro-batch gives shared weight i; -1: none. */
int td_pipe_sends_shared(const td_pipe *p, int i, int from);

static inline int td_pipe_stages(const td_pipe *p)
{
    return p->plan.ranks * p->plan.chunks;
}

static inline int td_pipe_stage(const td_pipe *p, int chunk)
{
    return chunk * p->plan.ranks + p->rank;
}

static inline td_pipe_slot *td_pipe_slot_of(const td_pipe *p, int chunk, int micro)
{
    const td_pipe_chunk *c = &p->chunks[chunk];
    return &c->slots[micro % c->count];
}
