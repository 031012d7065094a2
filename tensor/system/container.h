/* What the control groups of this process (a container's, a batch system's) let it use. */
#pragma once

#include <stddef.h>

/* Bytes of memory: the smallest limit of the groups that hold this process, and the least that is
 * left in one of them, where cached files count as free. Versions 1 and 2 of control groups.
 * SIZE_MAX: no limit. */
typedef struct td_container_memory {
    size_t limit, left;
} td_container_memory;
td_container_memory td_container_memory_now(void);

/* How many CPUs' time the quotas of those groups pay (docker --cpus, a Kubernetes limit), rounded
 * down, at least 1. INT_MAX: no quota. */
int td_container_cpus_now(void);

/* The same from other places than /proc/self/cgroup and /sys/fs/cgroup; for tests. */
td_container_memory td_container_memory_of(const char *groups, const char *root);
int td_container_cpus_of(const char *groups, const char *root);
