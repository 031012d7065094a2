/* One client of the TCP store's server: its buffers and its requests (dist/store/wire.h). Only the
 * server's thread uses it. */
#ifndef TD_DIST_TCP_CONNECTION_H
#define TD_DIST_TCP_CONNECTION_H

#include "dist/store/net.h"
#include "dist/store/table.h"
#include "dist/store/wire.h"

#include <stdatomic.h>

typedef struct td_connection {
    int fd;       /* not blocking */
    double since; /* when it was accepted; then, when it last sent or took anything */
    enum {
        TD_READING_HELLO,
        TD_READING_PROOF,
        TD_READING_REQUEST, /* from here on the client is known */
        TD_READING_BODY,
        TD_SKIPPING_BODY, /* there is no room for it */
        TD_WAITING
    } state;
    unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES];
    unsigned char proof[TD_PROOF_BYTES], wanted[TD_PROOF_BYTES];
    unsigned char request[TD_WIRE_REQUEST_BYTES];
    unsigned char *body;
    size_t received, body_capacity; /* of what the state names */
    unsigned char *out;
    size_t out_size, out_sent;
    char *waiting_for; /* the key of a get that must wait */
    char *will;        /* the key to set when the connection ends, or NULL */
    int turns;         /* what it may do before other clients have their turn */
    bool closed;
} td_connection;

/* Shared by all connections. */
typedef struct td_server_data {
    td_table table;
    td_token token;
    atomic_int members;             /* clients that are known; other threads may read it */
    size_t buffers;                 /* bytes of all connections' bodies and answers */
    char address[TD_ADDRESS_BYTES]; /* of this host, as a client from outside has reached it */
    char *changed; /* the key that the last request has changed; the caller frees it */
} td_server_data;

enum {
    TD_SERVER_MAX_BYTES = 512 << 20, /* table.limit, which also bounds the buffers */
    TD_SERVER_TURNS = 64, /* a request, and each 16 KiB, is one; then others have their turn */
};

/* Reads arrived data and runs requests. Sets c->closed if the client has gone or violates the
 * protocol. */
void td_connection_read(td_connection *c, td_server_data *data);
void td_connection_write(td_connection *c, td_server_data *data); /* continues sending */
/* Answers this connection's get if it waits for the key. */
void td_connection_wake(td_connection *c, const char *key, td_server_data *data);
/* Whether the client has begun something, also its hello, that it has not ended. */
bool td_connection_is_busy(const td_connection *c);
/* Whether the client has not proved yet that it belongs to the job. */
static inline bool td_connection_is_strangers(const td_connection *c)
{
    return c->state < TD_READING_REQUEST;
}
void td_connection_free(td_connection *c, td_server_data *data);

#endif
