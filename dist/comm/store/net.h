/* TCP sockets with deadlines, and ports of this host. (td_free_port is in dist/comm/store.h.)
 * Deadlines are seconds on td_clock(). */
#pragma once

#include "dist/comm/store.h"

/* Sets no-delay, keep-alive, no SIGPIPE (where that is a socket option), and cubic congestion
 * control if allowed: bbr, the default of some systems, halves the speed on one host. Ignores
 * failures. */
void td_socket_tune(int fd);

/* Tries each of the host's addresses once, for an equal part of the time that is left: packets to
 * an address that no longer exists get no answer. *deadline is moved by the time that looking up
 * the host's name took: 5 s for each name server that does not answer. Returns a non-blocking
 * descriptor, or negative: TD_E_TIMEOUT, TD_E_NETWORK, TD_E_NOTFOUND (no such host), TD_E_IO (no
 * descriptor is left). */
int td_socket_connect(const char *host, int port, double *deadline);

/* Waits until something has arrived, or the connection has ended. TD_E_TIMEOUT. */
td_status td_socket_await(int fd, double deadline);

/* Send or receive exactly `size` bytes. TD_E_TIMEOUT; TD_E_NETWORK: closed ("connection closed") or
 * broken. */
td_status td_socket_send(int fd, const void *bytes, size_t size, double deadline);
td_status td_socket_receive(int fd, void *bytes, size_t size, double deadline);

/* The socket's own address as text, "" if unknown: "10.77.0.2". An IPv4 address that was mapped
 * into IPv6 is given as IPv4. */
void td_socket_local_address(int fd, char text[TD_ADDRESS_BYTES]);
void td_socket_peer_address(int fd, char text[TD_ADDRESS_BYTES]); /* the other end's */
/* Where a connection comes from, as a number: an IPv4 address, or the network (64 bits) of an IPv6
 * address, because one host may have all addresses of its network. */
uint64_t td_socket_origin(int fd);
bool td_address_is_loopback(const char *text); /* 127.x.y.z, ::1 or localhost */

/* Which process listens on a port, if this process may see it: "pid 123 (python3)". false: unknown.
 * */
bool td_port_holder(int port, char *text, size_t size);

/* "127.0.0.1", or "::1" on a host with IPv6 alone. */
const char *td_loopback_address(void);

/* A socket that listens at a loopback address (td_address_is_loopback); any other host, or NULL:
 * on all of this host's addresses (IPv6 and IPv4 if both exist). Close-on-exec. *port 0: gets a
 * free one. TD_E_NETWORK: the port is taken; the message names the holder. */
int td_port_listen(const char *host, int *port);

/* A socket that has a free port and does not listen: no program that asks for a free port gets this
 * one, and td_port_listen can still listen at it. Close-on-exec. */
int td_port_reserve(int *port);
