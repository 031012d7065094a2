/* The shm engine: messages from one rank to another, through a mailbox for each ordered pair. A
 * message is sent in pieces. A mailbox has room for two pieces: one is filled while the other is
 * emptied. A small message is done for its sender once it is in the mailbox; the sender of a large
 * message must wait.
 *
 * Messages of one pair are sent in order: each gets a ticket, and waits until the earlier ones are
 * done. Messages of different pairs do not block each other. */
#include "dist/comm/engines/shm/shm.h"
#include "dist/comm/watchdog.h"

#include "tensor/clock.h"

#include <stdlib.h>
#include <string.h>

enum { SENDS, RECEIVES };

static const double LOOK_EVERY = 0.05; /* seconds between two checks whether a peer lives */

static int direction_of(const td_collective *c)
{
    return c->kind == TD_COLLECTIVE_SEND ? SENDS : RECEIVES;
}

static td_shm_box *box_of(const td_shm *shm, int from, int to)
{
    return (td_shm_box *)(void *)((char *)shm->segment + shm->boxes_at +
                                  (size_t)(from * shm->size + to) * shm->box_bytes);
}

static char *slot_data(const td_shm *shm, td_shm_box *box, uint64_t piece)
{
    return (char *)(box + 1) + (piece % TD_SHM_SLOTS) * shm->slot_bytes;
}

static int64_t message_bytes(const td_collective *c)
{
    return c->count * (int64_t)td_dtype_size(c->dtype);
}

/* Whether the message is done. An empty message has one piece, too. */
static bool over(const td_shm_request *request)
{
    return request->begun && request->moved == message_bytes(request->c);
}

static bool send_pieces(td_shm *shm, td_shm_request *request)
{
    const td_collective *c = request->c;
    td_shm_box *box = box_of(shm, shm->rank, c->peer);
    bool any = false;
    while (!over(request)) {
        uint64_t filled = atomic_load_explicit(&box->filled, memory_order_relaxed);
        if (filled - atomic_load(&box->taken) == TD_SHM_SLOTS) {
            break;
        }
        int64_t left = message_bytes(c) - request->moved;
        int64_t bytes = left < (int64_t)shm->slot_bytes ? left : (int64_t)shm->slot_bytes;
        box->slot[filled % TD_SHM_SLOTS] =
            (td_shm_slot){ .what = td_entered_of(c), .bytes = (uint32_t)bytes };
        if (bytes > 0) {
            memcpy(slot_data(shm, box, filled), (const char *)c->in + request->moved,
                   (size_t)bytes);
        }
        request->moved += bytes;
        request->begun = any = true;
        atomic_store(&box->filled, filled + 1);
    }
    return any;
}

static td_status receive_pieces(td_shm *shm, td_shm_request *request, bool *any)
{
    const td_collective *c = request->c;
    td_shm_box *box = box_of(shm, c->peer, shm->rank);
    *any = false;
    while (!over(request)) {
        uint64_t taken = atomic_load_explicit(&box->taken, memory_order_relaxed);
        if (atomic_load(&box->filled) == taken) {
            break;
        }
        const td_shm_slot *slot = &box->slot[taken % TD_SHM_SLOTS];
        td_status status = request->begun ? TD_OK : td_compare_message(&slot->what, c, shm->rank);
        if (status != TD_OK) {
            td_shm_break(shm, status, td_last_error());
            return status;
        }
        if (slot->bytes > 0) {
            memcpy((char *)c->out + request->moved, slot_data(shm, box, taken), slot->bytes);
        }
        request->moved += slot->bytes;
        atomic_fetch_add(&shm->moved, slot->bytes);
        request->begun = *any = true;
        atomic_store(&box->taken, taken + 1);
    }
    return TD_OK;
}

td_status td_shm_start(void *engine, const td_collective *c, void **handle)
{
    td_shm *shm = engine;
    td_shm_request *request = malloc(sizeof *request);
    TD_CHECK(request != NULL, TD_E_NOMEM, "out of memory for a message");
    *request = (td_shm_request){ .c = c, .ticket = shm->tickets[c->peer][direction_of(c)]++ };
    *handle = request;
    return TD_OK;
}

/* After no progress: fails if the group is broken or the peer has died. */
static td_status look_at_peer(td_shm *shm, const td_collective *c)
{
    TD_TRY(td_shm_check(shm));
    double now = td_clock();
    if (now - shm->checked >= LOOK_EVERY) {
        shm->checked = now;
        return td_shm_check_peer(shm, c->peer);
    }
    return TD_OK;
}

td_status td_shm_poll(void *engine, void *handle, bool *done)
{
    td_shm *shm = engine;
    td_shm_request *request = handle;
    const td_collective *c = request->c;
    const int direction = direction_of(c);
    td_status status = TD_OK;
    bool any = false;
    if (request->ticket == shm->served[c->peer][direction]) {
        if (direction == SENDS) {
            any = send_pieces(shm, request);
        } else {
            status = receive_pieces(shm, request, &any);
        }
    }
    if (any) {
        td_shm_ring(shm, c->peer);
    }
    *done = status == TD_OK && over(request);
    if (status == TD_OK && !*done && !any) {
        status = look_at_peer(shm, c);
    }
    if (*done || status != TD_OK) {
        shm->served[c->peer][direction]++;
        free(request);
    }
    return status;
}

void td_shm_nudge(void *engine)
{
    td_shm *shm = engine;
    td_shm_ring(shm, shm->rank);
}
