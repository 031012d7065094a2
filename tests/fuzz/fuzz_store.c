/* Fuzzing the server's side of the TCP store's protocol. The first byte says whether the job has a
 * token. Then come pieces: a byte that names one of four connections and what its client does, and
 * for a send a count and so many bytes. Two of the clients have proved the token; the others are
 * strangers, and with a token they stay strangers whatever they send. */
#include "dist/comm/store/tcp_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* A small server, so that short inputs fill it. */
enum { CLIENTS = 4, MEMBERS = 2, LIMIT = 8 << 10 };

typedef struct client {
    td_connection *c;
    int fd; /* the client's end */
} client;

static td_server_data data;
static client clients[CLIENTS];

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void give(client *who, const void *bytes, size_t size)
{
    require(send(who->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EAGAIN);
    td_connection_serve(who->c, &data);
}

static void come(client *who, bool member)
{
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    *who = (client){ td_connection_new(ends[0], &data), ends[1] };
    require(who->c != NULL);
    if (member) {
        unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO;
        unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES], proof[TD_PROOF_BYTES];
        give(who, hello, sizeof hello);
        require(recv(who->fd, answer, sizeof answer, 0) == sizeof answer);
        td_token_prove(&data.token, TD_CLIENT, hello + TD_WIRE_HELLO_BYTES,
                       answer + TD_WIRE_HELLO_BYTES, proof);
        if (data.token.set) {
            give(who, proof, sizeof proof);
        }
        require(!td_connection_is_strangers(who->c) && !who->c->closed);
    }
}

static void leave(client *who)
{
    if (who->c != NULL) {
        td_connection_free(who->c, &data);
        close(who->fd);
        *who = (client){ 0 };
    }
}

/* Reads answers: how the server has written them counts, not what they are. */
static void drain(const client *who)
{
    char scrap[4096];
    while (recv(who->fd, scrap, sizeof scrap, 0) > 0) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return 0;
    }
    data = (td_server_data){ .table.limit = LIMIT };
    if (bytes[0] % 2 != 0) {
        require(td_token_parse("0123456789abcdef0123456789abcdef", "", &data.token) == TD_OK);
    }
    for (size_t at = 1; at < size;) {
        client *who = &clients[bytes[at] % CLIENTS];
        bool member = who - clients < MEMBERS, quits = bytes[at] >= 0xf0, reads = bytes[at] < 0x80;
        at++;
        if (who->c == NULL) {
            come(who, member);
        }
        if (quits) {
            leave(who);
            continue;
        }
        size_t count = at < size ? bytes[at++] : 0;
        count = count < size - at ? count : size - at;
        give(who, bytes + at, count);
        at += count;
        if (reads) {
            drain(who);
        }
        require(member || !data.token.set || td_connection_is_strangers(who->c));
        require(data.table.bytes <= LIMIT && data.buffers <= LIMIT + CLIENTS * 1024);
        if (who->c->closed) {
            leave(who);
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        leave(&clients[i]);
    }
    require(data.buffers == 0 && atomic_load(&data.members) == 0);
    td_table_clear(&data.table);
    require(data.table.bytes == 0);
    return 0;
}
