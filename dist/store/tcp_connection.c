#include "dist/store/tcp_connection.h"

#include "tensor/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURN_BYTES = 16 << 10 };
static const char FULL[] =
    "the store's server holds as many bytes of requests and answers as it may";

static size_t field(const td_connection *c, int index)
{
    return td_wire_get32(c->request + 4 * index);
}

/* Whether the server has room for this many more bytes of buffers. */
static bool fits(const td_server_data *data, size_t more)
{
    return data->buffers + more <= data->table.limit;
}

static size_t body_size(const td_connection *c)
{
    return field(c, 1) + field(c, 2) + field(c, 3);
}

void td_connection_write(td_connection *c, td_server_data *data)
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
    td_connection_write(c, data);
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

static void serve(td_connection *c, const td_store_request *r, td_server_data *data)
{
    td_table_answer answer;
    td_status status = td_table_serve(&data->table, r, &answer);
    if (answer.changed) {
        free(data->changed);
        data->changed = strdup(r->key);
    }
    if (answer.waits) {
        c->waiting_for = strdup(r->key);
        c->closed = c->waiting_for == NULL;
        c->state = TD_WAITING;
    } else if (status != TD_OK) {
        reply(c, data, status, td_last_error(), strlen(td_last_error()));
    } else {
        reply(c, data, TD_OK, answer.value, answer.size);
    }
}

static void run(td_connection *c, const td_store_request *r, td_server_data *data)
{
    c->turns--;
    if (r->op == TD_STORE_ADDRESS) {
        reply(c, data, TD_OK, data->address, strlen(data->address));
    } else if (r->op == TD_STORE_WILL) {
        free(c->will);
        c->will = strdup(r->key);
        c->closed = c->will == NULL;
        reply(c, data, TD_OK, NULL, 0);
    } else {
        serve(c, r, data);
    }
}

/* Whether a request's first 16 bytes are valid. */
static bool request_is_sane(const td_connection *c)
{
    size_t op = field(c, 0), key = field(c, 1), value = field(c, 2), extra = field(c, 3);
    bool keyless = op == TD_STORE_COUNT || op == TD_STORE_ADDRESS;
    bool valued = op == TD_STORE_SET || op == TD_STORE_ADD || op == TD_STORE_COMPARE_SET;
    return op >= TD_STORE_SET && op <= TD_STORE_WILL && key <= TD_STORE_MAX_KEY &&
           (key == 0) == keyless && value <= (valued ? TD_STORE_MAX_VALUE : 0) &&
           (op != TD_STORE_ADD || value == 8) &&
           extra <= (op == TD_STORE_COMPARE_SET ? TD_STORE_MAX_VALUE : 0);
}

static void drop_body(td_connection *c, td_server_data *data)
{
    data->buffers -= c->body_capacity;
    free(c->body);
    c->body = NULL;
    c->body_capacity = 0;
}

static void run_whole_request(td_connection *c, td_server_data *data)
{
    size_t key_size = field(c, 1), value_size = field(c, 2);
    char key[TD_STORE_MAX_KEY + 1];
    unsigned char *body = c->body;
    if (key_size > 0) {
        memcpy(key, body, key_size);
    }
    key[key_size] = '\0';
    if (strlen(key) != key_size) {
        c->closed = true;
        return;
    }
    td_store_request r = { .op = (td_store_op)field(c, 0), .key = key };
    if (body != NULL) {
        r.value = (td_bytes){ body + key_size, value_size };
        r.desired = (td_bytes){ body + key_size + value_size, field(c, 3) };
    }
    run(c, &r, data);
    drop_body(c, data);
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
static bool receive(td_connection *c, void *bytes, size_t size)
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

/* Receives up to `size` bytes in all. */
static bool receive_into(td_connection *c, unsigned char *bytes, size_t size)
{
    return receive(c, bytes + c->received, size - c->received);
}

/* The client is known: only now does anything that it says count. */
static void admit(td_connection *c, td_server_data *data)
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
    const unsigned char *theirs = c->hello + TD_WIRE_HELLO_BYTES;
    if (td_random_bytes(nonce, TD_NONCE_BYTES) != TD_OK) {
        c->closed = true;
        return;
    }
    td_token_prove(&data->token, TD_SERVER, theirs, nonce, proof);
    td_token_prove(&data->token, TD_CLIENT, theirs, nonce, c->wanted);
    c->state = TD_READING_PROOF;
    c->received = 0;
    if (!data->token.set) {
        admit(c, data);
    }
    send_bytes(c, data, answer, sizeof(answer), NULL, 0);
}

static bool read_hello(td_connection *c, td_server_data *data)
{
    static const size_t name = TD_WIRE_HELLO_BYTES - 1;
    if (!receive_into(c, c->hello, sizeof(c->hello))) {
        return false;
    }
    if (memcmp(c->hello, TD_WIRE_HELLO, c->received < name ? c->received : name) != 0) {
        c->closed = true; /* not a tandem client */
    } else if (c->received > name && c->hello[name] != TD_WIRE_VERSION) {
        send_bytes(c, data, TD_WIRE_HELLO, TD_WIRE_HELLO_BYTES, NULL, 0);
        c->closed = true; /* a client of another version reports the difference */
    } else if (c->received == sizeof(c->hello)) {
        answer_hello(c, data);
    }
    return true;
}

static bool read_proof(td_connection *c, td_server_data *data)
{
    if (!receive_into(c, c->proof, sizeof(c->proof))) {
        return false;
    }
    if (c->received == sizeof(c->proof)) {
        if (!td_proofs_equal(c->proof, c->wanted)) {
            c->closed = true;
            return false;
        }
        admit(c, data);
    }
    return true;
}

static bool read_request(td_connection *c, td_server_data *data)
{
    if (!receive_into(c, c->request, sizeof(c->request))) {
        return false;
    }
    if (c->received == sizeof(c->request)) {
        c->closed = !request_is_sane(c);
        c->state = TD_READING_BODY;
        c->received = 0;
        if (!c->closed && body_size(c) == 0) {
            run_whole_request(c, data);
        }
    }
    return true;
}

static bool read_body(td_connection *c, td_server_data *data)
{
    size_t needed = body_size(c);
    if (c->received == c->body_capacity && !grow_body(c, data, needed)) {
        c->state = TD_SKIPPING_BODY;
        return true;
    }
    if (!receive_into(c, c->body, c->body_capacity)) {
        return false;
    }
    if (c->received == needed) {
        run_whole_request(c, data);
    }
    return true;
}

/* Throws a body away for which there is no room, so that the client can read why. */
static bool skip_body(td_connection *c, td_server_data *data)
{
    unsigned char scrap[TURN_BYTES];
    size_t left = body_size(c) - c->received;
    if (!receive(c, scrap, left < sizeof(scrap) ? left : sizeof(scrap))) {
        return false;
    }
    if (c->received == body_size(c)) {
        reply(c, data, TD_E_NOMEM, FULL, strlen(FULL));
    }
    return true;
}

void td_connection_read(td_connection *c, td_server_data *data)
{
    bool more = true;
    /* Stops after each changed key: the caller must answer the gets that wait for it. */
    while (more && c->turns > 0 && !c->closed && c->out == NULL && data->changed == NULL) {
        switch (c->state) {
        case TD_READING_HELLO:
            more = read_hello(c, data);
            break;
        case TD_READING_PROOF:
            more = read_proof(c, data);
            break;
        case TD_READING_REQUEST:
            more = read_request(c, data);
            break;
        case TD_READING_BODY:
            more = read_body(c, data);
            break;
        case TD_SKIPPING_BODY:
            more = skip_body(c, data);
            break;
        case TD_WAITING: {
            unsigned char byte; /* a waiting client may only close the connection */
            c->closed = receive(c, &byte, 1) || c->closed;
            more = false;
            break;
        }
        }
    }
}

void td_connection_wake(td_connection *c, const char *key, td_server_data *data)
{
    if (c->waiting_for == NULL || c->closed || strcmp(c->waiting_for, key) != 0) {
        return;
    }
    const td_table_entry *entry = td_table_find(&data->table, key);
    if (entry != NULL) {
        free(c->waiting_for);
        c->waiting_for = NULL;
        reply(c, data, TD_OK, entry->value, entry->size);
    }
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
    free(c->out);
    free(c->waiting_for);
    free(c->will);
    free(c);
}
