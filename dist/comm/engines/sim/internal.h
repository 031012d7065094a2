/* The simulator, seen from inside:
 *   sim.h      the public header
 *   spawn.c    TANDEM_SIM for td_spawn: reads it, and prints the result
 *   world.c    ranks as threads, and their clocks
 *   turns.c    whose turn it is: as many run as there are processors
 *   engine.c   the engine: rooms, seats, the beginning and end of what a rank calls
 *   meetings.c collectives: the last rank that comes carries them out for all
 *   messages.c sends and receives
 *   costs.c    what kernels and collectives cost
 *
 * Whether and when anything happens on the clocks must not depend on which thread happens to be
 * faster. So a call fails only if it could never have ended well: a rank that dies or leaves is
 * noted with the number of its last collective, and all that it has entered still ends. */
#pragma once

#include "dist/comm/engines/sim/sim.h"

#include "dist/comm/thread_rank.h"
#include "dist/comm/watchdog.h"
#include "tensor/observe/watch.h"

#include <pthread.h>

typedef struct td_sim_world td_sim_world;
typedef struct td_sim_rank td_sim_rank;
typedef struct td_sim_room td_sim_room;
typedef struct td_sim_seat td_sim_seat;

/* What a rank has called: a collective or a message that it has not waited for yet. */
typedef struct td_sim_call {
    const td_collective *c;
    td_sim_seat *seat;
    struct td_sim_call *next;       /* of the seat's */
    struct td_sim_meeting *meeting; /* that has begun and not ended */
    bool done;
    /* Once it is done: when it ends on the clock, what it takes of a link, and what it sends. */
    double ends, seconds, bytes;
    td_status status;
    char *reason; /* of a failure */
} td_sim_call;

/* A collective that has begun and not ended. */
typedef struct td_sim_meeting {
    struct td_sim_meeting *next;
    uint64_t number;
    double latest; /* clock of a rank that has come */
    int come;
    td_sim_call *calls[];
} td_sim_meeting;

/* A message that its receiver has not asked for. */
typedef struct td_sim_mail {
    struct td_sim_mail *next;
    int from;
    td_entered sent;
    double arrives;
    char data[];
} td_sim_mail;

/* A rank's place in a group: td_group.engine. */
struct td_sim_seat {
    td_sim_room *room;
    int rank;           /* in the group */
    td_sim_rank *owner; /* NULL: not come yet */
    td_sim_seat *next;  /* of the owner's */
    uint64_t entered;   /* number of its last collective */
    td_status gone;     /* it has failed, died or left; TD_OK: it has not */
    char *reason;
    td_sim_call *calls;
    td_sim_mail *mails; /* for it, in the order of sending */
    double sent;        /* when its last message will have left, on the clock */
};

/* What the ranks of a group share. */
struct td_sim_room {
    td_sim_room *next;
    uint64_t key; /* the same on all its ranks, and on no other group's */
    int size, gone;
    td_sim_meeting *meetings; /* in the order of their numbers */
    double busy;              /* when its last collective ends, on the clock */
    td_sim_seat seats[];
};

struct td_sim_rank {
    td_thread_rank place; /* first */
    td_sim_world *world;
    pthread_t thread;
    pthread_cond_t wake;
    bool runs;
    td_sim_rank *next;      /* of those that may run */
    td_sim_call *waits_for; /* NULL: it does not */
    td_sim_seat *seats;
    uint64_t inits;
    double dies;              /* on the clock */
    td_sim_times times;       /* so far */
    td_sim_times first, last; /* when the optimizer began its first and its latest step */
    double kernels, assumed;  /* seconds of all kernels, and of those without a line in the file */
    int steps;
    bool backward; /* since `last` */
};

typedef struct td_sim_costs {
    double f32, f64, memory; /* limits: operations and bytes a second */
    double rest;             /* seconds of a step outside of kernels */
    double seconds, least; /* of all kernels in the file, and what they would take at the limits */
    struct td_sim_cost *rows;
    int count;
} td_sim_costs;

/* `lock` protects all members, rooms, and what of ranks and seats other ranks see. */
struct td_sim_world {
    td_sim_options options;
    td_sim_costs costs;
    int (*fn)(int, void *);
    void *arg;
    pthread_mutex_t lock;
    td_sim_rank *ranks;
    int places; /* for threads that run */
    int running, alive;
    td_sim_rank *ready, **ready_end;
    td_sim_room *rooms;
    struct {
        int rank; /* that failed first by the clock; -1: none */
        double when;
        char message[1024];
    } failure;
};

/* ---- turns.c; with the lock ---- */

td_sim_rank *td_sim_me(void); /* without it; NULL: the thread is no rank */
void td_sim_make_ready(td_sim_rank *rank);
void td_sim_run_next(td_sim_world *w);
void td_sim_wait_to_run(td_sim_rank *me);
/* The calling rank does not run any more. */
void td_sim_stop_running(td_sim_world *w);
/* Waits until the call is done. */
void td_sim_wait(td_sim_rank *me, td_sim_call *call);
/* The call is over: its rank may go on. */
void td_sim_done(td_sim_call *call, double ends, td_status status, const char *reason);
char *td_sim_text(const char *text); /* a copy */

/* ---- spawn.c ---- */

/* Reads TANDEM_SIM=256 (missing: .ranks is 0), and TANDEM_SIM_LINK=25GB/s,5us (missing: these
 * values), _KERNELS=FILE, _CORES=2 and _KILL=3@3200us. TD_E_ARG: a value cannot be read. */
td_status td_sim_read(td_sim_options *options);

/* ---- engine.c ---- */

extern const td_engine_type td_sim_engine;
void td_sim_free_rooms(td_sim_world *world);

/* ---- meetings.c and messages.c; with the lock ---- */

void td_sim_meet(td_sim_call *call);
/* The meetings that wait for a seat which is gone fail. */
void td_sim_end_meetings(td_sim_seat *gone);
/* The call is freed. The meeting fails if the meeting has not ended. */
void td_sim_leave_meeting(td_sim_call *call);
void td_sim_send(td_sim_call *call);
void td_sim_receive(td_sim_call *call);
void td_sim_end_messages(td_sim_seat *gone);

/* ---- costs.c ---- */

td_status td_sim_costs_open(const char *path, td_sim_costs *costs);
/* Seconds of a kernel's call. *assumed: there is no line for it. */
double td_sim_kernel_cost(const td_sim_costs *costs, const td_watched_call *call, bool *assumed);
/* Seconds of a collective, and the bytes that a rank sends. */
double td_sim_collective_cost(const td_sim_options *o, const td_collective *c, int size,
                              double *bytes);
