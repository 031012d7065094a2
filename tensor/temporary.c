#include "tensor/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* FNV-1a. */
static uint32_t hash_more(uint32_t hash, const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    }
    return hash;
}

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
    return hash_more(hash_more(hash_more(2166136261u, name), boot), processes);
}

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
        errno = error;
    }
    return file;
}
