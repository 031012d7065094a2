/* Floods of the TCP store's server: by members of the job, who are served in turns, and by
 * strangers, who must not push out a rank whose hello is on its way. */
#include "tensor/clock.h"
#include "dist/comm/store/tcp.h"
#include "dist/comm/store/tcp_connection.h"
#include "tests/comm/dist_served.h"
#include "tests/comm/dist_store.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- by members ---- */

enum { FLOODS = 8, PIPELINED = 2000 };

typedef struct flood {
    int fd[FLOODS];
    atomic_bool over;
} flood;

static void *keep_asking(void *argument)
{
    flood *f = argument;
    static unsigned char requests[PIPELINED * 32], answers[1 << 16];
    size_t size = 0, sent[FLOODS] = { 0 };
    for (int i = 0; i < PIPELINED; i++) {
        size += raw_request(requests + size, TD_STORE_CHECK, "k", "", 0);
    }
    while (!atomic_load(&f->over)) {
        for (int i = 0; i < FLOODS; i++) {
            ssize_t more =
                send(f->fd[i], requests + sent[i], size - sent[i], MSG_DONTWAIT | MSG_NOSIGNAL);
            sent[i] = more > 0 ? (sent[i] + (size_t)more) % size : sent[i];
            (void)!recv(f->fd[i], answers, sizeof(answers), MSG_DONTWAIT);
        }
    }
    return NULL;
}

/* Eight connections ask as fast as they can: a ninth is answered, too. */
static void a_flood_starves_nobody(void **state)
{
    (void)state;
    enum { CALLS = 200 };
    served s = serve();
    flood f = { .over = false };
    for (int i = 0; i < FLOODS; i++) {
        f.fd[i] = raw_connect(s.port);
        raw_greet(f.fd[i], &s.token);
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_asking, &f), 0);
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(td_store_set_text(s.store, "mine", "1"), TD_OK);
    }
    atomic_store(&f.over, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < FLOODS; i++) {
        close(f.fd[i]);
    }
    end(s);
}

/* How soon does not depend on the machine: a connection has so many requests answered, then it is
 * others' turn, however many have come. */
static void a_turn_is_bounded(void **state)
{
    (void)state;
    enum { ANSWER = TD_WIRE_REPLY_BYTES + 1 };
    td_server_data data = { .table.limit = TD_SERVER_MAX_BYTES };
    unsigned char bytes[PIPELINED * 32] = TD_WIRE_HELLO, answers[1 << 16];
    size_t size = TD_WIRE_CLIENT_HELLO_BYTES, left = PIPELINED;
    int ends[2], turns = 0;
    for (int i = 0; i < PIPELINED; i++) {
        size += raw_request(bytes + size, TD_STORE_CHECK, "k", "", 0);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    td_connection *c = td_connection_new(ends[1], &data);
    assert_int_equal(send(ends[0], bytes, size, 0), size);
    td_connection_serve(c, &data);
    assert_int_equal(recv(ends[0], answers, TD_WIRE_SERVER_HELLO_BYTES, 0),
                     TD_WIRE_SERVER_HELLO_BYTES);
    for (; left > 0; turns++) {
        ssize_t got = recv(ends[0], answers, sizeof(answers), 0);
        assert_true(got > 0 && got % ANSWER == 0 && got <= TD_SERVER_TURNS * ANSWER);
        left -= (size_t)got / ANSWER;
        td_connection_serve(c, &data);
    }
    assert_true(turns >= PIPELINED / TD_SERVER_TURNS);
    td_connection_free(c, &data);
    close(ends[0]);
    td_table_clear(&data.table);
}

/* ---- by strangers ---- */

static int connect_from(const char *address, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in from = { .sin_family = AF_INET };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct timeval patience = { .tv_sec = 30 };
    from.sin_addr.s_addr = inet_addr(address);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Opens many connections that say nothing, and closes the oldest of them. Afterwards the server has
 * seen all. */
static void flood_silently(const char *address, int port)
{
    enum { SILENT = 700, KEPT = 300 };
    int fd[SILENT];
    for (int i = 0; i < SILENT; i++) {
        fd[i] = connect_from(address, port);
        if (i >= KEPT) {
            close(fd[i - KEPT]);
        }
    }
    int last = connect_from(address, port);
    raw_send(last, "no hello", 8);
    assert_int_equal(raw_rest(last), 0);
    for (int i = SILENT - KEPT; i < SILENT; i++) {
        close(fd[i]);
    }
}

/* A hello over a slow link: between its parts strangers open more connections than may be. */
static void a_slow_hello_outlives_a_stranger(void **state)
{
    (void)state;
    served s = serve();
    unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO, request[64];
    unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES], proof[TD_PROOF_BYTES];
    size_t size = raw_request(request, TD_STORE_SET, "k", "v", 1);
    int first = connect_from("127.0.0.2", s.port), second = connect_from("127.0.0.2", s.port);
    flood_silently("127.0.0.3", s.port);
    for (int round = 0; round < 2; round++) {
        int fd = round == 0 ? first : second;
        raw_send(fd, hello, sizeof(hello));
        flood_silently("127.0.0.3", s.port);
        assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
        td_token_prove(&s.token, TD_CLIENT, hello + TD_WIRE_HELLO_BYTES,
                       answer + TD_WIRE_HELLO_BYTES, proof);
        raw_send(fd, proof, sizeof(proof));
        raw_send(fd, request, size);
        assert_int_equal(recv(fd, answer, TD_WIRE_REPLY_BYTES, MSG_WAITALL), TD_WIRE_REPLY_BYTES);
        assert_int_equal(td_wire_get32(answer), TD_OK);
        close(fd);
    }
    end(s);
}

/* Something before the server that ends some connections in their hello, as a flooded server may,
 * and passes on the others. */
typedef struct relay {
    int listener, port, to;
    int first_ended, last_ended; /* counted from 0 */
    atomic_int seen;
    atomic_bool over;
} relay;

enum { PAIRS = 16 };

static void pass_on(int from, int to)
{
    char bytes[4096];
    ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) {
        (void)!send(to, bytes, (size_t)got, MSG_NOSIGNAL);
    }
}

static void *relay_main(void *argument)
{
    relay *r = argument;
    int ends[2 * PAIRS], count = 0;
    while (!atomic_load(&r->over)) {
        struct pollfd come = { .fd = r->listener, .events = POLLIN };
        if (poll(&come, 1, 1) > 0) {
            int fd = accept(r->listener, NULL, NULL), number = atomic_fetch_add(&r->seen, 1);
            if (number >= r->first_ended && number <= r->last_ended) {
                close(fd);
            } else if (count < 2 * PAIRS) {
                ends[count++] = fd;
                ends[count++] = raw_connect(r->to);
            }
        }
        for (int i = 0; i < count; i++) {
            pass_on(ends[i], ends[i ^ 1]);
        }
    }
    for (int i = 0; i < count; i++) {
        close(ends[i]);
    }
    return NULL;
}

static void a_hello_that_is_ended_is_said_again(void **state)
{
    (void)state;
    served s = serve();
    relay r = { .to = s.port, .first_ended = 1, .last_ended = 4 };
    pthread_t thread;
    td_store *store;
    r.listener = td_port_listen("127.0.0.1", &r.port);
    assert_true(r.listener >= 0);
    assert_int_equal(pthread_create(&thread, NULL, relay_main, &r), 0);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", r.port, 60, &s.token, &store), TD_OK);
    assert_int_equal(atomic_load(&r.seen), 1);
    assert_int_equal(td_store_will(store, "gone"), TD_OK); /* on a connection of its own */
    assert_int_equal(atomic_load(&r.seen), 6);
    assert_int_equal(td_store_set_text(store, "k", "1"), TD_OK);
    atomic_store(&r.over, true);
    pthread_join(thread, NULL);
    close(r.listener);
    /* Who is gone refuses, and is not asked again. */
    store->timeout = 600;
    assert_int_not_equal(td_store_set_text(store, "k", "2"), TD_OK);
    assert_int_not_equal(td_store_set_text(store, "k", "3"), TD_OK);
    td_store_close(store);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_starves_nobody),
        cmocka_unit_test(a_turn_is_bounded),
        cmocka_unit_test(a_slow_hello_outlives_a_stranger),
        cmocka_unit_test(a_hello_that_is_ended_is_said_again),
    };
    return cmocka_run_group_tests_name("dist: floods", tests, NULL, NULL);
}
