/* What training with several processes needs: how a rank says hello, what part of the machine it
 * takes, who speaks, and how numbers of all ranks become one. In a process that has not called
 * td_dist_init there is one rank, 0; a process of tdrun --elastic has the launcher's numbers until
 * it is in a world. */
#pragma once

#include "apps/tools/common/train_args.h"

/* Whether this process is one of tdrun --elastic, whose worlds come and go (train_elastic.c). */
bool ranks_elastic(void);

int ranks_local(void); /* this process's number on its host, and how many there are */
int ranks_local_size(void);

/* After td_dist_init and before train_args_apply: prints "[init] == local rank: L, global rank: R
 * ==" and gives this rank its part of the loader threads, unless --workers is given. (td_dist_init
 * has given it its part of the host's CPUs.) */
void ranks_begin(train_args *args);

bool ranks_first(void); /* whether this is rank 0, which prints and saves */

/* Sums over all ranks, in place. All ranks must call it. */
td_status ranks_sum(double *values, int count);

/* TD_E_MISMATCH unless `text` is the same on all ranks; `what` it is, for the message. */
td_status ranks_agree(const char *what, const char *text);

/* Everyone waits here for the last. */
td_status ranks_barrier(void);
