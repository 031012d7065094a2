/* td_launch: the store, the coordinator and the agent of one node. */
#include "dist/comm/launch/launcher.h"

#include "tensor/clock.h"
#include "tensor/extend.h"
#include "dist/comm/launch/link.h"
#include "dist/comm/process.h"
#include "dist/comm/store/net.h"
#include "dist/comm/store/tcp.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds for which the host waits until all nodes know the end; shorter if a node was lost. */
static const double LEAVE = 5, LEAVE_LOST = 2;

enum { WORKER_FILES = 8 }; /* that a worker of this node takes: pipes, logs, connections */

typedef struct launch {
    const td_launch_options *options;
    td_signal_watch watch;
    td_tcp_server *server;
    td_store *coordinator_store;
    td_coordinator *coordinator;
    td_workers *workers;
    const char *host;
    int port;
} launch;

bool td_run_id_is_valid(const char *run_id)
{
    for (const char *at = run_id; *at != '\0'; at++) {
        if ((unsigned char)*at <= ' ' || *at == '/' || *at == 0x7f) {
            return false;
        }
    }
    return run_id[0] != '\0' && run_id[0] != '.' && strlen(run_id) <= 100;
}

static int complain(const launch *l)
{
    td_launch_say(&l->watch, false, "%s", td_last_error());
    return 1;
}

/* An address is this host's if a socket can be bound to it. */
static bool is_local(const char *host)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return false;
    }
    bool local = false;
    for (const struct addrinfo *at = found; at != NULL && !local; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        local = fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0;
        td_close_fd(fd);
    }
    freeaddrinfo(found);
    return local;
}

/* Starts the server, if this node is the host. */
static td_status open_server(launch *l)
{
    const td_launch_options *o = l->options;
    l->port = o->port;
    l->host = o->host;
    if (strcmp(l->host, "127.0.0.1") == 0) {
        l->host = td_loopback_address();
    }
    bool try = o->hosts || (o->may_host && is_local(o->host));
    if (!try) {
        return TD_OK;
    }
    TD_TRY(td_files_for(o->min_nodes * o->workers, TD_SERVED_FILES));
    td_status status = td_tcp_server_open(l->host, o->port, &o->token, &l->server);
    if (status != TD_OK) {
        return o->hosts ? status : TD_OK; /* another launcher on this host was first */
    }
    l->port = td_tcp_server_port(l->server);
    return TD_OK;
}

static const char *store_host(const launch *l)
{
    bool as_others = l->server == NULL || td_address_is_loopback(l->host);
    return as_others ? l->host : td_loopback_address();
}

static td_status start_coordinator(launch *l)
{
    if (l->server == NULL) {
        return TD_OK;
    }
    TD_TRY(td_tcp_store_connect(store_host(l), l->port, TD_LOST, &l->options->token,
                                &l->coordinator_store));
    l->coordinator = td_coordinator_new(l->options, l->coordinator_store);
    return l->coordinator != NULL ? TD_OK : TD_E_NOMEM;
}

/* Connects, and tries again until the host's launcher is there. A signal ends this: *signal. */
static td_status connect_store(launch *l, td_store **store, int *signal)
{
    double deadline = td_clock() + l->options->join_timeout;
    for (int tries = 0;; tries++) {
        double left = deadline - td_clock(), patience = tries == 0 ? 1 : 4; /* for signals */
        left = left < 0.1 ? 0.1 : left < patience ? left : patience;
        td_status status =
            td_tcp_store_connect(store_host(l), l->port, left, &l->options->token, store);
        if (status == TD_OK) {
            (*store)->timeout = TD_LOST;
        }
        *signal = status == TD_OK ? 0 : td_signal_watch_wait(&l->watch, 0);
        if (status != TD_E_TIMEOUT || *signal != 0) {
            return status;
        }
        if (td_clock() > deadline) {
            return td_fail_context(TD_E_TIMEOUT,
                                   "no launcher at %s:%d after %g s; check that the one of node 0 "
                                   "runs and that the endpoint is the same on all nodes",
                                   l->options->host, l->port, l->options->join_timeout);
        }
        if (tries == 1) {
            td_launch_say(&l->watch, false, "waiting for node 0's launcher: %s", td_last_error());
        }
    }
}

/* Runs the agent, and again if it loses the host and restarts are left. */
static int run_agent(launch *l)
{
    const td_launch_options *o = l->options;
    bool may_return = o->max_restarts > 0 || o->min_nodes < o->max_nodes;
    for (;;) {
        td_store *store = NULL;
        int signal = 0;
        td_status status = connect_store(l, &store, &signal);
        if (signal != 0) {
            return 128 + signal;
        }
        if (status != TD_OK) {
            return complain(l);
        }
        int code = td_agent_run(o, store, l->workers, &l->watch, l->coordinator);
        td_store_close(store);
        if (code != TD_AGENT_LOST && code != TD_AGENT_AGAIN) {
            return code;
        }
        (void)complain(l);
        bool gone = code == TD_AGENT_LOST;
        if (!may_return || (gone && l->server != NULL)) {
            td_launch_say(&l->watch, false,
                          "the launcher at %s:%d %s; the workers here were stopped", o->host,
                          l->port, gone ? "is gone" : "goes on without this node");
            return 1;
        }
        td_launch_say(&l->watch, false, "the workers here were stopped; trying to join again");
    }
}

static void close_all(launch *l, bool keep_logs)
{
    if (l->workers != NULL) {
        td_workers_close(l->workers, keep_logs);
    }
    bool lost = td_coordinator_free(l->coordinator);
    td_store_close(l->coordinator_store);
    if (l->server != NULL) {
        (void)td_tcp_server_drain(l->server, lost ? LEAVE_LOST : LEAVE);
        td_tcp_server_stop(l->server);
    }
}

int td_launch(const td_launch_options *options)
{
    launch l = { .options = options };
    /* First, so that all threads have these signals blocked; the guard, too, comes before threads.
     */
    td_signal_watch_begin(&l.watch);
    td_status status = td_files_for(options->workers, WORKER_FILES);
    status = status == TD_OK ? td_workers_open(options, &l.workers) : status;
    status = status == TD_OK ? open_server(&l) : status;
    status = status == TD_OK ? start_coordinator(&l) : status;
    int code = 1;
    if (status == TD_OK) {
        td_workers_meet_at(l.workers, l.host, l.port);
        code = run_agent(&l);
    } else {
        complain(&l);
    }
    close_all(&l, code != 0);
    return code;
}
