/* The times of a GPU's kernels, which run after their call has returned. An event is put on the
 * compute stream before each call and another after it, and the GPU notes the time at which it
 * reaches them. Nobody waits for the events: at the end of a later step, the watchers
 * (tensor/observe/watch.h) are told of the calls whose events have been reached. Not for users. */
#pragma once

#include "tensor/observe/watch.h"

/* For watch.c: the table whose functions put the events and call the device's kernel. The calling
 * thread may use the table for this device until it asks for another device's table. */
const td_kernels *td_timed_kernels(td_device device);

/* The same table, which watched.c makes, for timed.c. */
const td_kernels *td_timed_table(void);

/* For the table: before and after a kernel. td_timed_enter returns the device's own table. */
const td_kernels *td_timed_enter(const char *kernel);
void td_timed_leave(td_cost cost);

/* Tells the watchers of the calls that are over. all: waits for the GPUs first, so that all calls
 * are over. */
void td_timed_tell(bool all);
