/* For tests of the TCP store's server: connections that speak its protocol by hand. */
#pragma once

#include "dist/comm/store/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static inline int raw_connect(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = { .tv_sec = 30 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline void raw_send(int fd, const void *bytes, size_t size)
{
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
}

/* How much comes before the connection is closed. */
static inline size_t raw_rest(int fd)
{
    char answer[256];
    ssize_t got;
    size_t total = 0;
    while ((got = recv(fd, answer, sizeof(answer), 0)) > 0) {
        total += (size_t)got;
    }
    assert_true(got == 0 || errno == ECONNRESET); /* closed, not a time-out */
    close(fd);
    return total;
}

static inline td_token raw_new_token(void)
{
    td_token token;
    assert_int_equal(td_token_make(&token), TD_OK);
    return token;
}

/* A hello, with a nonce of zeros, and this token's proof; token NULL: no proof. */
static inline void raw_greet(int fd, const td_token *token)
{
    unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO;
    unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES], proof[TD_PROOF_BYTES];
    raw_send(fd, hello, sizeof(hello));
    assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_memory_equal(answer, TD_WIRE_HELLO, TD_WIRE_HELLO_BYTES);
    if (token != NULL) {
        td_token_prove(token, TD_CLIENT, hello + TD_WIRE_HELLO_BYTES, answer + TD_WIRE_HELLO_BYTES,
                       proof);
        raw_send(fd, proof, sizeof(proof));
    }
}

/* A request into bytes; returns its size. */
static inline size_t raw_request(unsigned char *bytes, uint32_t op, const char *key,
                                 const void *value, size_t value_size)
{
    size_t key_size = strlen(key);
    td_wire_put32(bytes, op);
    td_wire_put32(bytes + 4, (uint32_t)key_size);
    td_wire_put32(bytes + 8, (uint32_t)value_size);
    td_wire_put32(bytes + 12, 0);
    memcpy(bytes + TD_WIRE_REQUEST_BYTES, key, key_size);
    if (value_size > 0) {
        memcpy(bytes + TD_WIRE_REQUEST_BYTES + key_size, value, value_size);
    }
    return TD_WIRE_REQUEST_BYTES + key_size + value_size;
}
