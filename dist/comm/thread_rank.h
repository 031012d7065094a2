/* Ranks that are threads of one process. Such a thread has a world of its own: what td_dist_init
 * makes there belongs to the thread. */
#pragma once

#include "dist/comm/engine.h"

typedef struct td_thread_rank {
    int rank, size;
    const td_engine_type *engine; /* of all its groups; there is no store */
    struct dist_state *state;     /* group.c's; NULL: td_dist_init has not been called */
} td_thread_rank;

/* The calling thread's; NULL: the process is the rank. */
td_thread_rank *td_thread_rank_now(void);
/* The calling thread is this rank; NULL: no longer. */
void td_thread_rank_set(td_thread_rank *rank);
