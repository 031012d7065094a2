#include "dist/store/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BUCKETS = 64 };

/* FNV-1a, 64 bits. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

/* Where the pointer to the entry stands, or would stand. The table has buckets. */
static td_table_entry **find_place(const td_table *table, const char *key, uint64_t hash)
{
    td_table_entry **place = &table->buckets[hash & (table->bucket_count - 1)];
    while (*place != NULL && ((*place)->hash != hash || strcmp((*place)->key, key) != 0)) {
        place = &(*place)->next;
    }
    return place;
}

const td_table_entry *td_table_find(const td_table *table, const char *key)
{
    return table->bucket_count == 0 ? NULL : *find_place(table, key, hash_text(key));
}

static bool grow(td_table *table)
{
    size_t count = table->bucket_count == 0 ? FIRST_BUCKETS : 2 * table->bucket_count;
    td_table_entry **buckets = calloc(count, sizeof(td_table_entry *));
    if (buckets == NULL) {
        return false;
    }
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (td_table_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash & (count - 1)];
            buckets[entry->hash & (count - 1)] = entry;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->bucket_count = count;
    return true;
}

static void *copy_value(const void *value, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy != NULL) {
        if (size > 0) {
            memcpy(copy, value, size);
        }
        copy[size] = '\0';
    }
    return copy;
}

static td_table_entry *new_entry(const char *key, uint64_t hash)
{
    td_table_entry *entry = calloc(1, sizeof(td_table_entry));
    if (entry != NULL) {
        entry->key = strdup(key);
        entry->hash = hash;
    }
    if (entry != NULL && entry->key == NULL) {
        free(entry);
        entry = NULL;
    }
    return entry;
}

bool td_table_set(td_table *table, const char *key, const void *value, size_t size)
{
    if (table->count >= table->bucket_count && !grow(table)) {
        return false;
    }
    void *copy = copy_value(value, size);
    if (copy == NULL) {
        return false;
    }
    uint64_t hash = hash_text(key);
    td_table_entry **place = find_place(table, key, hash);
    if (*place == NULL) {
        *place = new_entry(key, hash);
        if (*place == NULL) {
            free(copy);
            return false;
        }
        table->count++;
    }
    free((*place)->value);
    (*place)->value = copy;
    (*place)->size = size;
    return true;
}

static void free_entry(td_table_entry *entry)
{
    free(entry->key);
    free(entry->value);
    free(entry);
}

bool td_table_delete(td_table *table, const char *key)
{
    if (table->bucket_count == 0) {
        return false;
    }
    td_table_entry **place = find_place(table, key, hash_text(key));
    td_table_entry *entry = *place;
    if (entry == NULL) {
        return false;
    }
    *place = entry->next;
    free_entry(entry);
    table->count--;
    return true;
}

td_status td_table_add(td_table *table, const char *key, int64_t amount, int64_t *result)
{
    const td_table_entry *entry = td_table_find(table, key);
    int64_t value = 0;
    if (entry != NULL) {
        char *end;
        errno = 0;
        value = strtoll(entry->value, &end, 10);
        if (errno != 0 || end == entry->value || *end != '\0') {
            return td_fail(TD_E_MISMATCH,
                           "key '%s' holds %zu bytes that are no number; add() needs one", key,
                           entry->size);
        }
    }
    if (__builtin_add_overflow(value, amount, result)) {
        return td_fail(TD_E_MISMATCH, "key '%s': %" PRId64 " and %" PRId64 " do not fit in 64 bits",
                       key, value, amount);
    }
    char text[32];
    int length = snprintf(text, sizeof(text), "%" PRId64, *result);
    if (!td_table_set(table, key, text, (size_t)length)) {
        return td_fail(TD_E_NOMEM, "no memory for key '%s'", key);
    }
    return TD_OK;
}

td_status td_table_compare_set(td_table *table, const char *key, const char *expected,
                               const char *desired)
{
    const td_table_entry *entry = td_table_find(table, key);
    const char *value = entry != NULL ? entry->value : "";
    size_t size = entry != NULL ? entry->size : 0;
    if (size == strlen(expected) && memcmp(value, expected, size) == 0 &&
        !td_table_set(table, key, desired, strlen(desired))) {
        return td_fail(TD_E_NOMEM, "no memory for key '%s'", key);
    }
    return TD_OK;
}

void td_table_clear(td_table *table)
{
    for (size_t i = 0; i < table->bucket_count; i++) {
        for (td_table_entry *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free_entry(entry);
        }
    }
    free(table->buckets);
    *table = (td_table){ 0 };
}
