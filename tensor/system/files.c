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

const char *td_file_kind(const void *bytes, size_t size)
{
    static const struct {
        size_t at, size;
        const char *magic, *kind;
    } table[] = {
        { 0, 3, "\xff\xd8\xff", "a JPEG image" },
        { 0, 4, "\x89PNG", "a PNG image" },
        { 0, 4, "GIF8", "a GIF image" },
        { 0, 2, "BM", "a BMP image" },
        { 0, 4, "II*\0", "a TIFF image" },
        { 0, 4, "MM\0*", "a TIFF image" },
        { 8, 4, "WEBP", "a WebP image" },
        { 4, 4, "ftyp", "a HEIC or AVIF image, or a video" },
        { 0, 4, "PK\3\4", "a zip archive, as torch.save writes it (.pt, .pth)" },
        { 0, 2, "\x1f\x8b", "a gzip archive" },
        { 0, 6, "\3757zXZ\0", "an xz archive" },
        { 257, 5, "ustar", "a tar archive" },
        { 0, 4, "GGUF", "a GGUF model" },
        { 0, 4, "\x89HDF", "an HDF5 file, as Keras writes it" },
        { 0, 6, "\x93NUMPY", "a NumPy array" },
        { 0, 4, "\177ELF", "a program" },
        { 0, 4, "%PDF", "a PDF" },
    };
    const unsigned char *b = bytes;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (size >= table[i].at + table[i].size &&
            memcmp(b + table[i].at, table[i].magic, table[i].size) == 0) {
            return table[i].kind;
        }
    }
    if (size >= 2 && b[0] == 0x80 && b[1] >= 2 && b[1] <= 5) { /* the protocol's number */
        return "a pickle, as Python writes it";
    }
    /* The first fields of its protobuf: the format's version, and the name of its producer. */
    bool onnx = size >= 3 && b[0] == 0x08 && b[1] >= 3 && b[1] < 32 && b[2] == 0x12;
    return onnx ? "an ONNX model" : NULL;
}

/* What is too long is often another kind of file. */
static td_status too_long(FILE *file, const char *path, int64_t size, const char *what,
                          int64_t most)
{
    unsigned char first[512] = { 0 };
    const char *kind = td_file_kind(first, fread(first, 1, sizeof first, file));
    return td_fail(TD_E_FORMAT,
                   "%s: %lld bytes%s%s%s are more than the %lld that are taken for %s; make it "
                   "smaller",
                   path, (long long)size, kind != NULL ? " (" : "", kind != NULL ? kind : "",
                   kind != NULL ? ")" : "", (long long)most, what);
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
        status = too_long(file, path, info.st_size, what, most);
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
