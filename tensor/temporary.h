/* Files that are written next to their target and then renamed over it. */
#ifndef TD_TENSOR_TEMPORARY_H
#define TD_TENSOR_TEMPORARY_H

#include <stdint.h>
#include <stdio.h>

/* What stands between the target's name and the rest of a temporary file's name. */
#define TD_TEMPORARY_MARK ".tmp."

/* Makes a file next to `path` and opens it for writing. Its name, *name, to be freed, is
 * "PATH.tmp.HOST.PID.RANDOM": HOST is td_host_number in eight hexadecimal digits, RANDOM has
 * sixteen. Nobody can put a link to another file there beforehand. The descriptor is above 2: text
 * for a closed standard stream does not get into the file. -1 with errno; *name is NULL. */
int td_temporary_open(const char *path, char **name);
FILE *td_temporary_file(const char *path, char **name); /* the same as a stream; NULL with errno */

/* A number for the processes that can see each other's numbers: those of one host, since it was
 * started, in one container. */
uint32_t td_host_number(void);

#endif
