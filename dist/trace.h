/* The trace, for those in dist/ who know of spans that no code of theirs encloses. */
#ifndef TD_DIST_TRACE_H
#define TD_DIST_TRACE_H

#include "dist/dist.h"

bool td_trace_on(void);

/* A span of the calling thread's lane that is over: seconds on CLOCK_MONOTONIC. */
void td_trace_span(const char *name, double begin, double end);

/* A span of the communication lane: seconds on CLOCK_MONOTONIC. */
void td_trace_communication(const char *name, double begin, double end, int64_t bytes);

#endif
