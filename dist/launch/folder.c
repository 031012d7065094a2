/* The launcher's temporary folder, for workers' files. A launcher that is killed cannot remove its
 * folder; the next launcher does. A lock, which ends with the launcher's processes, shows whether a
 * folder's launcher lives. */
#include "dist/launch/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "tdrun-"
#define KEPT "kept" /* a file: the folder was kept for the user */

enum { FRESH_SECONDS = 60 }; /* a younger folder may not be locked yet */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

static void remove_folder(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Whether the folder belongs to this user, to no living launcher, and is not kept for the user. */
static bool is_stale(int folder)
{
    struct stat info;
    return fstat(folder, &info) == 0 && info.st_uid == geteuid() &&
           info.st_mtime + FRESH_SECONDS < time(NULL) && faccessat(folder, KEPT, F_OK, 0) != 0 &&
           flock(folder, LOCK_EX | LOCK_NB) == 0;
}

static void remove_stale(const char *root)
{
    DIR *dir = opendir(root);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof(path), "%s/%s", root, entry->d_name);
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 || length >= PATH_MAX) {
            continue;
        }
        int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder >= 0 && is_stale(folder)) {
            remove_folder(path);
        }
        if (folder >= 0) {
            close(folder);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

td_status td_launch_folder_make(td_launch_folder *folder)
{
    const char *root = getenv("TMPDIR");
    root = root != NULL && root[0] != '\0' ? root : "/tmp";
    remove_stale(root);
    snprintf(folder->path, sizeof(folder->path), "%s/" PREFIX "XXXXXX", root);
    if (mkdtemp(folder->path) == NULL) {
        return td_fail(TD_E_IO, "cannot make a folder like %s: %s", folder->path, strerror(errno));
    }
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock >= 0) {
        (void)flock(folder->lock, LOCK_EX); /* fails only if the file system has no locks */
    }
    return TD_OK;
}

void td_launch_folder_end(td_launch_folder *folder, bool keep)
{
    if (keep) {
        int file = openat(folder->lock, KEPT, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0) {
            close(file);
        }
    } else {
        remove_folder(folder->path);
    }
    if (folder->lock >= 0) {
        close(folder->lock);
    }
}
