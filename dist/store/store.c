/* The common part of all stores: checks of arguments, text, waiting for several keys, prefixes. */
#include "dist/store.h"

#include "dist/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static td_status check_key(const char *key)
{
    size_t length = strlen(key);
    if (length == 0 || length > TD_STORE_MAX_KEY) {
        return td_fail(TD_E_ARG, "a store's key has %zu bytes; 1 to %d are allowed", length,
                       TD_STORE_MAX_KEY);
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)key[i] < ' ') {
            return td_fail(TD_E_ARG, "a store's key has the control character %d at byte %zu",
                           key[i], i);
        }
    }
    return TD_OK;
}

static td_status check_size(const char *key, size_t size)
{
    if (size > TD_STORE_MAX_VALUE) {
        return td_fail(TD_E_ARG, "key '%s': a value of %zu bytes; a store takes up to %d", key,
                       size, TD_STORE_MAX_VALUE);
    }
    return TD_OK;
}

td_status td_store_set(td_store *store, const char *key, const void *value, size_t size)
{
    TD_TRY(check_key(key));
    TD_TRY(check_size(key, size));
    return store->vtable->set(store, key, value, size);
}

td_status td_store_set_text(td_store *store, const char *key, const char *text)
{
    return td_store_set(store, key, text, strlen(text));
}

td_status td_store_get(td_store *store, const char *key, double timeout, void **value, size_t *size)
{
    TD_TRY(check_key(key));
    return store->vtable->get(store, key, timeout > 0 ? timeout : store->timeout, value, size);
}

td_status td_store_get_text(td_store *store, const char *key, double timeout, char **text)
{
    void *value;
    size_t size;
    TD_TRY(td_store_get(store, key, timeout, &value, &size));
    *text = value;
    return TD_OK;
}

td_status td_store_add(td_store *store, const char *key, int64_t amount, int64_t *result)
{
    int64_t unused;
    TD_TRY(check_key(key));
    return store->vtable->add(store, key, amount, result != NULL ? result : &unused);
}

td_status td_store_compare_set(td_store *store, const char *key, const char *expected,
                               const char *desired, char **value)
{
    TD_TRY(check_key(key));
    TD_TRY(check_size(key, strlen(expected)));
    TD_TRY(check_size(key, strlen(desired)));
    char *now = NULL;
    TD_TRY(store->vtable->compare_set(store, key, expected, desired, &now));
    if (value != NULL) {
        *value = now;
    } else {
        free(now);
    }
    return TD_OK;
}

td_status td_store_delete(td_store *store, const char *key, bool *existed)
{
    bool unused;
    TD_TRY(check_key(key));
    return store->vtable->delete_key(store, key, existed != NULL ? existed : &unused);
}

td_status td_store_check(td_store *store, const char *key, bool *exists)
{
    TD_TRY(check_key(key));
    return store->vtable->check(store, key, exists);
}

/* After a time-out: fails with the keys that have not come. */
static td_status fail_missing(td_store *store, const char *const *keys, int count, double timeout)
{
    char names[512] = "";
    size_t length = 0;
    int missing = 0;
    for (int i = 0; i < count; i++) {
        bool exists = false;
        if (td_store_check(store, keys[i], &exists) == TD_OK && exists) {
            continue;
        }
        missing++;
        if (length < sizeof(names)) {
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s'%s'",
                                       length > 0 ? ", " : "", keys[i]);
        }
    }
    return td_fail(TD_E_TIMEOUT, "waited %g s for %d keys of the %s store; %d did not come: %s%s",
                   timeout, count, store->vtable->kind, missing, names,
                   length >= sizeof(names) ? "..." : "");
}

td_status td_store_wait(td_store *store, const char *const *keys, int count, double timeout)
{
    timeout = timeout > 0 ? timeout : store->timeout;
    double deadline = td_clock() + timeout;
    for (int i = 0; i < count; i++) {
        void *value;
        size_t size;
        double left = deadline - td_clock();
        td_status status = td_store_get(store, keys[i], left > 1e-3 ? left : 1e-3, &value, &size);
        if (status == TD_E_TIMEOUT && count > 1) {
            return fail_missing(store, keys, count, timeout);
        }
        TD_TRY(status);
        free(value);
    }
    return TD_OK;
}

td_status td_store_count(td_store *store, int64_t *keys)
{
    return store->vtable->count(store, keys);
}

td_status td_store_will(td_store *store, const char *key)
{
    TD_TRY(check_key(key));
    return store->vtable->will != NULL
               ? store->vtable->will(store, key)
               : td_fail(TD_E_UNSUPPORTED, "a %s store keeps no last will", store->vtable->kind);
}

void td_store_close(td_store *store)
{
    if (store != NULL) {
        store->vtable->close(store);
    }
}

/* ---- a prefix before every key ---- */

typedef struct prefix_store {
    td_store store;
    td_store *base;
    char *prefix;
} prefix_store;

/* Writes "prefix/key" into a buffer that is large enough for each legal key. */
typedef struct long_key {
    char text[TD_STORE_MAX_KEY + 1];
} long_key;

static td_status make_key(const td_store *store, const char *key, long_key *whole)
{
    const prefix_store *p = (const prefix_store *)store;
    int length = snprintf(whole->text, sizeof(whole->text), "%s/%s", p->prefix, key);
    if (length < 0 || (size_t)length >= sizeof(whole->text)) {
        return td_fail(TD_E_ARG, "key '%.40s...' has %d bytes with its prefix; %d are allowed", key,
                       length, TD_STORE_MAX_KEY);
    }
    return TD_OK;
}

static td_store *base_of(td_store *store)
{
    return ((prefix_store *)store)->base;
}

static td_status prefix_set(td_store *store, const char *key, const void *value, size_t size)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_set(base_of(store), whole.text, value, size);
}

static td_status prefix_get(td_store *store, const char *key, double timeout, void **value,
                            size_t *size)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_get(base_of(store), whole.text, timeout, value, size);
}

static td_status prefix_add(td_store *store, const char *key, int64_t amount, int64_t *result)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_add(base_of(store), whole.text, amount, result);
}

static td_status prefix_compare_set(td_store *store, const char *key, const char *expected,
                                    const char *desired, char **value)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_compare_set(base_of(store), whole.text, expected, desired, value);
}

static td_status prefix_delete(td_store *store, const char *key, bool *existed)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_delete(base_of(store), whole.text, existed);
}

static td_status prefix_check(td_store *store, const char *key, bool *exists)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_check(base_of(store), whole.text, exists);
}

static td_status prefix_count(td_store *store, int64_t *keys)
{
    return td_store_count(base_of(store), keys);
}

static td_status prefix_will(td_store *store, const char *key)
{
    long_key whole;
    TD_TRY(make_key(store, key, &whole));
    return td_store_will(base_of(store), whole.text);
}

static void prefix_close(td_store *store)
{
    prefix_store *p = (prefix_store *)store;
    free(p->prefix);
    free(p);
}

td_status td_prefix_store_open(td_store *base, const char *prefix, td_store **store)
{
    static const td_store_vtable vtable = {
        .kind = "prefix",
        .set = prefix_set,
        .get = prefix_get,
        .add = prefix_add,
        .compare_set = prefix_compare_set,
        .delete_key = prefix_delete,
        .check = prefix_check,
        .count = prefix_count,
        .will = prefix_will,
        .close = prefix_close,
    };
    TD_TRY(check_key(prefix));
    prefix_store *p = calloc(1, sizeof(prefix_store));
    char *copy = strdup(prefix);
    if (p == NULL || copy == NULL) {
        free(p);
        free(copy);
        return td_fail(TD_E_NOMEM, "no memory for a store");
    }
    *p = (prefix_store){ { &vtable, base->timeout }, base, copy };
    *store = &p->store;
    return TD_OK;
}
