/* Writing safetensors files, whole or not at all: into a temporary file beside the target, synced
 * to the disk, then renamed over it. Whatever happens on the way, even the loss of power, the
 * target is the old file or the new one. */
#include "nn/io/safetensors_internal.h"
#include "tensor/extend.h"
#include "tensor/temporary.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- the header ---- */

/* The order of the data: wide elements first, so that all lie aligned. */
static void order_by_width(const td_safetensors_entry *entries, int count, int *order)
{
    int n = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (int i = 0; i < count; i++) {
            if (td_dtype_size(entries[i].dtype) == width) {
                order[n++] = i;
            }
        }
    }
}

static bool add_number(cJSON *array, int64_t value)
{
    return cJSON_AddItemToArray(array, cJSON_CreateNumber((double)value));
}

static bool add_entry(cJSON *root, const td_safetensors_entry *entry, int64_t begin)
{
    cJSON *item = cJSON_AddObjectToObject(root, entry->name);
    bool made =
        cJSON_AddStringToObject(item, "dtype", td_safetensors_dtype_name(entry->dtype)) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int i = 0; i < entry->shape.ndim; i++) {
        made = made && add_number(shape, entry->shape.dim[i]);
    }
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    return made && add_number(offsets, begin) && add_number(offsets, begin + (int64_t)entry->bytes);
}

/* The header's text, to be freed by cJSON_free. NULL when memory is short. */
static char *make_header(const td_safetensors_entry *entries, int count, const int *order,
                         const td_metadata *metadata, int metadata_count)
{
    cJSON *root = cJSON_CreateObject();
    bool made = root != NULL;
    if (metadata_count > 0) {
        cJSON *strings = cJSON_AddObjectToObject(root, TD_SAFETENSORS_METADATA);
        for (int i = 0; made && i < metadata_count; i++) {
            made = cJSON_AddStringToObject(strings, metadata[i].key, metadata[i].value) != NULL;
        }
    }
    int64_t begin = 0;
    for (int i = 0; made && i < count; i++) {
        made = add_entry(root, &entries[order[i]], begin);
        begin += (int64_t)entries[order[i]].bytes;
    }
    char *text = made ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Two equal names would make a file that cannot be read. */
static td_status check_distinct(const char **names, int count, const char *what)
{
    qsort(names, (size_t)count, sizeof *names, compare_strings);
    for (int i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return td_fail(TD_E_ARG, "two %s are called '%s'; give each a name of its own", what,
                           names[i]);
        }
    }
    return TD_OK;
}

static td_status check_names(const td_safetensors_entry *entries, int count,
                             const td_metadata *metadata, int metadata_count)
{
    size_t room = (size_t)(count > metadata_count ? count : metadata_count) + 1;
    const char **names = calloc(room, sizeof *names);
    if (names == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to write a file of %d tensors", count);
    }
    td_status status = TD_OK;
    for (int i = 0; i < count; i++) {
        names[i] = entries[i].name;
        if (strcmp(names[i], TD_SAFETENSORS_METADATA) == 0) {
            status = td_fail(TD_E_ARG, "no tensor can be called '%s'", names[i]);
        }
    }
    if (status == TD_OK) {
        status = check_distinct(names, count, "tensors");
    }
    for (int i = 0; i < metadata_count; i++) {
        names[i] = metadata[i].key;
    }
    if (status == TD_OK) {
        status = check_distinct(names, metadata_count, "metadata values");
    }
    free(names);
    return status;
}

/* ---- writing ---- */

static bool write_all(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t written = write(fd, at, size);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return false;
        }
        at += written;
        size -= (size_t)written;
    }
    return true;
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

/* Where a writing stands, for its message: the call that failed and errno. */
typedef struct writing {
    const char *path;
    char *temporary, *folder;
    int64_t bytes;
} writing;

static td_status io_failure(const writing *w, const char *what)
{
    int error = errno;
    return td_fail(TD_E_IO,
                   "cannot save '%s' (%.1f MiB): %s: %s; %s. What was there before is "
                   "unchanged",
                   w->path, (double)w->bytes / 1048576.0, what, strerror(error), what_to_do(error));
}

static td_status write_content(const writing *w, int fd, const char *header,
                               const td_safetensors_entry *entries, int count, const int *order,
                               td_safetensors_fetch fetch, void *user)
{
    size_t length = strlen(header); /* padded with blanks, so that the data lie aligned */
    size_t padding = (8 - length % 8) % 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));
    }
    if (!write_all(fd, prefix, sizeof prefix) || !write_all(fd, header, length) ||
        !write_all(fd, "        ", padding)) {
        return io_failure(w, "writing");
    }
    for (int i = 0; i < count; i++) {
        const void *data = fetch(order[i], user);
        if (data == NULL) {
            return td_fail_context(TD_E_NOMEM, "saving '%s' to '%s'", entries[order[i]].name,
                                   w->path);
        }
        if (!write_all(fd, data, entries[order[i]].bytes)) {
            return io_failure(w, "writing");
        }
    }
    return TD_OK;
}

/* Makes the new name last: a folder is data of its own. Some file systems cannot sync one. */
static td_status sync_folder(const writing *w)
{
    int fd = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return TD_OK; /* a folder may be writable but not readable; the file itself is synced */
    }
    int result = fsync(fd);
    int error = errno;
    close(fd);
    if (result != 0 && error != EINVAL && error != ENOTSUP) {
        return td_fail(TD_E_IO, "'%s' is saved, but syncing its folder failed: %s", w->path,
                       strerror(error));
    }
    return TD_OK;
}

static bool name_folder(writing *w)
{
    size_t size = strlen(w->path) + 2;
    w->folder = malloc(size);
    if (w->folder == NULL) {
        return false;
    }
    const char *slash = strrchr(w->path, '/');
    if (slash == NULL) {
        snprintf(w->folder, size, ".");
    } else {
        size_t length = slash == w->path ? 1 : (size_t)(slash - w->path);
        snprintf(w->folder, size, "%.*s", (int)length, w->path);
    }
    return true;
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

/* A process that was killed while it saved has left a part of a file here; it is removed: a run
 * that is killed often must not fill the disk. */
static void remove_leftovers(const writing *w)
{
    const char *slash = strrchr(w->path, '/'), *name = slash != NULL ? slash + 1 : w->path;
    size_t length = strlen(name), mark = strlen(TD_TEMPORARY_MARK);
    DIR *folder = opendir(w->folder);
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

static td_status write_file(writing *w, const char *header, const td_safetensors_entry *entries,
                            int count, const int *order, td_safetensors_fetch fetch, void *user)
{
    remove_leftovers(w);
    int fd = td_temporary_open(w->path, &w->temporary);
    if (fd < 0) {
        return io_failure(w, "creating a file beside it");
    }
    td_status status = write_content(w, fd, header, entries, count, order, fetch, user);
    if (status == TD_OK && fsync(fd) != 0) {
        status = io_failure(w, "syncing");
    }
    if (close(fd) != 0 && status == TD_OK) {
        status = io_failure(w, "closing");
    }
    if (status == TD_OK && rename(w->temporary, w->path) != 0) {
        status = io_failure(w, "renaming");
    }
    if (status != TD_OK) {
        unlink(w->temporary);
        return status;
    }
    return sync_folder(w);
}

td_status td_safetensors_write_from(const char *path, const td_safetensors_entry *entries,
                                    int count, const td_metadata *metadata, int metadata_count,
                                    td_safetensors_fetch fetch, void *user)
{
    TD_TRY(check_names(entries, count, metadata, metadata_count));
    writing w = { .path = path };
    int *order = calloc((size_t)count + 1, sizeof *order);
    char *header = NULL;
    bool made = order != NULL && name_folder(&w);
    if (made) {
        order_by_width(entries, count, order);
        for (int i = 0; i < count; i++) {
            w.bytes += (int64_t)entries[i].bytes;
        }
        header = make_header(entries, count, order, metadata, metadata_count);
    }
    td_status status =
        header != NULL ? write_file(&w, header, entries, count, order, fetch, user)
                       : td_fail(TD_E_NOMEM, "no memory to save %d tensors to '%s'", count, path);
    cJSON_free(header);
    free(order);
    free(w.temporary);
    free(w.folder);
    return status;
}

static const void *fetch_entry(int i, void *user)
{
    const td_safetensors_entry *entries = user;
    return entries[i].bytes > 0 ? entries[i].data : "";
}

td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count)
{
    return td_safetensors_write_from(path, entries, count, metadata, metadata_count, fetch_entry,
                                     (void *)(uintptr_t)entries);
}
