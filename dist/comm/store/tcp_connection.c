/* A client's connection in the TCP store's server: buffers, proof of the token, requests. */
#include "dist/comm/store/tcp_connection.h"

#include "tensor/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURN_BYTES = 16 << 10 };
static const char FULL[] =
    "the store's server holds as many bytes of requests and answers as it may";

/* Whether the server has room for this many more bytes of buffers. */
static bool fits(const td_server_data *data, size_t more)
{
    return data->buffers + more <= data->table.limit;
}

static void send_more(td_connection *c, td_server_data *data)
{
    while (c->out_sent < c->out_size) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            c->closed = errno != EAGAIN && errno != EWOULDBLOCK;
            return;
        }
        c->out_sent += (size_t)sent;
        c->since = td_clock();
    }
    data->buffers -= c->out_size;
    free(c->out);
    c->out = NULL;
    c->out_size = c->out_sent = 0;
}

static void send_bytes(td_connection *c, td_server_data *data, const void *head, size_t head_size,
                       const void *tail, size_t tail_size)
{
    c->out = malloc(head_size + tail_size);
    if (c->out == NULL) {
        c->closed = true;
        return;
    }
    memcpy(c->out, head, head_size);
    if (tail_size > 0) {
        memcpy(c->out + head_size, tail, tail_size);
    }
    c->out_size = head_size + tail_size;
    c->out_sent = 0;
    data->buffers += c->out_size;
    c->since = td_clock();
    send_more(c, data);
}

static void reply(td_connection *c, td_server_data *data, td_status status, const void *value,
                  size_t size)
{
    unsigned char head[TD_WIRE_REPLY_BYTES];
    if (!fits(data, size)) {
        status = TD_E_NOMEM;
        value = FULL;
        size = strlen(FULL);
    }
    c->turns -= (int)(size / TURN_BYTES);
    td_wire_put32(head, (uint32_t)-status);
    td_wire_put32(head + 4, (uint32_t)size);
    c->state = TD_READING_REQUEST;
    c->received = 0;
    send_bytes(c, data, head, sizeof(head), value, size);
}

static void drop_body(td_connection *c, td_server_data *data)
{
    data->buffers -= c->body_capacity;
    free(c->body);
    c->body = NULL;
    c->body_capacity = 0;
}

/* The body of a get is its key. */
static bool waits_for(const td_connection *c, const char *key, size_t key_size)
{
    return c->state == TD_WAITING && !c->closed && c->body_size == key_size &&
           memcmp(c->body, key, key_size) == 0;
}

/* Runs a whole request. A get whose key is not there waits: it runs again when the key is set. */
static void run(td_connection *c, td_server_data *data)
{
    char key[TD_STORE_MAX_KEY + 1];
    td_store_request r;
    td_table_answer answer = { 0 };
    td_status status = TD_OK;
    c->turns--;
    c->closed = !td_wire_unpack(c->head, c->body, key, &r);
    if (c->closed) {
        return;
    }
    if (r.op == TD_STORE_ADDRESS) {
        answer = (td_table_answer){ .value = data->address, .size = strlen(data->address) };
    } else if (r.op == TD_STORE_WILL) {
        free(c->will);
        c->will = strdup(key);
        c->closed = c->will == NULL;
    } else {
        status = td_table_serve(&data->table, &r, &answer);
    }
    if (answer.waits) {
        c->state = TD_WAITING;
        return;
    }
    if (status != TD_OK) {
        answer = (td_table_answer){ .value = td_last_error(), .size = strlen(td_last_error()) };
    }
    reply(c, data, status, answer.value, answer.size);
    drop_body(c, data);
    for (td_connection *other = data->first; answer.changed && other != NULL; other = other->next) {
        if (waits_for(other, key, strlen(key))) {
            run(other, data);
        }
    }
}

/* Makes room for more of the body by doubling, so that a header that promises a large body takes no
 * memory until the body arrives. false: there is no room; the body was dropped. */
static bool grow_body(td_connection *c, td_server_data *data, size_t needed)
{
    size_t capacity = c->body_capacity == 0 ? 4096 : 2 * c->body_capacity;
    capacity = capacity < needed ? capacity : needed;
    bool room = fits(data, capacity - c->body_capacity);
    unsigned char *body = room ? realloc(c->body, capacity) : NULL;
    if (body == NULL) {
        drop_body(c, data);
        return false;
    }
    data->buffers += capacity - c->body_capacity;
    c->body = body;
    c->body_capacity = capacity;
    return true;
}

/* Receives up to `size` bytes. false: nothing has arrived, or the connection is closed. */
static bool connection_receive(td_connection *c, void *bytes, size_t size)
{
    ssize_t received = recv(c->fd, bytes, size, 0);
    if (received > 0) {
        c->received += (size_t)received;
        c->turns -= (int)((size_t)received / TURN_BYTES);
        c->since = td_connection_is_strangers(c) ? c->since : td_clock();
        return true;
    }
    c->closed = received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    return false;
}

/* Remembers the address at which a client from outside has reached this host. */
static void note_address(const td_connection *c, td_server_data *data)
{
    char address[TD_ADDRESS_BYTES];
    td_socket_local_address(c->fd, address);
    if (data->address[0] == '\0' && !td_address_is_loopback(address)) {
        memcpy(data->address, address, sizeof(address));
    }
}

/* The client is known: only now does anything that it says count. */
static void connection_admit(td_connection *c, td_server_data *data)
{
    note_address(c, data);
    atomic_fetch_add(&data->members, 1);
    c->state = TD_READING_REQUEST;
    c->received = 0;
    c->since = td_clock();
}

/* Answers a hello by the server's nonce and proof. */
static void answer_hello(td_connection *c, td_server_data *data)
{
    unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES] = TD_WIRE_HELLO;
    unsigned char *nonce = answer + TD_WIRE_HELLO_BYTES, *proof = nonce + TD_NONCE_BYTES;
    const unsigned char *theirs = c->head + TD_WIRE_HELLO_BYTES;
    if (td_random_bytes(nonce, TD_NONCE_BYTES) != TD_OK) {
        c->closed = true;
        return;
    }
    td_token_prove(&data->token, TD_SERVER, theirs, nonce, proof);
    td_token_prove(&data->token, TD_CLIENT, theirs, nonce, c->wanted);
    c->state = TD_READING_PROOF;
    c->received = 0;
    if (!data->token.set) {
        connection_admit(c, data);
    }
    send_bytes(c, data, answer, sizeof(answer), NULL, 0);
}

/* Ends a connection as soon as its hello cannot become one of a client of this version. */
static void check_hello(td_connection *c, td_server_data *data)
{
    static const size_t name = TD_WIRE_HELLO_BYTES - 1;
    if (memcmp(c->head, TD_WIRE_HELLO, c->received < name ? c->received : name) != 0) {
        c->closed = true; /* not a tandem client */
    } else if (c->received > name && c->head[name] != TD_WIRE_VERSION) {
        send_bytes(c, data, TD_WIRE_HELLO, TD_WIRE_HELLO_BYTES, NULL, 0);
        c->closed = true; /* a client of another version reports the difference */
    }
}

/* What the state names has arrived. */
static void on_whole(td_connection *c, td_server_data *data)
{
    switch (c->state) {
    case TD_READING_HELLO:
        answer_hello(c, data);
        break;
    case TD_READING_PROOF:
        c->closed = !td_proofs_equal(c->head, c->wanted);
        if (!c->closed) {
            connection_admit(c, data);
        }
        break;
    case TD_READING_REQUEST:
        c->closed = !td_wire_is_sane(c->head, &c->body_size);
        c->state = TD_READING_BODY;
        c->received = 0;
        if (!c->closed && c->body_size == 0) {
            run(c, data);
        }
        break;
    case TD_READING_BODY:
        run(c, data);
        break;
    case TD_SKIPPING_BODY:
        reply(c, data, TD_E_NOMEM, FULL, strlen(FULL));
        break;
    case TD_WAITING: /* a waiting client may only close the connection */
        c->closed = true;
        break;
    }
}

static size_t needed(const td_connection *c)
{
    static const size_t sizes[] = { [TD_READING_HELLO] = TD_WIRE_CLIENT_HELLO_BYTES,
                                    [TD_READING_PROOF] = TD_PROOF_BYTES,
                                    [TD_READING_REQUEST] = TD_WIRE_REQUEST_BYTES };
    return c->state <= TD_READING_REQUEST ? sizes[c->state] : c->body_size;
}

/* Takes what has arrived of what the state names. false: nothing. */
static bool read_more(td_connection *c, td_server_data *data)
{
    unsigned char scrap[TURN_BYTES]; /* of a body that is skipped, so that the client reads why */
    unsigned char *to = scrap;
    size_t left = needed(c) - c->received;
    if (c->state <= TD_READING_REQUEST) {
        to = c->head + c->received;
    } else if (c->state == TD_READING_BODY) {
        if (c->received == c->body_capacity && !grow_body(c, data, needed(c))) {
            c->state = TD_SKIPPING_BODY;
            return true;
        }
        to = c->body + c->received;
        left = c->body_capacity - c->received;
    } else if (left > sizeof(scrap) || c->state == TD_WAITING) {
        left = sizeof(scrap);
    }
    if (!connection_receive(c, to, left)) {
        return false;
    }
    if (c->state == TD_READING_HELLO) {
        check_hello(c, data);
    }
    if (!c->closed && c->received >= needed(c)) {
        on_whole(c, data);
    }
    return true;
}

void td_connection_serve(td_connection *c, td_server_data *data)
{
    if (c->out != NULL) {
        send_more(c, data);
    }
    c->turns = TD_SERVER_TURNS;
    while (c->turns > 0 && !c->closed && c->out == NULL && read_more(c, data)) {
    }
}

td_connection *td_connection_new(int fd, td_server_data *data)
{
    td_connection *c = calloc(1, sizeof(td_connection));
    if (c != NULL) {
        *c = (td_connection){ .next = data->first, .link = &data->first, .fd = fd };
        c->origin = td_socket_origin(fd);
        c->since = td_clock();
        if (c->next != NULL) {
            c->next->link = &c->next;
        }
        data->first = c;
    }
    return c;
}

bool td_connection_is_busy(const td_connection *c)
{
    bool reading = c->state == TD_READING_REQUEST && c->received > 0;
    return td_connection_is_strangers(c) || reading || c->state == TD_READING_BODY ||
           c->state == TD_SKIPPING_BODY || c->out != NULL;
}

void td_connection_free(td_connection *c, td_server_data *data)
{
    close(c->fd);
    atomic_fetch_sub(&data->members, td_connection_is_strangers(c) ? 0 : 1);
    data->buffers -= c->out_size;
    drop_body(c, data);
    *c->link = c->next;
    if (c->next != NULL) {
        c->next->link = c->link;
    }
    free(c->out);
    free(c->will);
    free(c);
}
