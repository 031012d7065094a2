/* Files that are written next to their target and then renamed over it: whatever happens on the
 * way, even the loss of power, the target is the old file or the new one. */
#ifndef TD_TENSOR_TEMPORARY_H
#define TD_TENSOR_TEMPORARY_H

#include "tensor/error.h"

#include <stdbool.h>
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

/* Syncs the file to the disk, closes it and renames it to `path`; path NULL: closes and removes it.
 * Frees the name. Returns NULL, or what failed ("writing", "syncing", "closing", "renaming") with
 * errno; then the file is removed and the target is unchanged. */
const char *td_temporary_end(FILE *file, char *name, const char *path);

/* TD_E_IO: saving `path`, of so many bytes, failed in a call (`what`) that has set errno; the
 * message says what to do. */
td_status td_temporary_failed(const char *path, int64_t bytes, const char *what);

/* Removes what processes that were killed have left next to `path`: a job that is killed often must
 * not fill the disk. */
void td_temporary_remove_abandoned(const char *path);

/* Syncs the folder of a path, which makes a renaming last. false with errno; true also where a
 * folder cannot be opened or synced at all. */
bool td_temporary_sync_folder(const char *path);

/* A number for the processes that can see each other's numbers: those of one host, since it was
 * started, in one container. */
uint32_t td_host_number(void);

#endif
