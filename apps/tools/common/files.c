#include "apps/tools/common/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

td_status make_folders(const char *path)
{
    char part[4096];
    if (snprintf(part, sizeof(part), "%s", path) >= (int)sizeof(part)) {
        return td_fail(TD_E_ARG, "the folder's name is too long: %s", path);
    }
    for (char *at = part;; at++) {
        if ((*at != '/' || at == part) && *at != '\0') {
            continue;
        }
        char end = *at;
        *at = '\0';
        /* Another rank may make it at the same time. */
        struct stat info;
        int failure = mkdir(part, 0777) == 0 ? 0 : errno;
        bool there = stat(part, &info) == 0;
        if (there && !S_ISDIR(info.st_mode)) {
            return td_fail(TD_E_IO, "%s is not a folder", part);
        }
        if (!there) {
            return td_fail(TD_E_IO, "cannot make the folder %s: %s", part, strerror(failure));
        }
        if (end == '\0') {
            return TD_OK;
        }
        *at = end;
    }
}

td_status check_can_save(const char *path)
{
    char folder[4096];
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder)) {
        return td_fail(TD_E_ARG, "the file's name is too long: %s", path);
    }
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof(folder), ".");
    } else {
        slash[slash == folder] = '\0'; /* "/file" lies in "/" */
    }
    if (access(folder, W_OK | X_OK) != 0) {
        return td_fail(TD_E_IO, "a checkpoint cannot be saved as %s: the folder %s: %s", path,
                       folder, strerror(errno));
    }
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return td_fail(TD_E_IO, "a checkpoint cannot be saved as %s: that is a folder", path);
    }
    return TD_OK;
}
