/* An elastic run, seen from inside:
 *   elastic.c  the run: worlds, and what a step commits
 *   members.c  who is in the next world
 *   copies.c   shards: each rank's windows, and a copy of them at another rank
 *   state.c    what a step may change, kept; and the state, given to those that are behind */
#pragma once

#include "dist/comm/store.h"
#include "dist/elastic/elastic.h"
#include "nn/module.h"

enum { TD_ELASTIC_MOST = 1024 /* ranks */ };

/* The members of a world, those that are furthest first: rank 0 has the state that goes on. */
typedef struct td_elastic_members {
    int64_t asked;    /* processes with smaller numbers are in the list, or not in the run */
    int64_t step;     /* where the furthest are; -1: all have just come, without a state */
    int cut;          /* as td_elastic_shards has it */
    int count, whole; /* whole: how many, from the first on, are there */
    int64_t ids[TD_ELASTIC_MOST];
} td_elastic_members;

/* What forward changes, as it was before the step. */
typedef struct td_elastic_kept {
    td_state_list list;
    td_tensor **copies;  /* of its buffers */
    uint64_t *draws;     /* of each Dropout */
    td_generator random; /* the default one */
} td_elastic_kept;

/* What td_params_export has of a rank's windows, as they were after a step. */
typedef struct td_elastic_copies {
    int cut; /* the world that has these windows; 0: one rank has all */
    int64_t step;
    int rank, ranks;   /* of this process, in that world */
    td_tensor *own;    /* bytes; NULL: there are none */
    td_tensor *before; /* of the rank before; NULL: there is one rank */
} td_elastic_copies;

/* With .strategy: what the ranks have divided. */
typedef struct td_elastic_shards {
    int cut;                     /* the world whose windows hold the state; 0: each process has all,
                                    as it was made or loaded */
    td_elastic_copies now, next; /* next: of the running step or world, until all have it */
    bool come;                   /* processes have come, and wait for the next world */
    bool lost;                   /* no process has one of the windows */
} td_elastic_shards;

struct td_elastic {
    td_elastic_options options;
    char name[160];         /* of the run in the store: its keys' prefix */
    td_store *base, *store; /* base with the prefix */
    td_store *worlds;       /* a connection of its own: a store has one will */
    int64_t id, step;       /* id: this process's number, which no other gets; step -1: no state */
    int world, rank;        /* the latest world; rank -1: this process is not in it */
    bool failed, stands, over;
    double looked; /* when it was last asked whether processes have come */
    td_status status;
    char message[1024];
    td_elastic_members members; /* of the latest world; count 0: there was none */
    td_elastic_members before;  /* of the world before this process's latest one */
    int repeats;                /* worlds of the same members at the same step */
    td_elastic_kept kept;
    td_elastic_shards shards;
};

/* ---- members.c ---- */

/* Gives this process its number, and a will that tells the others of its end. */
td_status td_elastic_number(td_elastic *e);
/* Agrees on the next world with all that live: e->world, rank and members. */
td_status td_elastic_agree(td_elastic *e);
/* For waits: fails if a member has ended. */
td_status td_elastic_look(void *run);
/* Whether processes have come since the world was agreed on. */
td_status td_elastic_arrivals(td_elastic *e, bool *come);

/* ---- copies.c ---- */

/* Whether what the options' .state has can be divided. */
td_status td_elastic_can_divide(const td_elastic_options *o);
/* After td_elastic_share and before td_ddp_join: the copies of the members' step are those that
 * count. */
td_status td_elastic_settle_copies(td_elastic *e);
/* After td_ddp_join, collective: each rank gets its window from the copies, and makes new ones. */
td_status td_elastic_divide(td_elastic *e);
/* Exports this rank's windows as they are after `step`, and gives the next rank a copy. Collective.
 * TD_OK: all ranks have their copies, which count from now on. */
td_status td_elastic_copy(td_elastic *e, int64_t step);
size_t td_elastic_copy_bytes(const td_elastic *e); /* of both, between two steps */
void td_elastic_free_copies(td_elastic *e);

/* ---- state.c ---- */

td_status td_elastic_keep_open(td_elastic *e);
void td_elastic_keep(td_elastic *e);
void td_elastic_restore(td_elastic *e);
void td_elastic_keep_close(td_elastic *e);
/* Collective: rank 0 gives its state to those that are behind. Nothing changes unless all of it has
 * come. */
td_status td_elastic_share(td_elastic *e);
