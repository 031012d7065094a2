/* Runs training steps: eagerly, or (--graph) as captured steps, which a GPU records once and
 * replays (tensor/graph/captured.h). Both take the same step, and give its results in order. */
#pragma once

#include "tandem.h"
#include "tensor/graph/captured.h"

enum { RUNNER_DEPTH = 8 }; /* the most steps whose results are unread */

typedef struct runner {
    td_captured_step step; /* these three are set by the program */
    void *user;
    int results;
    td_captured *captured; /* NULL: steps run eagerly */
    double values[TD_CAPTURED_RESULTS];
    bool unread; /* values are those of the latest eager step, and unread */
} runner;

/* From now on steps are captured. word, the option's name: rank 0 prints what the option does here;
 * NULL: nothing is printed. The loader's batches are made in the step (td_loader_make). */
td_status runner_capture(runner *r, td_device device, td_loader *loader, const char *word);

/* Runs a step of a kind (td_captured_run_kind). */
td_status runner_step(runner *r, int kind, const td_batch *batch);

/* The number of steps whose results are unread, and whether one must be read before the next step.
 * Steps without results that run eagerly have nothing to read. */
int runner_waiting(const runner *r);
bool runner_full(const runner *r);
td_status runner_next(runner *r, double *results); /* of the oldest; waits for the step */

/* Says how many steps were replayed, if steps were captured, and ends that. */
void runner_end(runner *r);
