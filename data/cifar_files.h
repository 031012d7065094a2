/* Which files the official CIFAR sets consist of. Not for users. */
#pragma once

#include "data/data.h"

enum { TD_CIFAR_PATH = 4096 };

typedef struct td_cifar_files {
    const char *title;          /* "CIFAR-10" */
    const char *subfolder;      /* inside the archive: "cifar-10-batches-bin" */
    const char *const *train;   /* names, ended by NULL */
    const char *const *test;    /* likewise */
    int64_t train_records;      /* of one official training file */
    int64_t test_records;       /* of one official test file */
    const char *url;            /* the archive's official home */
    const char *md5;            /* its checksum, in hex */
    const char *const *classes; /* [kind] */
} td_cifar_files;

/* NULL with td_last_error() for a kind that there is not. */
const td_cifar_files *td_cifar_files_of(td_cifar_kind kind);

/* Where the files lie: writes folder or folder/subfolder, whichever holds the first file of the
 * list. TD_E_NOTFOUND says what was looked for and how to get it. */
td_status td_cifar_locate(const char *folder, const td_cifar_files *files, const char *const *names,
                          char where[TD_CIFAR_PATH]);

/* The folder that a user has named: folder, or $TANDEM_DATA if that is not empty, or NULL. */
const char *td_cifar_named(const char *folder);

/* "a/b" into path; TD_E_ARG if it is too long. */
td_status td_join_path(char path[TD_CIFAR_PATH], const char *a, const char *b);
