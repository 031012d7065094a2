/* The processors that this process may use. */
#pragma once

#include <pthread.h>

/* How many they are; what td_bind_thread has done since does not count. */
int td_usable_cpus(void);
/* How many of them to count on: a container's quota of time may pay fewer
 * (tensor/system/container.h). */
int td_paid_cpus(void);

/*
 * How many threads to use when nobody says: OMP_NUM_THREADS if that is a positive number (the
 * first of a list), else td_paid_cpus().
 */
int td_default_threads(void);
/* From now on the CPUs are divided by this number of processes. */
void td_pool_share_cpus(int processes);

/* Lets a thread run on `count` CPUs only, from the `first` usable one on. 0 or an errno code;
 * EINVAL: there are too few. */
int td_bind_thread(pthread_t thread, int first, int count);
