/* For tests of elastic runs: processes that train, are killed and replaced. */
#pragma once

#include "dist/comm/store.h"
#include "dist/elastic/elastic.h"

#include <sys/types.h>

/* Where in a step a process ends itself. */
typedef enum elastic_when {
    ELASTIC_NEVER,
    ELASTIC_BEFORE_STEP,
    ELASTIC_BEFORE_COMMIT,
    ELASTIC_BEFORE_UPDATE, /* committed, and the weights are old */
    ELASTIC_AFTER_STEP,
    ELASTIC_FINISHED, /* with all steps made */
    /* With a stage: */
    ELASTIC_UPDATED,   /* before the exchange of copies */
    ELASTIC_SENT,      /* in the exchange: its copy is sent, and it takes none */
    ELASTIC_EXCHANGED, /* before the barrier */
    ELASTIC_JOINING,   /* in td_ddp of the next world */
    ELASTIC_JOINED,    /* before windows are brought */
    ELASTIC_BROUGHT,   /* with its windows, before the next world's exchange */
} elastic_when;

typedef struct elastic_case {
    int ranks, leaves;
    int64_t steps;
    int stage;           /* td_zero's; 0: every rank has all */
    bool gathers;        /* td_zero's */
    bool loads;          /* samples come from a loader */
    const char *backend; /* NULL: shm */
    double timeout;      /* 0: 20 */
    /* The process with rank `victim` ends itself at a step, once; victim -1: all but rank 0. With a
     * friend above 0 that rank does so, too. Rank `second` of the next world ends itself at `then`.
     */
    elastic_when when, then;
    int victim, friend, second;
    int64_t at;
    /* Random kills from here, `kills` of them, each after `least` to `most` seconds. */
    int kills;
    unsigned seed;
    double least, most;
    bool paced;    /* while the run has not gone on after the one before, only of newcomers */
    double pause;  /* seconds that a step takes longer */
    bool replaced; /* each that dies is replaced */
    bool stops;    /* the victim is stopped instead, and continues when the others have gone on */
    int stillborn; /* so many end themselves at once, or some 0.15 ms later each, after they have
                      taken up the state: on their way into a world */
    bool differs;  /* at step `at` the ranks' collectives differ, each time */
    bool donor;    /* who takes up the state for the first time kills who gave it */
} elastic_case;

typedef struct elastic_result {
    uint64_t hash;       /* of all that have finished, which have the same; 0: none has */
    int started, worlds; /* processes; the number of the last world */
    int failed;          /* processes that ended with an error */
    int first_killed;    /* of the random kills: of rank 0, and of newcomers not yet in a world */
    int joining_killed;
    char message[1024];     /* of one of them */
    double median, longest; /* seconds from a death to the next committed step */
} elastic_result;

/* Runs a case in at most `limit` seconds; otherwise the test fails. Nothing is left behind. */
elastic_result elastic_run(const elastic_case *c, double limit);

/* Requires a case with random kills to end like a run of one process in which nothing happens, and
 * prints how long the others took to go on. */
elastic_result elastic_require_storm(elastic_case c, double limit);

/* In the run's other processes, for tests that play a member: the store, with the run's prefix. */
void elastic_play(void (*fn)(td_store *store));
/* For fn, and needed with `replaced`: from here on processes that die are replaced. */
void elastic_played(void);
