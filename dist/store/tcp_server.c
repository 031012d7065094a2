/* The server of the TCP store: one thread, poll(), a table in memory. */
#include "dist/store/tcp.h"

#include "dist/clock.h"
#include "dist/store/net.h"
#include "dist/store/tcp_connection.h"
#include "dist/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LISTENER = 0, /* places in the poll table */
    WAKE_UP = 1,
    FIRST_CLIENT = 2,
    TURNS = 64,         /* requests of one client before the next has its turn */
    HELLO_SECONDS = 10, /* a client that sends no hello is disconnected after this time */
};

struct td_tcp_server {
    pthread_t thread;
    int listener, wake_up[2]; /* a pipe: a byte in it ends the thread */
    int port;
    pthread_mutex_t lock; /* of clients, for td_tcp_server_drain */
    pthread_cond_t fewer;
    int clients;

    /* Used by the thread only. */
    td_connection **connections;
    int count, capacity;
    struct pollfd *polled; /* capacity + FIRST_CLIENT */
    bool full;             /* no descriptors left: accepting pauses */
    td_server_data data;
};

static bool grow(td_tcp_server *s)
{
    int capacity = s->capacity == 0 ? 64 : 2 * s->capacity;
    size_t many = (size_t)capacity;
    td_connection **connections = realloc(s->connections, many * sizeof(td_connection *));
    if (connections == NULL) {
        return false;
    }
    s->connections = connections;
    struct pollfd *polled = realloc(s->polled, (many + FIRST_CLIENT) * sizeof(struct pollfd));
    if (polled == NULL) {
        return false;
    }
    s->polled = polled;
    s->capacity = capacity;
    return true;
}

static void publish_count(td_tcp_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->clients = s->count;
    pthread_cond_broadcast(&s->fewer);
    pthread_mutex_unlock(&s->lock);
}

static void accept_client(td_tcp_server *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        s->full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
    }
    td_connection *c = calloc(1, sizeof(td_connection));
    if (c == NULL || (s->count == s->capacity && !grow(s))) {
        free(c);
        close(fd);
        return;
    }
    td_socket_tune(fd);
    c->fd = fd;
    c->since = td_clock();
    s->connections[s->count++] = c;
    publish_count(s);
}

static void drop_closed(td_tcp_server *s)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        td_connection *c = s->connections[i];
        bool silent = c->state == TD_READING_HELLO && td_clock() > c->since + HELLO_SECONDS;
        if (c->closed || silent) {
            if (c->will != NULL) { /* nobody waits for this key: other ranks check it */
                (void)td_table_set(&s->data.table, c->will, "1", 1);
            }
            td_connection_free(c);
            s->full = false;
        } else {
            s->connections[kept++] = c;
        }
    }
    if (kept < s->count) {
        s->count = kept;
        publish_count(s);
    }
}

/* Handles what one client has sent so far, but no more than TURNS requests. */
static void serve(td_tcp_server *s, td_connection *c)
{
    if (c->out != NULL) {
        td_connection_write(c);
    }
    c->turns = TURNS;
    do {
        free(s->data.changed);
        s->data.changed = NULL;
        td_connection_read(c, &s->data);
        for (int i = 0; s->data.changed != NULL && i < s->count; i++) {
            td_connection_wake(s->connections[i], s->data.changed, &s->data);
        }
    } while (s->data.changed != NULL && c->turns > 0);
}

/* Fills the poll table; returns how long to sleep at most, in milliseconds. */
static int prepare_poll(td_tcp_server *s)
{
    bool strangers = false;
    s->polled[LISTENER] = (struct pollfd){ .fd = s->full ? -1 : s->listener, .events = POLLIN };
    s->polled[WAKE_UP] = (struct pollfd){ .fd = s->wake_up[0], .events = POLLIN };
    for (int i = 0; i < s->count; i++) {
        const td_connection *c = s->connections[i];
        short events = c->out != NULL ? POLLOUT : POLLIN;
        s->polled[FIRST_CLIENT + i] = (struct pollfd){ .fd = c->fd, .events = events };
        strangers |= c->state == TD_READING_HELLO;
    }
    return s->full ? 100 : strangers ? 1000 : -1;
}

static void *server_main(void *argument)
{
    td_tcp_server *s = argument;
    for (;;) {
        int timeout = prepare_poll(s);
        int count = s->count;
        int ready = poll(s->polled, (nfds_t)(FIRST_CLIENT + count), timeout);
        if (ready < 0 && errno != EINTR) {
            break;
        }
        s->full = ready == 0 ? false : s->full;
        if (ready > 0 && s->polled[WAKE_UP].revents != 0) {
            break;
        }
        for (int i = 0; ready > 0 && i < count; i++) {
            if (s->polled[FIRST_CLIENT + i].revents != 0) {
                serve(s, s->connections[i]);
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
    for (int i = 0; i < s->count; i++) {
        td_connection_free(s->connections[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (s->wake_up[i] >= 0) {
            close(s->wake_up[i]);
        }
    }
    if (s->listener >= 0) {
        close(s->listener);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->fewer);
    td_table_clear(&s->data.table);
    free(s->data.changed);
    free(s->connections);
    free(s->polled);
    free(s);
}

td_status td_tcp_server_start(int port, td_tcp_server **server)
{
    td_tcp_server *s = calloc(1, sizeof(td_tcp_server));
    if (s == NULL) {
        return td_fail(TD_E_NOMEM, "no memory for the store's server");
    }
    pthread_mutex_init(&s->lock, NULL);
    td_condition_init(&s->fewer);
    s->wake_up[0] = s->wake_up[1] = -1;
    s->port = port;
    s->listener = td_port_listen(&s->port);
    if (s->listener < 0) {
        td_status status = s->listener;
        free_server(s);
        return status;
    }
    fcntl(s->listener, F_SETFL, O_NONBLOCK);
    int error = grow(s) ? 0 : ENOMEM;
    if (error == 0 && pipe2(s->wake_up, O_CLOEXEC) != 0) {
        error = errno;
    }
    error = error != 0 ? error : td_thread_start(&s->thread, server_main, s);
    if (error != 0) {
        free_server(s);
        return td_fail(TD_E_NETWORK, "cannot start the store's server: %s", strerror(error));
    }
    *server = s;
    return TD_OK;
}

int td_tcp_server_port(const td_tcp_server *server)
{
    return server->port;
}

bool td_tcp_server_drain(td_tcp_server *server, double timeout)
{
    double deadline = td_clock() + timeout;
    pthread_mutex_lock(&server->lock);
    while (server->clients > 0 && td_condition_await(&server->fewer, &server->lock, deadline)) {
    }
    bool empty = server->clients == 0;
    pthread_mutex_unlock(&server->lock);
    return empty;
}

void td_tcp_server_stop(td_tcp_server *server)
{
    if (server == NULL) {
        return;
    }
    while (write(server->wake_up[1], "x", 1) < 0 && errno == EINTR) {
    }
    pthread_join(server->thread, NULL);
    free_server(server);
}
