/* The parsers of data files, from memory: what the fuzz targets feed. Not for users. */
#ifndef TD_DATA_PARSE_H
#define TD_DATA_PARSE_H

#include "data/data.h"

/* ---- wine ---- */

enum { TD_WINE_FEATURES = 13, TD_WINE_CLASSES = 3 };

typedef struct td_wine_table {
    int64_t rows;
    double (*features)[TD_WINE_FEATURES]; /* [rows] */
    int64_t *labels;                      /* [rows] */
} td_wine_table;

/* Reads a header line and rows of 13 numbers and a label, separated by commas. text needs no NUL
 * at its end. Errors start with "name:line: ". On success the table is the caller's to free. */
td_status td_wine_parse(const char *text, size_t size, const char *name, td_wine_table *table);
void td_wine_table_free(td_wine_table *table);

/* Row numbers as scikit-learn's train_test_split(test_size, random_state=seed) gives them: a
 * permutation by NumPy's legacy shuffle; its first `test` entries are the test rows, the rest the
 * training rows, in this order. */
void td_legacy_permutation(uint32_t seed, int64_t n, int64_t *order);

/* ---- CIFAR ---- */

/* Bytes of a record: one label (CIFAR-100: coarse, then fine), then 3072 of pixels. */
int64_t td_cifar_record_bytes(td_cifar_kind kind);

/* Whether a file of so many bytes can be one: a whole number of records, at least one and at most
 * `most`. Stores how many. */
td_status td_cifar_check_size(int64_t bytes, td_cifar_kind kind, int64_t most, const char *name,
                              int64_t *records);

/* Splits whole records into pixels [records,3,32,32] and labels [records] (CIFAR-100: the fine
 * ones). first is the number of the first record in its file, for messages. */
td_status td_cifar_parse(const uint8_t *bytes, int64_t records, td_cifar_kind kind,
                         const char *name, int64_t first, uint8_t *pixels, uint8_t *labels);

#endif
