/* Stores: key-value services that all ranks can reach. Ranks find each other through a store.
 * td_dist_init makes a store by itself; this header is for stores and launchers of your own. Any
 * thread may call these functions. */
#pragma once

#include "tensor/error.h"
#include "tensor/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TD_BEGIN_C

typedef struct td_store td_store;

/* A key is text without control characters, 1 to 1024 bytes long including all prefixes. A value is
 * any bytes, 64 MiB at most. */
enum { TD_STORE_MAX_KEY = 1024, TD_STORE_MAX_VALUE = 64 << 20 };

/* What a store can be asked for. The functions below say what each request does. Numbers are 8
 * bytes, little-endian. */
typedef enum td_store_op {
    TD_STORE_SET = 1,     /* value */
    TD_STORE_GET,         /* waits for the key -> its value */
    TD_STORE_ADD,         /* value: the amount -> the sum */
    TD_STORE_COMPARE_SET, /* value: what is expected; desired -> the value afterwards */
    TD_STORE_DELETE,      /* -> one byte: whether the key existed */
    TD_STORE_CHECK,       /* -> one byte: whether the key exists */
    TD_STORE_COUNT,       /* no key -> the number of keys */
    TD_STORE_ADDRESS, /* no key -> a TCP server's address as other hosts have reached it, or "" */
    TD_STORE_WILL,
} td_store_op;

typedef struct td_bytes {
    const void *data;
    size_t size;
} td_bytes;

typedef struct td_store_request {
    td_store_op op;
    const char *key; /* NULL: none; a kind's call() gets "" then */
    td_bytes value, desired;
    double timeout; /* seconds; 0: the store's */
    /* Called about every 0.1 s while a get waits; a failure ends the wait. NULL: nothing to do. */
    td_status (*look)(void *user);
    void *user;
} td_store_request;

/* What a kind of store implements. */
typedef struct td_store_kind {
    const char *name; /* "tcp" */
    /* *reply is malloc'ed, and a '\0' follows its `size` bytes. TD_E_UNSUPPORTED: this kind cannot
     * do what is asked for. */
    td_status (*call)(td_store *store, const td_store_request *request, char **reply, size_t *size);
    void (*close)(td_store *store);
} td_store_kind;

struct td_store {
    const td_store_kind *kind;
    double timeout; /* seconds: the default of all requests */
};

/* Checks a request, and asks the store. The functions below call td_store_call. */
td_status td_store_call(td_store *store, const td_store_request *request, char **reply,
                        size_t *size);

/* Sets a key to `size` bytes, or to a text. */
td_status td_store_set(td_store *store, const char *key, const void *value, size_t size);
td_status td_store_set_text(td_store *store, const char *key, const char *text);
/* Waits until the key exists and returns its value, which the caller frees by free(). timeout in
 * seconds; 0: the store's. TD_E_TIMEOUT names the key. */
td_status td_store_get(td_store *store, const char *key, double timeout, void **value,
                       size_t *size);
td_status td_store_get_text(td_store *store, const char *key, double timeout, char **text);
/* Adds amount to a key's number (0 if the key does not exist), at once for all ranks, and returns
 * the sum. */
td_status td_store_add(td_store *store, const char *key, int64_t amount, int64_t *result);
/* Sets the key to `desired` if its value is `expected`, at once for all ranks. An empty `expected`
 * means that the key does not exist. *value is the value afterwards; the caller frees it. */
td_status td_store_compare_set(td_store *store, const char *key, const char *expected,
                               const char *desired, char **value);
/* Deletes a key; *existed tells whether it existed. */
td_status td_store_delete(td_store *store, const char *key, bool *existed);
/* Tells whether a key exists, without waiting. */
td_status td_store_check(td_store *store, const char *key, bool *exists);
/* The number of keys of the whole store, also if `store` adds a prefix. */
td_status td_store_count(td_store *store, int64_t *keys);
/* The last will: the key is set when this process closes the store or ends in any way. A store has
 * one will. TD_E_UNSUPPORTED: this kind of store (a file) does not notice that a process ends. */
td_status td_store_will(td_store *store, const char *key);
void td_store_close(td_store *store); /* NULL is fine */

typedef struct td_tcp_server td_tcp_server;
/* Starts a server thread of a TCP store in this process. port 0 takes a free port, which
 * td_tcp_server_port returns. If the port is in use, the message names the process that uses the
 * port, where the system shows it. If TANDEM_TOKEN or TANDEM_TOKEN_FILE is set, only clients with
 * the same token are served; otherwise everybody is who reaches the port. A server holds at most
 * 512 MiB and answers TD_E_NOMEM to who asks for more. Stop and free the server by
 * td_tcp_server_stop. */
td_status td_tcp_server_start(int port, td_tcp_server **server);
int td_tcp_server_port(const td_tcp_server *server);
void td_tcp_server_stop(td_tcp_server *server);

/* Connects to a server, and retries until the server answers or `timeout` seconds are over.
 * TD_E_MISMATCH: it has another token than this process, or speaks another version. Close the store
 * by td_store_close. */
td_status td_tcp_store_open(const char *host, int port, double timeout, td_store **store);
enum { TD_ADDRESS_BYTES = 64 }; /* of an address as text */
/* A TCP port of this host that is free now, or a negative td_status. */
int td_free_port(void);

/* The address by which other hosts reach this host, as the connection to the server shows it:
 * "10.77.0.2". The store owns the text. */
const char *td_tcp_store_local_address(const td_store *store);

/* For td_dist_options.gathering: processes that make one world after another in one store, of which
 * not all have been in the worlds before. */
typedef struct td_gathering {
    const char *name;       /* of this world in the store, the same on all ranks */
    double connect_timeout; /* seconds to connect to the other ranks; 0: the time-out of the init.
                               Gloo does not notice that a rank dies meanwhile */
    /* Called about every 0.1 s while the ranks are waited for; a failure ends the init. */
    td_status (*look)(void *user);
    void *user;
} td_gathering;

/* Opens a store in a file, on a file system that all ranks share and that supports fcntl's locks.
 * run_id names the run: a file of another run is emptied first. With run_id NULL a file is emptied
 * if all its users have ended. The file remains when the store is closed. It must be this user's,
 * and no other user may write it. */
td_status td_file_store_open(const char *path, const char *run_id, double timeout,
                             td_store **store);

/* A store that puts a prefix before every key of base. Closing it does not close base. */
td_status td_prefix_store_open(td_store *base, const char *prefix, td_store **store);

TD_END_C
