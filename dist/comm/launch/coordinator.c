/* The coordinator, which the host's agent runs: reads all agents' messages and decides.
 *
 *   GATHERING  nodes arrive; once there are enough, all get "start"      -> RUNNING
 *   RUNNING    all nodes done                                             -> ENDED, code 0
 *              a worker failed, a node was lost, left or came             -> STOPPING
 *   STOPPING   "stop" is sent; once every node has stopped: a restart     -> GATHERING
 *              or, if the budget is used up,                              -> ENDED, with its code
 *   ENDED      all nodes, also those that join later, get "end" */
#include "tensor/clock.h"
#include "dist/comm/launch/coordinator.h"
#include "dist/comm/mesh.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double LAST_CALL = 2;    /* seconds for which an elastic job waits for more nodes */
static const double STOP_MARGIN = 15; /* seconds after the grace period, for a node to stop */
static const double LONGEST_LOOK = 1; /* seconds from one look to the next that count */

bool td_coordinator_is_elastic(const td_coordinator *c)
{
    return c->options->min_nodes < c->options->max_nodes;
}

static void coordinator_enter(td_coordinator *c, int phase)
{
    c->phase = phase;
    c->since = c->now;
}

/* ---- the end ---- */

void td_coordinator_tell_end(td_coordinator *c, td_coordinator_node *n)
{
    if (n->alive && td_link_send(&n->link, "end %d\n%s", c->end_code, c->note) == TD_OK) {
        n->alive = false;
    }
}

void td_coordinator_end(td_coordinator *c, int code)
{
    c->end_code = code;
    coordinator_enter(c, ENDED);
    TD_EACH_NODE (c, n) {
        td_coordinator_tell_end(c, n);
    }
}

/* ---- stopping ---- */

void td_coordinator_stop_round(td_coordinator *c, bool lost)
{
    coordinator_enter(c, STOPPING);
    TD_EACH_NODE (c, n) {
        if (n->alive && n->in_round) {
            (void)td_link_send(&n->link, "stop %d%s", c->round, lost ? " lost" : "");
        }
    }
}

void td_coordinator_lose(td_coordinator *c, td_coordinator_node *n, const char *how, bool lost)
{
    n->alive = false;
    n->lost = lost;
    if (c->phase == RUNNING && n->in_round) {
        snprintf(c->note, sizeof(c->note), "node on host %s (pid %ld) %s", n->host, n->pid, how);
        c->uses_budget = !td_coordinator_is_elastic(c);
        c->end_code = 1;
        td_coordinator_stop_round(c, lost);
    }
}

/* After all nodes of the round have stopped: starts again, or ends. */
static void after_stop(td_coordinator *c)
{
    if (c->failed) {
        td_failure_text(&c->first, c->round, c->note, sizeof(c->note));
        c->end_code = td_child_exit_code(c->first.status);
    }
    if (c->uses_budget && c->restarts >= c->options->max_restarts) {
        td_coordinator_end(c, c->end_code);
        return;
    }
    c->restarts += c->uses_budget;
    c->round++;
    c->gather_deadline = c->now + c->options->join_timeout;
    coordinator_enter(c, GATHERING);
}

static void look_stopping(td_coordinator *c)
{
    bool all = true;
    double patience = c->options->grace + STOP_MARGIN;
    TD_EACH_NODE (c, n) {
        if (n->alive && n->in_round && !n->stopped && c->now > c->since + patience) {
            n->alive = false;
            n->lost = true;
        }
        all &= !n->alive || !n->in_round || n->stopped;
    }
    if (all) {
        after_stop(c);
    }
}

/* ---- gathering ---- */

int td_coordinator_alive(const td_coordinator *c)
{
    int alive = 0;
    TD_EACH_NODE (c, n) {
        alive += n->alive && n->joined;
    }
    return alive;
}

/* The members in the order of their wanted ranks. Nodes without a wanted rank fill the gaps in the
 * order of arrival. */
static int choose_members(td_coordinator *c, td_coordinator_node **members)
{
    int count = 0, limit = c->options->max_nodes;
    memset(members, 0, (size_t)limit * sizeof(td_coordinator_node *));
    TD_EACH_NODE (c, n) {
        bool wants = n->alive && n->joined && n->wanted_rank >= 0 && n->wanted_rank < limit;
        if (wants && members[n->wanted_rank] == NULL) {
            members[n->wanted_rank] = n;
            count++;
        }
    }
    for (int i = 0, place = 0; i < c->count && count < limit; i++) {
        td_coordinator_node *n = &c->nodes[i];
        if (n->alive && n->joined && n->wanted_rank < 0) {
            while (members[place] != NULL) {
                place++;
            }
            members[place] = n;
            count++;
        }
    }
    int kept = 0; /* closes gaps: in an elastic job a wanted rank may be missing */
    for (int i = 0; i < limit; i++) {
        if (members[i] != NULL) {
            members[kept++] = members[i];
        }
    }
    return kept;
}

/* Ends the job if its mesh does not fit so many workers. */
static bool has_place(td_coordinator *c, int world)
{
    int sizes[TD_MESH_DIMS];
    if (c->options->mesh == NULL || td_mesh_read(c->options->mesh, world, sizes) == TD_OK) {
        return true;
    }
    snprintf(c->note, sizeof c->note,
             "%s. The job ends; started again, it goes on from its checkpoint with any number of "
             "workers that fits, and with any mesh",
             td_last_error());
    td_coordinator_end(c, 1);
    return false;
}

static void start_round(td_coordinator *c)
{
    static td_coordinator_node *members[TD_LAUNCH_MAX_NODES];
    int count = choose_members(c, members), world = 0, first_rank = 0;
    TD_EACH_NODE (c, n) {
        n->in_round = n->done = n->stopped = false;
    }
    for (int i = 0; i < count; i++) {
        world += members[i]->workers;
    }
    if (!has_place(c, world)) {
        return;
    }
    for (int i = 0; i < count; i++) {
        td_coordinator_node *n = members[i];
        n->in_round = true;
        (void)td_link_send(&n->link, "start %d %d %d %d %d %d %s\n%s", c->round, c->restarts, i,
                           count, first_rank, world, c->run_id, c->note);
        first_rank += n->workers;
    }
    c->failed = false;
    c->note[0] = '\0';
    coordinator_enter(c, RUNNING);
}

int td_coordinator_missing(const td_coordinator *c, double seconds)
{
    bool waits = c->phase == GATHERING && c->now > c->since + seconds;
    return waits ? c->options->min_nodes - td_coordinator_alive(c) : 0;
}

static void look_gathering(td_coordinator *c)
{
    int alive = td_coordinator_alive(c);
    bool enough = alive >= c->options->min_nodes;
    if (alive >= c->options->max_nodes || (enough && c->now > c->since + LAST_CALL)) {
        start_round(c);
        return;
    }
    if (enough || c->now < c->gather_deadline) {
        return;
    }
    char why[TD_COORDINATOR_NOTE];
    snprintf(why, sizeof(why), "%s", c->note);
    snprintf(c->note, sizeof(c->note),
             "waited %g s for %d nodes, and %d came:", c->options->join_timeout,
             c->options->min_nodes, alive);
    for (int i = 0; i < c->count && strlen(c->note) < TD_COORDINATOR_NOTE / 2; i++) {
        if (c->nodes[i].alive && c->nodes[i].joined) {
            td_append(c->note, sizeof(c->note), " %s", c->nodes[i].host);
        }
    }
    td_append(c->note, sizeof(c->note),
              "; check that the others were started with the same endpoint%s%.1000s",
              why[0] != '\0' ? "\nbefore that: " : "", why);
    td_coordinator_end(c, 1);
}

/* While this process stands still, nodes send messages that it has not read. So a longer time since
 * the last look counts as LONGEST_LOOK. Within a look c->now stays. */
static void advance(td_coordinator *c)
{
    double before = c->looked;
    c->looked = td_clock();
    c->now += fmin(c->looked - before, LONGEST_LOOK);
}

void td_coordinator_look(td_coordinator *c)
{
    advance(c);
    td_coordinator_find_nodes(c);
    TD_EACH_NODE (c, n) {
        td_coordinator_look_at(c, n);
    }
    if (c->phase == GATHERING) {
        look_gathering(c);
    } else if (c->phase == STOPPING) {
        look_stopping(c);
    }
}

td_coordinator *td_coordinator_new(const td_launch_options *options, td_store *store)
{
    td_coordinator *c = calloc(1, sizeof(td_coordinator));
    TD_CHECK_NULL(c != NULL, TD_E_NOMEM, "no memory for the coordinator");
    c->options = options;
    c->store = store;
    c->now = c->looked = td_clock();
    c->gather_deadline = c->now + options->join_timeout;
    coordinator_enter(c, GATHERING);
    if (options->run_id[0] != '\0') {
        snprintf(c->run_id, sizeof(c->run_id), "%s", options->run_id);
    } else {
        struct tm now;
        time_t seconds = time(NULL);
        size_t length =
            strftime(c->run_id, sizeof(c->run_id), "%Y%m%d-%H%M%S", localtime_r(&seconds, &now));
        snprintf(c->run_id + length, sizeof(c->run_id) - length, "-%ld", (long)getpid());
    }
    return c;
}

bool td_coordinator_free(td_coordinator *c)
{
    bool lost = false;
    for (int i = 0; c != NULL && i < c->count; i++) {
        lost |= c->nodes[i].lost;
    }
    free(c != NULL ? c->nodes : NULL);
    free(c);
    return lost;
}
