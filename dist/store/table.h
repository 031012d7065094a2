/* A hash table from keys (text) to values (bytes), for the stores. Not thread-safe. */
#ifndef TD_DIST_TABLE_H
#define TD_DIST_TABLE_H

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct td_table_entry {
    struct td_table_entry *next;
    char *key;
    void *value; /* a '\0' follows its last byte */
    size_t size;
    uint64_t hash;
} td_table_entry;

typedef struct td_table {
    td_table_entry **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    size_t count;
} td_table; /* zero: empty */

/* NULL: there is no such key. */
const td_table_entry *td_table_find(const td_table *table, const char *key);
/* Copies the value. false: out of memory, and the table is as it was. */
bool td_table_set(td_table *table, const char *key, const void *value, size_t size);
bool td_table_delete(td_table *table, const char *key); /* whether the key was there */
/* Adds amount to the value, a decimal number (no such key: 0). TD_E_MISMATCH: the value is no
 * number, or the sum does not fit. */
td_status td_table_add(td_table *table, const char *key, int64_t amount, int64_t *result);
/* Sets `desired` if the value is `expected`. A key that is not there counts as an empty value. */
td_status td_table_compare_set(td_table *table, const char *key, const char *expected,
                               const char *desired);
void td_table_clear(td_table *table);

#endif
