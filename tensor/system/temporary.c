/* Files that are written under another name, and renamed when they are complete. */
#include "tensor/system/temporary.h"

#include "tensor/storage.h"
#include "tensor/system/folders.h"
#include "tensor/system/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
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

/* Removes what processes that were killed have left next to a target. */
static void remove_abandoned(const char *path)
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

/* false with errno; true also where a folder cannot be opened or synced at all. */
static bool sync_folder(const char *path)
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

/* ---- the target ---- */

/* What a link at `path` leads to. */
static char *beside(const char *path, const char *link)
{
    char *whole = NULL;
    int folder = (int)(strrchr(path, '/') - path);
    return *link == '/'                                           ? strdup(link)
           : asprintf(&whole, "%.*s/%s", folder, path, link) >= 0 ? whole
                                                                  : NULL;
}

/* The absolute path, to be freed, of a file that is there or not: symbolic links at its end are
 * followed, those of its folders stay. NULL with errno. */
static char *find_target(const char *path)
{
    enum { MOST_LINKS = 40 }; /* as the kernel has it */
    char link[PATH_MAX], *at = td_absolute_path(path);
    for (int i = 0; at != NULL; i++) {
        ssize_t length = readlink(at, link, sizeof link - 1);
        if (length < 0) {
            return at; /* no link */
        }
        link[length] = '\0';
        char *next = i < MOST_LINKS ? beside(at, link) : NULL;
        errno = i < MOST_LINKS ? errno : ELOOP;
        free(at);
        at = next;
    }
    return NULL;
}

/* What may be replaced: a file that may be written, or nothing. */
static bool look_at_target(const char *path, struct stat *old, bool *replaces)
{
    *replaces =
        stat(path, old) == 0; /* a link in /tmp by a stranger is not followed by the kernel */
    if (!*replaces) {
        return errno == ENOENT;
    }
    if (!S_ISREG(old->st_mode)) {
        errno = S_ISDIR(old->st_mode) ? EISDIR : ESPIPE;
        return false;
    }
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* Gives a file the owner and the mode of the one that it will replace. Where the owner cannot stay,
 * the file does not run as another user; where the group cannot, another group may do no more than
 * everybody. */
static void take_mode(int fd, const struct stat *old)
{
    struct stat now;
    mode_t mode = old->st_mode & 07777;
    if (fstat(fd, &now) == 0 && (now.st_uid != old->st_uid || now.st_gid != old->st_gid) &&
        fchown(fd, old->st_uid, old->st_gid) != 0) {
        mode &= 0777;
        if (now.st_gid != old->st_gid && fchown(fd, (uid_t)-1, old->st_gid) != 0) {
            mode = (mode & 0707) | (mode & 07) << 3;
        }
    }
    (void)fchmod(fd, mode); /* some file systems have no modes */
}

/* ---- one file ---- */

static int open_above_streams(const char *name, mode_t mode)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return above;
}

/* Opens the file of a target, and names it. old: what it replaces, or NULL. */
static int open_beside(const char *target, const struct stat *old, char **name)
{
    uint64_t random;
    if (getentropy(&random, sizeof random) != 0 ||
        asprintf(name, "%s" TD_TEMPORARY_MARK "%08" PRIx32 ".%ld.%016" PRIx64, target,
                 td_host_number(), (long)getpid(), random) < 0) {
        *name = NULL;
        return -1;
    }
    int fd = open_above_streams(*name, old != NULL ? 0600 : 0666);
    if (fd < 0) {
        int error = errno;
        free(*name);
        *name = NULL;
        errno = error;
    } else if (old != NULL) {
        take_mode(fd, old);
    }
    return fd;
}

/* A file in memory has no name, and no other file takes its place. */
static bool is_nameless(const char *path)
{
    struct stat info;
    return strncmp(path, "/proc/self/fd/", 14) == 0 && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode) && info.st_nlink == 0;
}

int td_temporary_open(const char *path, char **name)
{
    struct stat old;
    bool replaces;
    *name = NULL;
    if (is_nameless(path)) {
        return open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    }
    char *target = look_at_target(path, &old, &replaces) ? find_target(path) : NULL;
    if (target == NULL) {
        return -1;
    }
    remove_abandoned(target);
    int fd = open_beside(target, replaces ? &old : NULL, name), error = errno;
    free(target);
    errno = error;
    return fd;
}

FILE *td_temporary_file(const char *path, char **name)
{
    int fd = td_temporary_open(path, name);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && file == NULL) {
        int error = errno;
        close(fd);
        if (*name != NULL) {
            unlink(*name);
        }
        free(*name);
        *name = NULL;
        errno = error;
    }
    return file;
}

/* ---- its end ---- */

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
        return "make the folder writable, and a file that is there, or save elsewhere";
    case ENAMETOOLONG:
        return "give a shorter name: while the file is written, its name has about 40 letters more";
    case ELOOP:
        return "correct the symbolic links, which lead in a circle";
    case EBUSY:
        return "mount the file's folder, not the file alone: such a file cannot be replaced";
    case EISDIR:
    case ESPIPE:
        return "give the name of a file, not of a folder, a device or a pipe";
    default:
        return "check the disk, or save elsewhere";
    }
}

td_status td_temporary_failed(const char *path, int64_t bytes, const char *what)
{
    int error = errno;
    return td_fail(TD_E_IO, "cannot save '%s' (%s): %s: %s; %s. What was there before is unchanged",
                   path, bytes > 0 ? td_describe_bytes((size_t)bytes) : "of unknown size", what,
                   strerror(error), what_to_do(error));
}

/* The target of such a name, to be freed. */
static char *temporary_target_of(const char *name)
{
    size_t length = strlen(name), mark = strlen(TD_TEMPORARY_MARK);
    while (strncmp(name + length, TD_TEMPORARY_MARK, mark) != 0) {
        length--; /* the mark is there, and the last one is ours */
    }
    return strndup(name, length);
}

bool td_temporary_rename(const char *name)
{
    char *target = temporary_target_of(name);
    bool renamed = target != NULL && rename(name, target) == 0;
    int error = errno;
    free(target);
    errno = error;
    return renamed;
}

/* NULL, or what failed, with errno. */
static const char *put_in_place(FILE *file, const char *name)
{
    const char *failed = ferror(file) || fflush(file) != 0 ? "writing"
                         : fsync(fileno(file)) != 0        ? "syncing"
                                                           : NULL;
    int error = errno;
    if (fclose(file) != 0 && failed == NULL) {
        failed = "closing";
        error = errno;
    }
    if (failed == NULL && name != NULL && !td_temporary_rename(name)) {
        failed = "renaming";
        error = errno;
    }
    errno = error;
    return failed;
}

td_status td_temporary_begin(const char *path, int64_t bytes, FILE **file, char **name)
{
    *file = td_temporary_file(path, name);
    return *file != NULL ? TD_OK : td_temporary_failed(path, bytes, "creating a file beside it");
}

td_status td_temporary_end(FILE *file, char *name, const char *path, int64_t bytes,
                           td_status written)
{
    td_status status = written;
    const char *failed = NULL;
    if (written != TD_OK) {
        fclose(file);
    } else if ((failed = put_in_place(file, name)) != NULL) {
        status = td_temporary_failed(path, bytes, failed);
    } else if (name != NULL && !sync_folder(name)) {
        status = td_fail(TD_E_IO, "'%s' is saved, but syncing its folder failed: %s", path,
                         strerror(errno));
    }
    if (name != NULL && (written != TD_OK || failed != NULL)) {
        unlink(name);
    }
    free(name);
    return status;
}
