/* A tree (tsearch) from keys (text) to values (bytes), and what the requests of a store do to it:
 * the TCP server and the file store both answer by td_table_serve. Not thread-safe. */
#pragma once

#include "dist/comm/store.h"

typedef struct td_table_entry {
    char *key;
    void *value; /* a '\0' follows its last byte */
    size_t size;
} td_table_entry;

typedef struct td_table {
    void *root; /* of <search.h>'s tree of entries */
    size_t count;
    size_t bytes, limit; /* of all keys and values; the most, 0: no limit */
} td_table;              /* zero: empty */

/* Copies the value. false: out of memory, or over the limit; the table is as it was. */
bool td_table_set(td_table *table, const char *key, const void *value, size_t size);
void td_table_clear(td_table *table);

/* `size` bytes and a '\0', malloc'ed; NULL: out of memory. */
char *td_bytes_copy(const void *bytes, size_t size);

typedef struct td_table_answer {
    const void *value; /* lies in the table, or in `number` */
    size_t size;
    unsigned char number[8];
    bool waits;   /* a get of a key that does not exist yet */
    bool changed; /* the key was set, or deleted */
} td_table_answer;

/* Answers a request. What the table cannot do (addresses, wills) is TD_E_UNSUPPORTED. After a
 * failure the table is as before. */
td_status td_table_serve(td_table *table, const td_store_request *request, td_table_answer *answer);
