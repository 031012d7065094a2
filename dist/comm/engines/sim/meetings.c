/* Collectives: the last rank that comes carries a collective out for all, on their own memory. */
#include "dist/comm/engines/sim/internal.h"

#include "dist/comm/engines/reduce_math.h"
#include "tensor/backend.h"
#include "tensor/system/list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the data ---- */

/* The pieces that rank `to` gets, or, reduced, the sum of all. */
static void move_pieces(const td_sim_meeting *m, int size, int to)
{
    const td_collective *first = m->calls[0]->c;
    const td_kind *kind = td_kind_of(first->kind);
    size_t piece = (size_t)first->count * td_dtype_size(first->dtype);
    if (td_pieces_taken(first, to, size) == 0) {
        return;
    }
    for (int from = 0; from < size; from++) {
        if (td_pieces_given(first, from, size) > 0) {
            const char *in = m->calls[from]->c->in;
            char *out = m->calls[to]->c->out;
            memmove(out + (kind->takes_all ? (size_t)from * piece : 0),
                    in + (kind->gives_all ? (size_t)to * piece : 0), piece);
        }
    }
}

/* Sums in the tree of all engines: of whole tensors once for all ranks, of pieces for each. */
static void reduce(const td_sim_meeting *m, int size, const void **in, void **out)
{
    const td_collective *first = m->calls[0]->c;
    bool pieces = td_kind_of(first->kind)->gives_all;
    size_t piece = (size_t)first->count * td_dtype_size(first->dtype);
    int outs = 0;
    for (int rank = 0; rank < size; rank++) {
        in[rank] = m->calls[rank]->c->in;
        if (td_pieces_taken(first, rank, size) > 0) {
            out[outs++] = m->calls[rank]->c->out;
        }
    }
    for (int rank = 0; pieces && rank < size; rank++) {
        td_reduce_arrays(&out[rank], 1, in, size, first->count, first->dtype, first->op);
        for (int from = 0; from < size; from++) {
            in[from] = (const char *)in[from] + piece;
        }
    }
    if (!pieces) {
        td_reduce_arrays(out, outs, in, size, first->count, first->dtype, first->op);
    }
}

static td_status carry_out(const td_sim_meeting *m, int size)
{
    const td_collective *first = m->calls[0]->c;
    if (first->count == 0 || first->kind == TD_COLLECTIVE_BARRIER) {
        return TD_OK;
    }
    if (!td_kind_of(first->kind)->reduces) {
        for (int to = 0; to < size; to++) {
            move_pieces(m, size, to);
        }
        return TD_OK;
    }
    const void **in = malloc((size_t)size * sizeof *in);
    void **out = malloc((size_t)size * sizeof *out);
    bool made = in != NULL && out != NULL;
    if (made) {
        unsigned mode = td_flush_denormals();
        reduce(m, size, in, out);
        td_restore_denormals(mode);
    }
    free(in);
    free(out);
    return made ? TD_OK : td_fail(TD_E_NOMEM, "no memory for a sum of %d ranks", size);
}

/* Whether all ranks have called the same. */
static td_status compare_calls(const td_sim_meeting *m, int size)
{
    td_entered *entered = malloc((size_t)size * sizeof *entered);
    TD_CHECK(entered != NULL, TD_E_NOMEM, "no memory to compare %d ranks", size);
    for (int rank = 0; rank < size; rank++) {
        entered[rank] = td_entered_of(m->calls[rank]->c);
    }
    td_status status = td_compare_entered(entered, size);
    free(entered);
    return status;
}

/* ---- meeting ---- */

/* All calls so far are over; frees the meeting. */
static void end_meeting(td_sim_room *room, td_sim_meeting *m, double ends, td_status status,
                        const char *reason)
{
    *TD_LINK_TO(&room->meetings, m) = m->next;
    for (int rank = 0; rank < room->size; rank++) {
        if (m->calls[rank] != NULL) {
            m->calls[rank]->meeting = NULL;
            td_sim_done(m->calls[rank], ends, status, reason);
        }
    }
    free(m);
}

static void complete(td_sim_room *room, td_sim_meeting *m)
{
    td_status status = compare_calls(m, room->size);
    status = status == TD_OK ? carry_out(m, room->size) : status;
    if (status != TD_OK) {
        end_meeting(room, m, m->latest, status, td_last_error());
        return;
    }
    double bytes, seconds = td_sim_collective_cost(&m->calls[0]->seat->owner->world->options,
                                                   m->calls[0]->c, room->size, &bytes);
    for (int rank = 0; rank < room->size; rank++) {
        m->calls[rank]->seconds = seconds;
        m->calls[rank]->bytes = bytes;
    }
    room->busy = fmax(room->busy, m->latest) + seconds; /* one after the other */
    end_meeting(room, m, room->busy, TD_OK, NULL);
}

static td_sim_meeting *find_meeting(td_sim_room *room, uint64_t number)
{
    td_sim_meeting **link = &room->meetings;
    while (*link != NULL && (*link)->number != number) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        *link = calloc(1, sizeof **link + (size_t)room->size * sizeof(td_sim_call *));
        TD_REQUIRE(*link != NULL, TD_HERE, "sim: no memory for a collective");
        (*link)->number = number;
    }
    return *link;
}

void td_sim_meet(td_sim_call *call)
{
    td_sim_seat *seat = call->seat;
    td_sim_room *room = seat->room;
    uint64_t number = seat->entered = call->c->number;
    for (int rank = 0; room->gone > 0 && rank < room->size; rank++) {
        const td_sim_seat *other = &room->seats[rank];
        if (other->gone != TD_OK && other->entered < number) {
            td_sim_done(call, seat->owner->times.clock, other->gone, other->reason);
            return;
        }
    }
    td_sim_meeting *m = call->meeting = find_meeting(room, number);
    m->calls[seat->rank] = call;
    m->latest = fmax(m->latest, seat->owner->times.clock);
    if (++m->come == room->size) {
        complete(room, m);
    }
}

void td_sim_end_meetings(td_sim_seat *gone)
{
    td_sim_room *room = gone->room;
    for (td_sim_meeting *m = room->meetings, *next; m != NULL; m = next) {
        next = m->next;
        if (m->calls[gone->rank] == NULL) {
            end_meeting(room, m, 0.0, gone->gone, gone->reason);
        }
    }
}

void td_sim_leave_meeting(td_sim_call *call)
{
    if (call->meeting != NULL) { /* its group ends, or all ranks wait for each other */
        end_meeting(call->seat->room, call->meeting, 0.0,
                    call->done ? call->status : call->seat->gone,
                    call->done ? call->reason : call->seat->reason);
    }
}
