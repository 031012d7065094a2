/* The agent of one node: obeys the coordinator, and tells it what happens on the node. */
#include "tensor/clock.h"
#include "dist/comm/launch/launcher.h"
#include "dist/comm/launch/link.h"
#include "tensor/system/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* At most this number of seconds from SIGTERM to SIGKILL when another node was lost: workers wait
 * for it in vain. */
static const double LOST_GRACE = 2;
static const double END_PATIENCE = 3;  /* seconds to wait for the coordinator after a signal */
static const double LOOK_EVERY = 0.02; /* seconds between the coordinator's looks */
static const double TELL_AFTER = 3;    /* seconds of waiting for other nodes */

typedef struct agent {
    const td_launch_options *options;
    td_signal_watch *watch;
    td_workers *workers;
    td_children *children;       /* the workers' */
    td_coordinator *coordinator; /* NULL: this node is not the host */
    td_link link;
    td_round round;
    bool running;      /* a round runs */
    bool done_told;    /* "done" or "fail" was sent for this round */
    bool stop_ordered; /* "stopped" must be sent when no worker runs */
    bool ending;       /* the agent ends when no worker runs */
    bool again;        /* this node was given up and may join again */
    bool told;         /* that nodes are missing */
    int code;
    int left; /* the signal that ended this launcher, or 0 */
    double left_at, last_beat;
} agent;

/* After a signal this launcher ends, whether or not somebody reads why. false: nobody does. */
static bool say(const agent *a, char *text)
{
    char *rest, *line = strtok_r(text, "\n", &rest);
    bool read = true;
    for (; line != NULL && read; line = strtok_r(NULL, "\n", &rest)) {
        td_clean_text(line); /* another host may have sent it */
        read = td_launch_say(a->watch, a->left != 0, "%s", line);
    }
    return read;
}

static double lost_grace(const agent *a)
{
    return a->options->grace < LOST_GRACE ? a->options->grace : LOST_GRACE;
}

/* ---- orders ---- */

/* Whether the numbers of an order can be: each node has at least one worker, and a round that is
 * not a restart may come after a change of nodes. */
static bool round_is_possible(const td_round *r, int workers)
{
    int64_t before = r->first_rank, after = (int64_t)r->world_size - before - workers;
    bool known = r->number >= 0 && r->restarts >= 0 && r->restarts <= r->number && r->nodes >= 1 &&
                 r->nodes <= TD_LAUNCH_MAX_NODES && r->node >= 0 && r->node < r->nodes;
    return known && before >= r->node && before <= (int64_t)r->node * TD_LAUNCH_MAX_WORKERS &&
           after >= r->nodes - 1 - r->node &&
           after <= (int64_t)(r->nodes - 1 - r->node) * TD_LAUNCH_MAX_WORKERS;
}

static td_status on_start(agent *a, char *text)
{
    td_round r = { 0 };
    if (sscanf(text, "start %d %d %d %d %d %d %127s", &r.number, &r.restarts, &r.node, &r.nodes,
               &r.first_rank, &r.world_size, r.run_id) != 7) {
        td_clean_text(text);
        return td_fail(TD_E_FORMAT, "the launcher of another version? It says '%.60s'", text);
    }
    if (!round_is_possible(&r, a->options->workers) || !td_run_id_is_valid(r.run_id) ||
        td_children_running(a->children) > 0) {
        td_clean_text(text);
        return td_fail(TD_E_FORMAT, "node 0's launcher gave an order that cannot be: '%.60s'",
                       text);
    }
    a->round = r;
    a->running = true;
    a->done_told = a->stop_ordered = false;
    td_workers_start(a->workers, &r, a->watch); /* first: nobody may read the console */
    char *note = strchr(text, '\n');
    if (note != NULL && note[1] != '\0' && say(a, note + 1)) {
        td_launch_say(a->watch, false,
                      "all workers start again (attempt %d; %d of %d restarts used)", r.number,
                      r.restarts, a->options->max_restarts);
    }
    return TD_OK;
}

static td_status on_order(agent *a, char *text)
{
    int number;
    if (strncmp(text, "start ", 6) == 0) {
        return a->left == 0 ? on_start(a, text) : TD_OK;
    }
    if (strcmp(text, "again") == 0) {
        a->again = true;
        return td_fail(TD_E_TIMEOUT,
                       "node 0's launcher heard nothing from this one for %g s and gave "
                       "it up; the link between them, or this machine, stood still",
                       TD_LOST);
    }
    if (sscanf(text, "stop %d", &number) == 1) {
        bool lost = strstr(text, " lost") != NULL;
        a->stop_ordered = true;
        td_children_stop(a->children, SIGTERM, lost ? lost_grace(a) : a->options->grace);
    } else if (sscanf(text, "end %d", &number) == 1) {
        a->ending = true;
        a->code = a->left != 0 ? 128 + a->left : number;
        td_children_stop(a->children, SIGTERM, a->options->grace); /* first, too */
        char *why = strchr(text, '\n');
        if (why != NULL) {
            say(a, why + 1);
        }
    }
    return TD_OK;
}

static td_status take_orders(agent *a)
{
    for (;;) {
        char *text;
        TD_TRY(td_link_receive(&a->link, &text));
        if (text == NULL) {
            return TD_OK;
        }
        td_status status = on_order(a, text); /* may change the text */
        free(text);
        TD_TRY(status);
    }
}

/* ---- what happens here ---- */

/* An elastic run makes a new world after each death (dist/elastic/members.c): dead workers are
 * replaced. */
static td_status replace_workers(agent *a)
{
    char key[256], *world;
    if (!a->running || a->stop_ordered || a->ending || a->left != 0 ||
        !td_workers_struck(a->workers)) {
        return TD_OK;
    }
    snprintf(key, sizeof key, "elastic/%s/%d/latest", a->round.run_id, a->round.number);
    TD_TRY(td_store_compare_set(a->link.store, key, "-", "-", &world)); /* does not wait */
    td_workers_replace(a->workers, atoi(world), a->watch);
    free(world);
    return TD_OK;
}

static td_status look_at_workers(agent *a)
{
    td_worker_failure failure;
    TD_TRY(replace_workers(a));
    if (td_workers_look(a->workers, &failure)) {
        char text[3000];
        td_failure_pack(&failure, text, sizeof(text));
        td_children_stop(a->children, SIGTERM, a->options->grace);
        a->done_told = true; /* "fail" takes the place of "done" */
        TD_TRY(td_link_send(&a->link, "fail %d %s", a->round.number, text));
    }
    bool struck = td_workers_struck(a->workers); /* the next call replaces or reports them */
    if (!a->running || struck || td_children_running(a->children) > 0) {
        return TD_OK;
    }
    if (a->stop_ordered) {
        a->running = a->stop_ordered = false;
        return td_link_send(&a->link, "stopped %d", a->round.number);
    }
    if (!a->done_told && a->left == 0 && !a->ending) {
        a->done_told = true;
        return td_link_send(&a->link, "done %d", a->round.number);
    }
    return TD_OK;
}

static td_status on_signal(agent *a, int signal)
{
    td_children_pass(a->children, signal, a->options->grace);
    if (a->left != 0) {
        return TD_OK;
    }
    a->left = signal;
    a->left_at = td_clock();
    a->code = 128 + signal;
    return td_link_send(&a->link, "leave %d", signal);
}

static td_status beat(agent *a)
{
    if (td_clock() < a->last_beat + TD_BEAT) {
        return TD_OK;
    }
    a->last_beat = td_clock();
    return td_link_send(&a->link, "beat");
}

static bool is_over(const agent *a)
{
    bool told = a->ending || (a->left != 0 && td_clock() > a->left_at + END_PATIENCE);
    return told && td_children_running(a->children) == 0;
}

static void agent_tell_missing(agent *a)
{
    int missing = td_coordinator_missing(a->coordinator, TELL_AFTER);
    if (missing > 0 && !a->told) {
        a->told = true;
        td_launch_say(a->watch, false, "waiting for %d of %d nodes at %s:%d", missing,
                      a->options->min_nodes, a->options->host, a->options->port);
    }
}

/* The next signal, or 0. Meanwhile the coordinator has its turn. */
static int agent_wait_a_little(agent *a)
{
    double wait = a->options->monitor_interval;
    if (a->coordinator != NULL) {
        td_coordinator_look(a->coordinator);
        agent_tell_missing(a);
        wait = wait < LOOK_EVERY ? wait : LOOK_EVERY;
    }
    return td_signal_watch_wait(a->watch, wait);
}

static td_status agent_step(agent *a)
{
    int signal = agent_wait_a_little(a);
    if (signal != 0) {
        TD_TRY(on_signal(a, signal));
    }
    TD_TRY(look_at_workers(a));
    TD_TRY(take_orders(a));
    return beat(a);
}

/* Ends the workers after the store was lost or the coordinator has given this node up. */
static int end_lost(agent *a)
{
    td_worker_failure unused;
    td_children_stop(a->children, SIGTERM, lost_grace(a));
    while (td_children_running(a->children) > 0) {
        int signal = agent_wait_a_little(a);
        if (signal != 0) {
            a->left = signal;
            td_children_pass(a->children, signal, lost_grace(a));
        }
        (void)td_workers_look(a->workers, &unused);
    }
    if (a->left != 0 || a->ending) {
        return a->left != 0 ? 128 + a->left : a->code;
    }
    return a->again ? TD_AGENT_AGAIN : TD_AGENT_LOST;
}

int td_agent_run(const td_launch_options *options, td_store *store, td_workers *workers,
                 td_signal_watch *watch, td_coordinator *coordinator)
{
    char host[128] = "";
    agent a = { .options = options,
                .watch = watch,
                .workers = workers,
                .children = td_workers_children(workers),
                .coordinator = coordinator };
    gethostname(host, sizeof(host) - 1);
    td_status status = td_link_open(store, &a.link);
    status = status == TD_OK ? td_link_send(&a.link, "join %s %ld %d %d", host, (long)getpid(),
                                            options->node_rank, options->workers)
                             : status;
    while (status == TD_OK && !is_over(&a)) {
        status = agent_step(&a);
    }
    return status == TD_OK ? a.code : end_lost(&a);
}
