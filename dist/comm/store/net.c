/* TCP sockets with deadlines. */
#include "dist/comm/store/net.h"
#include "dist/comm/process.h"

#include "tensor/clock.h"
#include "dist/comm/comm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IDLE_SECONDS = 10, PROBE_SECONDS = 5, PROBES = 4, BACKLOG = 1024 };
static const double STOPPED = 1; /* seconds */

static void set_option(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof(value));
}

void td_socket_tune(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_SECONDS);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, PROBE_SECONDS);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
#endif
#ifdef TCP_CONGESTION
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
#endif
#ifdef SO_NOSIGPIPE
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

/* If the time is over long before anybody looks, this process was stopped: then another thread of
 * it, a server, may still have to answer. */
static td_status net_wait_for(int fd, short events, double deadline)
{
    struct pollfd waiting = { .fd = fd, .events = events };
    bool began_in_time = td_clock() < deadline;
    for (;;) {
        int ready = poll(&waiting, 1, td_milliseconds_until(deadline));
        double over = td_clock() - deadline;
        if (ready > 0) {
            return TD_OK;
        }
        if (ready == 0 && over >= STOPPED && began_in_time) {
            began_in_time = false;
            deadline += over + STOPPED;
        } else if (ready == 0 && over >= 0) {
            return td_fail(TD_E_TIMEOUT, "no answer in time");
        }
        TD_CHECK(ready >= 0 || errno == EINTR, TD_E_NETWORK, "poll: %s", strerror(errno));
    }
}

td_status td_socket_await(int fd, double deadline)
{
    return net_wait_for(fd, POLLIN, deadline);
}

static int connect_one(const struct addrinfo *to, double deadline)
{
    int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to->ai_protocol);
    if (fd < 0) {
        bool few = errno == EMFILE || errno == ENFILE;
        return td_fail(few ? TD_E_IO : TD_E_NETWORK, "socket: %s%s", strerror(errno),
                       few ? " (ulimit -n)" : "");
    }
    td_socket_tune(fd);
    td_status status = TD_OK;
    int error = 0;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS || error == EINTR) {
            socklen_t size = sizeof(error);
            status = net_wait_for(fd, POLLOUT, deadline);
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        }
    }
    if (status == TD_OK && error != 0) {
        status = td_fail(TD_E_NETWORK, "%s", strerror(error));
    }
    if (status != TD_OK) {
        close(fd);
        return status;
    }
    return fd;
}

int td_socket_connect(const char *host, int port, double *deadline)
{
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found;
    double begin = td_clock();
    int failed = getaddrinfo(host, service, &hints, &found);
    *deadline += td_clock() - begin;
    if (failed != 0) { /* not found: the name server knows no such host */
        td_status status = failed == EAI_NONAME ? TD_E_NOTFOUND : TD_E_NETWORK;
        return td_fail(status, "%s", gai_strerror(failed));
    }
    int fd = -1, left = 0;
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        left++;
    }
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next, left--) {
        double now = td_clock();
        fd = connect_one(at, now + (*deadline - now) / left);
    }
    freeaddrinfo(found);
    return fd;
}

td_status td_socket_send(int fd, const void *bytes, size_t size, double deadline)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent >= 0) {
            at += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            TD_TRY(net_wait_for(fd, POLLOUT, deadline));
        } else if (errno != EINTR) {
            return td_fail(TD_E_NETWORK, "%s", strerror(errno));
        }
    }
    return TD_OK;
}

td_status td_socket_receive(int fd, void *bytes, size_t size, double deadline)
{
    char *at = bytes;
    while (size > 0) {
        ssize_t received = recv(fd, at, size, 0);
        if (received > 0) {
            at += received;
            size -= (size_t)received;
        } else if (received == 0) {
            return td_fail(TD_E_NETWORK, "connection closed");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            TD_TRY(net_wait_for(fd, POLLIN, deadline));
        } else if (errno != EINTR) {
            return td_fail(TD_E_NETWORK, "%s", strerror(errno));
        }
    }
    return TD_OK;
}

/* get: getsockname or getpeername */
static void address_of(int fd, int (*get)(int, struct sockaddr *, socklen_t *),
                       char text[TD_ADDRESS_BYTES])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    text[0] = '\0';
    if (get(fd, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, text, TD_ADDRESS_BYTES, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        text[0] = '\0';
        return;
    }
    static const char mapped[] = "::ffff:";
    if (strncmp(text, mapped, sizeof(mapped) - 1) == 0 && strchr(text, '.') != NULL) {
        memmove(text, text + sizeof(mapped) - 1, strlen(text) - (sizeof(mapped) - 1) + 1);
    }
}

void td_socket_local_address(int fd, char text[TD_ADDRESS_BYTES])
{
    address_of(fd, getsockname, text);
}

void td_socket_peer_address(int fd, char text[TD_ADDRESS_BYTES])
{
    address_of(fd, getpeername, text);
}

uint64_t td_socket_origin(int fd)
{
    struct sockaddr_in6 from = { 0 };
    socklen_t size = sizeof(from);
    uint64_t network = 0;
    if (getpeername(fd, (struct sockaddr *)&from, &size) != 0) {
        return 0;
    }
    if (from.sin6_family == AF_INET) {
        return ((struct sockaddr_in *)(void *)&from)->sin_addr.s_addr;
    }
    bool mapped = IN6_IS_ADDR_V4MAPPED(&from.sin6_addr);
    memcpy(&network, from.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : sizeof(network));
    return network;
}

bool td_address_is_loopback(const char *text)
{
    return strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0 ||
           strcmp(text, "localhost") == 0;
}

/* ---- ports ---- */

/* The inode of the socket that listens on port, from /proc/net/tcp or tcp6; 0: none seen. A line:
 *   sl local_address:port remote_address:port state queues timer retransmits uid timeout inode */
static unsigned long listening_inode(const char *path, int port)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    char line[512];
    unsigned long inode = 0;
    while (inode == 0 && fgets(line, sizeof(line), file) != NULL) {
        unsigned local_port, state;
        unsigned long found;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*d %*d %lu",
                   &local_port, &state, &found) == 3 &&
            (int)local_port == port && state == 0x0A /* listening */) {
            inode = found;
        }
    }
    fclose(file);
    return inode;
}

static void describe_process(long pid, char *text, size_t size)
{
    char path[64], name[64] = "";
    snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) != NULL) {
            name[strcspn(name, "\n")] = '\0';
        }
        fclose(file);
    }
    snprintf(text, size, "pid %ld (%s)", pid, name);
}

bool td_port_holder(int port, char *text, size_t size)
{
    char wanted[64], target[64];
    glob_t files;
    unsigned long inode = listening_inode("/proc/self/net/tcp", port);
    if (inode == 0) {
        inode = listening_inode("/proc/self/net/tcp6", port);
    }
    if (inode == 0 || glob("/proc/[1-9]*/fd/*", GLOB_NOSORT, NULL, &files) != 0) {
        return false;
    }
    bool found = false;
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    for (size_t i = 0; i < files.gl_pathc && !found; i++) {
        ssize_t length = readlink(files.gl_pathv[i], target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        found = strcmp(target, wanted) == 0;
        if (found) {
            describe_process(atol(files.gl_pathv[i] + strlen("/proc/")), text, size);
        }
    }
    globfree(&files);
    return found;
}

/* A socket, or an errno, negative. */
static int bind_at(const struct addrinfo *at, bool listens)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    /* Connections of an earlier server that still fade out do not count as busy. */
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || (listens && listen(fd, BACKLOG) != 0)) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* The first of the host's addresses that can be had. */
static int bind_first(const char *host, int port, bool listens)
{
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *found;
    if (getaddrinfo(host, service, &hints, &found) != 0) {
        return -EADDRNOTAVAIL;
    }
    int fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *at = found; at != NULL && fd < 0 && fd != -EADDRINUSE;
         at = at->ai_next) {
        fd = bind_at(at, listens);
    }
    freeaddrinfo(found);
    return fd;
}

static int bound_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    char service[16] = "-1";
    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0) {
        (void)getnameinfo((struct sockaddr *)&address, size, NULL, 0, service, sizeof(service),
                          NI_NUMERICSERV);
    }
    return atoi(service);
}

static int take_port(const char *host, int *port, bool listens)
{
    TD_CHECK(*port >= 0 && *port <= 65535, TD_E_ARG,
             "port %d: ports go from 1 to 65535 (0: a free one)", *port);
    if (host == NULL || !td_address_is_loopback(host)) {
        host = "::"; /* also takes IPv4 */
    }
    int fd = bind_first(host, *port, listens);
    if (fd < 0 && fd != -EADDRINUSE && strcmp(host, "::") == 0) {
        fd = bind_first("0.0.0.0", *port, listens); /* a host without IPv6 */
    }
    if (fd >= 0) {
        *port = bound_port(fd);
        return fd;
    }
    char holder[128] = "another process";
    TD_CHECK(fd == -EADDRINUSE, TD_E_NETWORK, "cannot listen on port %d: %s", *port, strerror(-fd));
    bool known = td_port_holder(*port, holder, sizeof(holder));
    return td_fail(TD_E_NETWORK,
                   "port %d is busy: %s listens on it; %stake another port (MASTER_PORT)", *port,
                   holder, known ? "end that process or " : "");
}

int td_port_listen(const char *host, int *port)
{
    return take_port(host, port, true);
}

int td_port_reserve(int *port)
{
    *port = 0;
    return take_port(NULL, port, false);
}

const char *td_loopback_address(void)
{
    int port = 0;
    int fd = td_port_listen("127.0.0.1", &port);
    td_close_fd(fd);
    return fd >= 0 ? "127.0.0.1" : "::1";
}

int td_free_port(void)
{
    int port;
    int fd = td_port_reserve(&port);
    if (fd < 0) {
        return fd;
    }
    close(fd);
    return port;
}
