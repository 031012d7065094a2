/* TCP ports of this host. (td_free_port is in dist/dist.h.) */
#ifndef TD_DIST_PORT_H
#define TD_DIST_PORT_H

#include <stdbool.h>
#include <stddef.h>

/* Who listens on a port, as far as this process may see it: "pid 123 (python3)". false: unknown. */
bool td_port_holder(int port, char *text, size_t size);

/* A socket that listens on all of this host's addresses (IPv6 and IPv4 if both exist);
 * close-on-exec. *port 0: gets a free one. TD_E_NETWORK: the port is taken; the message names the
 * holder. */
int td_port_listen(int *port);

#endif
