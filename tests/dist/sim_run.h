/* A small model trained by td_ddp, in processes or on the simulator. */
#pragma once

#include "dist/comm/engines/sim/sim.h"
#include "dist/dist.h"

typedef struct sim_case {
    int steps, shard;
    int failed_step; /* at which rank 0 saw a failure; -1: none */
    uint64_t hash;   /* rank 0's, of the weights */
} sim_case;

/* One rank: a procs_fn's work without td_dist_init and td_dist_destroy, and a simulated rank's. */
void sim_train(int rank, sim_case *c);
/* For td_sim_run: joins, trains, parts. */
int sim_rank(int rank, void *sim_case);
