/* The client of the TCP store. A call takes an idle connection or opens a new one, so a thread that
 * waits for a key does not block other threads. A call that fails closes its connection. */
#include "dist/comm/store/tcp.h"

#include "dist/comm/process.h"
#include "tensor/clock.h"
#include "dist/comm/store/wire.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double LOOK_EVERY = 0.1;                        /* seconds */
static const double ATTEMPT = 5;                             /* seconds to connect */
static const double FIRST_PAUSE = 0.01, LONGEST_PAUSE = 0.5; /* between attempts to connect */
/* Seconds that a host may take to get its name, as new containers do; and that a server of an
 * earlier job may take to leave its port. */
static const double NAMELESS = 5, FORMER = 3;
static const double TELL_AFTER = 3; /* seconds without a server; not if the caller tries again */

typedef struct tcp_store {
    td_store store;
    int port;
    td_token token;
    char local_address[TD_ADDRESS_BYTES];
    atomic_int idle; /* a connection for the next request, or -1 */
    atomic_int will; /* the connection with the will, for wills alone, or -1 */
    char host[];
} tcp_store;

/* ---- connections ---- */

/* Both sides prove that they know the job's token. TD_E_PEER: the server is another job's. */
static td_status prove(const tcp_store *t, int fd, const unsigned char *nonce, double deadline)
{
    static const unsigned char nothing[TD_PROOF_BYTES];
    unsigned char theirs[TD_NONCE_BYTES + TD_PROOF_BYTES], proof[TD_PROOF_BYTES];
    TD_TRY(td_socket_receive(fd, theirs, sizeof(theirs), deadline));
    td_token_prove(&t->token, TD_SERVER, nonce, theirs, proof);
    if (!td_proofs_equal(proof, theirs + TD_NONCE_BYTES)) {
        bool asks = !td_proofs_equal(nothing, theirs + TD_NONCE_BYTES);
        return td_fail(TD_E_PEER,
                       "the store at %s:%d %s; if it is not another job's, give all processes the "
                       "same token (TANDEM_TOKEN, TANDEM_TOKEN_FILE, tdrun --token-file)",
                       t->host, t->port,
                       !t->token.set ? "wants a token and this process has none"
                       : asks        ? "has another token than this process"
                                     : "has no token and this process has one");
    }
    td_token_prove(&t->token, TD_CLIENT, nonce, theirs, proof);
    return t->token.set ? td_socket_send(fd, proof, sizeof(proof), deadline) : TD_OK;
}

/* Exchanges hellos. Fails if the server is not a tandem store of this version and job. */
static td_status greet(const tcp_store *t, int fd, double deadline)
{
    unsigned char mine[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO, hello[TD_WIRE_HELLO_BYTES];
    TD_TRY(td_random_bytes(mine + sizeof(hello), TD_NONCE_BYTES));
    TD_TRY(td_socket_send(fd, mine, sizeof(mine), deadline));
    TD_TRY(td_socket_receive(fd, hello, sizeof(hello), deadline));
    TD_CHECK(memcmp(hello, TD_WIRE_HELLO, sizeof(hello) - 1) == 0, TD_E_MISMATCH,
             "what listens at %s:%d is not a tandem store; take another port "
             "(MASTER_PORT)",
             t->host, t->port);
    TD_CHECK(hello[sizeof(hello) - 1] == TD_WIRE_VERSION, TD_E_MISMATCH,
             "the store at %s:%d speaks version %d of the protocol and this program "
             "version %d; all ranks must run the same tandem",
             t->host, t->port, hello[sizeof(hello) - 1], TD_WIRE_VERSION);
    return prove(t, fd, mine + sizeof(hello), deadline);
}

/* *deadline: see td_socket_connect. *met: somebody listens there. */
static int open_connection(const tcp_store *t, double *deadline, bool *met)
{
    int fd = td_socket_connect(t->host, t->port, deadline);
    *met = fd >= 0;
    if (fd < 0) {
        return fd;
    }
    td_status status = greet(t, fd, *deadline);
    if (status != TD_OK) {
        close(fd);
        return status;
    }
    return fd;
}

/* Connects, and tries again until the server is there. */
static int keep_connecting(const tcp_store *t, double timeout)
{
    char last[400] = "";
    double begin = td_clock(), pause = FIRST_PAUSE;
    for (bool met;;) {
        double tried = td_clock(), deadline = fmin(begin + timeout, tried + ATTEMPT);
        int fd = open_connection(t, &deadline, &met);
        if (fd >= 0 || fd == TD_E_MISMATCH || fd == TD_E_IO) {
            return fd;
        }
        double now = td_clock();
        /* An attempt that had no time says less than the one before. */
        if (last[0] == '\0' || fd != TD_E_TIMEOUT || now - tried >= ATTEMPT) {
            snprintf(last, sizeof(last), "%s", td_last_error());
        }
        TD_CHECK(fd != TD_E_PEER || now - begin <= FORMER, TD_E_MISMATCH, "%s", td_last_error());
        TD_CHECK(fd != TD_E_NOTFOUND || now - begin <= NAMELESS, TD_E_NOTFOUND,
                 "no such host: '%s' (%s); check the spelling of MASTER_ADDR, and that "
                 "this host can look the name up, or give the address",
                 t->host, td_last_error());
        if (now - begin > TELL_AFTER && timeout > ATTEMPT) {
            td_notice("waiting for rank 0 at %s:%d", t->host, t->port);
        }
        TD_CHECK(now + pause <= begin + timeout, TD_E_TIMEOUT,
                 "no store at %s:%d after %.1f s (last: %s); check that rank 0 or the "
                 "launcher runs there, that MASTER_ADDR and MASTER_PORT are the same "
                 "everywhere, and that no firewall is between",
                 t->host, t->port, now - begin, last);
        td_sleep(pause);
        pause = fmin(2 * pause, LONGEST_PAUSE);
    }
}

/* Two threads that ask at once have a connection each, and the last one to be done leaves its own.
 * A server that strangers flood may end a connection in its hello, when nothing was asked yet: then
 * another one is opened. A server that is gone refuses. */
static int take_connection(const tcp_store *t, atomic_int *place, double *deadline)
{
    int fd = atomic_exchange(place, -1);
    bool met = true;
    for (double pause = FIRST_PAUSE; fd < 0; pause = fmin(2 * pause, LONGEST_PAUSE)) {
        fd = open_connection(t, deadline, &met);
        if (fd != TD_E_NETWORK || !met || td_clock() + pause > *deadline) {
            return fd;
        }
        td_sleep(pause);
    }
    return fd;
}

static void give_connection(atomic_int *place, int fd)
{
    td_close_fd(atomic_exchange(place, fd));
}

/* ---- requests ---- */

static td_status send_request(int fd, const td_store_request *r, double deadline)
{
    size_t size;
    unsigned char *bytes = td_wire_pack(r, &size); /* sent at once, so one packet if it fits */
    TD_CHECK(bytes != NULL, TD_E_NOMEM, "no memory for a request of %zu bytes", size);
    td_status status = td_socket_send(fd, bytes, size, deadline);
    free(bytes);
    return status;
}

/* *failed: not TD_OK if the server's answer is a failure, whose message is the value. */
static td_status receive_reply(int fd, double deadline, td_status *failed, char **value,
                               size_t *value_size)
{
    unsigned char head[TD_WIRE_REPLY_BYTES];
    TD_TRY(td_socket_receive(fd, head, sizeof(head), deadline));
    uint32_t code = td_wire_get32(head);
    size_t size = td_wire_get32(head + 4);
    TD_CHECK(code <= INT16_MAX && size <= TD_STORE_MAX_VALUE, TD_E_NETWORK,
             "an answer with code %u and %zu bytes, which no store gives", code, size);
    char *bytes = malloc(size + 1);
    TD_CHECK(bytes != NULL, TD_E_NOMEM, "no memory for a value of %zu bytes", size);
    td_status status = td_socket_receive(fd, bytes, size, deadline);
    if (status != TD_OK) {
        free(bytes);
        return status;
    }
    bytes[size] = '\0';
    *failed = (td_status) - (int)code;
    *value = bytes;
    *value_size = size;
    return TD_OK;
}

/* asked: the request was sent. */
static td_status explain(const tcp_store *t, const td_store_request *r, td_status status,
                         bool asked)
{
    TD_CHECK(status != TD_E_TIMEOUT || !asked || r->op != TD_STORE_GET, status,
             "waited %.3g s for the key '%s' of the store at %s:%d: nobody set it", r->timeout,
             r->key, t->host, t->port);
    TD_CHECK(status != TD_E_TIMEOUT, status,
             "the store at %s:%d has not answered for %.3g s; its host may be off or cut "
             "off",
             t->host, t->port, r->timeout);
    return td_fail_context(status,
                           "lost the store at %s:%d (the rank or launcher that hosts it may have "
                           "ended; key '%s')",
                           t->host, t->port, r->key);
}

/* Calls r->look again and again until the answer comes; a failure is look's. */
static td_status client_look_around(int fd, const td_store_request *r, double deadline)
{
    while (td_clock() < deadline) {
        double next = td_clock() + LOOK_EVERY;
        if (td_socket_await(fd, next < deadline ? next : deadline) != TD_E_TIMEOUT) {
            break;
        }
        TD_TRY(r->look(r->user));
    }
    return TD_OK;
}

static td_status tcp_call(td_store *store, const td_store_request *r, char **reply, size_t *size)
{
    tcp_store *t = (tcp_store *)store;
    double deadline = td_clock() + r->timeout;
    atomic_int *place = r->op == TD_STORE_WILL ? &t->will : &t->idle;
    int fd = take_connection(t, place, &deadline);
    if (fd < 0) {
        return explain(t, r, fd, false);
    }
    td_status failed = TD_OK, status = send_request(fd, r, deadline);
    if (status == TD_OK && r->look != NULL) {
        td_status looked = client_look_around(fd, r, deadline);
        if (looked != TD_OK) {
            close(fd);
            return looked;
        }
    }
    status = status == TD_OK ? receive_reply(fd, deadline, &failed, reply, size) : status;
    if (status != TD_OK) {
        close(fd);
        return status == TD_E_NOMEM ? status : explain(t, r, status, true);
    }
    give_connection(place, fd);
    if (failed != TD_OK) {
        td_fail(failed, "%s", *reply);
        free(*reply);
    }
    return failed;
}

static void tcp_close(td_store *store)
{
    tcp_store *t = (tcp_store *)store;
    td_close_fd(t->will);
    td_close_fd(t->idle);
    free(t);
}

td_status td_tcp_store_open(const char *host, int port, double timeout, td_store **store)
{
    td_token token;
    TD_TRY(td_token_of_environment(&token));
    return td_tcp_store_connect(host, port, timeout, &token, store);
}

td_status td_tcp_store_connect(const char *host, int port, double timeout, const td_token *token,
                               td_store **store)
{
    static const td_store_kind kind = { "tcp", tcp_call, tcp_close };
    tcp_store *t = calloc(1, sizeof(tcp_store) + strlen(host) + 1);
    TD_CHECK(t != NULL, TD_E_NOMEM, "no memory for a store");
    t->store = (td_store){ &kind, timeout > 0 ? timeout : 300 };
    strcpy(t->host, host);
    t->port = port;
    t->token = token != NULL ? *token : (td_token){ 0 };
    t->idle = t->will = -1;
    int fd = keep_connecting(t, t->store.timeout);
    if (fd < 0) {
        tcp_close(&t->store);
        return (td_status)fd;
    }
    td_socket_local_address(fd, t->local_address);
    give_connection(&t->idle, fd);
    *store = &t->store;
    return TD_OK;
}

const char *td_tcp_store_local_address(const td_store *store)
{
    return ((const tcp_store *)store)->local_address;
}

td_status td_tcp_store_server_address(td_store *store, char text[TD_ADDRESS_BYTES])
{
    td_store_request r = { .op = TD_STORE_ADDRESS };
    char *value;
    size_t size;
    TD_TRY(td_store_call(store, &r, &value, &size));
    snprintf(text, TD_ADDRESS_BYTES, "%s", value);
    free(value);
    return TD_OK;
}
