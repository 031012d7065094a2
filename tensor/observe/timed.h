/* Kernels of a device whose work goes on after a call has returned, on the device's own clock. An
 * event is put before and behind each call on the compute stream; nobody waits for them. Once they
 * have come by, the watchers are told (tensor/observe/watch.h). Not for users. */
#ifndef TD_TENSOR_TIMED_H
#define TD_TENSOR_TIMED_H

#include "tensor/observe/watch.h"

/* For watch.c: the table whose functions do that, and call those of the device. Good for this
 * device, on this thread, until the thread asks for another device's. */
const td_kernels *td_timed_kernels(td_device device);

/* That table, for timed.c, which watched.c makes. */
const td_kernels *td_timed_table(void);

/* For it: around a kernel. */
const td_kernels *td_timed_enter(const char *kernel); /* the device's own */
void td_timed_leave(td_cost cost);

/* Tells the watchers of the calls that are over: of those that are known to be, or, having waited
 * for them, of all. */
void td_timed_tell(bool all);

#endif
