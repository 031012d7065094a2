/* Threads, and waiting for them with deadlines on td_clock(). */
#pragma once

#include <pthread.h>
#include <stdbool.h>

/* Starts a thread with all signals blocked: signals are for the program's own threads. Returns 0 or
 * an errno. */
int td_thread_start(pthread_t *thread, void *(*function)(void *), void *argument);

void td_condition_init(pthread_cond_t *condition);
/* Waits for a signal of the condition, also in vain. false: the deadline is over. */
bool td_condition_await(pthread_cond_t *condition, pthread_mutex_t *lock, double deadline);
