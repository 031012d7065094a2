/* The keys and values of a store, and its requests. */
#include "dist/comm/store/table.h"

#include "dist/comm/store/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_key(const void *a, const void *b)
{
    return strcmp(((const td_table_entry *)a)->key, ((const td_table_entry *)b)->key);
}

static td_table_entry *table_find(const td_table *table, const char *key)
{
    td_table_entry wanted = { .key = (char *)(uintptr_t)key };
    td_table_entry *const *found = tfind(&wanted, &table->root, by_key);
    return found != NULL ? *found : NULL;
}

char *td_bytes_copy(const void *bytes, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy != NULL) {
        if (size > 0) {
            memcpy(copy, bytes, size);
        }
        copy[size] = '\0';
    }
    return copy;
}

static void free_entry(void *entry)
{
    free(((td_table_entry *)entry)->key);
    free(((td_table_entry *)entry)->value);
    free(entry);
}

/* A new entry without a value, in the table; NULL: out of memory. */
static td_table_entry *add_entry(td_table *table, const char *key)
{
    td_table_entry *entry = calloc(1, sizeof(td_table_entry));
    if (entry == NULL || (entry->key = strdup(key)) == NULL ||
        tsearch(entry, &table->root, by_key) == NULL) {
        if (entry != NULL) {
            free_entry(entry);
        }
        return NULL;
    }
    table->count++;
    return entry;
}

/* What an entry takes, of the table's limit. */
static size_t cost(const char *key, size_t size)
{
    return sizeof(td_table_entry) + strlen(key) + size;
}

bool td_table_set(td_table *table, const char *key, const void *value, size_t size)
{
    td_table_entry *entry = table_find(table, key);
    size_t before = entry != NULL ? cost(key, entry->size) : 0;
    size_t bytes = table->bytes - before + cost(key, size);
    void *copy = table->limit > 0 && bytes > table->limit ? NULL : td_bytes_copy(value, size);
    if (copy == NULL || (entry == NULL && (entry = add_entry(table, key)) == NULL)) {
        free(copy);
        return false;
    }
    free(entry->value);
    entry->value = copy;
    entry->size = size;
    table->bytes = bytes;
    return true;
}

/* Whether the key was there. */
static bool table_delete(td_table *table, const char *key)
{
    td_table_entry *entry = table_find(table, key);
    if (entry == NULL) {
        return false;
    }
    tdelete(entry, &table->root, by_key);
    table->bytes -= cost(key, entry->size);
    table->count--;
    free_entry(entry);
    return true;
}

void td_table_clear(td_table *table)
{
    tdestroy(table->root, free_entry);
    *table = (td_table){ .limit = table->limit };
}

/* ---- requests ---- */

static td_status set(td_table *table, const char *key, td_bytes value, td_table_answer *answer)
{
    TD_CHECK(td_table_set(table, key, value.data, value.size), TD_E_NOMEM,
             "no memory for key '%s' and its %zu bytes in the store, which holds %zu in "
             "%zu keys",
             key, value.size, table->bytes, table->count);
    answer->changed = true;
    return TD_OK;
}

static void answer_number(td_table_answer *answer, int64_t number)
{
    td_wire_put64(answer->number, number);
    answer->value = answer->number;
    answer->size = sizeof(answer->number);
}

/* Adds to a decimal number. */
static td_status table_add(td_table *table, const td_store_request *r, const td_table_entry *entry,
                           td_table_answer *answer)
{
    int64_t value = 0, sum;
    TD_CHECK(r->value.size == 8, TD_E_ARG, "key '%s': the amount to add has %zu bytes, not 8",
             r->key, r->value.size);
    if (entry != NULL) {
        char *end;
        errno = 0;
        value = strtoll(entry->value, &end, 10);
        TD_CHECK(errno == 0 && end != entry->value && *end == '\0', TD_E_MISMATCH,
                 "key '%s' holds %zu bytes that are no number; add() needs one", r->key,
                 entry->size);
    }
    int64_t amount = td_wire_get64(r->value.data);
    TD_CHECK(!__builtin_add_overflow(value, amount, &sum), TD_E_MISMATCH,
             "key '%s': %" PRId64 " and %" PRId64 " do not fit in 64 bits", r->key, value, amount);
    char text[32];
    size_t length = (size_t)snprintf(text, sizeof(text), "%" PRId64, sum);
    answer_number(answer, sum);
    return set(table, r->key, (td_bytes){ text, length }, answer);
}

static void answer_value(td_table_answer *answer, const td_table_entry *entry)
{
    answer->value = entry != NULL ? entry->value : NULL;
    answer->size = entry != NULL ? entry->size : 0;
}

static td_status compare_set(td_table *table, const td_store_request *r,
                             const td_table_entry *entry, td_table_answer *answer)
{
    size_t size = entry != NULL ? entry->size : 0;
    if (size == r->value.size && (size == 0 || memcmp(entry->value, r->value.data, size) == 0)) {
        TD_TRY(set(table, r->key, r->desired, answer));
        entry = table_find(table, r->key);
    }
    answer_value(answer, entry);
    return TD_OK;
}

static void answer_bool(td_table_answer *answer, bool yes)
{
    answer->number[0] = yes;
    answer->value = answer->number;
    answer->size = 1;
}

td_status td_table_serve(td_table *table, const td_store_request *r, td_table_answer *answer)
{
    const td_table_entry *entry = table_find(table, r->key);
    *answer = (td_table_answer){ 0 };
    switch (r->op) {
    case TD_STORE_SET:
        return set(table, r->key, r->value, answer);
    case TD_STORE_GET:
        answer->waits = entry == NULL;
        answer_value(answer, entry);
        return TD_OK;
    case TD_STORE_ADD:
        return table_add(table, r, entry, answer);
    case TD_STORE_COMPARE_SET:
        return compare_set(table, r, entry, answer);
    case TD_STORE_DELETE:
        answer->changed = table_delete(table, r->key);
        answer_bool(answer, answer->changed);
        return TD_OK;
    case TD_STORE_CHECK:
        answer_bool(answer, entry != NULL);
        return TD_OK;
    case TD_STORE_COUNT:
        answer_number(answer, (int64_t)table->count);
        return TD_OK;
    case TD_STORE_ADDRESS:
    case TD_STORE_WILL:
        break;
    }
    return td_fail(TD_E_UNSUPPORTED, "this kind of store has no address and keeps no last will");
}
