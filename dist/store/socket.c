#include "dist/store/socket.h"

#include "dist/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IDLE_SECONDS = 10, PROBE_SECONDS = 5, PROBES = 4 };

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

static td_status wait_for(int fd, short events, double deadline)
{
    struct pollfd waiting = { .fd = fd, .events = events };
    for (;;) {
        int ready = poll(&waiting, 1, td_milliseconds_until(deadline));
        if (ready > 0) {
            return TD_OK;
        }
        if (ready == 0 && td_clock() >= deadline) {
            return td_fail(TD_E_TIMEOUT, "no answer in time");
        }
        if (ready < 0 && errno != EINTR) {
            return td_fail(TD_E_NETWORK, "poll: %s", strerror(errno));
        }
    }
}

td_status td_socket_await(int fd, double deadline)
{
    return wait_for(fd, POLLIN, deadline);
}

static int connect_one(const struct addrinfo *to, double deadline)
{
    int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to->ai_protocol);
    if (fd < 0) {
        return td_fail(TD_E_NETWORK, "socket: %s", strerror(errno));
    }
    td_socket_tune(fd);
    td_status status = TD_OK;
    int error = 0;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS || error == EINTR) {
            socklen_t size = sizeof(error);
            status = wait_for(fd, POLLOUT, deadline);
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

int td_socket_connect(const char *host, int port, double deadline)
{
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *found;
    int failed = getaddrinfo(host, service, &hints, &found);
    if (failed != 0) { /* not found: the name server knows no such host */
        td_status status = failed == EAI_NONAME ? TD_E_NOTFOUND : TD_E_NETWORK;
        return td_fail(status, "%s", gai_strerror(failed));
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        fd = connect_one(at, deadline);
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
            TD_TRY(wait_for(fd, POLLOUT, deadline));
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
            TD_TRY(wait_for(fd, POLLIN, deadline));
        } else if (errno != EINTR) {
            return td_fail(TD_E_NETWORK, "%s", strerror(errno));
        }
    }
    return TD_OK;
}

void td_socket_local_address(int fd, char text[TD_ADDRESS_BYTES])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    text[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
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

int td_address_is_loopback(const char *text)
{
    return strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0;
}
