/* Makes folders. */
#include "tensor/system/folders.h"

#include <dlfcn.h>
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

bool td_shared_file(const char *name, const char *source, char path[TD_SHARED_PATH])
{
    static const char *const above[] = { "..", "../..", "../../.." };
    char program[TD_SHARED_PATH] = "", library[TD_SHARED_PATH] = "";
    char *const places[] = { program, library };
    Dl_info own;
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) {
        program[0] = '\0';
    }
    if (dladdr(&above, &own) != 0 && own.dli_fname[0] == '/') {
        snprintf(library, sizeof library, "%s", own.dli_fname);
    }
    for (size_t i = 0; i < 6; i++) {
        char *slash = strrchr(places[i / 3], '/');
        int length = slash != NULL ? (int)(slash - places[i / 3]) : 0;
        for (int installed = 1; installed >= 0 && length > 0; installed--) {
            int written =
                snprintf(path, TD_SHARED_PATH, "%.*s/%s/%s%s", length, places[i / 3], above[i % 3],
                         installed ? "share/tandem/" : "", installed ? name : source);
            if (written < TD_SHARED_PATH && access(path, R_OK) == 0) {
                return true;
            }
        }
    }
    return false;
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
