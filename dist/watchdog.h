/* Reports on collectives that do not come to an end: who has entered what. */
#ifndef TD_DIST_WATCHDOG_H
#define TD_DIST_WATCHDOG_H

#include "dist/backend.h"

/* "all_reduce". */
const char *td_collective_name(td_collective_kind kind);

/* "all_reduce number 17 (f32, 1048576 elements)", "broadcast number 3 (i64, 5 elements, root 0)".
 */
void td_describe_entered(const td_entered *entered, char *text, size_t size);

/* Whether two ranks may meet with these: same kind, dtype, operation, root and size. */
bool td_entered_match(const td_entered *a, const td_entered *b);

/* If not all of them match, fails with who has called what. */
td_status td_compare_entered(const td_entered *entered, int size);

/* With TANDEM_DIST_DEBUG: compares a collective with the other ranks' before it begins, by means of
 * the engine itself. */
td_status td_check_sequence(td_group *group, const td_collective *c);

/* "all_reduce number 17 (f32, 1048576 elements) timed out after 5.0 s on rank 1: ranks 0, 2 have
 * called it, rank 3 has not (its last was broadcast number 16 (...))". verb: "timed out". */
void td_stall_report(td_group *group, const td_collective *c, const char *verb, double seconds,
                     char *text, size_t size);

/* A thread of each group. It prints the stall report of a collective that has been waiting for
 * TANDEM_DIST_STALL seconds (10); tells the other ranks, through the store, what this one has
 * entered, if the engine does not; and ends what is past its deadline where the engine does not. */
td_status td_watchdog_start(td_group *group);
void td_watchdog_stop(td_group *group);

#endif
