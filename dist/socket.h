/* TCP sockets with deadlines. Deadlines are seconds on td_clock(). */
#ifndef TD_DIST_SOCKET_H
#define TD_DIST_SOCKET_H

#include "tensor/error.h"

#include <stddef.h>

enum { TD_ADDRESS_BYTES = 64 };

/* No delays, keep-alive, no SIGPIPE on this socket where the system needs it asked for, and cubic
 * congestion control where it may be chosen: bbr, the default of some systems, halves the speed on
 * one host. Failures do not matter. */
void td_socket_tune(int fd);

/* One attempt at each of the host's addresses. A descriptor, not blocking, or negative:
 * TD_E_TIMEOUT, TD_E_NETWORK, TD_E_NOTFOUND (no such host). */
int td_socket_connect(const char *host, int port, double deadline);

/* The whole of it. TD_E_TIMEOUT; TD_E_NETWORK: closed ("connection closed") or broken. */
td_status td_socket_send(int fd, const void *bytes, size_t size, double deadline);
td_status td_socket_receive(int fd, void *bytes, size_t size, double deadline);

/* The socket's own address as text, "" if unknown: "10.77.0.2". An IPv4 address that was mapped
 * into IPv6 is given as IPv4. */
void td_socket_local_address(int fd, char text[TD_ADDRESS_BYTES]);
int td_address_is_loopback(const char *text); /* 127.x.y.z or ::1 */

#endif
