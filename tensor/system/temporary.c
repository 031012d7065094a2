/* Files that are written under another name, and renamed when they are complete. */
#include "tensor/system/temporary.h"

#include "tensor/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Two containers may have one host name and number their processes alike. Where there is no /proc,
 * the name must do. */
uint32_t td_host_number(void)
{
    char name[256] = "", boot[64] = "", processes[64] = "";
    if (gethostname(name, sizeof name - 1) != 0) {
        name[0] = '\0';
    }
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, boot, sizeof boot - 1);
        boot[got > 0 ? got : 0] = '\0';
        close(fd);
    }
    if (readlink("/proc/self/ns/pid", processes, sizeof processes - 1) < 0) {
        processes[0] = '\0';
    }
    uint64_t hash = td_hash_text(td_hash_text(TD_HASH_BEGIN, name), boot);
    return (uint32_t)td_hash_text(hash, processes);
}

/* ---- one file ---- */

static int open_above_streams(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return above;
}

int td_temporary_open(const char *path, char **name)
{
    uint64_t random;
    size_t size = strlen(path) + 64;
    *name = malloc(size);
    if (*name == NULL || getentropy(&random, sizeof random) != 0) {
        free(*name);
        *name = NULL;
        return -1;
    }
    snprintf(*name, size, "%s" TD_TEMPORARY_MARK "%08" PRIx32 ".%ld.%016" PRIx64, path,
             td_host_number(), (long)getpid(), random);
    int fd = open_above_streams(*name);
    if (fd < 0) {
        int error = errno;
        free(*name);
        *name = NULL;
        errno = error;
    }
    return fd;
}

FILE *td_temporary_file(const char *path, char **name)
{
    int fd = td_temporary_open(path, name);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && file == NULL) {
        int error = errno;
        close(fd);
        unlink(*name);
        free(*name);
        *name = NULL;
        errno = error;
    }
    return file;
}

const char *td_temporary_end(FILE *file, char *name, const char *path)
{
    const char *failed = NULL;
    int error = 0;
    if (path != NULL && (ferror(file) || fflush(file) != 0)) {
        failed = "writing";
        error = errno;
    } else if (path != NULL && fsync(fileno(file)) != 0) {
        failed = "syncing";
        error = errno;
    }
    if (fclose(file) != 0 && path != NULL && failed == NULL) {
        failed = "closing";
        error = errno;
    }
    if (path != NULL && failed == NULL && rename(name, path) != 0) {
        failed = "renaming";
        error = errno;
    }
    if (path == NULL || failed != NULL) {
        unlink(name);
    }
    free(name);
    errno = error;
    return failed;
}

static const char *what_to_do(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "make room on that disk or save elsewhere";
    case EFBIG:
        return "raise the limit on the size of files (ulimit -f) or save elsewhere";
    case ENOENT:
    case ENOTDIR:
        return "create the folder first, or correct the path";
    case EROFS:
    case EACCES:
    case EPERM:
        return "make the folder writable or save elsewhere";
    default:
        return "check the disk, or save elsewhere";
    }
}

td_status td_temporary_failed(const char *path, int64_t bytes, const char *what)
{
    int error = errno;
    return td_fail(TD_E_IO,
                   "cannot save '%s' (%.1f MiB): %s: %s; %s. What was there before is unchanged",
                   path, (double)bytes / 1048576.0, what, strerror(error), what_to_do(error));
}

/* ---- its folder ---- */

/* The folder of a path, with what comes behind its name; NULL: it may be writable but not readable.
 */
static DIR *open_folder(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    char *folder = strndup(path, (size_t)(*name - path));
    DIR *opened = folder != NULL ? opendir(*folder != '\0' ? folder : ".") : NULL;
    free(folder);
    return opened;
}

/* Whether nobody writes this file, "NAME.tmp.HOST.PID.RANDOM", any more: no such process runs, or,
 * if it was another host's, nothing was written for an hour. `mark` is what stands behind ".tmp.".
 */
static bool is_abandoned(int folder, const char *name, const char *mark)
{
    enum { OLD = 3600 /* seconds */ };
    uint32_t host;
    long pid;
    int end = -1;
    if (sscanf(mark, "%8" SCNx32 ".%ld.%*16[0-9a-f]%n", &host, &pid, &end) != 2 || end < 0 ||
        mark[end] != '\0' || pid <= 0) {
        return false; /* no file of ours */
    }
    if (host == td_host_number()) {
        return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    }
    struct stat info;
    return fstatat(folder, name, &info, 0) == 0 && info.st_mtime + OLD < time(NULL);
}

void td_temporary_remove_abandoned(const char *path)
{
    const char *name;
    DIR *folder = open_folder(path, &name);
    size_t length = strlen(name), mark = strlen(TD_TEMPORARY_MARK);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, name, length) == 0 &&
            strncmp(entry->d_name + length, TD_TEMPORARY_MARK, mark) == 0 &&
            is_abandoned(dirfd(folder), entry->d_name, entry->d_name + length + mark)) {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

bool td_temporary_sync_folder(const char *path)
{
    const char *name;
    DIR *folder = open_folder(path, &name);
    if (folder == NULL) {
        return true;
    }
    bool synced = fsync(dirfd(folder)) == 0 || errno == EINVAL || errno == ENOTSUP;
    int error = errno;
    closedir(folder);
    errno = error;
    return synced;
}
