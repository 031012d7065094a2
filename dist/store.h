/* A store: a key-value service that all ranks can reach; ranks find each other through it. Values
 * are bytes. All calls may be made from any thread. */
#ifndef TD_DIST_STORE_H
#define TD_DIST_STORE_H

#include "tensor/error.h"
#include "tensor/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TD_BEGIN_C

typedef struct td_store td_store;

/* Keys are text without control characters, 1 to 1024 bytes long with all prefixes. */
enum { TD_STORE_MAX_KEY = 1024, TD_STORE_MAX_VALUE = 64 << 20 };

/* What a kind of store implements. Time-outs are in seconds. */
typedef struct td_store_vtable {
    const char *kind; /* "tcp" */
    td_status (*set)(td_store *store, const char *key, const void *value, size_t size);
    /* Waits for the key. *value is malloc'ed and ends with a '\0' beyond its size. */
    td_status (*get)(td_store *store, const char *key, double timeout, void **value, size_t *size);
    td_status (*add)(td_store *store, const char *key, int64_t amount, int64_t *result);
    /* Sets desired if the value is expected (absent: expected is empty). *value: what it is now. */
    td_status (*compare_set)(td_store *store, const char *key, const char *expected,
                             const char *desired, char **value);
    td_status (*delete_key)(td_store *store, const char *key, bool *existed);
    td_status (*check)(td_store *store, const char *key, bool *exists); /* does not wait */
    td_status (*count)(td_store *store, int64_t *keys);
    /* Sets the key when this process ends, or closes the store; NULL: it cannot. */
    td_status (*will)(td_store *store, const char *key);
    void (*close)(td_store *store);
} td_store_vtable;

struct td_store {
    const td_store_vtable *vtable;
    double timeout; /* default of get and wait */
};

td_status td_store_set(td_store *store, const char *key, const void *value, size_t size);
td_status td_store_set_text(td_store *store, const char *key, const char *text);
/* timeout 0: the store's. A time-out names the key. */
td_status td_store_get(td_store *store, const char *key, double timeout, void **value,
                       size_t *size);
td_status td_store_get_text(td_store *store, const char *key, double timeout, char **text);
td_status td_store_add(td_store *store, const char *key, int64_t amount, int64_t *result);
td_status td_store_compare_set(td_store *store, const char *key, const char *expected,
                               const char *desired, char **value);
td_status td_store_delete(td_store *store, const char *key, bool *existed);
td_status td_store_check(td_store *store, const char *key, bool *exists);
/* Waits for all of them. A time-out names those that are missing. */
td_status td_store_wait(td_store *store, const char *const *keys, int count, double timeout);
/* How many keys there are; under a prefix, too, it counts the whole store's. */
td_status td_store_count(td_store *store, int64_t *keys);
/* The last will: the key is set when this process ends, in whatever way, or closes the store. One a
 * store. TD_E_UNSUPPORTED: this kind (a file) would not notice. */
td_status td_store_will(td_store *store, const char *key);
void td_store_close(td_store *store); /* NULL is fine */

/* A server thread in this process; port 0 takes a free one. A busy port is an error that says so,
 * with the pid that holds it when that can be seen. */
typedef struct td_tcp_server td_tcp_server;
td_status td_tcp_server_start(int port, td_tcp_server **server);
int td_tcp_server_port(const td_tcp_server *server);
void td_tcp_server_stop(td_tcp_server *server);

/* A client; keeps trying until the server is there or the time is over. */
td_status td_tcp_store_open(const char *host, int port, double timeout, td_store **store);
/* This host's address on the way to the server, for others to reach us: "10.77.0.2". */
const char *td_tcp_store_local_address(const td_store *store);

/* A log file under flock, on a file system that all ranks share. run_id tells runs apart: a file
 * left by another run is started anew. NULL: so is one whose users on this host have all ended. The
 * file stays when the store is closed. */
td_status td_file_store_open(const char *path, const char *run_id, double timeout,
                             td_store **store);

/* The same store with a prefix before every key. Closing it leaves base open. */
td_status td_prefix_store_open(td_store *base, const char *prefix, td_store **store);

TD_END_C

#endif
