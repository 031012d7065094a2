/* The TCP store's functions for rendezvous and launcher, in addition to dist/comm/store.h. */
#pragma once

#include "dist/comm/store/net.h"
#include "dist/comm/store.h"
#include "dist/comm/token.h"

/* How many connections a server should be able to have for each rank (td_files_for). */
enum { TD_SERVED_FILES = 4 };

/* td_tcp_server_start for a job with a token, or without (NULL). If host is a loopback address
 * ("127.0.0.1", "::1", "localhost"), the server listens there only, otherwise on all of this host's
 * addresses. */
td_status td_tcp_server_open(const char *host, int port, const td_token *token,
                             td_tcp_server **server);

/* td_tcp_store_open with this token, or without (NULL). */
td_status td_tcp_store_connect(const char *host, int port, double timeout, const td_token *token,
                               td_store **store);

/* The address at which a client from another host has first reached the server, "" if none has. The
 * server's own process needs this address, because that process may have connected over
 * 127.0.0.1. */
td_status td_tcp_store_server_address(td_store *store, char text[TD_ADDRESS_BYTES]);

/* Seconds for which the server waits for the rest of a hello or request, or for room to send an
 * answer, before it ends the connection; 30 at first. */
void td_tcp_server_patience(td_tcp_server *server, double seconds);

/* Waits until no client is connected, so that the server ends last. false: time-out. */
bool td_tcp_server_drain(td_tcp_server *server, double timeout);
