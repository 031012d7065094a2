/* A pipeline from the inside. */
#pragma once

#include "dist/comm/collectives.h"
#include "dist/pipeline/pipeline.h"
#include "dist/pipeline/schedule.h"
#include "nn/module.h"
#include "nn/params.h"

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
    td_tensor *shape_in, *shape_out;    /* i64 [PIPE_SHAPE]: what arrives, and what is sent */
    bool knows_in, knows_out, has_told; /* in this step, or since an earlier one */
    td_work *tells;
} td_pipe_chunk;

/* What another rank sends this one in a step, in the order in which it sends it. */
typedef struct td_pipe_stream {
    td_action *items; /* F: input of the chunk; B: gradient of its result */
    td_work **works;
    int count, posted, taken; /* posted: receives that have been asked for */
} td_pipe_stream;

typedef struct td_pipe {
    td_module *model;
    td_group *group;
    int rank;
    td_plan plan;
    td_chain_link *links;
    int link_count;
    int *cuts; /* [stages + 1]: the links at which stages begin */
    td_action *actions;
    td_span *spans; /* of the last step */
    double arrived; /* when what an action waited for was there */
    td_pipe_chunk *chunks;
    td_pipe_stream *streams; /* by rank */
    td_tensor **shared;      /* weights that other stages have, too, in the order of the model */
    unsigned char *sharers;  /* [shared][ranks]: whether a rank has it */
    int shared_count;
    td_staging staging; /* for clipping and checkpoints */
    int now;            /* the chunk that td_forward runs */
    bool stepping;
    td_shape batch; /* of the last step's x */
} td_pipe;

/* cut.c: the links of the model and the stages; takes what is elsewhere out of memory. */
td_status td_pipe_cut(td_pipe *p, const char *cut);
/* Dropout in other stages has drawn for this many micro-batches: a checkpoint has its place. */
void td_pipe_skip_draws(const td_pipe *p, int micro);
/* pipeline.c: the pipeline of a model; fatal if there is none. */
td_pipe *td_pipe_of(const td_module *net, const char *function, td_site at);
/* Runs a chunk's links; second: labels for the end of the last one, or NULL. */
td_tensor *td_pipe_run(td_pipe *p, int chunk, td_tensor *x, td_tensor *second, td_site at);
/* messages.c. SHAPE: numbers that tell a shape. AHEAD: messages that are asked for before they are
 * needed. */
enum { TD_PIPE_SHAPE = 3 + TD_MAX_DIMS, TD_PIPE_AHEAD = 2 };
td_status td_pipe_begin_messages(td_pipe *p);
td_status td_pipe_need(td_pipe *p, td_action what, int from);
td_status td_pipe_send(td_pipe *p, td_action a, td_tensor *y, int to);
td_status td_pipe_send_gradient(td_pipe *p, td_action a, int to);
td_status td_pipe_end_messages(td_pipe *p);
td_status td_pipe_share_gradients(const td_pipe *p);
td_status td_pipe_evaluate(td_pipe *p, td_tensor *x, td_tensor *second, td_site at, td_tensor **y);

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
