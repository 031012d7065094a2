/* A trace: a timeline of what each rank computed and sent. Open the file with chrome://tracing or
 * ui.perfetto.dev. */
#pragma once

#include "dist/comm/collectives.h"
#include "dist/dist.h"

TD_BEGIN_C

/* Starts a trace in Chrome's JSON format. Each rank appears as a process with one lane for each
 * thread and one for communication. path NULL: no trace. TD_E_IO: the file cannot be written.
 *
 * In a world of several ranks, rank r writes to path with ".rank<r>" before the suffix, and
 * td_trace_close on rank 0 joins these files into path. td_trace_open and td_trace_close are then
 * collective over the world, and if one rank cannot open its file, td_trace_open fails on all. */
td_status td_trace_open(const char *path);
/* Begins and ends a span on the calling thread. Spans nest. Without a trace both do nothing. */
void td_trace_begin(const char *name);
void td_trace_end(void);
td_status td_trace_close(void);
/* Joins what all ranks have written so far into path, while they go on: on rank 0, from any thread,
 * but not during td_trace_close. In a world of one, and without a trace, it does nothing. */
td_status td_trace_so_far(void);

/* ---- spans that have ended already ---- */

bool td_trace_on(void); /* whether a trace is open */

/* Adds a span to the calling thread's lane. Times are seconds on CLOCK_MONOTONIC. */
void td_trace_span(const char *name, double begin, double end);

/* Adds a span to the communication lane: a transfer of `bytes` bytes. */
void td_trace_communication(const char *name, double begin, double end, int64_t bytes);

TD_END_C
