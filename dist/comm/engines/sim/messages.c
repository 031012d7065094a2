/* Messages: a send is over at once; a receive, when its message has arrived on the clock. */
#include "dist/comm/engines/sim/internal.h"

#include "tensor/system/list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The message is this call's. */
static void deliver(td_sim_call *receive, const td_entered *sent, const void *data, double arrives)
{
    const td_collective *c = receive->c;
    td_status status = td_compare_message(sent, c, receive->seat->rank);
    if (status == TD_OK) {
        memcpy(c->out, data, (size_t)c->count * td_dtype_size(c->dtype));
    }
    td_sim_done(receive, arrives, status, td_last_error());
}

/* The first receive that waits for a rank's messages. */
static td_sim_call *waiting_receive(const td_sim_seat *seat, int from)
{
    td_sim_call *call = seat->calls;
    while (call != NULL &&
           (call->done || call->c->kind != TD_COLLECTIVE_RECV || call->c->peer != from)) {
        call = call->next;
    }
    return call;
}

void td_sim_send(td_sim_call *call)
{
    const td_collective *c = call->c;
    td_sim_seat *seat = call->seat, *to = &seat->room->seats[c->peer];
    td_sim_rank *me = seat->owner;
    size_t bytes = (size_t)c->count * td_dtype_size(c->dtype);
    double seconds = (double)bytes / me->world->options.bandwidth;
    seat->sent = fmax(seat->sent, me->times.clock) + seconds; /* one after the other */
    call->seconds = seconds;
    call->bytes = (double)bytes;
    td_entered sent = td_entered_of(c);
    double arrives = seat->sent + me->world->options.latency;
    td_sim_call *receive = waiting_receive(to, seat->rank);
    if (receive != NULL) {
        deliver(receive, &sent, c->in, arrives);
    } else {
        td_sim_mail *mail = malloc(sizeof *mail + bytes);
        TD_REQUIRE(mail != NULL, TD_HERE, "sim: no memory for a message of %zu bytes", bytes);
        *mail = (td_sim_mail){ .from = seat->rank, .sent = sent, .arrives = arrives };
        memcpy(mail->data, c->in, bytes);
        *TD_LINK_TO(&to->mails, NULL) = mail;
    }
    td_sim_done(call, me->times.clock, TD_OK, NULL);
}

void td_sim_receive(td_sim_call *call)
{
    td_sim_seat *seat = call->seat;
    const td_sim_seat *from = &seat->room->seats[call->c->peer];
    td_sim_mail **link = &seat->mails;
    while (*link != NULL && (*link)->from != from->rank) {
        link = &(*link)->next;
    }
    td_sim_mail *mail = *link;
    if (mail != NULL) {
        *link = mail->next;
        deliver(call, &mail->sent, mail->data, mail->arrives);
        free(mail);
    } else if (from->gone != TD_OK) {
        td_sim_done(call, seat->owner->times.clock, from->gone, from->reason);
    }
}

void td_sim_end_messages(td_sim_seat *gone)
{
    for (int rank = 0; rank < gone->room->size; rank++) {
        td_sim_call *call;
        while ((call = waiting_receive(&gone->room->seats[rank], gone->rank)) != NULL) {
            td_sim_done(call, 0.0, gone->gone, gone->reason);
        }
    }
}
