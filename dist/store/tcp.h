/* The TCP store's functions for rendezvous and launcher, in addition to dist/store.h. */
#ifndef TD_DIST_TCP_H
#define TD_DIST_TCP_H

#include "dist/store/net.h"
#include "dist/store.h"

/* The address at which a client from another host has last reached the server, "" if none has. The
 * server's own process needs it: it may have come in over 127.0.0.1. */
td_status td_tcp_store_server_address(td_store *store, char text[TD_ADDRESS_BYTES]);

/* Waits until no client is connected, so that the server ends last. false: time-out. */
bool td_tcp_server_drain(td_tcp_server *server, double timeout);

#endif
