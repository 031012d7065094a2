/* Schedules one after the other, and a rate that follows a metric. */
#pragma once

#include "nn/optim/optim.h"

TD_BEGIN_C

/* The rate at a position of several schedules, one after the other (PyTorch: SequentialLR):
 * schedule i > 0 begins at milestones[i - 1], where its own position is 0. Milestones ascend; there
 * are count - 1 of them. */
double td_schedules_lr(const td_schedule *schedules, const double *milestones, int count,
                       double position);

/* ReduceLROnPlateau: after more than `patience` calls in a row without a better metric the rate is
 * multiplied by `factor`. Fill in lr and what you want; the other fields begin as 0. The struct is
 * the whole state: save it to go on later. */
typedef struct td_plateau {
    double lr;        /* at first yours; then what the last call returned */
    double factor;    /* 0: 0.1 */
    int patience;     /* 0: 10; negative: none */
    double threshold; /* 0: 1e-4; better: less than best (1 - threshold), or, with larger_is_better,
                         more than best (1 + threshold) */
    bool larger_is_better;
    bool absolute; /* better: by more than threshold itself (PyTorch's threshold_mode "abs") */
    int cooldown;  /* calls after a reduction during which none counts as bad */
    double min_lr;
    /* the state */
    double best;
    bool begun;
    int bad, cooling;
} td_plateau;
/* Takes one metric (the validation's loss, for example) and returns the rate to go on with. NaN is
 * never better. */
double td_plateau_step(td_plateau *plateau, double metric);

TD_END_C
