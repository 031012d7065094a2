/* The clients of the TCP store's server: their buffers and requests (dist/comm/store/wire.h). Only
 * the server's thread uses them. */
#pragma once

#include "dist/comm/store/net.h"
#include "dist/comm/store/table.h"
#include "dist/comm/store/wire.h"

#include <stdatomic.h>

typedef struct td_connection {
    struct td_connection *next, **link; /* link: what points to this connection */
    int fd;                             /* not blocking */
    uint64_t origin;                    /* td_socket_origin */
    double since; /* when it was accepted; then, when it last sent or took anything */
    enum {
        TD_READING_HELLO,
        TD_READING_PROOF,
        TD_READING_REQUEST, /* from here on the client is known */
        TD_READING_BODY,
        TD_SKIPPING_BODY, /* there is no room for it */
        TD_WAITING        /* for the key of its get, with the whole request */
    } state;
    unsigned char head[TD_PROOF_BYTES]; /* a hello, a proof, or a request's first bytes */
    unsigned char wanted[TD_PROOF_BYTES];
    unsigned char *body;
    size_t body_size, body_capacity; /* of the whole request; of what has room now */
    size_t received;                 /* of what the state names */
    unsigned char *out;
    size_t out_size, out_sent;
    char *will; /* the key to set when the connection ends, or NULL */
    int turns;  /* what it may do before other clients have their turn */
    bool closed;
} td_connection;

/* Shared by all connections. */
typedef struct td_server_data {
    td_connection *first; /* the newest; older ones follow */
    td_table table;
    td_token token;
    atomic_int members;             /* clients that are known; other threads may read it */
    size_t buffers;                 /* bytes of all connections' bodies and answers */
    char address[TD_ADDRESS_BYTES]; /* of this host, as a client from outside has reached it */
} td_server_data;

enum {
    TD_SERVER_MAX_BYTES = 512 << 20, /* table.limit, which also bounds the buffers */
    TD_SERVER_TURNS = 64, /* a request, and each 16 KiB, is one; then others have their turn */
};

/* For an accepted socket; NULL: no memory. */
td_connection *td_connection_new(int fd, td_server_data *data);
/* Closes the socket. */
void td_connection_free(td_connection *c, td_server_data *data);
/* Continues sending, then reads what has arrived and runs requests, no more than TD_SERVER_TURNS. A
 * key that is set also answers the other connections' gets that wait for it. Sets c->closed if the
 * client has gone or violates the protocol. */
void td_connection_serve(td_connection *c, td_server_data *data);
/* Whether the client has begun something, also its hello, that it has not ended. */
bool td_connection_is_busy(const td_connection *c);
/* Whether the client has not proved yet that it belongs to the job. */
static inline bool td_connection_is_strangers(const td_connection *c)
{
    return c->state < TD_READING_REQUEST;
}
