/* Other processes of this host. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Raises this process's limit of open files, if it is too low to have `each` files for each of
 * `processes` and some for itself. TD_E_IO: the system does not allow it. Call it before you wait
 * for children or connections: a connection that is never accepted waits for its whole time-out. */
td_status td_files_for(int processes, int each);

/* Seconds until the deadline, at least 1 ms: calls take 0 for a time-out that was not given. */
double td_seconds_until(double deadline);

/* Closes a descriptor, unless it is negative. */
void td_close_fd(int fd);

/* The state letter of a process ('T': stopped) and its start time. 0: no such process, or a
 * zombie. TD_PROCESS_UNKNOWN: this process cannot read /proc now, for example because it has too
 * many open files; *start_time stays. */
enum { TD_PROCESS_UNKNOWN = '?' };
char td_process_state(pid_t pid, uint64_t *start_time);
/* The parent of a process, which may be a zombie. 0: no such process. */
pid_t td_process_parent(pid_t pid, uint64_t *start_time);

/* Whether stderr accepts a write within `seconds`. It does not if it is a full pipe without a
 * reader, or a stopped terminal (Ctrl-S). */
bool td_stderr_is_read(double seconds);

/* For reports: "its process, pid 123, is stopped"; does not change text if that is not so. */
void td_process_note(pid_t pid, char *text, size_t size);
