/* The launcher's temporary folder, for workers' files. */
#include "dist/launch/launcher.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

td_status td_launch_folder_make(char path[TD_LAUNCH_PATH_BYTES])
{
    const char *root = getenv("TMPDIR");
    snprintf(path, TD_LAUNCH_PATH_BYTES, "%s/tdrun-XXXXXX",
             root != NULL && root[0] != '\0' ? root : "/tmp");
    return mkdtemp(path) != NULL
               ? TD_OK
               : td_fail(TD_E_IO, "cannot make a folder like %s: %s", path, strerror(errno));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info, (void)type, (void)place;
    return remove(path);
}

bool td_launch_folder_remove(const char *path)
{
    return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0;
}
