/* Fetching an archive, checking it, unpacking it: the parts of td_cifar_download, with everything
 * that a test wants to set. Not for users. */
#pragma once

#include "data/cifar_files.h"

/* Zero and NULL: the default. */
typedef struct td_download_options {
    const char *url;      /* the official one */
    const char *md5;      /* of the archive, in hex: the official one's */
    int attempts;         /* 5 */
    int stall_seconds;    /* without a byte, until an attempt is given up: 30 */
    double pause_seconds; /* before the second attempt, doubled before each after it: 1 */
} td_download_options;

/* td_cifar_download with options. */
td_status td_cifar_fetch(const char *folder, td_cifar_kind kind,
                         const td_download_options *options);

/* td_shakespeare_download with options, all of which are set. */
td_status td_shakespeare_fetch(const char *path, const td_download_options *options);

/* The parts below exist where their library does: TD_HAVE_CURL, TD_HAVE_ARCHIVE; the MD5, which
 * guards against broken transfers and not against malice, where all three libraries do. */

/* Fetches options->url to path (all options are set). What path already holds is the beginning: the
 * server is asked for the rest, and for everything if it cannot do that. More than `most` bytes are
 * refused. *resumed: whether old bytes are in it. */
td_status td_transfer(const char *path, int64_t most, const td_download_options *options,
                      bool *resumed);

/* Fetches a file that appears under its name when it is whole, and options->md5 right: until then
 * it is path.part, whose bytes a later call goes on from, unless their sum is wrong. */
td_status td_fetch_checked(const char *path, const td_download_options *options);

/* The MD5 of a file in lower-case hex. */
td_status td_file_md5(const char *path, char hex[33]);

/* Unpacks the files of a CIFAR set, SUBFOLDER/NAME in a .tar.gz, into folder/SUBFOLDER; each
 * appears under its name when it is whole. Any other entry is passed over, so nothing is written
 * elsewhere. */
td_status td_cifar_unpack(const char *archive, td_cifar_kind kind, const char *folder);
