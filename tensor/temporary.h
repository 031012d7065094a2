/* Names of files that are written beside their target and then renamed over it. */
#ifndef TD_TENSOR_TEMPORARY_H
#define TD_TENSOR_TEMPORARY_H

#include <stdint.h>

/* What stands between the target's name and the rest of a temporary file's. */
#define TD_TEMPORARY_MARK ".tmp."

/* "PATH.tmp.HOST.PID", to be freed: HOST is td_host_number in eight hexadecimal digits, since hosts
 * may share a folder, and numbers of processes. NULL with td_last_error() when memory is short. */
char *td_temporary_name(const char *path);

/* A number for this host's name. */
uint32_t td_host_number(void);

#endif
