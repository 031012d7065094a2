/* Makes folders. */
#include "tensor/system/folders.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Another process may make the folder at the same time. */
static td_status make_folder(const char *path)
{
    struct stat info;
    int failure = mkdir(path, 0777) == 0 ? 0 : errno;
    TD_CHECK(stat(path, &info) == 0, TD_E_IO, "cannot make the folder %s: %s", path,
             strerror(failure));
    return S_ISDIR(info.st_mode) ? TD_OK : td_fail(TD_E_IO, "%s is not a folder", path);
}

td_status td_make_folder_of(const char *file)
{
    char path[PATH_MAX];
    TD_CHECK(snprintf(path, sizeof path, "%s", file) < (int)sizeof path, TD_E_ARG,
             "%.60s...: the path is too long", file);
    for (char *at = path + 1; *path != '\0' && (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        TD_TRY(make_folder(path));
        *at = '/';
    }
    return TD_OK;
}

td_status td_make_folders(const char *path)
{
    TD_TRY(td_make_folder_of(path));
    return make_folder(path);
}

char *td_absolute_path(const char *path)
{
    char here[PATH_MAX], *whole = NULL;
    if (*path == '/') {
        return strdup(path);
    }
    if (getcwd(here, sizeof here) == NULL || asprintf(&whole, "%s/%s", here, path) < 0) {
        return NULL;
    }
    return whole;
}
