/* Host lists as Slurm writes them: "n[01-03,7],login" is n01, n02, n03, n7, login. */
#pragma once

#include "tensor/error.h"

enum { TD_HOST_BYTES = 256 };

/* The list's first host, "n01". TD_E_ARG: there is none, and the message says where. */
td_status td_hostlist_first(const char *text, char host[TD_HOST_BYTES]);

/* Of a list of counts with repetitions, "2(x2),1" (SLURM_STEP_TASKS_PER_NODE), the one at index;
 * negative: there is none. */
int td_hostlist_count_at(const char *text, int index);
