/* What the sweeps over shapes share: random numbers, measuring two sides in turn, the sorted table.
 */
#pragma once

#include "bench/onednn.h"

typedef struct sweep_row {
    char name[96];
    double flops;            /* of useful work */
    double count;            /* how often it occurs, in the sum of all times */
    double ours_ms, peer_ms; /* peer_ms 0: there is no peer */
    double step_ms;          /* the peer's with its conversions of the weights */
    double error;            /* the largest seen, over the sum of the terms' magnitudes */
} sweep_row;

/* Uniform in [0, 1); the same numbers everywhere. */
double sweep_random(uint64_t *state);

/* A number in [low, high], small ones as likely as large ones. */
int64_t sweep_pick(uint64_t *state, int64_t low, int64_t high);

/* `count` numbers in [-1, 1) at a multiple of 64; ends the program where there is no memory. */
float *sweep_make(int64_t count, uint64_t *state);

/* The shortest of several runs of each, in turns of about `ms`; peer may be NULL. */
void sweep_measure(sweep_row *row, double ms, void (*run)(void *user), void *user, onednn *peer);

/* Prints the rows, the worst ratio first, and a summary. False if an error is above `limit`. */
bool sweep_report(sweep_row *rows, int count, double limit);
