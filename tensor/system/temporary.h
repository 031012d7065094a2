/* Files that are written next to their target and then renamed over it: whatever happens on the
 * way, even the loss of power, the target is the old file or the new one. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What stands between the target's name and the rest of a temporary file's name. */
#define TD_TEMPORARY_MARK ".tmp."

/* Makes a file next to the target, which is `path`, or the file that `path` leads to as a symbolic
 * link, and opens it for writing. The target is an absolute path from here on: the program may
 * change its folder. The file gets the mode of the target that it is to replace and, where that is
 * allowed, its owner and group; a new one has the usual mode. Removes what processes that were
 * killed have left next to the target: a job that is killed often must not fill the disk.
 *
 * The file's name, *name, to be freed, is "TARGET.tmp.HOST.PID.RANDOM": HOST is td_host_number in
 * eight hexadecimal digits, RANDOM has sixteen. Nobody can put a link to another file there
 * beforehand. The descriptor is above 2: text for a closed standard stream does not get into the
 * file. -1 with errno; *name is NULL. EISDIR, ESPIPE: the target is a folder, a device or a pipe;
 * EACCES: it is read-only.
 *
 * A path /proc/self/fd/N of a file without a name (memfd_create) is written in its place; *name is
 * NULL. */
int td_temporary_open(const char *path, char **name);
FILE *td_temporary_file(const char *path, char **name); /* the same as a stream; NULL with errno */

/* td_temporary_file with the status of td_temporary_failed. bytes: of the whole file, for the
 * message; 0: unknown. td_temporary_end takes *file and *name. */
td_status td_temporary_begin(const char *path, int64_t bytes, FILE **file, char **name);

/* written TD_OK: syncs the file to the disk, closes it, renames it to its target, and syncs the
 * folder, which makes the renaming last. Otherwise closes and removes the file, and returns
 * `written`. Frees the name. TD_E_IO, as from td_temporary_failed: the file is removed, and the
 * target is unchanged unless syncing the folder failed. */
td_status td_temporary_end(FILE *file, char *name, const char *path, int64_t bytes,
                           td_status written);

/* Renames a closed file to its target, without syncing; false with errno. */
bool td_temporary_rename(const char *name);

/* TD_E_IO: saving `path`, of so many bytes, failed in a call (`what`) that has set errno; the
 * message says what to do. */
td_status td_temporary_failed(const char *path, int64_t bytes, const char *what);

/* A number for the processes that can see each other's numbers: those of one host, since it was
 * started, in one container. */
uint32_t td_host_number(void);
