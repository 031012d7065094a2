/* The gloo and mpi engines: messages from one rank to another. A message is a header and the data.
 * The messages of one pair of ranks have numbers and arrive in order.
 *
 * A small message is copied, so its sender is done at once; the copy is sent when the receiver asks
 * for it. The sender of a large message must wait. */
#include "dist/comm/engines/p2p/p2p.h"
#include "dist/comm/watchdog.h"

#include "tensor/clock.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_BYTES = 64 << 10 };

typedef struct td_p2p_request {
    const td_collective *c; /* valid until the message is done */
    bool sends;
    td_p2p_header header;
    td_p2p_buffer *header_buffer, *data;
    bool header_done, data_done;
    char *copy;           /* of a small message */
    td_p2p_request *next; /* in the list of copies that are still being sent */
} request;

static size_t p2p_message_bytes(const td_collective *c)
{
    return (size_t)c->count * td_dtype_size(c->dtype);
}

static void end_request(td_p2p_engine *g, request *r)
{
    td_p2p_free_buffer(g, r->header_buffer);
    td_p2p_free_buffer(g, r->data);
    free(r->copy);
    free(r);
}

/* What both sides must agree on. */
static td_collective common(const td_collective *c)
{
    return (td_collective){ .kind = TD_COLLECTIVE_SEND, .dtype = c->dtype, .count = c->count };
}

static td_p2p_result message_begin(td_p2p_engine *g, request *r)
{
    const td_collective *c = r->c;
    td_p2p_peer *peer = &g->peers[c->peer];
    uint64_t number = r->sends ? ++peer->sent : ++peer->received;
    td_collective both = common(c);
    size_t bytes = p2p_message_bytes(c);
    uint64_t header_slot = td_p2p_slot(TD_P2P_MESSAGE_HEADER, number, NULL);
    uint64_t data_slot = td_p2p_slot(TD_P2P_MESSAGE, number, &both);
    if (r->sends) {
        td_p2p_fill_header(&r->header, number, c);
    } else {
        atomic_fetch_add(&g->moved, bytes);
    }
    td_p2p_transfer_fn move = r->sends ? g->api->send : g->api->recv;
    td_p2p_result result = move(r->header_buffer, c->peer, header_slot, 0, sizeof r->header);
    return result != TD_P2P_OK ? result : move(r->data, c->peer, data_slot, 0, bytes);
}

static td_p2p_result message_look(const td_p2p_engine *g, const request *r, td_p2p_buffer *buffer,
                                  bool *done)
{
    if (*done) {
        return TD_P2P_OK;
    }
    td_p2p_result result = r->sends ? g->api->wait_send(buffer, 0) : g->api->wait_recv(buffer, 0);
    *done = result == TD_P2P_OK;
    return result;
}

/* Frees the copies that have been sent. */
static void look_at_copies(td_p2p_engine *g)
{
    for (request **link = &g->copies; *link != NULL;) {
        request *r = *link;
        td_p2p_result header = message_look(g, r, r->header_buffer, &r->header_done);
        td_p2p_result data = message_look(g, r, r->data, &r->data_done);
        if (header == TD_P2P_NOT_YET || data == TD_P2P_NOT_YET) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        end_request(g, r); /* the copy was sent, or cannot be sent any more */
    }
}

void td_p2p_end_messages(td_p2p_engine *g, double seconds)
{
    const double end = td_clock() + seconds, NAP = 1e-3;
    look_at_copies(g);
    while (g->copies != NULL && td_clock() < end) {
        td_sleep(NAP);
        look_at_copies(g);
    }
    while (g->copies != NULL) {
        request *r = g->copies;
        g->copies = r->next;
        end_request(g, r);
    }
}

/* Makes a request with its buffers; NULL: out of memory. */
static request *make_request(td_p2p_engine *g, const td_collective *c)
{
    request *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return NULL;
    }
    r->c = c;
    r->sends = c->kind == TD_COLLECTIVE_SEND;
    size_t bytes = p2p_message_bytes(c);
    void *memory = r->sends ? (void *)(uintptr_t)c->in : c->out;
    if (r->sends && bytes > 0 && bytes <= SMALL_BYTES) {
        r->copy = malloc(bytes);
        if (r->copy != NULL) {
            memcpy(r->copy, memory, bytes);
        }
        memory = r->copy;
    }
    if (memory != NULL || bytes == 0) {
        r->header_buffer = g->api->buffer(g->p2p, &r->header, sizeof r->header, TD_P2P_POLLED);
        r->data = g->api->buffer(g->p2p, memory, bytes, TD_P2P_POLLED);
    }
    if (r->header_buffer == NULL || r->data == NULL) {
        end_request(g, r);
        return NULL;
    }
    return r;
}

td_status td_p2p_start(void *engine, const td_collective *c, void **handle)
{
    td_p2p_engine *g = engine;
    look_at_copies(g);
    request *r = make_request(g, c);
    TD_CHECK(r != NULL, TD_E_NOMEM, "out of memory for a message");
    td_p2p_result result = message_begin(g, r);
    if (result != TD_P2P_OK) {
        end_request(g, r);
        return td_p2p_fail(g, result);
    }
    *handle = r;
    return TD_OK;
}

td_status td_p2p_poll(void *engine, void *handle, bool *done)
{
    td_p2p_engine *g = engine;
    request *r = handle;
    td_status status = TD_OK;
    bool known = r->header_done;
    if (r->sends && p2p_message_bytes(r->c) <= SMALL_BYTES) {
        r->next = g->copies;
        g->copies = r;
        *done = true;
        return TD_OK;
    }
    /* Before the looks: a rank that has all may leave at any moment, and then all has been sent. */
    bool gone = r->sends && td_p2p_is_closed(g, r->c->peer);
    td_p2p_result result = message_look(g, r, r->header_buffer, &r->header_done);
    if (result == TD_P2P_OK && !known && !r->sends) {
        status = td_compare_message(&r->header.what, r->c, g->rank);
    }
    if (result == TD_P2P_OK && status == TD_OK) {
        result = message_look(g, r, r->data, &r->data_done);
    }
    if (result == TD_P2P_NOT_YET && gone) {
        result = TD_P2P_FAILED;
    }
    if (result != TD_P2P_OK && result != TD_P2P_NOT_YET) {
        status = td_p2p_fail(g, result);
    }
    *done = status == TD_OK && r->header_done && r->data_done;
    if (*done || status != TD_OK) {
        end_request(g, r);
    }
    return status;
}
