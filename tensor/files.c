#include "tensor/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

td_status td_open_to_read(const char *path, FILE **file)
{
    struct stat info = { 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *file = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? fdopen(fd, "rb") : NULL;
    if (*file != NULL) {
        return TD_OK;
    }
    if (fd >= 0) {
        close(fd);
        return td_fail(TD_E_IO, "%s: %s, not a regular file", path,
                       S_ISDIR(info.st_mode) ? "a directory" : "a FIFO or device");
    }
    return td_fail(errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "%s: cannot be opened: %s", path,
                   strerror(errno));
}
