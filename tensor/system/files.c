/* Opens and reads files that a user names. */
#include "tensor/system/files.h"

#include "tensor/extend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
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

td_status td_file_read(FILE *file, int64_t offset, void *to, size_t size)
{
    for (char *at = to; size > 0;) {
        ssize_t got = pread(fileno(file), at, size, offset);
        TD_CHECK(got != 0 && (got >= 0 || errno == EINTR), TD_E_IO, "reading failed: %s",
                 got == 0 ? "the file became shorter" : strerror(errno));
        got = got < 0 ? 0 : got;
        at += got;
        offset += got;
        size -= (size_t)got;
    }
    return TD_OK;
}

td_status td_read_file(const char *path, const char *what, int64_t most, char **bytes, size_t *size)
{
    FILE *file;
    struct stat info;
    TD_TRY(td_open_to_read(path, &file));
    td_status status = TD_OK;
    bool known = fstat(fileno(file), &info) == 0, fits = known && info.st_size <= most;
    *size = fits ? (size_t)info.st_size : 0;
    *bytes = fits ? malloc(*size + 1) : NULL;
    if (!known) {
        status = td_fail(TD_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    } else if (!fits) {
        status = td_fail(TD_E_FORMAT,
                         "%s: %lld bytes are more than the %lld that are taken for %s; make it "
                         "smaller",
                         path, (long long)info.st_size, (long long)most, what);
    } else if (*bytes == NULL) {
        status = td_fail(TD_E_NOMEM, "%s: no memory for %zu bytes", path, *size);
    } else if ((status = td_file_read(file, 0, *bytes, *size)) != TD_OK) {
        td_fail_context(status, "%s", path);
        free(*bytes);
    } else {
        (*bytes)[*size] = '\0';
    }
    fclose(file);
    return status;
}
