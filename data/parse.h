/* The parsers of data files, from memory: what the fuzz targets feed. Not for users. */
#pragma once

#include "data/data.h"

/* ---- CSV ---- */

typedef struct td_csv_rules {
    td_csv_options options;
    int columns; /* that each line must have; 0: as many as the first line */
    int classes; /* labels must be class numbers below this; 0: any class numbers or words */
} td_csv_rules;

typedef struct td_csv_table {
    int64_t rows;
    int columns, features; /* a feature is every column but the label's */
    int label;             /* the label's column, from 0 */
    bool header;           /* the first line names the columns */
    double *values;        /* [rows, features] */
    double *labels;        /* [rows] class numbers, or targets */
    char **names;          /* [classes] class words, or NULL: the labels were numbers */
    int classes;
} td_csv_table;

/* Reads the lines of a text, which needs no NUL at its end. Errors start with "name:line: ". On
 * success the table is the caller's to free. */
td_status td_csv_parse(const td_csv_rules *rules, const char *text, size_t size, const char *name,
                       td_csv_table *table);
/* The same for the file that the options name. */
td_status td_csv_read(const td_csv_rules *rules, td_csv_table *table);
void td_csv_table_free(td_csv_table *table);

/* A dataset of a table, whose names it takes over. NULL with td_last_error(). */
td_dataset *td_csv_rows(const char *kind, td_csv_table *table, bool regression);

/* ---- CIFAR ---- */

/* Bytes of a record: one label (CIFAR-100: coarse, then fine), then 3072 of pixels. */
int64_t td_cifar_record_bytes(td_cifar_kind kind);

/* Whether a file of so many bytes can be one: a whole number of records, at least one and at most
 * `most`. Stores how many. */
td_status td_cifar_check_size(int64_t bytes, td_cifar_kind kind, int64_t most, const char *name,
                              int64_t *records);

/* Splits whole records into pixels [records,3,32,32] and labels [records] (CIFAR-100: the fine
 * ones). */
td_status td_cifar_parse(const uint8_t *bytes, int64_t records, td_cifar_kind kind,
                         const char *name, uint8_t *pixels, uint8_t *labels);
