/* The server of the TCP store: one thread, poll(), a table in memory. */
#include "dist/comm/store/tcp.h"

#include "tensor/clock.h"
#include "dist/comm/process.h"
#include "dist/comm/store/net.h"
#include "dist/comm/store/tcp_connection.h"
#include "tensor/system/thread.h"
#include "tensor/system/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LISTENER = 0, /* places in the poll table */
    WAKE_UP = 1,
    FIRST_CLIENT = 2,
};

static const double PATIENCE = 30; /* seconds, see td_tcp_server_patience */

/* Connections that have not proved the token yet. There may be as many at once as ranks of a large
 * job that all connect now; more would take the process's descriptors. */
enum { MOST_STRANGERS = 256 };

struct td_tcp_server {
    pthread_t thread;
    int listener, wake_up; /* wake_up: an eventfd that ends the thread */
    int port;
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* data.members may have become less */
    _Atomic double patience;

    /* Used by the thread only. */
    int count, capacity;   /* of connections */
    struct pollfd *polled; /* capacity + FIRST_CLIENT */
    int most_strangers;    /* MOST_STRANGERS, or a quarter of the process's descriptors */
    bool full;             /* no descriptors left: accepting pauses */
    bool told_full, told_stranger;
    td_server_data data;
};

static bool server_grow(td_tcp_server *s)
{
    int capacity = s->capacity == 0 ? 64 : 2 * s->capacity;
    struct pollfd *polled =
        realloc(s->polled, ((size_t)capacity + FIRST_CLIENT) * sizeof(struct pollfd));
    if (polled == NULL) {
        return false;
    }
    s->polled = polled;
    s->capacity = capacity;
    return true;
}

/* Ends a connection of a stranger if there are too many: the oldest one from where most come from.
 * So one host that opens connections and says nothing pushes out its own, not those of a rank whose
 * hello takes longer on its way. */
static void limit_strangers(td_tcp_server *s, int most)
{
    td_connection *strangers[MOST_STRANGERS], *end = NULL;
    uint64_t origins[MOST_STRANGERS];
    int count = 0, largest = 0;
    for (td_connection *c = s->data.first; c != NULL && count < MOST_STRANGERS; c = c->next) {
        if (td_connection_is_strangers(c) && !c->closed) {
            strangers[count] = c;
            origins[count++] = c->origin;
        }
    }
    for (int i = 0; i < count && count >= most; i++) {
        int same = 0;
        for (int j = 0; j < count; j++) {
            same += origins[j] == origins[i];
        }
        if (same >= largest) { /* older connections follow */
            largest = same;
            end = strangers[i];
        }
    }
    if (end != NULL) {
        end->closed = true;
    }
}

/* Says once that connections must wait, and ends one of a stranger. */
static void server_make_room(td_tcp_server *s, int error)
{
    if (!s->told_full && td_stderr_is_read(0)) { /* clients do not wait for a reader */
        fprintf(stderr,
                "tandem: the store on port %d cannot take another connection: %s; connections wait "
                "(ulimit -n)\n",
                s->port, strerror(error));
        s->told_full = true;
    }
    limit_strangers(s, 1);
}

static void accept_client(td_tcp_server *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        s->full = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
        if (s->full) {
            server_make_room(s, error);
        }
        return;
    }
    td_socket_tune(fd);
    limit_strangers(s, s->most_strangers);
    if ((s->count == s->capacity && !server_grow(s)) || td_connection_new(fd, &s->data) == NULL) {
        close(fd);
        return;
    }
    s->count++;
}

/* A connection that ends before it has proved the token. */
static void tell_stranger(td_tcp_server *s, const td_connection *c)
{
    char address[TD_ADDRESS_BYTES];
    if (s->data.token.set && !s->told_stranger && td_stderr_is_read(0)) {
        td_socket_peer_address(c->fd, address);
        fprintf(stderr,
                "tandem: a connection from %s to port %d did not prove this job's token and was "
                "refused (others are refused without a word)\n",
                address, s->port);
        s->told_stranger = true;
    }
}

static void drop_closed(td_tcp_server *s)
{
    int before = s->count;
    double since = td_clock() - s->patience;
    for (td_connection *c = s->data.first, *next; c != NULL; c = next) {
        next = c->next;
        if (!c->closed && (c->since >= since || !td_connection_is_busy(c))) {
            continue;
        }
        if (td_connection_is_strangers(c)) {
            tell_stranger(s, c);
        }
        if (c->will != NULL) { /* nobody waits for this key: other ranks check it */
            size_t limit = s->data.table.limit;
            s->data.table.limit = 0; /* a full table, too, learns of a death */
            (void)td_table_set(&s->data.table, c->will, "1", 1);
            s->data.table.limit = limit;
        }
        td_connection_free(c, &s->data);
        s->full = false;
        s->count--;
    }
    if (s->count < before) {
        pthread_mutex_lock(&s->lock); /* td_tcp_server_drain waits, or has not looked yet */
        pthread_cond_broadcast(&s->fewer);
        pthread_mutex_unlock(&s->lock);
    }
}

/* Fills the poll table; returns how long to sleep at most, in milliseconds. */
static int prepare_poll(td_tcp_server *s)
{
    bool busy = false;
    s->polled[LISTENER] = (struct pollfd){ .fd = s->full ? -1 : s->listener, .events = POLLIN };
    s->polled[WAKE_UP] = (struct pollfd){ .fd = s->wake_up, .events = POLLIN };
    struct pollfd *at = &s->polled[FIRST_CLIENT];
    for (const td_connection *c = s->data.first; c != NULL; c = c->next) {
        *at++ = (struct pollfd){ .fd = c->fd, .events = c->out != NULL ? POLLOUT : POLLIN };
        busy |= td_connection_is_busy(c);
    }
    return s->full ? 100 : busy ? 500 : -1;
}

static void *server_main(void *argument)
{
    td_tcp_server *s = argument;
    for (;;) {
        int timeout = prepare_poll(s);
        int ready = poll(s->polled, (nfds_t)(FIRST_CLIENT + s->count), timeout);
        if (ready < 0 && errno != EINTR) {
            break;
        }
        s->full = ready == 0 ? false : s->full;
        if (ready > 0 && s->polled[WAKE_UP].revents != 0) {
            break;
        }
        const struct pollfd *at = &s->polled[FIRST_CLIENT];
        for (td_connection *c = s->data.first; ready > 0 && c != NULL; c = c->next, at++) {
            if (at->revents != 0) {
                td_connection_serve(c, &s->data);
            }
        }
        if (ready > 0 && s->polled[LISTENER].revents != 0) {
            accept_client(s);
        }
        drop_closed(s);
    }
    return NULL;
}

static void free_server(td_tcp_server *s)
{
    while (s->data.first != NULL) {
        td_connection_free(s->data.first, &s->data);
    }
    td_close_fd(s->wake_up);
    td_close_fd(s->listener);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->fewer);
    td_table_clear(&s->data.table);
    free(s->polled);
    free(s);
}

td_status td_tcp_server_open(const char *host, int port, const td_token *token,
                             td_tcp_server **server)
{
    td_tcp_server *s = calloc(1, sizeof(td_tcp_server));
    TD_CHECK(s != NULL, TD_E_NOMEM, "no memory for the store's server");
    s->data.token = token != NULL ? *token : (td_token){ 0 };
    s->data.table.limit = TD_SERVER_MAX_BYTES;
    s->patience = PATIENCE;
    struct rlimit files;
    bool few = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < MOST_STRANGERS;
    s->most_strangers = few ? (int)files.rlim_cur / 4 + 1 : MOST_STRANGERS;
    pthread_mutex_init(&s->lock, NULL);
    td_condition_init(&s->fewer);
    s->port = port;
    s->wake_up = -1;
    s->listener = td_port_listen(host, &s->port);
    if (s->listener < 0) {
        td_status status = s->listener;
        free_server(s);
        return status;
    }
    fcntl(s->listener, F_SETFL, O_NONBLOCK);
    int error = server_grow(s) ? 0 : ENOMEM;
    if (error == 0 && (s->wake_up = eventfd(0, EFD_CLOEXEC)) < 0) {
        error = errno;
    }
    error = error != 0 ? error : td_thread_start(&s->thread, server_main, s);
    if (error != 0) {
        free_server(s);
        return td_fail(TD_E_NETWORK, "cannot start the store's server: %s", strerror(error));
    }
    if (!s->data.token.set && (host == NULL || !td_address_is_loopback(host))) {
        td_notice("the store asks for no token: every host that reaches it can change or end this "
                  "job; give all processes one TANDEM_TOKEN_FILE, or tdrun --token-file");
    }
    *server = s;
    return TD_OK;
}

td_status td_tcp_server_start(int port, td_tcp_server **server)
{
    td_token token;
    TD_TRY(td_token_of_environment(&token));
    return td_tcp_server_open(NULL, port, &token, server);
}

void td_tcp_server_patience(td_tcp_server *server, double seconds)
{
    server->patience = seconds;
}

int td_tcp_server_port(const td_tcp_server *server)
{
    return server->port;
}

bool td_tcp_server_drain(td_tcp_server *server, double timeout)
{
    double deadline = td_clock() + timeout;
    pthread_mutex_lock(&server->lock);
    while (atomic_load(&server->data.members) > 0 &&
           td_condition_await(&server->fewer, &server->lock, deadline)) {
    }
    bool empty = atomic_load(&server->data.members) == 0;
    pthread_mutex_unlock(&server->lock);
    return empty;
}

void td_tcp_server_stop(td_tcp_server *server)
{
    if (server == NULL) {
        return;
    }
    (void)eventfd_write(server->wake_up, 1);
    pthread_join(server->thread, NULL);
    free_server(server);
}
