/* Unpacking a .tar.gz, by libarchive. */
#ifdef TD_HAVE_ARCHIVE

#include "data/download/download.h"
#include "tensor/system/folders.h"
#include "tensor/system/temporary.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>

enum { MOST_BYTES = 1 << 28 /* of a file; the largest official one has 154 million */ };

/* The name of an entry that is a regular file subfolder/NAME, of a kind that the sets have; NULL:
 * it is none. */
static const char *name_of(struct archive_entry *entry, const char *subfolder)
{
    const char *path = archive_entry_pathname(entry);
    size_t prefix = strlen(subfolder);
    if (path == NULL || archive_entry_filetype(entry) != AE_IFREG ||
        archive_entry_hardlink(entry) != NULL) {
        return NULL;
    }
    path += strncmp(path, "./", 2) == 0 ? 2 : 0;
    if (strncmp(path, subfolder, prefix) != 0 || path[prefix] != '/') {
        return NULL;
    }
    path += prefix + 1;
    const char *dot = strrchr(path, '.');
    bool known = dot != NULL && (strcmp(dot, ".bin") == 0 || strcmp(dot, ".txt") == 0 ||
                                 strcmp(dot, ".html") == 0);
    return known && path[0] != '.' && strchr(path, '/') == NULL ? path : NULL;
}

static td_status damaged(struct archive *from, const char *path)
{
    const char *why = archive_error_string(from);
    return td_fail(TD_E_FORMAT, "%s is not a whole .tar.gz: %s. Delete it and download it again",
                   path, why != NULL ? why : "it cannot be read");
}

/* Writes the current entry, which appears under its name when it is whole. */
static td_status extract(struct archive *from, const char *archive, const char *path, int64_t size)
{
    TD_CHECK(size <= MOST_BYTES, TD_E_FORMAT,
             "%s: %s would have %lld bytes: it is not the official archive", archive, path,
             (long long)size);
    char *name;
    FILE *out;
    TD_TRY(td_temporary_begin(path, size, &out, &name));
    bool whole = archive_read_data_into_fd(from, fileno(out)) == ARCHIVE_OK;
    return td_temporary_end(out, name, path, size, whole ? TD_OK : damaged(from, archive));
}

static td_status extract_all(struct archive *from, const char *archive, const char *subfolder,
                             const char *folder)
{
    struct archive_entry *entry;
    int code;
    while ((code = archive_read_next_header(from, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN) {
        const char *name = name_of(entry, subfolder);
        char path[TD_CIFAR_PATH];
        if (name != NULL) {
            TD_TRY(td_join_path(path, folder, name));
            TD_TRY(extract(from, archive, path, archive_entry_size(entry)));
        }
    }
    return code == ARCHIVE_EOF ? TD_OK : damaged(from, archive);
}

td_status td_cifar_unpack(const char *archive, td_cifar_kind kind, const char *folder)
{
    const td_cifar_files *files = td_cifar_files_of(kind);
    char inside[TD_CIFAR_PATH];
    if (files == NULL) {
        return TD_E_ARG;
    }
    TD_TRY(td_join_path(inside, folder, files->subfolder));
    TD_TRY(td_make_folders(inside));
    struct archive *from = archive_read_new();
    TD_CHECK(from != NULL, TD_E_NOMEM, "libarchive: no memory");
    archive_read_support_filter_gzip(from);
    archive_read_support_format_tar(from);
    td_status status = archive_read_open_filename(from, archive, 1 << 16) == ARCHIVE_OK
                           ? extract_all(from, archive, files->subfolder, inside)
                           : damaged(from, archive);
    archive_read_free(from);
    return status;
}

#else

typedef int td_archive_needs_libarchive; /* C wants a file to declare something */

#endif
