/* Reports on collectives that do not end: which rank has entered which collective. */
#pragma once

#include "dist/comm/engine.h"

/* "sum", "average", ... */
const char *td_reduction_name(td_reduction op);
/* Which of present[count] equal `value`, as ranges: "0-2, 5"; "none" if none does. A text that is
 * too long ends in "...". */
void td_ranks_text(const bool *present, int count, bool value, char *text, size_t size);

/* Describes collective c, for comparing ranks. */
td_entered td_entered_of(const td_collective *c);

/* "all_reduce number 17 (f32, 1048576 elements)", "broadcast number 3 (i64, 5 elements, root 0)".
 */
void td_describe_entered(const td_entered *entered, char *text, size_t size);

/* Whether two ranks' collectives match: same kind, dtype, operation, root and size. */
bool td_entered_match(const td_entered *a, const td_entered *b);

/* Fails unless the message that has arrived, as its sender describes it, is the one that c receives
 * on `rank`. */
td_status td_compare_message(const td_entered *sent, const td_collective *c, int rank);

/* Fails unless all match; the message says which rank has called what. */
td_status td_compare_entered(const td_entered *entered, int size);

/* "all_reduce number 17 (f32, 1048576 elements) timed out after 5.0 s on rank 1: ranks 0, 2 have
 * called it, rank 3 has not (its last was broadcast number 16 (...))". verb: "timed out". */
void td_stall_report(td_group *group, const td_collective *c, const char *verb, double seconds,
                     char *text, size_t size);

/* Starts and ends the group's watchdog, a thread. The watchdog prints the stall report of a
 * collective that has waited for TANDEM_DIST_STALL seconds (10), aborts collectives at their
 * deadlines, and asks GPUs' engines for failures. */
td_status td_watchdog_start(td_group *group);
/* For the watchdog's thread: seconds for which this process has stood still (Ctrl-Z, a suspended
 * machine) since something began. They do not count as waiting. */
double td_watchdog_stood(const td_group *group, double begun);
void td_watchdog_stop(td_group *group);
