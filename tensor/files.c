#include "tensor/files.h"

#include <errno.h>
#include <fcntl.h>
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

td_status td_read_file(const char *path, const char *what, int64_t most, char **bytes, size_t *size)
{
    FILE *file;
    struct stat info;
    TD_TRY(td_open_to_read(path, &file));
    td_status status = TD_OK;
    *size = fstat(fileno(file), &info) == 0 ? (size_t)info.st_size : 0;
    *bytes = (int64_t)*size <= most ? malloc(*size + 1) : NULL;
    if ((int64_t)*size > most) {
        status = td_fail(TD_E_FORMAT,
                         "%s: %zu bytes are more than the %lld that are taken for %s; make it "
                         "smaller",
                         path, *size, (long long)most, what);
    } else if (*bytes == NULL) {
        status = td_fail(TD_E_NOMEM, "%s: no memory for %zu bytes", path, *size);
    } else if (fread(*bytes, 1, *size, file) < *size) {
        status = td_fail(TD_E_IO, "%s: reading failed, or the file became shorter", path);
        free(*bytes);
    } else {
        (*bytes)[*size] = '\0';
    }
    fclose(file);
    return status;
}
