/* One client of the TCP store's server: its buffers, and its requests (dist/wire.h). Used by the
 * server's thread alone. */
#ifndef TD_DIST_TCP_CONNECTION_H
#define TD_DIST_TCP_CONNECTION_H

#include "dist/socket.h"
#include "dist/table.h"
#include "dist/wire.h"

typedef struct td_connection {
    int fd; /* not blocking */
    double since;
    enum { TD_READING_HELLO, TD_READING_REQUEST, TD_READING_BODY, TD_WAITING } state;
    unsigned char hello[TD_WIRE_HELLO_BYTES], request[TD_WIRE_REQUEST_BYTES];
    unsigned char *body;
    size_t received, body_capacity; /* of what is being read */
    unsigned char *out;
    size_t out_size, out_sent;
    char *waiting_for; /* the key of a get that must wait */
    char *will;        /* the key to set when it ends, or NULL */
    bool closed;
} td_connection;

/* What all connections share. */
typedef struct td_server_data {
    td_table table;
    char address[TD_ADDRESS_BYTES]; /* of this host, where a client from outside reached it */
    char *changed;                  /* a key that the last request has set; the caller's to free */
} td_server_data;

/* Reads what is there and carries requests out. Sets c->closed when the client is gone or does not
 * speak the protocol. */
void td_connection_read(td_connection *c, td_server_data *data);
void td_connection_write(td_connection *c); /* goes on sending */
/* Answers the get that waits for the key, if this one does. */
void td_connection_wake(td_connection *c, const char *key, const td_server_data *data);
void td_connection_free(td_connection *c);

#endif
