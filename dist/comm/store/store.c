/* The common part of all stores: checks of arguments, text, waiting for several keys, prefixes. */
#include "dist/comm/store.h"

#include "dist/comm/store/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static td_status check_key(const char *key)
{
    size_t length = strlen(key);
    TD_CHECK(length != 0 && length <= TD_STORE_MAX_KEY, TD_E_ARG,
             "a store's key has %zu bytes; 1 to %d are allowed", length, TD_STORE_MAX_KEY);
    for (size_t i = 0; i < length; i++) {
        TD_CHECK((unsigned char)key[i] >= ' ', TD_E_ARG,
                 "a store's key has the control character %d at byte %zu", key[i], i);
    }
    return TD_OK;
}

static td_status check_size(const char *key, size_t size)
{
    TD_CHECK(size <= TD_STORE_MAX_VALUE, TD_E_ARG,
             "key '%s': a value of %zu bytes; a store takes up to %d", key, size,
             TD_STORE_MAX_VALUE);
    return TD_OK;
}

td_status td_store_call(td_store *store, const td_store_request *request, char **reply,
                        size_t *size)
{
    td_store_request r = *request;
    r.key = r.key != NULL ? r.key : ""; /* from here on it is never NULL */
    if (r.op != TD_STORE_COUNT && r.op != TD_STORE_ADDRESS) {
        TD_TRY(check_key(r.key));
    }
    TD_TRY(check_size(r.key, r.value.size));
    TD_TRY(check_size(r.key, r.desired.size));
    r.timeout = r.timeout > 0 ? r.timeout : store->timeout;
    return store->kind->call(store, &r, reply, size);
}

/* A call whose answer has a known size. */
static td_status call_fixed(td_store *store, const td_store_request *request, void *answer,
                            size_t answer_size)
{
    char *reply;
    size_t size;
    TD_TRY(td_store_call(store, request, &reply, &size));
    bool fits = size == answer_size;
    if (fits && answer != NULL) {
        memcpy(answer, reply, size);
    }
    free(reply);
    return fits ? TD_OK
                : td_fail(TD_E_NETWORK, "the store answered %zu bytes instead of %zu", size,
                          answer_size);
}

static td_status call_bool(td_store *store, td_store_op op, const char *key, bool *answer)
{
    unsigned char byte = 0;
    td_store_request r = { .op = op, .key = key };
    TD_TRY(call_fixed(store, &r, &byte, 1));
    if (answer != NULL) {
        *answer = byte != 0;
    }
    return TD_OK;
}

td_status td_store_set(td_store *store, const char *key, const void *value, size_t size)
{
    td_store_request r = { .op = TD_STORE_SET, .key = key, .value = { value, size } };
    return call_fixed(store, &r, NULL, 0);
}

td_status td_store_set_text(td_store *store, const char *key, const char *text)
{
    return td_store_set(store, key, text, strlen(text));
}

td_status td_store_get(td_store *store, const char *key, double timeout, void **value, size_t *size)
{
    char *reply;
    td_store_request r = { .op = TD_STORE_GET, .key = key, .timeout = timeout };
    TD_TRY(td_store_call(store, &r, &reply, size));
    *value = reply;
    return TD_OK;
}

td_status td_store_get_text(td_store *store, const char *key, double timeout, char **text)
{
    size_t size;
    td_store_request r = { .op = TD_STORE_GET, .key = key, .timeout = timeout };
    return td_store_call(store, &r, text, &size);
}

td_status td_store_add(td_store *store, const char *key, int64_t amount, int64_t *result)
{
    unsigned char bytes[8];
    td_store_request r = { .op = TD_STORE_ADD, .key = key, .value = { bytes, sizeof(bytes) } };
    td_wire_put64(bytes, amount);
    TD_TRY(call_fixed(store, &r, bytes, sizeof(bytes)));
    if (result != NULL) {
        *result = td_wire_get64(bytes);
    }
    return TD_OK;
}

td_status td_store_compare_set(td_store *store, const char *key, const char *expected,
                               const char *desired, char **value)
{
    char *now;
    size_t size;
    td_store_request r = { .op = TD_STORE_COMPARE_SET,
                           .key = key,
                           .value = { expected, strlen(expected) },
                           .desired = { desired, strlen(desired) } };
    TD_TRY(td_store_call(store, &r, &now, &size));
    if (value != NULL) {
        *value = now;
    } else {
        free(now);
    }
    return TD_OK;
}

td_status td_store_delete(td_store *store, const char *key, bool *existed)
{
    return call_bool(store, TD_STORE_DELETE, key, existed);
}

td_status td_store_check(td_store *store, const char *key, bool *exists)
{
    return call_bool(store, TD_STORE_CHECK, key, exists);
}

td_status td_store_count(td_store *store, int64_t *keys)
{
    unsigned char bytes[8];
    td_store_request r = { .op = TD_STORE_COUNT };
    TD_TRY(call_fixed(store, &r, bytes, sizeof(bytes)));
    *keys = td_wire_get64(bytes);
    return TD_OK;
}

td_status td_store_will(td_store *store, const char *key)
{
    td_store_request r = { .op = TD_STORE_WILL, .key = key };
    return call_fixed(store, &r, NULL, 0);
}

void td_store_close(td_store *store)
{
    if (store != NULL) {
        store->kind->close(store);
    }
}

/* ---- a prefix before every key ---- */

typedef struct prefix_store {
    td_store store;
    td_store *base;
    char prefix[];
} prefix_store;

static td_status prefix_call(td_store *store, const td_store_request *request, char **reply,
                             size_t *size)
{
    const prefix_store *p = (const prefix_store *)store;
    td_store_request r = *request;
    char key[TD_STORE_MAX_KEY + 1];
    if (r.key[0] != '\0') {
        int length = snprintf(key, sizeof(key), "%s/%s", p->prefix, r.key);
        TD_CHECK(length >= 0 && (size_t)length < sizeof(key), TD_E_ARG,
                 "key '%.40s...' has %d bytes with its prefix; %d are allowed", r.key, length,
                 TD_STORE_MAX_KEY);
        r.key = key;
    }
    return td_store_call(p->base, &r, reply, size);
}

static void prefix_close(td_store *store)
{
    free(store);
}

td_status td_prefix_store_open(td_store *base, const char *prefix, td_store **store)
{
    static const td_store_kind kind = { "prefix", prefix_call, prefix_close };
    TD_TRY(check_key(prefix));
    prefix_store *p = malloc(sizeof(prefix_store) + strlen(prefix) + 1);
    TD_CHECK(p != NULL, TD_E_NOMEM, "no memory for a store");
    *p = (prefix_store){ { &kind, base->timeout }, base };
    strcpy(p->prefix, prefix);
    *store = &p->store;
    return TD_OK;
}
