#include "apps/common/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
        struct stat info;
        bool there = stat(part, &info) == 0;
        if (there && !S_ISDIR(info.st_mode)) {
            return td_fail(TD_E_IO, "%s is not a folder", part);
        }
        if (!there && mkdir(part, 0777) != 0) {
            return td_fail(TD_E_IO, "cannot make the folder %s: %s", part, strerror(errno));
        }
        if (end == '\0') {
            return TD_OK;
        }
        *at = end;
    }
}
