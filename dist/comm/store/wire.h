/* The protocol between a TCP store's client and server; a file store keeps requests in the same
 * form. All numbers are little-endian; op is a td_store_op, and extra is `desired`.
 *
 *   hello     8 bytes "TDSTORE" and the version, and a nonce of 16 bytes, from the client; then the
 *             same and a proof of 32 bytes (token.h) from the server; then, if the job has a token,
 *             the client's proof. A connection that begins otherwise (a browser, a port scanner) or
 *             proves nothing is closed unanswered. Another version is answered by 8 bytes.
 *   request   u32 op | u32 key bytes | u32 value bytes | u32 extra bytes | key | value | extra
 *   reply     u32 code (0 or a td_status without its sign) | u32 value bytes | value (or message)
 *
 * A connection has one running request at a time. The server answers a get when the key is there. A
 * client that does not want to wait longer closes the connection. */
#pragma once

#include "dist/comm/store.h"
#include "dist/comm/token.h"

#include <stdint.h>

enum {
    TD_WIRE_HELLO_BYTES = 8,
    TD_WIRE_VERSION = 2,
    TD_WIRE_CLIENT_HELLO_BYTES = TD_WIRE_HELLO_BYTES + TD_NONCE_BYTES,
    TD_WIRE_SERVER_HELLO_BYTES = TD_WIRE_CLIENT_HELLO_BYTES + TD_PROOF_BYTES,
    TD_WIRE_REQUEST_BYTES = 16,
    TD_WIRE_REPLY_BYTES = 8,
};

#define TD_WIRE_HELLO "TDSTORE\x02" /* its last byte is TD_WIRE_VERSION */

static inline void td_wire_put32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

static inline uint32_t td_wire_get32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void td_wire_put64(unsigned char *at, int64_t value)
{
    td_wire_put32(at, (uint32_t)(uint64_t)value);
    td_wire_put32(at + 4, (uint32_t)((uint64_t)value >> 32));
}

static inline int64_t td_wire_get64(const unsigned char *at)
{
    return (int64_t)(td_wire_get32(at) | (uint64_t)td_wire_get32(at + 4) << 32);
}

/* A whole request, malloc'ed; NULL: out of memory. */
unsigned char *td_wire_pack(const td_store_request *request, size_t *size);
/* Whether a request may begin with these TD_WIRE_REQUEST_BYTES. *body: how many bytes follow them.
 */
bool td_wire_is_sane(const unsigned char *head, size_t *body);
/* Reads a request whose head is sane. The request's values lie in `body`, and its key in `key`.
 * false: the key has a '\0' in it. */
bool td_wire_unpack(const unsigned char *head, const unsigned char *body,
                    char key[TD_STORE_MAX_KEY + 1], td_store_request *request);
