/* The TCP store's connections, without a server's thread: memory is bounded, and no invented
 * message breaks what serves it. TANDEM_LONG: a million messages with and without a token. */
#include "dist/comm/store/tcp.h"
#include "dist/comm/store/tcp_connection.h"
#include "tests/comm/dist_raw.h"
#include "tests/comm/dist_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 6, LIMIT = 1 << 20 };

typedef struct peer {
    td_connection *c;
    int fd; /* the client's end */
    bool member;
} peer;

typedef struct room {
    td_server_data data;
    peer peers[PEERS];
    uint64_t random;
} room;

static uint32_t any(room *r, uint32_t below)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33) % below;
}

/* As the server's thread does with a client that has sent something. */
static void let_serve(room *r, peer *p)
{
    td_connection_serve(p->c, &r->data);
    assert_true(r->data.buffers <= LIMIT + PEERS * 1024);
    assert_true(r->data.table.bytes <= LIMIT);
}

static void leave(room *r, peer *p)
{
    if (p->c != NULL) {
        td_connection_free(p->c, &r->data);
        close(p->fd);
    }
    *p = (peer){ 0 };
}

static void come(room *r, peer *p, bool member)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    *p = (peer){ td_connection_new(ends[0], &r->data), ends[1], member };
    if (member) {
        unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO;
        unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES], proof[TD_PROOF_BYTES];
        raw_send(p->fd, hello, sizeof(hello));
        let_serve(r, p);
        assert_int_equal(recv(p->fd, answer, sizeof(answer), 0), sizeof(answer));
        td_token_prove(&r->data.token, TD_CLIENT, hello + TD_WIRE_HELLO_BYTES,
                       answer + TD_WIRE_HELLO_BYTES, proof);
        if (r->data.token.set) {
            raw_send(p->fd, proof, sizeof(proof));
            let_serve(r, p);
        }
        assert_int_equal(p->c->state, TD_READING_REQUEST);
    }
}

static void close_room(room *r)
{
    for (int i = 0; i < PEERS; i++) {
        leave(r, &r->peers[i]);
    }
    assert_int_equal(r->data.buffers, 0);
    td_table_clear(&r->data.table);
    assert_int_equal(r->data.table.bytes, 0);
}

/* Sends all of it, with the server reading meanwhile. */
static void push(room *r, peer *p, const unsigned char *bytes, size_t size)
{
    for (size_t sent = 0; sent < size && !p->c->closed;) {
        ssize_t more = send(p->fd, bytes + sent, size - sent, MSG_NOSIGNAL);
        assert_true(more > 0 || errno == EAGAIN);
        sent += more > 0 ? (size_t)more : 0;
        let_serve(r, p);
    }
}

static int answer_code(const peer *p)
{
    unsigned char answer[TD_WIRE_REPLY_BYTES + 256];
    assert_true(recv(p->fd, answer, sizeof(answer), 0) >= TD_WIRE_REPLY_BYTES);
    return -(int)td_wire_get32(answer);
}

/* The one who asks for more than there is gets an error, and the connection remains. */
static void memory_is_bounded(void **state)
{
    (void)state;
    enum { SIZE = 300 << 10 };
    room r = { .data = { .table.limit = LIMIT } };
    static unsigned char value[SIZE], request[SIZE + 64];
    char key[16];
    come(&r, &r.peers[0], true);
    for (int i = 0; i < 5; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        push(&r, &r.peers[0], request, raw_request(request, TD_STORE_SET, key, value, SIZE));
        assert_int_equal(answer_code(&r.peers[0]), i < 3 ? TD_OK : TD_E_NOMEM);
    }
    push(&r, &r.peers[0], request, raw_request(request, TD_STORE_DELETE, "k0", "", 0));
    assert_int_equal(answer_code(&r.peers[0]), TD_OK);
    /* Bodies that do not end are bounded, too; who comes too late is told when its body has come.
     */
    for (int i = 1; i < PEERS; i++) {
        come(&r, &r.peers[i], true);
        size_t size = raw_request(request, TD_STORE_SET, "half", value, SIZE);
        push(&r, &r.peers[i], request, size - 1);
    }
    push(&r, &r.peers[PEERS - 1], (const unsigned char *)"", 1);
    assert_int_equal(answer_code(&r.peers[PEERS - 1]), TD_E_NOMEM);
    push(&r, &r.peers[1], (const unsigned char *)"", 1);
    assert_int_equal(answer_code(&r.peers[1]), TD_OK);
    /* Answers that nobody reads. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < PEERS; i++) {
            if (r.peers[i].c->state == TD_READING_REQUEST && r.peers[i].c->out == NULL) {
                size_t size = raw_request(request, TD_STORE_GET, "half", "", 0);
                raw_send(r.peers[i].fd, request, size);
                let_serve(&r, &r.peers[i]);
            }
        }
    }
    close_room(&r);
}

/* One message of a peer: a request, often a wrong one, or bytes of any kind. */
static void invent(room *r, peer *p)
{
    static const char *const keys[] = { "a", "launch/agents", "0/init0/world", "k/0", "k/1", "" };
    static unsigned char value[40 << 10], bytes[sizeof(value) + 256];
    char key[64];
    snprintf(key, sizeof(key), "%s%u", keys[any(r, 6)], any(r, 4));
    size_t value_size = any(r, 50) == 0 ? any(r, sizeof(value)) : any(r, 3) == 0 ? 8 : any(r, 40);
    uint32_t op = any(r, 12);
    bool valued = op == TD_STORE_SET || op == TD_STORE_ADD || op == TD_STORE_COMPARE_SET;
    size_t size =
        raw_request(bytes, op, op == TD_STORE_COUNT ? "" : key, value, valued ? value_size : 0);
    for (uint32_t wrong = any(r, 4) == 0 ? any(r, 6) : 0; wrong > 0; wrong--) {
        bytes[any(r, any(r, 2) == 0 && size > 20 ? 20 : (uint32_t)size)] =
            (unsigned char)any(r, 256);
    }
    size -= any(r, 20) == 0 ? any(r, (uint32_t)size) : 0;
    if (!p->member && any(r, 3) == 0) { /* a hello, and what may look like a proof */
        memcpy(bytes, TD_WIRE_HELLO, TD_WIRE_HELLO_BYTES);
        bytes[TD_WIRE_HELLO_BYTES - 1] ^= any(r, 5) == 0;
        size = size < TD_WIRE_CLIENT_HELLO_BYTES ? TD_WIRE_CLIENT_HELLO_BYTES : size;
    }
    push(r, p, bytes, size);
    while (any(r, 8) != 0 && recv(p->fd, value, sizeof(value), 0) > 0) {
    }
}

static void invented_messages(bool token, int count, uint64_t seed)
{
    room r = { .data = { .table.limit = LIMIT }, .random = seed };
    if (token) {
        r.data.token = raw_new_token();
    }
    for (int i = 0; i < count; i++) {
        peer *p = &r.peers[any(&r, PEERS)];
        if (p->c != NULL && (p->c->closed || any(&r, 200) == 0)) {
            leave(&r, p);
        }
        if (p->c == NULL) { /* in the first half all are strangers */
            come(&r, p, (i > count / 2 || !token) && any(&r, 2) == 0);
        }
        invent(&r, p);
        if (token && i < count / 2) {
            assert_int_equal(r.data.table.count, 0);
        }
    }
    print_message("# %d messages %s a token: %zu keys at the end\n", count,
                  token ? "with" : "without", r.data.table.count);
    close_room(&r);
}

static void no_invented_message_breaks_the_server(void **state)
{
    (void)state;
    int count = getenv("TANDEM_LONG") != NULL ? 1000000 : 40000;
    invented_messages(false, count, 1);
    invented_messages(true, count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(no_invented_message_breaks_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
