/* --graph: training steps that the GPU replays by itself (tensor/graph/captured.h). */
#ifndef APPS_TOOLS_TRAIN_GRAPH_H
#define APPS_TOOLS_TRAIN_GRAPH_H

#include "apps/tools/common/train.h"

/* Says what --graph does in this run, and prepares it; step is given the batch's x and y, has three
 * results, loss, right answers, and those among the recipe's k largest, and with a loss scaler a
 * fourth, its outcome; it is called with r. */
td_status train_graph_begin(train_run *r, td_captured_step step);
bool train_graph_is_on(const train_run *r);

/* group: where the batch stands; step finds it in r->graph. */
td_status train_graph_step(train_run *r, const td_batch *batch, train_group group);

/* Steps that have been asked for, and whose results have not been taken. */
int64_t train_graph_waiting(const train_run *r);
/* Whether a result must be taken before the next step. */
bool train_graph_is_full(const train_run *r);
/* The oldest step's; waits for it. */
typedef struct train_graph_results {
    double loss;
    int64_t correct, correct_k, samples;
    bool stepped, gives_up; /* the optimizer; the loss scaler */
} train_graph_results;
td_status train_graph_take(train_run *r, train_graph_results *taken);

/* Says how many steps were replayed, and ends it. */
void train_graph_end(train_run *r);

#endif
