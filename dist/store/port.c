#include "dist/store/port.h"

#include "dist/dist.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

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

/* Whether one of /proc/PID/fd/ is the socket. */
static bool holds_socket(const char *pid, unsigned long inode)
{
    char path[300], wanted[64], target[64];
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return false;
    }
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    closedir(folder);
    return found;
}

static void describe_process(const char *pid, char *text, size_t size)
{
    char path[300], name[64] = "";
    snprintf(path, sizeof(path), "/proc/%s/comm", pid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) != NULL) {
            name[strcspn(name, "\n")] = '\0';
        }
        fclose(file);
    }
    snprintf(text, size, "pid %s (%s)", pid, name);
}

bool td_port_holder(int port, char *text, size_t size)
{
    unsigned long inode = listening_inode("/proc/self/net/tcp", port);
    if (inode == 0) {
        inode = listening_inode("/proc/self/net/tcp6", port);
    }
    DIR *processes = inode != 0 ? opendir("/proc") : NULL;
    if (processes == NULL) {
        return false;
    }
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(processes)) != NULL;) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            holds_socket(entry->d_name, inode)) {
            describe_process(entry->d_name, text, size);
            found = true;
        }
    }
    closedir(processes);
    return found;
}

static int bind_any(int family, int port)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = { .any = { .sa_family = (sa_family_t)family } };
    socklen_t size = sizeof(address.v4);
    int on = 1, off = 0;
    if (family == AF_INET6) {
        size = sizeof(address.v6);
        address.v6.sin6_port = htons((uint16_t)port);
        address.v6.sin6_addr = in6addr_any;
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    } else {
        address.v4.sin_port = htons((uint16_t)port);
        address.v4.sin_addr.s_addr = htonl(INADDR_ANY);
    }
    /* Connections of an earlier server that still fade out do not count as busy. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &address.any, size) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int bound_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t size = sizeof(address);
    if (getsockname(fd, &address.any, &size) != 0) {
        return -1;
    }
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

int td_port_listen(int *port)
{
    if (*port < 0 || *port > 65535) {
        return td_fail(TD_E_ARG, "port %d: ports go from 1 to 65535 (0: a free one)", *port);
    }
    int fd = bind_any(AF_INET6, *port);
    if (fd < 0 && errno != EADDRINUSE) {
        fd = bind_any(AF_INET, *port); /* a host without IPv6 */
    }
    if (fd >= 0) {
        *port = bound_port(fd);
        return fd;
    }
    char holder[128];
    if (errno != EADDRINUSE) {
        return td_fail(TD_E_NETWORK, "cannot listen on port %d: %s", *port, strerror(errno));
    }
    if (td_port_holder(*port, holder, sizeof(holder))) {
        return td_fail(TD_E_NETWORK,
                       "port %d is busy: %s listens on it; end that process or take another port "
                       "(MASTER_PORT)",
                       *port, holder);
    }
    return td_fail(TD_E_NETWORK,
                   "port %d is busy: another process listens on it; take another port "
                   "(MASTER_PORT)",
                   *port);
}

int td_free_port(void)
{
    int port = 0;
    int fd = td_port_listen(&port);
    if (fd < 0) {
        return fd;
    }
    close(fd);
    return port;
}
