/* What a training run shows: whole lines on stdout and, when stderr is a terminal, one live line
 * below them: epoch, step, images or tokens per second, loss, accuracy, time left. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct progress {
    bool speaks;         /* prints anything: on rank 0 */
    bool tokens;         /* "tokens/s", not "images/s" */
    bool live;           /* there is a terminal */
    bool shown;          /* the live line stands there now */
    int64_t steps_left;  /* in the whole run */
    int64_t steps;       /* in an epoch; 0: none has begun */
    double step_seconds; /* a moving average; 0: no step yet */
    double between;      /* seconds from the last step of an epoch to the next epoch */
    double last, drawn;  /* when the last step ended, when the line was last drawn */
} progress;

/* Of a training run; loss and accuracy are running means of the epoch. */
typedef struct progress_point {
    int64_t epoch, epochs; /* epoch from 1 */
    int64_t step, steps;   /* in this epoch, from 1 */
    int64_t batch;         /* samples in this step */
    double loss;
    double accuracy; /* 0..1; negative or NaN: not counted */
} progress_point;

void progress_begin(progress *p, bool speaks, int64_t steps_left);
/* An epoch of `steps` steps begins: what lies between two epochs (a test, a checkpoint) is no
 * step's time. */
void progress_epoch(progress *p, int64_t steps);
void progress_step(progress *p, const progress_point *now);
/* Samples per second, by the moving average. */
double progress_rate(const progress *p, int64_t batch);
/* "1:02:03" that are left, by the moving average and the last time between two epochs. */
void progress_eta(const progress *p, char *text, size_t size);
/* Prints a line to stdout; the live line makes way for it. */
void progress_print(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void progress_end(progress *p); /* removes the live line, which the next step draws again */
