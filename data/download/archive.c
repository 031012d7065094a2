/* Unpacking a .tar.gz, by libarchive. */
#ifdef TD_HAVE_ARCHIVE

#include "data/download/download.h"
#include "data/parse.h"
#include "tensor/folders.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MOST_EXTRA = 1 << 20 /* bytes of a small file beside the data */, MOST_FILES = 16 };

/* The files that a set may consist of, and how long each may be. */
typedef struct wanted {
    const char *name[MOST_FILES];
    int64_t most[MOST_FILES];
    bool found[MOST_FILES];
    int needed; /* the first so many must be there */
    int count;
} wanted;

static void want(wanted *w, const char *const *names, int64_t most)
{
    for (; *names != NULL; names++) {
        w->name[w->count] = *names;
        w->most[w->count++] = most;
    }
}

/* Which wanted file an entry is: exactly subfolder/name, a regular file; -1: none. */
static int which(const wanted *w, const char *subfolder, struct archive_entry *entry)
{
    const char *path = archive_entry_pathname(entry);
    if (path == NULL || archive_entry_filetype(entry) != AE_IFREG ||
        archive_entry_hardlink(entry) != NULL) {
        return -1;
    }
    path += strncmp(path, "./", 2) == 0 ? 2 : 0;
    size_t prefix = strlen(subfolder);
    if (strncmp(path, subfolder, prefix) != 0 || path[prefix] != '/') {
        return -1;
    }
    for (int i = 0; i < w->count; i++) {
        if (strcmp(path + prefix + 1, w->name[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static td_status damaged(struct archive *from, const char *path)
{
    const char *why = archive_error_string(from);
    return td_fail(TD_E_FORMAT, "%s is not a whole .tar.gz: %s. Delete it and download it again",
                   path, why != NULL ? why : "it cannot be read");
}

static td_status copy_data(struct archive *from, const char *archive, FILE *out, const char *path,
                           int64_t most)
{
    char bytes[1 << 16];
    int64_t total = 0;
    for (;;) {
        la_ssize_t got = archive_read_data(from, bytes, sizeof bytes);
        if (got < 0) {
            return damaged(from, archive);
        }
        if (got == 0) {
            return TD_OK;
        }
        total += got;
        if (total > most) {
            return td_fail(TD_E_FORMAT, "%s: %s is longer than the %lld bytes that it may have",
                           archive, path, (long long)most);
        }
        if (fwrite(bytes, 1, (size_t)got, out) != (size_t)got) {
            return td_fail(TD_E_IO, "%s: writing failed: %s. Free some space and start again", path,
                           strerror(errno));
        }
    }
}

/* Writes the current entry beside its final name, and moves it there when it is whole. */
static td_status extract(struct archive *from, const char *archive, const char *folder,
                         const char *name, int64_t most)
{
    char path[TD_CIFAR_PATH], part[TD_CIFAR_PATH];
    TD_TRY(td_join_path(path, folder, name));
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part) {
        return td_fail(TD_E_ARG, "%s: the path is too long", path);
    }
    FILE *out = fopen(part, "wb");
    if (out == NULL) {
        return td_fail(TD_E_IO, "%s: cannot be written: %s", part, strerror(errno));
    }
    td_status status = copy_data(from, archive, out, part, most);
    if (fclose(out) != 0 && status == TD_OK) {
        status = td_fail(TD_E_IO, "%s: writing failed: %s", part, strerror(errno));
    }
    if (status == TD_OK && rename(part, path) != 0) {
        status = td_fail(TD_E_IO, "%s: cannot be renamed: %s", part, strerror(errno));
    }
    if (status != TD_OK) {
        remove(part);
    }
    return status;
}

static td_status extract_all(struct archive *from, const char *archive, wanted *w,
                             const char *subfolder, const char *folder)
{
    struct archive_entry *entry;
    int code;
    while ((code = archive_read_next_header(from, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN) {
        int file = which(w, subfolder, entry);
        if (file >= 0) {
            TD_TRY(extract(from, archive, folder, w->name[file], w->most[file]));
            w->found[file] = true;
        }
    }
    if (code != ARCHIVE_EOF) {
        return damaged(from, archive);
    }
    for (int i = 0; i < w->needed; i++) {
        if (!w->found[i]) {
            return td_fail(TD_E_FORMAT, "%s lacks %s/%s: it is not the official archive", archive,
                           subfolder, w->name[i]);
        }
    }
    return TD_OK;
}

td_status td_cifar_unpack(const char *archive, td_cifar_kind kind, const char *folder)
{
    const td_cifar_files *files = td_cifar_files_of(kind);
    if (files == NULL) {
        return TD_E_ARG;
    }
    wanted w = { .count = 0 };
    int64_t record = td_cifar_record_bytes(kind);
    want(&w, files->train, files->train_records * record);
    want(&w, files->test, files->test_records * record);
    w.needed = w.count;
    want(&w, files->extras, MOST_EXTRA);

    char inside[TD_CIFAR_PATH];
    TD_TRY(td_join_path(inside, folder, files->subfolder));
    TD_TRY(td_make_folders(inside));
    struct archive *from = archive_read_new();
    if (from == NULL) {
        return td_fail(TD_E_NOMEM, "libarchive: no memory");
    }
    archive_read_support_filter_gzip(from);
    archive_read_support_format_tar(from);
    td_status status = archive_read_open_filename(from, archive, 1 << 16) == ARCHIVE_OK
                           ? extract_all(from, archive, &w, files->subfolder, inside)
                           : damaged(from, archive);
    archive_read_free(from);
    return status;
}

#else

typedef int td_archive_needs_libarchive; /* C wants a file to declare something */

#endif
