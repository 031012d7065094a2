/* Other processes of this host. */
#ifndef TD_DIST_PROCESS_H
#define TD_DIST_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The state letter of a process ('T': stopped) and its start time. 0: no such process, or a
 * zombie. */
char td_process_state(pid_t pid, uint64_t *start_time);

/* For reports: "its process, pid 123, is stopped"; does not change text if that is not so. */
void td_process_note(pid_t pid, char *text, size_t size);

#endif
