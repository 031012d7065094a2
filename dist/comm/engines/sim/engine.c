/* The engine of simulated ranks: a group is a room, with a seat for each of its ranks. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/system/list.h"
#include "tensor/system/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static td_sim_world *world_of(const td_sim_seat *seat)
{
    return seat->owner->world;
}

/* ---- a rank that will call nothing more ---- */

/* What it has entered still ends. With the lock. */
static void leave_seat(td_sim_seat *seat, td_status status, const char *reason)
{
    if (seat->gone != TD_OK) {
        return;
    }
    seat->gone = status;
    seat->reason = td_sim_text(reason);
    seat->room->gone++;
    td_sim_end_meetings(seat);
    td_sim_end_messages(seat);
}

/* Whether the rank's time has come; then it leaves all its groups. With the lock. */
static bool dies(td_sim_rank *me)
{
    char text[128];
    if (me->times.clock < me->dies) {
        return false;
    }
    td_snprintf(text, sizeof text, "rank %d has died, at %.15g us of the simulation",
                me->place.rank, 1e6 * me->dies);
    for (td_sim_seat *seat = me->seats; seat != NULL; seat = seat->next) {
        leave_seat(seat, TD_E_PEER, text);
    }
    return true;
}

/* ---- calls ---- */

static td_status sim_start(void *engine, const td_collective *c, void **request)
{
    td_sim_seat *seat = engine;
    td_sim_world *w = world_of(seat);
    td_status status = TD_OK;
    td_sim_call *call = calloc(1, sizeof *call);
    TD_CHECK(call != NULL, TD_E_NOMEM, "sim: no memory for a collective");
    *call = (td_sim_call){ .c = c, .seat = seat };
    pthread_mutex_lock(&w->lock);
    if (dies(seat->owner)) {
        status = td_fail(seat->gone, "%s", seat->reason);
        free(call);
    } else {
        *TD_LINK_TO(&seat->calls, NULL) = call;
        (c->kind == TD_COLLECTIVE_SEND   ? td_sim_send
         : c->kind == TD_COLLECTIVE_RECV ? td_sim_receive
                                         : td_sim_meet)(call);
    }
    pthread_mutex_unlock(&w->lock);
    *request = call;
    return status;
}

/* With the lock. */
static void free_call(td_sim_call **link)
{
    td_sim_call *call = *link;
    *link = call->next;
    td_sim_leave_meeting(call);
    free(call->reason);
    free(call);
}

static td_status sim_end(void *engine, void *request)
{
    td_sim_seat *seat = engine;
    td_sim_call *call = request;
    td_sim_times *times = &seat->owner->times;
    pthread_mutex_lock(&world_of(seat)->lock);
    td_sim_wait(seat->owner, call);
    double wait = fmax(0.0, call->ends - times->clock);
    times->clock += wait;
    times->waited += wait;
    times->sending += call->seconds;
    times->bytes += call->bytes;
    td_status status = call->status == TD_OK ? TD_OK : td_fail(call->status, "%s", call->reason);
    free_call(TD_LINK_TO(&seat->calls, call));
    pthread_mutex_unlock(&world_of(seat)->lock);
    return status;
}

/* Whether the call is over by the clock, which this rank knows when all have come. Time goes by for
 * a rank that looks again and again. */
static td_status sim_poll(void *engine, void *request, bool *done)
{
    static const double LOOK = 1e-6;
    td_sim_seat *seat = engine;
    td_sim_call *call = request;
    pthread_mutex_lock(&world_of(seat)->lock);
    td_sim_wait(seat->owner, call);
    *done = call->ends <= seat->owner->times.clock;
    seat->owner->times.clock += *done ? 0.0 : LOOK;
    pthread_mutex_unlock(&world_of(seat)->lock);
    return TD_OK;
}

/* ---- beginning and end ---- */

/* The room of a group, which its first rank makes. With the lock. */
static td_sim_room *find_room(td_sim_world *w, uint64_t key, int size)
{
    td_sim_room **link = &w->rooms;
    while (*link != NULL && (*link)->key != key) {
        link = &(*link)->next;
    }
    td_sim_room *room = *link;
    if (room == NULL && (room = calloc(1, sizeof *room + (size_t)size * sizeof(td_sim_seat)))) {
        room->key = key;
        room->size = size;
        for (int rank = 0; rank < size; rank++) {
            room->seats[rank] = (td_sim_seat){ .room = room, .rank = rank };
        }
        *link = room;
    }
    return room;
}

static td_status sim_init(void **engine, const td_engine_init *init)
{
    enum { MOST_GROUPS = 1 << 16 };
    td_sim_rank *me = td_sim_me();
    td_sim_world *w = me->world;
    pthread_mutex_lock(&w->lock);
    me->inits += init->index == 0;
    td_sim_room *room = find_room(w, me->inits * MOST_GROUPS + (uint64_t)init->index, init->size);
    bool fits = room != NULL && init->size == room->size && room->seats[init->rank].owner == NULL;
    if (fits) {
        td_sim_seat *seat = &room->seats[init->rank];
        seat->owner = me;
        seat->next = me->seats;
        me->seats = seat;
        *engine = seat;
    }
    pthread_mutex_unlock(&w->lock);
    return fits           ? TD_OK
           : room == NULL ? td_fail(TD_E_NOMEM, "sim: no memory for a group of %d", init->size)
                          : td_fail(TD_E_MISMATCH, "sim: the ranks make different groups");
}

static void sim_abort(void *engine, td_status status, const char *reason)
{
    td_sim_seat *seat = engine;
    pthread_mutex_lock(&world_of(seat)->lock);
    leave_seat(seat, status, reason);
    pthread_mutex_unlock(&world_of(seat)->lock);
}

static void sim_destroy(void *engine)
{
    td_sim_seat *seat = engine;
    td_sim_world *w = world_of(seat);
    char text[64];
    snprintf(text, sizeof text, "rank %d has left the group", seat->owner->place.rank);
    pthread_mutex_lock(&w->lock);
    leave_seat(seat, TD_E_PEER, text);
    *TD_LINK_TO(&seat->owner->seats, seat) = seat->next;
    while (seat->calls != NULL) { /* not waited for */
        free_call(&seat->calls);
    }
    pthread_mutex_unlock(&w->lock);
}

void td_sim_free_rooms(td_sim_world *world)
{
    for (td_sim_room *room = world->rooms, *next; room != NULL; room = next) {
        next = room->next;
        for (td_sim_seat *seat = room->seats; seat < room->seats + room->size; seat++) {
            for (td_sim_mail *mail = seat->mails, *after; mail != NULL; mail = after) {
                after = mail->next;
                free(mail);
            }
            free(seat->reason);
        }
        free(room);
    }
}

const td_engine_type td_sim_engine = { .name = "sim",
                                       .init = sim_init,
                                       .start = sim_start,
                                       .poll = sim_poll,
                                       .end = sim_end,
                                       .abort = sim_abort,
                                       .destroy = sim_destroy };
