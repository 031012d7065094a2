/* Stores that do not answer: a stopped process, an address that swallows packets, a server that
 * answers nonsense. Time-outs hold, and messages say what has happened. */
// run: waits
#include "dist/comm/rendezvous.h"
#include "dist/comm/store/tcp.h"
#include "tensor/clock.h"
#include "tests/comm/dist_raw.h"
#include "tests/comm/dist_store.h"
#include "tests/help/temp_folder.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* ---- a server in another process, which can be stopped ---- */

typedef struct served {
    pid_t pid;
    int port;
    td_store *store;
} served;

static served serve(double timeout)
{
    served s;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    s.pid = fork();
    if (s.pid == 0) {
        td_tcp_server *server;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int port = td_tcp_server_open("127.0.0.1", 0, NULL, &server) == TD_OK
                       ? td_tcp_server_port(server)
                       : 0;
        (void)!write(ends[1], &port, sizeof(port));
        for (;;) {
            pause();
        }
    }
    assert_int_equal(read(ends[0], &s.port, sizeof(s.port)), sizeof(s.port));
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, timeout, NULL, &s.store), TD_OK);
    return s;
}

static void end(served s)
{
    td_store_close(s.store);
    assert_int_equal(kill(s.pid, SIGKILL), 0);
    assert_int_equal(waitpid(s.pid, NULL, 0), s.pid);
}

/* Until all threads of the process have stopped. */
static void stop(pid_t pid)
{
    int status;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
}

static void *wait_for_key(void *store)
{
    char *text = NULL;
    (void)td_store_get_text(store, "late", 60, &text);
    return text;
}

static void *go_on(void *pid)
{
    td_sleep(6);
    kill(*(pid_t *)pid, SIGCONT);
    return NULL;
}

/* A call that needs a new connection, because another thread waits on the first, has as much time
 * as any call. */
static void a_second_connection_waits_as_long(void **state)
{
    (void)state;
    served s = serve(20);
    pthread_t waiter, waker;
    void *late;
    assert_int_equal(td_store_set_text(s.store, "k", "1"), TD_OK);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_key, s.store), 0);
    td_sleep(0.2); /* now it has the connection */
    stop(s.pid);
    assert_int_equal(pthread_create(&waker, NULL, go_on, &s.pid), 0);
    char *text;
    assert_int_equal(td_store_get_text(s.store, "k", 0.5, &text), TD_E_TIMEOUT);
    assert_error_says("has not answered for 0.5 s", NULL); /* somebody did set it */
    assert_int_equal(td_store_get_text(s.store, "k", 20, &text), TD_OK);
    free(text);
    assert_int_equal(td_store_set_text(s.store, "late", "2"), TD_OK);
    pthread_join(waker, NULL);
    pthread_join(waiter, &late);
    assert_string_equal(late, "2");
    free(late);
    end(s);
}

/* Whoever waits for a group's ranks does not ask a stopped store about each of them. */
static void watching_at_a_stopped_store(void **state)
{
    (void)state;
    enum { RANKS = 16 };
    served s = serve(1);
    td_store *watched;
    char key[32], *text;
    td_rendezvous_result met = { .world_size = RANKS, .store = s.store };
    for (int r = 0; r < RANKS; r++) {
        snprintf(key, sizeof(key), "joined/%d", r);
        assert_int_equal(td_store_set_text(s.store, key, "h|h, pid 1"), TD_OK);
    }
    assert_int_equal(td_watched_store_open(s.store, &met, NULL, RANKS, &watched), TD_OK);
    assert_int_equal(td_store_get_text(watched, "never", 0.3, &text), TD_E_TIMEOUT);
    assert_error_says("nobody set it", NULL);
    stop(s.pid);
    double begin = td_clock();
    assert_int_equal(td_store_get_text(watched, "never", 2, &text), TD_E_TIMEOUT);
    assert_error_says("has not answered for 1 s", NULL);
    assert_true(td_clock() - begin < 5);
    td_store_close(watched);
    end(s);
}

/* A store whose server takes 2 s for any answer. */
typedef struct late_store {
    td_store store;
    td_store *base;
} late_store;

static td_status late_call(td_store *store, const td_store_request *r, char **reply, size_t *size)
{
    return r->timeout < 2 ? td_fail(TD_E_TIMEOUT, "no answer to '%s' yet", r->key)
                          : td_store_call(((late_store *)store)->base, r, reply, size);
}

/* Also a rank's process, and why there is no group, are asked with the store's time-out. */
static void watching_at_a_late_store(void **state)
{
    (void)state;
    static const td_store_kind kind = { .name = "late", .call = late_call };
    served s = serve(20);
    late_store late = { { &kind, 20 }, s.store };
    td_rendezvous_result met = { .world_size = 2, .store = &late.store, .one_host = true };
    td_store *watched;
    char who[32], *text;
    snprintf(who, sizeof(who), "h|h, pid %ld", (long)getpid());
    assert_int_equal(td_store_set_text(s.store, "joined/1", who), TD_OK);
    assert_int_equal(td_watched_store_open(&late.store, &met, NULL, 2, &watched), TD_OK);
    assert_int_equal(td_store_get_text(watched, "never", 2, &text), TD_E_TIMEOUT);
    assert_error_says("the key 'never'", "nobody set it", NULL);
    assert_true(td_watched_store_tell(watched, TD_E_NOMEM, "no memory"));
    assert_int_equal(td_store_get_text(watched, "never", 2, &text), TD_E_NOMEM);
    td_store_close(watched);
    end(s);
}

/* A store that counts requests. */
typedef struct counted_store {
    td_store store;
    td_store *base;
    int count;
} counted_store;

static td_status counted_call(td_store *store, const td_store_request *r, char **reply,
                              size_t *size)
{
    counted_store *c = (counted_store *)store;
    c->count++;
    return td_store_call(c->base, r, reply, size);
}

/* In a large group a look asks about a few ranks, those after its own first, and later about all.
 */
static void watching_many_ranks(void **state)
{
    (void)state;
    enum { RANKS = 64, RANK = 10 };
    static const td_store_kind kind = { .name = "counted", .call = counted_call };
    static const int gone[] = { RANK + 1, RANK - 1 };
    served s = serve(20);
    counted_store counted = { { &kind, 20 }, s.store, 0 };
    td_rendezvous_result met = { .rank = RANK, .world_size = RANKS, .store = &counted.store };
    for (int i = 0; i < 2; i++) {
        td_store *base, *watched;
        char key[32], who[32], *text;
        snprintf(key, sizeof(key), "group%d/", i);
        assert_int_equal(td_prefix_store_open(s.store, key, &base), TD_OK);
        assert_int_equal(td_watched_store_open(base, &met, NULL, RANKS, &watched), TD_OK);
        counted.count = 0;
        assert_int_equal(td_store_get_text(watched, "never", 0.35, &text), TD_E_TIMEOUT);
        assert_in_range(counted.count, 1, RANKS - 2);
        snprintf(key, sizeof(key), "joined/%d", gone[i]);
        assert_int_equal(td_store_set_text(s.store, key, "h|h, pid 1"), TD_OK);
        snprintf(key, sizeof(key), "gone/%d", gone[i]);
        assert_int_equal(td_store_set_text(s.store, key, "1"), TD_OK);
        snprintf(who, sizeof(who), "rank %d (h, pid 1) has died", gone[i]);
        assert_int_equal(td_store_get_text(watched, "never", 20, &text), TD_E_PEER);
        assert_error_says(who, NULL);
        assert_int_equal(td_store_delete(s.store, key, NULL), TD_OK);
        td_store_close(watched);
        td_store_close(base);
    }
    end(s);
}

/* ---- a process that is stopped, with its server and its client ---- */

static void *answer_soon(void *fd)
{
    td_sleep(0.3); /* the process is stopped and goes on */
    td_sleep(0.1);
    (void)!write(*(int *)fd, "x", 1);
    return NULL;
}

static void a_pause_is_no_time_out(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int ends[2];
        pthread_t thread;
        bool begun = socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 &&
                     pthread_create(&thread, NULL, answer_soon, &ends[1]) == 0;
        bool answered = begun && td_socket_await(ends[0], td_clock() + 0.5) == TD_OK;
        _exit(answered && pthread_join(thread, NULL) == 0 ? 0 : 1);
    }
    td_sleep(0.1);
    stop(pid);
    td_sleep(2);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- rank 0, which has the server, is stopped while others wait for the last rank ---- */

static pid_t start_rank(const char *url, int rank, double timeout)
{
    pid_t pid = fork();
    if (pid == 0) {
        td_rendezvous_result r;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        td_dist_options o = {
            .init_method = url, .rank = rank, .world_size = 3, .timeout = timeout
        };
        double begin = td_clock();
        td_status status = td_rendezvous(&o, &r);
        bool in_time = td_clock() - begin < timeout + 3.5;
        _exit(status == TD_E_TIMEOUT && in_time ? 0 : 1);
    }
    return pid;
}

static void the_time_out_holds_if_rank_0_is_stopped(void **state)
{
    (void)state;
    char url[64];
    td_store *store;
    int64_t arrived = 0;
    int port = td_free_port(), status;
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", port);
    pid_t first = start_rank(url, 0, 60), second = start_rank(url, 1, 5);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", port, 20, NULL, &store), TD_OK);
    while (arrived < 2) {
        assert_int_equal(td_store_add(store, "0/init0/arrived", 0, &arrived), TD_OK);
    }
    td_store_close(store);
    stop(first);
    assert_int_equal(waitpid(second, &status, 0), second);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_int_equal(waitpid(first, NULL, 0), first);
    assert_int_equal(status, 0);
}

/* A server that is late with its hello, and then does not answer. */
static void *greet_late(void *listener)
{
    unsigned char hello[TD_WIRE_SERVER_HELLO_BYTES] = TD_WIRE_HELLO, request[64];
    int fd = accept(*(int *)listener, NULL, NULL);
    (void)!recv(fd, request, TD_WIRE_CLIENT_HELLO_BYTES, MSG_WAITALL);
    td_sleep(3);
    (void)!write(fd, hello, sizeof(hello));
    while (recv(fd, request, sizeof(request), 0) > 0) {
    }
    close(fd);
    return NULL;
}

/* The first question has the time that connecting has left. */
static void the_time_out_holds_at_a_store_that_greets_late(void **state)
{
    (void)state;
    int port = 0, listener = td_port_listen("127.0.0.1", &port);
    char url[64];
    pthread_t thread;
    td_rendezvous_result r;
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&thread, NULL, greet_late, &listener), 0);
    td_dist_options o = { .init_method = url, .rank = 1, .world_size = 2, .timeout = 4 };
    double begin = td_clock();
    assert_int_equal(td_rendezvous(&o, &r), TD_E_TIMEOUT);
    assert_true(td_clock() - begin < 6.5);
    pthread_join(thread, NULL);
    close(listener);
}

/* ---- hosts with names ---- */

static struct sockaddr_in swallowing; /* "two-addresses" has this one first, then 127.0.0.1 */

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found)
{
    static struct sockaddr_in second;
    static struct addrinfo list[2];
    (void)hints;
    second = (struct sockaddr_in){ .sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(port)),
                                   .sin_addr = { htonl(INADDR_LOOPBACK) } };
    bool two = strcmp(host, "two-addresses") == 0;
    td_sleep(strcmp(host, "slow-name") == 0 ? 5.1 : 0); /* the first name server is down */
    for (int i = 0; i < 2; i++) {
        list[i] =
            (struct addrinfo){ .ai_family = AF_INET,
                               .ai_socktype = SOCK_STREAM,
                               .ai_addrlen = sizeof(second),
                               .ai_addr = (struct sockaddr *)(i == 0 ? &swallowing : &second) };
    }
    list[0].ai_next = &list[1];
    *found = &list[two ? 0 : 1];
    return 0;
}

void freeaddrinfo(struct addrinfo *found)
{
    (void)found; /* static */
}

/* A listener with a full queue drops packets as a firewall does. Returns its descriptor. */
static int swallow(int filler[2])
{
    socklen_t size = sizeof(swallowing);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    swallowing =
        (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    assert_int_equal(bind(listener, (struct sockaddr *)&swallowing, size), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&swallowing, &size), 0);
    for (int i = 0; i < 2; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&swallowing, size);
        td_sleep(0.05);
    }
    return listener;
}

static void an_address_that_answers_nothing(void **state)
{
    (void)state;
    int filler[2], listener = swallow(filler);
    served s = serve(20);
    td_store *store;
    assert_int_equal(td_tcp_store_connect("two-addresses", s.port, 20, NULL, &store), TD_OK);
    td_store_close(store);
    end(s);
    close(filler[0]);
    close(filler[1]);
    close(listener);
}

/* Looking up a name may take longer than an attempt to connect. */
static void a_name_server_that_is_down(void **state)
{
    (void)state;
    served s = serve(20);
    td_store *store;
    assert_int_equal(td_tcp_store_connect("slow-name", s.port, 20, NULL, &store), TD_OK);
    td_store_close(store);
    assert_int_equal(td_tcp_store_connect("slow-name", s.port, 1, NULL, &store), TD_OK);
    td_store_close(store);
    end(s);
}

/* ---- answers that no store gives ---- */

static void *answer_nonsense(void *listener)
{
    static const unsigned char codes[][8] = { { 0, 0, 0, 0x80, 1 }, { 255, 255, 255, 255, 1 } };
    for (int i = 0; i < 2; i++) {
        unsigned char hello[TD_WIRE_SERVER_HELLO_BYTES] = TD_WIRE_HELLO, request[64];
        int fd = accept(*(int *)listener, NULL, NULL);
        (void)!recv(fd, request, TD_WIRE_CLIENT_HELLO_BYTES, MSG_WAITALL);
        (void)!write(fd, hello, sizeof(hello));
        (void)!recv(fd, request, TD_WIRE_REQUEST_BYTES + 1, MSG_WAITALL);
        (void)!write(fd, codes[i], 8);
        (void)!write(fd, "x", 1);
        close(fd);
    }
    return NULL;
}

static void answers_that_cannot_be(void **state)
{
    (void)state;
    int port = 0, listener = td_port_listen("127.0.0.1", &port);
    pthread_t thread;
    bool exists;
    assert_int_equal(pthread_create(&thread, NULL, answer_nonsense, &listener), 0);
    for (int i = 0; i < 2; i++) {
        td_store *store;
        assert_int_equal(td_tcp_store_connect("127.0.0.1", port, 20, NULL, &store), TD_OK);
        assert_int_equal(td_store_check(store, "k", &exists), TD_E_NETWORK);
        assert_error_says("which no store gives", NULL);
        td_store_close(store);
    }
    pthread_join(thread, NULL);
    close(listener);
}

/* ---- wills ---- */

/* A store has one will: a new will takes the place of the one before. */
static void the_last_will_counts(void **state)
{
    (void)state;
    served s = serve(20);
    td_store *other;
    bool exists;
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 20, NULL, &other), TD_OK);
    assert_int_equal(td_store_will(other, "first"), TD_OK);
    assert_int_equal(td_store_will(other, "second"), TD_OK);
    td_sleep(0.1); /* for the server to notice that the first one's connection has ended */
    assert_int_equal(td_store_check(s.store, "first", &exists), TD_OK);
    assert_false(exists);
    td_store_close(other);
    for (exists = false; !exists;) {
        assert_int_equal(td_store_check(s.store, "second", &exists), TD_OK);
    }
    end(s);
}

/* A store that has no room left still tells of a death: a will is kept all the same. */
static void a_full_store_learns_of_a_death(void **state)
{
    (void)state;
    static unsigned char value[TD_STORE_MAX_VALUE];
    served s = serve(60);
    td_store *other;
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 60, NULL, &other), TD_OK);
    assert_int_equal(td_store_will(other, "gone"), TD_OK);
    int count = 0;
    for (size_t size = sizeof value; size > 0;) {
        char key[16];
        snprintf(key, sizeof key, "%d", count++);
        td_status status = td_store_set(s.store, key, value, size);
        assert_true(status == TD_OK || status == TD_E_NOMEM);
        size /= status == TD_OK ? 1 : 2;
    }
    assert_int_equal(td_store_set(s.store, "gone", "1", 1), TD_E_NOMEM);
    td_store_close(other);
    for (bool exists = false; !exists;) {
        assert_int_equal(td_store_check(s.store, "gone", &exists), TD_OK);
    }
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_connection_waits_as_long),
        cmocka_unit_test(watching_at_a_stopped_store),
        cmocka_unit_test(watching_at_a_late_store),
        cmocka_unit_test(watching_many_ranks),
        cmocka_unit_test(a_pause_is_no_time_out),
        cmocka_unit_test(the_time_out_holds_if_rank_0_is_stopped),
        cmocka_unit_test(the_time_out_holds_at_a_store_that_greets_late),
        cmocka_unit_test(an_address_that_answers_nothing),
        cmocka_unit_test(a_name_server_that_is_down),
        cmocka_unit_test(answers_that_cannot_be),
        cmocka_unit_test(the_last_will_counts),
        cmocka_unit_test(a_full_store_learns_of_a_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
