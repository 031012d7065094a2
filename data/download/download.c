/* Getting CIFAR: lock the folder, transfer, check, unpack. */
#include "data/download/download.h"
#include "data/parse.h"
#include "tensor/system/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether all files of a list are there, whole. Their sizes are enough: a run that has its set does
 * not read the set here and once more when it begins. */
static bool are_there(const char *folder, td_cifar_kind kind, const td_cifar_files *files,
                      const char *const *names, int64_t most)
{
    char where[TD_CIFAR_PATH], path[TD_CIFAR_PATH];
    struct stat info;
    int64_t records;
    bool whole = td_cifar_locate(folder, files, names, where) == TD_OK;
    for (; whole && *names != NULL; names++) {
        whole = td_join_path(path, where, *names) == TD_OK && stat(path, &info) == 0 &&
                td_cifar_check_size(info.st_size, kind, most, path, &records) == TD_OK;
    }
    return whole;
}

static bool is_there(const char *folder, td_cifar_kind kind, const td_cifar_files *files)
{
    return are_there(folder, kind, files, files->train, files->train_records) &&
           are_there(folder, kind, files, files->test, files->test_records);
}

td_status td_cifar_download(const char *folder, td_cifar_kind kind, const char *url)
{
    return td_cifar_fetch(folder, kind, &(td_download_options){ .url = url });
}

#if defined(TD_HAVE_CURL) && defined(TD_HAVE_ARCHIVE) && defined(TD_HAVE_MD)

#include <md5.h>

enum { MOST_ARCHIVE = 1 << 29 /* bytes; the official ones have 170 million */ };

td_status td_file_md5(const char *path, char hex[33])
{
    TD_CHECK(MD5File(path, hex) != NULL, TD_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    return TD_OK;
}

/* Whether a file has the sum that is expected. */
static bool has_sum(const char *path, const char *md5)
{
    char own[33];
    return access(path, R_OK) == 0 && td_file_md5(path, own) == TD_OK && strcasecmp(own, md5) == 0;
}

/* Old bytes that have turned out wrong are cut off, and everything is fetched once more into the
 * same file, which is the one that is locked. */
static td_status fetch_part(const char *part, const char *path, const td_download_options *options)
{
    char md5[33];
    for (bool resumed = true; resumed;) {
        TD_TRY(td_transfer(part, MOST_ARCHIVE, options, &resumed));
        TD_TRY(td_file_md5(part, md5));
        if (strcasecmp(md5, options->md5) == 0) {
            return rename(part, path) == 0
                       ? TD_OK
                       : td_fail(TD_E_IO, "%s: cannot be renamed: %s", part, strerror(errno));
        }
        TD_CHECK(truncate(part, 0) == 0, TD_E_IO, "%s: cannot be emptied: %s", part,
                 strerror(errno));
    }
    remove(part);
    return td_fail(TD_E_CHECKSUM,
                   "%s: the file's MD5 is %s, expected %s: it was changed or damaged on the way. "
                   "It has been deleted; try again, or another network",
                   options->url, md5, options->md5);
}

/* Of several processes the others wait for the first, whose file may have another name, or none, by
 * then. */
static int lock_part(const char *part)
{
    struct stat locked, named;
    for (;;) {
        int lock = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock < 0) {
            return lock;
        }
        flock(lock, LOCK_EX);
        if (fstat(lock, &locked) == 0 && stat(part, &named) == 0 && locked.st_ino == named.st_ino &&
            locked.st_dev == named.st_dev) {
            return lock;
        }
        close(lock);
    }
}

td_status td_fetch_checked(const char *path, const td_download_options *options)
{
    char part[TD_CIFAR_PATH];
    TD_CHECK(snprintf(part, sizeof part, "%s.part", path) < (int)sizeof part, TD_E_ARG,
             "%s: the path is too long", path);
    int lock = lock_part(part);
    TD_CHECK(lock >= 0, TD_E_IO, "%s: cannot be written: %s", part, strerror(errno));
    bool there = has_sum(path, options->md5);
    td_status status = there ? TD_OK : fetch_part(part, path, options);
    if (there) {
        remove(part);
    }
    close(lock);
    return status;
}

static td_status fetch_and_unpack(const char *folder, td_cifar_kind kind,
                                  const td_cifar_files *files, const td_download_options *options)
{
    char archive[TD_CIFAR_PATH];
    TD_TRY(td_join_path(archive, folder, strrchr(files->url, '/') + 1));
    /* An archive that somebody has put there is used, and left there. */
    bool kept = has_sum(archive, options->md5);
    TD_TRY(kept ? TD_OK : td_fetch_checked(archive, options));
    TD_TRY(td_cifar_unpack(archive, kind, folder));
    TD_CHECK(is_there(folder, kind, files), TD_E_FORMAT,
             "%s is not the official archive: files of %s are missing, or their sizes are wrong",
             archive, files->title);
    if (!kept) {
        remove(archive);
    }
    return TD_OK;
}

td_status td_cifar_fetch(const char *folder, td_cifar_kind kind, const td_download_options *options)
{
    const td_cifar_files *files = td_cifar_files_of(kind);
    if (files == NULL) {
        return TD_E_ARG;
    }
    td_download_options filled = *options;
    filled.url = filled.url != NULL ? filled.url : files->url;
    filled.md5 = filled.md5 != NULL ? filled.md5 : files->md5;
    filled.attempts = filled.attempts > 0 ? filled.attempts : 5;
    filled.stall_seconds = filled.stall_seconds > 0 ? filled.stall_seconds : 30;
    filled.pause_seconds = filled.pause_seconds > 0 ? filled.pause_seconds : 1;

    TD_TRY(td_make_folders(folder));
    /* Several processes may be told to download to the same place: the others wait for the first.
     */
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    TD_CHECK(lock >= 0, TD_E_IO, "%s: cannot be used as a folder: %s", folder, strerror(errno));
    flock(lock, LOCK_EX);
    td_status status =
        is_there(folder, kind, files) ? TD_OK : fetch_and_unpack(folder, kind, files, &filled);
    close(lock);
    return status;
}

#else

td_status td_cifar_fetch(const char *folder, td_cifar_kind kind, const td_download_options *options)
{
    const td_cifar_files *files = td_cifar_files_of(kind);
    if (files == NULL) {
        return TD_E_ARG;
    }
    if (is_there(folder, kind, files)) {
        return TD_OK;
    }
    static const char missing[] = ""
#ifndef TD_HAVE_CURL
                                  " libcurl4-openssl-dev"
#endif
#ifndef TD_HAVE_ARCHIVE
                                  " libarchive-dev"
#endif
#ifndef TD_HAVE_MD
                                  " libmd-dev"
#endif
        ;
    return td_fail(TD_E_UNSUPPORTED,
                   "this build cannot download. Install%s and build again (make deps does it), or "
                   "fetch %s by hand and unpack it into %s",
                   missing, options->url != NULL ? options->url : files->url, folder);
}

#endif
