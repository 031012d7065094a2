/* For tests: a server of a TCP store that asks for a token, and a client that has the token. */
#pragma once

#include "dist/comm/store/tcp.h"
#include "tests/comm/dist_raw.h"

typedef struct served {
    td_token token;
    td_tcp_server *server;
    td_store *store;
    int port;
} served;

static inline served serve(void)
{
    served s = { .token = raw_new_token() };
    assert_int_equal(td_tcp_server_open("127.0.0.1", 0, &s.token, &s.server), TD_OK);
    s.port = td_tcp_server_port(s.server);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 20, &s.token, &s.store), TD_OK);
    return s;
}

static inline void end(served s)
{
    td_store_close(s.store);
    td_tcp_server_stop(s.server);
}
