/* The stores: TCP, file, and a prefix on either; several threads; the TCP server and strangers. The
 * file store's own is in test_dist_file_store.c. */
// run: waits
#include "tensor/clock.h"
#include "dist/dist.h"
#include "dist/comm/store/net.h"
#include "dist/comm/store/tcp.h"
#include "tests/comm/dist_raw.h"
#include "tests/comm/dist_store.h"
#include "tests/help/temp_folder.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- one store of each kind ---- */

typedef enum kind { TCP, FILE_LOG, TCP_PREFIX, FILE_PREFIX } kind;

typedef struct opened {
    td_tcp_server *server;
    td_store *base, *store;
} opened;

static opened open_kind(kind k)
{
    opened o = { 0 };
    if (k == TCP || k == TCP_PREFIX) {
        assert_int_equal(td_tcp_server_start(0, &o.server), TD_OK);
        assert_int_equal(td_tcp_store_open("127.0.0.1", td_tcp_server_port(o.server), 20, &o.base),
                         TD_OK);
    } else {
        assert_int_equal(td_file_store_open(temp_path("store"), "run", 20, &o.base), TD_OK);
    }
    o.store = o.base;
    if (k == TCP_PREFIX || k == FILE_PREFIX) {
        assert_int_equal(td_prefix_store_open(o.base, "a/b", &o.store), TD_OK);
    }
    return o;
}

static void close_kind(opened o)
{
    if (o.store != o.base) {
        td_store_close(o.store);
    }
    td_store_close(o.base);
    td_tcp_server_stop(o.server);
}

/* Every operation, on every kind. */
static void check_operations(td_store *s)
{
    bool yes;
    int64_t number;
    char *text;
    assert_int_equal(td_store_check(s, "k", &yes), TD_OK);
    assert_false(yes);
    assert_int_equal(td_store_set_text(s, "k", "one"), TD_OK);
    assert_text(s, "k", "one");
    assert_int_equal(td_store_set_text(s, "k", ""), TD_OK);
    assert_text(s, "k", "");
    assert_int_equal(td_store_check(s, "k", &yes), TD_OK);
    assert_true(yes);

    assert_int_equal(td_store_add(s, "n", 5, &number), TD_OK);
    assert_int_equal(number, 5);
    assert_int_equal(td_store_add(s, "n", -7, &number), TD_OK);
    assert_int_equal(number, -2);
    assert_text(s, "n", "-2");
    assert_int_equal(td_store_set_text(s, "word", "x1"), TD_OK);
    assert_int_equal(td_store_add(s, "word", 1, &number), TD_E_MISMATCH);
    assert_error_says("word", "no number", NULL);
    assert_int_equal(td_store_set_text(s, "n", "9223372036854775807"), TD_OK);
    assert_int_equal(td_store_add(s, "n", 1, &number), TD_E_MISMATCH);

    assert_int_equal(td_store_compare_set(s, "c", "wrong", "new", &text), TD_OK);
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(td_store_compare_set(s, "c", "", "first", &text), TD_OK);
    assert_string_equal(text, "first");
    free(text);
    assert_int_equal(td_store_compare_set(s, "c", "", "second", &text), TD_OK);
    assert_string_equal(text, "first");
    free(text);
    assert_int_equal(td_store_compare_set(s, "c", "first", "second", NULL), TD_OK);
    assert_text(s, "c", "second");

    assert_int_equal(td_store_count(s, &number), TD_OK);
    assert_int_equal(number, 4);
    assert_int_equal(td_store_delete(s, "c", &yes), TD_OK);
    assert_true(yes);
    assert_int_equal(td_store_delete(s, "c", &yes), TD_OK);
    assert_false(yes);
    assert_int_equal(td_store_count(s, &number), TD_OK);
    assert_int_equal(number, 3);
}

/* Bytes of any value and many sizes; over a socket's buffer, too. */
static void check_sizes(td_store *s)
{
    static const size_t sizes[] = { 0, 1, 7, 4095, 4096, 4097, 65536, 3 << 20 };
    unsigned char *bytes = malloc(3 << 20);
    for (size_t i = 0; i < 3 << 20; i++) {
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *value;
        size_t size;
        assert_int_equal(td_store_set(s, "bytes", bytes, sizes[i]), TD_OK);
        assert_int_equal(td_store_get(s, "bytes", 0, &value, &size), TD_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(value, bytes, size);
        assert_int_equal(((char *)value)[size], '\0');
        free(value);
    }
    free(bytes);
}

static void check_arguments(td_store *s)
{
    char key[TD_STORE_MAX_KEY + 2];
    memset(key, 'x', sizeof(key));
    key[sizeof(key) - 1] = '\0';
    assert_int_equal(td_store_set_text(s, key, ""), TD_E_ARG);
    assert_error_says("1025", "1024", NULL);
    assert_int_equal(td_store_set_text(s, "", ""), TD_E_ARG);
    assert_int_equal(td_store_set_text(s, "a\nb", ""), TD_E_ARG);
    assert_int_equal(td_store_set(s, "k", "", (size_t)TD_STORE_MAX_VALUE + 1), TD_E_ARG);
}

static void check_timeouts(td_store *s)
{
    char *text;
    double begin = td_clock();
    assert_int_equal(td_store_get_text(s, "never", 0.5, &text), TD_E_TIMEOUT);
    assert_true(td_clock() - begin > 0.499 && td_clock() - begin < 15);
    assert_error_says("0.5 s", "never", NULL);
    assert_int_equal(td_store_set_text(s, "here", "1"), TD_OK);
    assert_text(s, "here", "1"); /* the store is as good as before */
}

static td_status look_thrice(void *times)
{
    return ++*(int *)times < 3 ? TD_OK : td_fail(TD_E_PEER, "rank 3 has gone");
}

/* A get looks around while it waits, and asks once. */
static void check_looking(td_store *s)
{
    int times = 0;
    char *reply;
    size_t size;
    td_store_request r = { .op = TD_STORE_GET, .key = "later", .timeout = 20 };
    r.look = look_thrice;
    r.user = &times;
    assert_int_equal(td_store_call(s, &r, &reply, &size), TD_E_PEER);
    assert_error_says("rank 3 has gone", NULL);
    assert_int_equal(times, 3);
    assert_int_equal(td_store_set_text(s, "later", "1"), TD_OK);
    assert_int_equal(td_store_call(s, &r, &reply, &size), TD_OK);
    assert_string_equal(reply, "1");
    assert_int_equal(times, 3);
    free(reply);
}

/* A thread waits; the others' calls go on, and one of them sets what it waits for. */
static void *wait_for_key(void *store)
{
    char *text = NULL;
    (void)td_store_get_text(store, "late", 20, &text);
    return text;
}

static void check_waiting(td_store *s)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_key, s), 0);
    }
    td_sleep(0.05);
    double begin = td_clock();
    assert_int_equal(td_store_set_text(s, "other", "1"), TD_OK);
    assert_text(s, "other", "1");
    assert_int_equal(td_store_set_text(s, "late", "come"), TD_OK);
    assert_true(td_clock() - begin < 15);
    for (int i = 0; i < 4; i++) {
        void *text;
        assert_int_equal(pthread_join(threads[i], &text), 0);
        assert_non_null(text);
        assert_string_equal(text, "come");
        free(text);
    }
}

static void *add_often(void *store)
{
    intptr_t failures = 0;
    for (int i = 0; i < 100; i++) {
        failures += td_store_add(store, "sum", 1, NULL) != TD_OK;
    }
    return (void *)failures; // NOLINT(performance-no-int-to-ptr)
}

static void check_threads(td_store *s)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_often, s), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failures;
        assert_int_equal(pthread_join(threads[i], &failures), 0);
        assert_null(failures);
    }
    assert_text(s, "sum", "400");
}

#define TEST_ON(kind_, name, check)                                                                \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        opened o = open_kind(kind_);                                                               \
        check(o.store);                                                                            \
        close_kind(o);                                                                             \
    }

TEST_ON(TCP, tcp_operations, check_operations)
TEST_ON(TCP_PREFIX, tcp_prefix_operations, check_operations)
TEST_ON(FILE_LOG, file_operations, check_operations)
TEST_ON(FILE_PREFIX, file_prefix_operations, check_operations)
TEST_ON(TCP_PREFIX, tcp_looking, check_looking)
TEST_ON(FILE_LOG, file_looking, check_looking)
TEST_ON(TCP, tcp_sizes, check_sizes)
TEST_ON(FILE_LOG, file_sizes, check_sizes)
TEST_ON(TCP, tcp_arguments, check_arguments)
TEST_ON(FILE_LOG, file_arguments, check_arguments)
TEST_ON(TCP, tcp_timeouts, check_timeouts)
TEST_ON(FILE_LOG, file_timeouts, check_timeouts)
TEST_ON(TCP_PREFIX, tcp_waiting, check_waiting)
TEST_ON(FILE_LOG, file_waiting, check_waiting)
TEST_ON(TCP, tcp_threads, check_threads)
TEST_ON(FILE_LOG, file_threads, check_threads)

static void prefixes_are_apart(void **state)
{
    (void)state;
    opened o = open_kind(TCP);
    td_store *a, *b;
    bool exists;
    assert_int_equal(td_prefix_store_open(o.base, "a", &a), TD_OK);
    assert_int_equal(td_prefix_store_open(o.base, "b", &b), TD_OK);
    assert_int_equal(td_store_set_text(a, "k", "of a"), TD_OK);
    assert_int_equal(td_store_check(b, "k", &exists), TD_OK);
    assert_false(exists);
    assert_text(o.base, "a/k", "of a");
    td_store_close(a);
    td_store_close(b);
    close_kind(o);
}

/* ---- the TCP server and strangers ---- */

/* What the server answers after its hello, before it closes the connection. */
static size_t answer_to(int port, const void *bytes, size_t size)
{
    int fd = raw_connect(port);
    raw_greet(fd, NULL);
    raw_send(fd, bytes, size);
    return raw_rest(fd);
}

static void strangers_are_turned_away(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char bad_op[] = "\x63\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0k";
    static const char long_key[] = "\x02\0\0\0\0\0\0\x7f\0\0\0\0\0\0\0\0";
    static const char long_value[] = "\x01\0\0\0\x01\0\0\0\0\0\0\x7f\0\0\0\0k";
    static const char zero_in_key[] = "\x06\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0k";
    static const char short_amount[] = "\x03\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0kx";
    static const char while_waiting[] = "\x02\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0kmore";
    opened o = open_kind(TCP);
    int port = td_tcp_server_port(o.server);
    int browser = raw_connect(port);
    raw_send(browser, http, sizeof(http) - 1);
    assert_int_equal(raw_rest(browser), 0);
    assert_int_equal(answer_to(port, bad_op, sizeof(bad_op) - 1), 0);
    assert_int_equal(answer_to(port, long_key, sizeof(long_key) - 1), 0);
    assert_int_equal(answer_to(port, long_value, sizeof(long_value) - 1), 0);
    assert_int_equal(answer_to(port, zero_in_key, sizeof(zero_in_key) - 1), 0);
    assert_int_equal(answer_to(port, short_amount, sizeof(short_amount) - 1), 0);
    assert_int_equal(answer_to(port, while_waiting, sizeof(while_waiting) - 1), 0);
    int silent = raw_connect(port); /* says nothing, and disturbs nobody */
    assert_int_equal(td_store_set_text(o.store, "k", "1"), TD_OK);
    close(silent);
    close_kind(o);
}

/* A request that comes byte by byte is the same request. */
static void slow_clients_are_served(void **state)
{
    (void)state;
    static const char set[] =
        "TDSTORE\x02nonce, 16 bytes.\x01\0\0\0\x01\0\0\0\x03\0\0\0\0\0\0\0kabc";
    opened o = open_kind(TCP);
    int fd = raw_connect(td_tcp_server_port(o.server));
    for (size_t i = 0; i < sizeof(set) - 1; i++) {
        assert_int_equal(send(fd, set + i, 1, MSG_NOSIGNAL), 1);
        td_sleep(1e-3);
    }
    assert_text(o.store, "k", "abc");
    close(fd);
    close_kind(o);
}

static void *answer_wrongly(void *listener)
{
    for (int i = 0; i < 2; i++) {
        int fd = accept(*(int *)listener, NULL, NULL);
        (void)!write(fd, i == 0 ? "SSH-2.0-x\r\n" : "TDSTORE\x09", i == 0 ? 11 : 8);
        char hello[8];
        (void)!read(fd, hello, sizeof(hello));
        close(fd);
    }
    return NULL;
}

static void foreign_servers_are_known(void **state)
{
    (void)state;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_wrongly, &listener), 0);
    td_store *store;
    assert_int_equal(td_tcp_store_open("127.0.0.1", ntohs(at.sin_port), 20, &store), TD_E_MISMATCH);
    assert_error_says("not a tandem store", NULL);
    assert_int_equal(td_tcp_store_open("127.0.0.1", ntohs(at.sin_port), 20, &store), TD_E_MISMATCH);
    assert_error_says("version 9", NULL);
    pthread_join(thread, NULL);
    close(listener);
}

static void busy_port_names_the_holder(void **state)
{
    (void)state;
    td_tcp_server *first, *second;
    char pid[32];
    assert_int_equal(td_tcp_server_start(0, &first), TD_OK);
    int port = td_tcp_server_port(first);
    assert_int_equal(td_tcp_server_start(port, &second), TD_E_NETWORK);
    snprintf(pid, sizeof(pid), "pid %ld (", (long)getpid());
    assert_error_says("busy", pid, NULL);
    td_tcp_server_stop(first);
    assert_int_equal(td_tcp_server_start(port, &second), TD_OK); /* free again at once */
    td_tcp_server_stop(second);
    assert_int_equal(td_tcp_server_start(70000, &second), TD_E_ARG);
    assert_in_range(td_free_port(), 1, 65535);
}

static void *start_late(void *port)
{
    td_tcp_server *server = NULL;
    td_sleep(0.3);
    (void)td_tcp_server_start(*(int *)port, &server);
    return server;
}

static void server_may_start_later(void **state)
{
    (void)state;
    int port = td_free_port();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, start_late, &port), 0);
    opened o = { 0 };
    assert_int_equal(td_tcp_store_open("localhost", port, 20, &o.base), TD_OK);
    void *server;
    pthread_join(thread, &server);
    o.server = server;
    o.store = o.base;
    assert_int_equal(td_store_set_text(o.store, "k", "1"), TD_OK);
    close_kind(o);
}

static void *listen_late(void *port)
{
    td_sleep(0.3);
    return (void *)(intptr_t)td_port_listen("127.0.0.1", port);
}

static void nobody_listens(void **state)
{
    (void)state;
    td_store *store;
    pthread_t thread;
    void *silent;
    char place[32];
    int port = td_free_port();
    snprintf(place, sizeof(place), "127.0.0.1:%d", port);
    double begin = td_clock();
    assert_int_equal(td_tcp_store_open("127.0.0.1", port, 0.3, &store), TD_E_TIMEOUT);
    assert_true(td_clock() - begin < 30); /* not the default of 300 s */
    assert_error_says(place, "after ", "MASTER_PORT", NULL);
    assert_int_equal(td_tcp_store_open("no-such-host.invalid", port, 0.1, &store), TD_E_TIMEOUT);
    assert_error_says("no-such-host.invalid", NULL);
    /* The last attempt, which somebody silent accepts, does not hide why the others failed. */
    assert_int_equal(pthread_create(&thread, NULL, listen_late, &port), 0);
    assert_int_equal(td_tcp_store_open("127.0.0.1", port, 1, &store), TD_E_TIMEOUT);
    assert_error_says("last: Connection refused", NULL);
    pthread_join(thread, &silent);
    close((int)(intptr_t)silent);
}

/* A name that nobody knows is not waited for as long as a server that may still start. */
static void unknown_host(void **state)
{
    (void)state;
    td_store *store;
    double begin = td_clock();
    td_status status = td_tcp_store_open("no-such-host.invalid", 29500, 40, &store);
    if (status == TD_E_TIMEOUT) {
        print_message("# skip: there is no name server here that says so\n");
        skip();
    }
    assert_int_equal(status, TD_E_NOTFOUND);
    assert_true(td_clock() - begin < 30);
    assert_error_says("no such host: 'no-such-host.invalid'", "MASTER_ADDR", NULL);
}

/* A server that ends wakes those who wait at once. */
static void *stop_soon(void *server)
{
    td_sleep(0.1);
    td_tcp_server_stop(server);
    return NULL;
}

static void lost_server_is_an_error_at_once(void **state)
{
    (void)state;
    opened o = open_kind(TCP);
    pthread_t thread;
    char *text;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, o.server), 0);
    double begin = td_clock();
    assert_int_equal(td_store_get_text(o.store, "never", 20, &text), TD_E_NETWORK);
    assert_true(td_clock() - begin < 15);
    assert_error_says("lost the store at 127.0.0.1:", "never", NULL);
    assert_int_equal(td_store_set_text(o.store, "k", "v"), TD_E_NETWORK);
    pthread_join(thread, NULL);
    td_store_close(o.base);
}

static void drain_waits_for_the_last(void **state)
{
    (void)state;
    opened o = open_kind(TCP);
    assert_false(td_tcp_server_drain(o.server, 0.1));
    td_store_close(o.base);
    assert_true(td_tcp_server_drain(o.server, 10));
    td_tcp_server_stop(o.server);
}

static void addresses(void **state)
{
    (void)state;
    opened o = open_kind(TCP);
    char outside[TD_ADDRESS_BYTES];
    assert_string_equal(td_tcp_store_local_address(o.base), "127.0.0.1");
    assert_int_equal(td_tcp_store_server_address(o.base, outside), TD_OK);
    assert_string_equal(outside, ""); /* nobody came but over the loopback */
    close_kind(o);
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(tcp_operations),
        FOLDER_TEST(tcp_prefix_operations),
        FOLDER_TEST(file_operations),
        FOLDER_TEST(file_prefix_operations),
        FOLDER_TEST(tcp_sizes),
        FOLDER_TEST(file_sizes),
        FOLDER_TEST(tcp_arguments),
        FOLDER_TEST(file_arguments),
        FOLDER_TEST(tcp_timeouts),
        FOLDER_TEST(file_timeouts),
        FOLDER_TEST(tcp_looking),
        FOLDER_TEST(file_looking),
        FOLDER_TEST(tcp_waiting),
        FOLDER_TEST(file_waiting),
        FOLDER_TEST(tcp_threads),
        FOLDER_TEST(file_threads),
        cmocka_unit_test(prefixes_are_apart),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(slow_clients_are_served),
        cmocka_unit_test(foreign_servers_are_known),
        cmocka_unit_test(busy_port_names_the_holder),
        cmocka_unit_test(server_may_start_later),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(unknown_host),
        cmocka_unit_test(lost_server_is_an_error_at_once),
        cmocka_unit_test(drain_waits_for_the_last),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
