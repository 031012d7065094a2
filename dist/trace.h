/* A timeline of a run: what each rank computed and sent, and when. */
#ifndef TD_DIST_TRACE_H
#define TD_DIST_TRACE_H

#include "dist/dist.h"

TD_BEGIN_C

/* Chrome trace JSON: one process per rank, lanes for compute and communication. NULL path: off.
 * Rank r writes path with ".rank<r>" before the ending unless the world is 1; rank 0 joins them at
 * close. */
td_status td_trace_open(const char *path);
void td_trace_begin(const char *name); /* a span on the calling thread; nests */
void td_trace_end(void);
td_status td_trace_close(void);

/* Seconds on CLOCK_MONOTONIC when it was queued, began and ended (0: not yet). Also right after
 * td_work_wait, until the next call for this group. */
void td_work_times(const td_work *work, double *queued, double *begun, double *ended);

/* ---- for code that knows of a span which it does not enclose ---- */

bool td_trace_on(void);

/* An ended span in the calling thread's lane: seconds on CLOCK_MONOTONIC. */
void td_trace_span(const char *name, double begin, double end);

/* An ended span in the communication lane: seconds on CLOCK_MONOTONIC. */
void td_trace_communication(const char *name, double begin, double end, int64_t bytes);

TD_END_C

#endif
