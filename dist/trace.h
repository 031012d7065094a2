/* The trace, for files of dist/ that record spans after they have ended. */
#ifndef TD_DIST_TRACE_H
#define TD_DIST_TRACE_H

#include "dist/dist.h"

bool td_trace_on(void);

/* An ended span in the calling thread's lane: seconds on CLOCK_MONOTONIC. */
void td_trace_span(const char *name, double begin, double end);

/* An ended span in the communication lane: seconds on CLOCK_MONOTONIC. */
void td_trace_communication(const char *name, double begin, double end, int64_t bytes);

#endif
