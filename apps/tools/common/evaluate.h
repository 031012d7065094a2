/* What a pass over a test set has found (train_evaluate, evaluate.c). */
#ifndef APPS_TOOLS_EVALUATE_H
#define APPS_TOOLS_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct evaluation {
    int64_t correct, correct_k, count;
    double loss;  /* mean over the samples */
    bool stopped; /* by a signal: the figures are those of a part */
} evaluation;

#endif
