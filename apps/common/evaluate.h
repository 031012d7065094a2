/* What the classifiers' apps share: counting right answers, and a pass over a test set. */
#ifndef APPS_COMMON_EVALUATE_H
#define APPS_COMMON_EVALUATE_H

#include "tandem.h"

/* How many rows of logits [n, classes] are largest at their label. Within a step. */
int64_t count_correct(td_tensor *logits, const td_batch *batch);

typedef struct evaluation {
    int64_t correct, count;
    double loss; /* mean over the samples */
} evaluation;

/* In evaluation mode, without gradients; with several processes each takes its part, and all get
 * the figures of the whole, with rank 0's running statistics. The net is left in training mode. It
 * draws nothing from the default generator, so training goes on as if it had not been. */
td_status evaluate(td_module *net, const td_dataset *dataset, int64_t batch_size, int workers,
                   evaluation *result);

/* TD_OK, or the error that ends a run whose loss is NaN or infinite. epoch and step from 1. */
td_status check_loss(double loss, int64_t epoch, int64_t step);

#endif
