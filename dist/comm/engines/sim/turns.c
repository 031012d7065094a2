/* Whose turn it is. As many ranks run at a time as there are processors; one that waits for others
 * gives its place to the one that has been ready longest. */
#include "dist/comm/engines/sim/internal.h"

#include <stdio.h>
#include <string.h>

td_sim_rank *td_sim_me(void)
{
    return (td_sim_rank *)(void *)td_thread_rank_now();
}

char *td_sim_text(const char *text)
{
    char *copy = strdup(text);
    TD_REQUIRE(copy != NULL, TD_HERE, "sim: no memory for a message");
    return copy;
}

void td_sim_run_next(td_sim_world *w)
{
    while (w->running < w->places && w->ready != NULL) {
        td_sim_rank *rank = w->ready;
        w->ready = rank->next;
        rank->runs = true;
        w->running++;
        pthread_cond_signal(&rank->wake);
    }
}

void td_sim_make_ready(td_sim_rank *rank)
{
    td_sim_rank **end = &rank->world->ready;
    *(rank->world->ready != NULL ? rank->world->ready_end : end) = rank;
    rank->world->ready_end = &rank->next;
    rank->next = NULL;
}

void td_sim_done(td_sim_call *call, double ends, td_status status, const char *reason)
{
    td_sim_rank *rank = call->seat->owner;
    if (call->done) {
        return;
    }
    call->done = true;
    call->ends = ends;
    call->status = status;
    call->reason = status != TD_OK ? td_sim_text(reason) : NULL;
    if (rank->waits_for == call) {
        rank->waits_for = NULL;
        td_sim_make_ready(rank);
        td_sim_run_next(rank->world);
    }
}

/* All ranks wait, and none can end another's wait: all fail. */
static void end_deadlock(td_sim_world *w)
{
    char text[300] = "";
    for (td_sim_rank *r = w->ranks; r < w->ranks + w->options.ranks; r++) {
        if (r->waits_for != NULL && text[0] == '\0') {
            char what[200];
            td_entered entered = td_entered_of(r->waits_for->c);
            td_describe_entered(&entered, what, sizeof what);
            snprintf(text, sizeof text, "all ranks wait for each other, rank %d in %s",
                     r->place.rank, what);
        }
        if (r->waits_for != NULL) {
            td_sim_done(r->waits_for, r->times.clock, TD_E_TIMEOUT, text);
        }
    }
}

void td_sim_stop_running(td_sim_world *w)
{
    w->running--;
    if (w->running == 0 && w->ready == NULL && w->alive > 0) {
        end_deadlock(w);
    }
    td_sim_run_next(w);
}

void td_sim_wait_to_run(td_sim_rank *me)
{
    while (!me->runs) {
        pthread_cond_wait(&me->wake, &me->world->lock);
    }
}

void td_sim_wait(td_sim_rank *me, td_sim_call *call)
{
    if (call->done) {
        return;
    }
    me->waits_for = call;
    me->runs = false;
    td_sim_stop_running(me->world);
    td_sim_wait_to_run(me);
}
