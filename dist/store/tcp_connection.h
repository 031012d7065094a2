/* One client of the TCP store's server: its buffers and its requests (dist/store/wire.h). Only the
 * server's thread uses it. */
#ifndef TD_DIST_TCP_CONNECTION_H
#define TD_DIST_TCP_CONNECTION_H

#include "dist/store/net.h"
#include "dist/store/table.h"
#include "dist/store/wire.h"

typedef struct td_connection {
    int fd; /* not blocking */
    double since;
    enum { TD_READING_HELLO, TD_READING_REQUEST, TD_READING_BODY, TD_WAITING } state;
    unsigned char hello[TD_WIRE_HELLO_BYTES], request[TD_WIRE_REQUEST_BYTES];
    unsigned char *body;
    size_t received, body_capacity; /* of the hello, request or body that is being read */
    unsigned char *out;
    size_t out_size, out_sent;
    char *waiting_for; /* the key of a get that must wait */
    char *will;        /* the key to set when the connection ends, or NULL */
    int turns;         /* requests that it may make before other clients have their turn */
    bool closed;
} td_connection;

/* Shared by all connections. */
typedef struct td_server_data {
    td_table table;
    char address[TD_ADDRESS_BYTES]; /* of this host, as a client from outside has reached it */
    char *changed; /* the key that the last request has changed; the caller frees it */
} td_server_data;

/* Reads arrived data and runs requests. Sets c->closed if the client has gone or violates the
 * protocol. */
void td_connection_read(td_connection *c, td_server_data *data);
void td_connection_write(td_connection *c); /* continues sending */
/* Answers this connection's get if it waits for the key. */
void td_connection_wake(td_connection *c, const char *key, const td_server_data *data);
void td_connection_free(td_connection *c);

#endif
