/* Schedules of a pipeline: what each rank does in a step, in order. Nothing here computes or sends:
 * a schedule is a list of actions, which pipeline.c follows and which is drawn. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>

typedef struct td_action {
    char kind;         /* F: forward; B: backward; or, in two halves, I: gradients of what was
                          computed, then W: gradients of weights */
    int chunk, micro;  /* which stage of this rank's, which micro-batch */
    double begin, end; /* when it runs: seconds, or units of time */
} td_action;

/* Stage chunk * ranks + rank is this rank's chunk-th one. */
typedef struct td_plan {
    enum td_plan_kind { TD_PLAN_GPIPE, TD_PLAN_1F1B, TD_PLAN_ZB } kind;
    int ranks, micro, chunks; /* chunks: stages a rank, above 1 if interleaved */
} td_plan;

/* Reads "gpipe", "1f1b", "interleaved:CHUNKS" or "zb"; NULL: "1f1b". TD_E_ARG: another text, or
 * numbers that the schedule cannot have. */
td_status td_plan_read(const char *text, int ranks, int micro, td_plan *plan);

/* TD_E_ARG: a step of the plan cannot have this number of micro-batches. */
td_status td_plan_check_micro(const td_plan *plan, int micro);

/* The number of a rank's actions, and the actions in their order. */
int td_plan_count(const td_plan *plan);
void td_plan_actions(const td_plan *plan, int rank, td_action *list);
/* The actions of all ranks, rank after rank, to be freed; NULL: memory is short. */
td_action *td_plan_all(const td_plan *plan);

/* The most micro-batches whose activations a rank keeps at a time, in one chunk or (chunk -1) in
 * all. */
int td_plan_held(const td_plan *plan, int rank, int chunk);

/* Plays the plan: F, I and W take one unit of time, B two, and messages none. Sets when each of
 * td_plan_all's actions runs. Returns the time of all; negative: a deadlock, or memory is short. */
double td_plan_play(const td_plan *plan, td_action *all);
