/* The client of the TCP store. A call takes an idle connection or opens a new one, so a thread that
 * waits for a key does not block other threads. A call that fails closes its connection. */
#include "dist/store/tcp.h"

#include "dist/clock.h"
#include "dist/store/wire.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_IDLE = 8 };

static const double FIRST_PAUSE = 0.01, LONGEST_PAUSE = 0.5; /* between attempts to connect */
/* Seconds that a host may take to get its name, as new containers do. */
static const double NAMELESS = 5;

typedef struct tcp_store {
    td_store store;
    char *host;
    int port;
    char local_address[TD_ADDRESS_BYTES];
    pthread_mutex_t lock; /* protects the idle connections */
    int idle[MAX_IDLE], idle_count;
    int will; /* the connection with the will, or -1 */
} tcp_store;

/* ---- connections ---- */

/* Exchanges hellos. Fails if the server is not a tandem store of this version. */
static td_status greet(const tcp_store *t, int fd, double deadline)
{
    unsigned char hello[TD_WIRE_HELLO_BYTES];
    double hello_deadline = td_clock() + 5 < deadline ? td_clock() + 5 : deadline;
    TD_TRY(td_socket_send(fd, TD_WIRE_HELLO, sizeof(hello), hello_deadline));
    TD_TRY(td_socket_receive(fd, hello, sizeof(hello), hello_deadline));
    if (memcmp(hello, TD_WIRE_HELLO, sizeof(hello) - 1) != 0) {
        return td_fail(TD_E_MISMATCH,
                       "what listens at %s:%d is not a tandem store; take another port "
                       "(MASTER_PORT)",
                       t->host, t->port);
    }
    if (hello[sizeof(hello) - 1] != TD_WIRE_VERSION) {
        return td_fail(TD_E_MISMATCH,
                       "the store at %s:%d speaks version %d of the protocol and this program "
                       "version %d; all ranks must run the same tandem",
                       t->host, t->port, hello[sizeof(hello) - 1], TD_WIRE_VERSION);
    }
    return TD_OK;
}

static int open_connection(const tcp_store *t, double deadline)
{
    int fd = td_socket_connect(t->host, t->port, deadline);
    if (fd < 0) {
        return fd;
    }
    td_status status = greet(t, fd, deadline);
    if (status != TD_OK) {
        close(fd);
        return status;
    }
    return fd;
}

/* Connects, and tries again until the server is there. */
static int keep_connecting(const tcp_store *t, double timeout)
{
    double begin = td_clock(), pause = FIRST_PAUSE;
    for (;;) {
        int fd = open_connection(t, begin + timeout);
        if (fd >= 0 || fd == TD_E_MISMATCH) {
            return fd;
        }
        double now = td_clock();
        if (fd == TD_E_NOTFOUND && now - begin > NAMELESS) {
            return td_fail(TD_E_NOTFOUND,
                           "no such host: '%s' (%s); check the spelling of MASTER_ADDR, and that "
                           "this host can look the name up, or give the address",
                           t->host, td_last_error());
        }
        if (now + pause > begin + timeout) {
            return td_fail(TD_E_TIMEOUT,
                           "no store at %s:%d after %.1f s (last: %s); check that rank 0 or the "
                           "launcher runs there, that MASTER_ADDR and MASTER_PORT are the same "
                           "everywhere, and that no firewall is between",
                           t->host, t->port, now - begin, td_last_error());
        }
        td_sleep(pause);
        pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    }
}

static int take_connection(tcp_store *t, double deadline)
{
    pthread_mutex_lock(&t->lock);
    int fd = t->idle_count > 0 ? t->idle[--t->idle_count] : -1;
    pthread_mutex_unlock(&t->lock);
    return fd >= 0 ? fd : open_connection(t, deadline);
}

static void give_connection(tcp_store *t, int fd)
{
    pthread_mutex_lock(&t->lock);
    bool kept = t->idle_count < MAX_IDLE;
    if (kept) {
        t->idle[t->idle_count++] = fd;
    }
    pthread_mutex_unlock(&t->lock);
    if (!kept) {
        close(fd);
    }
}

/* ---- requests ---- */

typedef struct request {
    td_wire_op op;
    const char *key; /* NULL: none */
    const void *value, *extra;
    size_t value_size, extra_size;
} request;

static td_status send_request(int fd, const request *r, double deadline)
{
    size_t key_size = r->key != NULL ? strlen(r->key) : 0;
    size_t small = TD_WIRE_REQUEST_BYTES + key_size;
    size_t size = small + r->value_size + r->extra_size;
    unsigned char *bytes = malloc(size); /* one call of send, so one packet if it fits */
    if (bytes == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for a request of %zu bytes", size);
    }
    td_wire_put32(bytes, r->op);
    td_wire_put32(bytes + 4, (uint32_t)key_size);
    td_wire_put32(bytes + 8, (uint32_t)r->value_size);
    td_wire_put32(bytes + 12, (uint32_t)r->extra_size);
    if (key_size > 0) {
        memcpy(bytes + TD_WIRE_REQUEST_BYTES, r->key, key_size);
    }
    if (r->value_size > 0) {
        memcpy(bytes + small, r->value, r->value_size);
    }
    if (r->extra_size > 0) {
        memcpy(bytes + small + r->value_size, r->extra, r->extra_size);
    }
    td_status status = td_socket_send(fd, bytes, size, deadline);
    free(bytes);
    return status;
}

/* *failed: the server's answer is a failure, and the value is its message. */
static td_status receive_reply(int fd, double deadline, td_status *failed, char **value,
                               size_t *value_size)
{
    unsigned char head[TD_WIRE_REPLY_BYTES];
    TD_TRY(td_socket_receive(fd, head, sizeof(head), deadline));
    size_t size = td_wire_get32(head + 4);
    if (size > TD_STORE_MAX_VALUE) {
        return td_fail(TD_E_NETWORK, "an answer of %zu bytes, which is too long", size);
    }
    char *bytes = malloc(size + 1);
    if (bytes == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for a value of %zu bytes", size);
    }
    td_status status = td_socket_receive(fd, bytes, size, deadline);
    if (status != TD_OK) {
        free(bytes);
        return status;
    }
    bytes[size] = '\0';
    *failed = (td_status) - (int)td_wire_get32(head);
    *value = bytes;
    *value_size = size;
    return TD_OK;
}

static td_status explain(const tcp_store *t, const request *r, td_status status, double timeout)
{
    const char *key = r->key != NULL ? r->key : "";
    if (status == TD_E_TIMEOUT && r->op == TD_WIRE_GET) {
        return td_fail(status,
                       "waited %.3g s for the key '%s' of the store at %s:%d: nobody set it",
                       timeout, key, t->host, t->port);
    }
    if (status == TD_E_TIMEOUT) {
        return td_fail(status,
                       "the store at %s:%d has not answered for %.3g s; its host may be off or cut "
                       "off",
                       t->host, t->port, timeout);
    }
    return td_fail_context(status,
                           "lost the store at %s:%d (the rank or launcher that hosts it may have "
                           "ended; key '%s')",
                           t->host, t->port, key);
}

/* *value is malloc'ed and ends with a '\0'. */
static td_status call(td_store *store, const request *r, double timeout, char **value, size_t *size)
{
    tcp_store *t = (tcp_store *)store;
    double deadline = td_clock() + timeout;
    int fd = take_connection(t, deadline);
    if (fd < 0) {
        return explain(t, r, fd, timeout);
    }
    td_status failed = TD_OK;
    td_status status = send_request(fd, r, deadline);
    status = status == TD_OK ? receive_reply(fd, deadline, &failed, value, size) : status;
    if (status != TD_OK) {
        close(fd);
        return status == TD_E_NOMEM ? status : explain(t, r, status, timeout);
    }
    give_connection(t, fd);
    if (failed != TD_OK) {
        td_fail(failed, "%s", *value);
        free(*value);
    }
    return failed;
}

/* A call whose answer has a known size. */
static td_status call_fixed(td_store *store, const request *r, void *answer, size_t answer_size)
{
    char *value;
    size_t size;
    TD_TRY(call(store, r, store->timeout, &value, &size));
    bool fits = size == answer_size;
    if (fits) {
        memcpy(answer, value, size);
    }
    free(value);
    return fits ? TD_OK
                : td_fail(TD_E_NETWORK, "the store answered %zu bytes instead of %zu", size,
                          answer_size);
}

/* ---- the vtable ---- */

static td_status tcp_set(td_store *store, const char *key, const void *value, size_t size)
{
    request r = { .op = TD_WIRE_SET, .key = key, .value = value, .value_size = size };
    unsigned char nothing[1];
    return call_fixed(store, &r, nothing, 0);
}

static td_status tcp_get(td_store *store, const char *key, double timeout, void **value,
                         size_t *size)
{
    request r = { .op = TD_WIRE_GET, .key = key };
    char *text;
    TD_TRY(call(store, &r, timeout, &text, size));
    *value = text;
    return TD_OK;
}

static td_status tcp_add(td_store *store, const char *key, int64_t amount, int64_t *result)
{
    unsigned char bytes[8];
    td_wire_put64(bytes, amount);
    request r = { .op = TD_WIRE_ADD, .key = key, .value = bytes, .value_size = sizeof(bytes) };
    TD_TRY(call_fixed(store, &r, bytes, sizeof(bytes)));
    *result = td_wire_get64(bytes);
    return TD_OK;
}

static td_status tcp_compare_set(td_store *store, const char *key, const char *expected,
                                 const char *desired, char **value)
{
    request r = {
        .op = TD_WIRE_COMPARE_SET,
        .key = key,
        .value = expected,
        .value_size = strlen(expected),
        .extra = desired,
        .extra_size = strlen(desired),
    };
    size_t size;
    return call(store, &r, store->timeout, value, &size);
}

static td_status tcp_delete(td_store *store, const char *key, bool *existed)
{
    request r = { .op = TD_WIRE_DELETE, .key = key };
    unsigned char byte = 0;
    TD_TRY(call_fixed(store, &r, &byte, 1));
    *existed = byte != 0;
    return TD_OK;
}

static td_status tcp_check(td_store *store, const char *key, bool *exists)
{
    request r = { .op = TD_WIRE_CHECK, .key = key };
    unsigned char byte = 0;
    TD_TRY(call_fixed(store, &r, &byte, 1));
    *exists = byte != 0;
    return TD_OK;
}

static td_status tcp_count(td_store *store, int64_t *keys)
{
    request r = { .op = TD_WIRE_COUNT };
    unsigned char bytes[8] = { 0 };
    TD_TRY(call_fixed(store, &r, bytes, sizeof(bytes)));
    *keys = td_wire_get64(bytes);
    return TD_OK;
}

/* Uses a connection of its own, which stays open and idle. */
static td_status tcp_will(td_store *store, const char *key)
{
    tcp_store *t = (tcp_store *)store;
    request r = { .op = TD_WIRE_WILL, .key = key };
    double deadline = td_clock() + store->timeout;
    int fd = open_connection(t, deadline);
    if (fd < 0) {
        return explain(t, &r, fd, store->timeout);
    }
    td_status failed = TD_OK;
    char *value;
    size_t size;
    td_status status = send_request(fd, &r, deadline);
    status = status == TD_OK ? receive_reply(fd, deadline, &failed, &value, &size) : status;
    if (status != TD_OK) {
        close(fd);
        return explain(t, &r, status, store->timeout);
    }
    free(value);
    if (t->will >= 0) {
        close(t->will);
    }
    t->will = fd;
    return failed;
}

static void tcp_close(td_store *store)
{
    tcp_store *t = (tcp_store *)store;
    if (t->will >= 0) {
        close(t->will);
    }
    for (int i = 0; i < t->idle_count; i++) {
        close(t->idle[i]);
    }
    pthread_mutex_destroy(&t->lock);
    free(t->host);
    free(t);
}

td_status td_tcp_store_open(const char *host, int port, double timeout, td_store **store)
{
    static const td_store_vtable vtable = {
        .kind = "tcp",
        .set = tcp_set,
        .get = tcp_get,
        .add = tcp_add,
        .compare_set = tcp_compare_set,
        .delete_key = tcp_delete,
        .check = tcp_check,
        .count = tcp_count,
        .will = tcp_will,
        .close = tcp_close,
    };
    tcp_store *t = calloc(1, sizeof(tcp_store));
    char *copy = strdup(host);
    if (t == NULL || copy == NULL) {
        free(t);
        free(copy);
        return td_fail(TD_E_NOMEM, "no memory for a store");
    }
    t->store = (td_store){ &vtable, timeout > 0 ? timeout : 300 };
    t->host = copy;
    t->port = port;
    t->will = -1;
    pthread_mutex_init(&t->lock, NULL);
    int fd = keep_connecting(t, t->store.timeout);
    if (fd < 0) {
        tcp_close(&t->store);
        return (td_status)fd;
    }
    td_socket_local_address(fd, t->local_address);
    give_connection(t, fd);
    *store = &t->store;
    return TD_OK;
}

const char *td_tcp_store_local_address(const td_store *store)
{
    return ((const tcp_store *)store)->local_address;
}

td_status td_tcp_store_server_address(td_store *store, char text[TD_ADDRESS_BYTES])
{
    request r = { .op = TD_WIRE_ADDRESS };
    char *value;
    size_t size;
    TD_TRY(call(store, &r, store->timeout, &value, &size));
    snprintf(text, TD_ADDRESS_BYTES, "%s", value);
    free(value);
    return TD_OK;
}
