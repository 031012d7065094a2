/* Host lists as Slurm writes them: "n[01-03,7],login" is n01, n02, n03, n7, login. */
#ifndef TD_DIST_HOSTLIST_H
#define TD_DIST_HOSTLIST_H

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { TD_MAX_HOSTS = 65536 };

/* Several brackets in a name are combined, the last one fastest; leading zeros stay. *hosts is
 * freed by td_hostlist_free. TD_E_ARG: it is no host list, and the message says where. */
td_status td_hostlist_expand(const char *text, char ***hosts, int *count);
void td_hostlist_free(char **hosts, int count);

/* Of a list of counts with repetitions, "2(x2),1" (SLURM_STEP_TASKS_PER_NODE), the one at index;
 * negative: there is none. */
int td_hostlist_count_at(const char *text, int index);

#endif
