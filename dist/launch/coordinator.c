/* The coordinator: one thread on the host. It reads all agents' messages and decides.
 *
 *   GATHERING  nodes arrive; once there are enough, all get "start"      -> RUNNING
 *   RUNNING    all nodes done                                             -> ENDED, code 0
 *              a worker failed, a node was lost, left or came             -> STOPPING
 *   STOPPING   "stop" is sent; once every node has stopped: a restart     -> GATHERING
 *              or, if the budget is used up,                              -> ENDED, with its code
 *   ENDED      all nodes, also those that join later, get "end" */
#include "dist/clock.h"
#include "dist/launch/launcher.h"
#include "dist/launch/link.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTE_BYTES = 3500 };
enum {
    MAX_AGENTS = 4 * TD_LAUNCH_MAX_NODES
}; /* in the course of a job, with all that came again */

static const double LOOK_EVERY = 0.02;
static const double LAST_CALL = 2;    /* seconds for which an elastic job waits for more nodes */
static const double STOP_MARGIN = 15; /* seconds after the grace period, for a node to stop */

typedef struct node {
    td_link link;
    bool joined, alive, in_round, done, stopped;
    bool lost; /* given up; the node does not know, because only its network may have failed */
    char host[128];
    long pid;
    int wanted_rank, workers;
    double last_heard, asked; /* asked: when it asked to join; 0: the answer was sent */
} node;

struct td_coordinator {
    pthread_t thread;
    atomic_bool finish; /* the host's agent has ended */
    const td_launch_options *options;
    td_store *store;

    enum { GATHERING, RUNNING, STOPPING, ENDED } phase;
    double since; /* when the phase began; while gathering: when the last node arrived */
    double gather_deadline;
    node *nodes; /* all nodes so far; [agent number] */
    int count;
    bool told_full;
    int round, restarts;
    char run_id[128];
    bool uses_budget;        /* the round stops because of a failure, not of a change of nodes */
    bool failed;             /* a worker has failed in the round */
    td_worker_failure first; /* the round's first failure, if one has */
    int end_code;
    char note[NOTE_BYTES]; /* why the round stops, or the job ended */
};

static bool is_elastic(const td_coordinator *c)
{
    return c->options->min_nodes < c->options->max_nodes;
}

static void enter(td_coordinator *c, int phase)
{
    c->phase = phase;
    c->since = td_clock();
}

/* ---- the end ---- */

static void tell_end(td_coordinator *c, node *n)
{
    if (n->alive && td_link_send(&n->link, "end %d\n%s", c->end_code, c->note) == TD_OK) {
        n->alive = false;
    }
}

static void end_all(td_coordinator *c, int code)
{
    c->end_code = code;
    enter(c, ENDED);
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        tell_end(c, n);
    }
}

/* ---- stopping ---- */

static void begin_stop(td_coordinator *c, bool lost)
{
    enter(c, STOPPING);
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        if (n->alive && n->in_round) {
            (void)td_link_send(&n->link, "stop %d%s", c->round, lost ? " lost" : "");
        }
    }
}

/* Removes a node: all nodes start again. lost: the node does not know. In an elastic job this uses
 * no restart of the budget. */
static void lose_node(td_coordinator *c, node *n, const char *how, bool lost)
{
    n->alive = false;
    n->lost = lost;
    if (c->phase == RUNNING && n->in_round) {
        snprintf(c->note, sizeof(c->note), "node on host %s (pid %ld) %s", n->host, n->pid, how);
        c->uses_budget = !is_elastic(c);
        c->end_code = 1;
        begin_stop(c, lost);
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
        end_all(c, c->end_code);
        return;
    }
    c->restarts += c->uses_budget;
    c->round++;
    c->gather_deadline = td_clock() + c->options->join_timeout;
    enter(c, GATHERING);
}

static void look_stopping(td_coordinator *c)
{
    bool all = true;
    double patience = c->options->grace + STOP_MARGIN;
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        if (n->alive && n->in_round && !n->stopped && td_clock() > c->since + patience) {
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

static int alive_count(const td_coordinator *c)
{
    int alive = 0;
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        alive += n->alive && n->joined;
    }
    return alive;
}

/* The members in the order of their wanted ranks. Nodes without a wanted rank fill the gaps in the
 * order of arrival. */
static int choose_members(td_coordinator *c, node **members)
{
    int count = 0, limit = c->options->max_nodes;
    memset(members, 0, (size_t)limit * sizeof(node *));
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        bool wants = n->alive && n->joined && n->wanted_rank >= 0 && n->wanted_rank < limit;
        if (wants && members[n->wanted_rank] == NULL) {
            members[n->wanted_rank] = n;
            count++;
        }
    }
    for (int i = 0, place = 0; i < c->count && count < limit; i++) {
        node *n = &c->nodes[i];
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

static void start_round(td_coordinator *c)
{
    static node *members[TD_LAUNCH_MAX_NODES];
    int count = choose_members(c, members), world = 0, first_rank = 0;
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        n->in_round = n->done = n->stopped = false;
    }
    for (int i = 0; i < count; i++) {
        world += members[i]->workers;
    }
    for (int i = 0; i < count; i++) {
        node *n = members[i];
        n->in_round = true;
        (void)td_link_send(&n->link, "start %d %d %d %d %d %d %s\n%s", c->round, c->restarts, i,
                           count, first_rank, world, c->run_id, c->note);
        first_rank += n->workers;
    }
    c->failed = false;
    c->note[0] = '\0';
    enter(c, RUNNING);
}

static void look_gathering(td_coordinator *c)
{
    int alive = alive_count(c);
    bool enough = alive >= c->options->min_nodes;
    if (alive >= c->options->max_nodes || (enough && td_clock() > c->since + LAST_CALL)) {
        start_round(c);
        return;
    }
    if (enough || td_clock() < c->gather_deadline) {
        return;
    }
    char why[NOTE_BYTES];
    snprintf(why, sizeof(why), "%s", c->note);
    int length = snprintf(c->note, sizeof(c->note),
                          "waited %g s for %d nodes, and %d came:", c->options->join_timeout,
                          c->options->min_nodes, alive);
    for (int i = 0; i < c->count && length < NOTE_BYTES / 2; i++) {
        if (c->nodes[i].alive && c->nodes[i].joined) {
            length += snprintf(c->note + length, sizeof(c->note) - (size_t)length, " %s",
                               c->nodes[i].host);
        }
    }
    snprintf(c->note + length, sizeof(c->note) - (size_t)length,
             "; check that the others were started with the same endpoint%s%.1000s",
             why[0] != '\0' ? "\nbefore that: " : "", why);
    end_all(c, 1);
}

/* ---- what nodes say ---- */

/* Whether a node may take part: 1; -1: no, and why; 0: not known yet. A second node with the same
 * wanted rank is refused, unless it is the same host that was started again: then the first node is
 * silent. */
static int admit(td_coordinator *c, node *n, char *why, size_t size)
{
    if (n->wanted_rank >= c->options->max_nodes) {
        snprintf(why, size, "node rank %d: there are %d nodes, from rank 0", n->wanted_rank,
                 c->options->max_nodes);
        return -1;
    }
    for (int i = 0; i < c->count && n->wanted_rank >= 0; i++) {
        node *other = &c->nodes[i];
        if (other == n || !other->alive || !other->joined || other->wanted_rank != n->wanted_rank) {
            continue;
        }
        bool returned = strcmp(other->host, n->host) == 0 && other->last_heard < n->asked;
        if (returned && td_clock() < n->asked + 2 * TD_BEAT) {
            return 0;
        }
        if (!returned) {
            snprintf(why, size, "node rank %d is taken by host %s (pid %ld)", n->wanted_rank,
                     other->host, other->pid);
            return -1;
        }
        lose_node(c, other, "ended and was started again", true);
    }
    if (c->phase != GATHERING && !is_elastic(c) && alive_count(c) >= c->options->max_nodes) {
        snprintf(why, size, "the job has its %d nodes already", c->options->max_nodes);
        return -1;
    }
    return 1;
}

/* If an elastic job has room for a new node during a round, all nodes start again. */
static void welcome(td_coordinator *c, const node *n)
{
    bool any_done = false;
    int members = 0;
    for (int i = 0; i < c->count; i++) {
        node *other = &c->nodes[i];
        any_done |= other->in_round && other->done;
        members += other->in_round && other->alive;
    }
    if (c->phase == RUNNING && is_elastic(c) && members < c->options->max_nodes && !any_done) {
        snprintf(c->note, sizeof(c->note), "node on host %s (pid %ld) has joined", n->host, n->pid);
        c->uses_budget = false;
        begin_stop(c, false);
    }
}

static void look_at_asking(td_coordinator *c, node *n)
{
    char why[400];
    int answer = admit(c, n, why, sizeof(why));
    if (answer == 0) {
        return;
    }
    n->asked = 0;
    n->joined = answer > 0;
    if (answer < 0) {
        (void)td_link_send(&n->link, "end 1\nthis node cannot take part: %s", why);
        n->alive = false;
    } else if (c->phase == GATHERING) {
        c->since = td_clock();
    } else {
        welcome(c, n);
    }
}

/* Only a node's first valid request counts: what it has said before stays. */
static void on_join(node *n, const char *text)
{
    node asks = *n;
    if (!n->joined && n->asked == 0 &&
        sscanf(text, "join %127s %ld %d %d", asks.host, &asks.pid, &asks.wanted_rank,
               &asks.workers) == 4 &&
        asks.workers >= 1 && asks.workers <= TD_LAUNCH_MAX_WORKERS) {
        *n = asks;
        n->asked = td_clock();
    }
}

/* Whether a's message tells of b's end. */
static bool names(const td_worker_failure *a, const td_worker_failure *b)
{
    return td_message_names(a->message, a->host, b->pid, b->host);
}

/* The cause of a round's end is the failure that a survivor on another node has named, or else the
 * earliest one. */
static void on_fail(td_coordinator *c, const char *text)
{
    td_worker_failure failure;
    int round, length = 0;
    if (sscanf(text, "fail %d %n", &round, &length) != 1 || round != c->round || length == 0 ||
        !td_failure_unpack(text + length, &failure)) {
        return;
    }
    if (c->phase == RUNNING) {
        c->uses_budget = c->failed = true;
        c->first = failure;
        begin_stop(c, false);
    } else if (c->phase == STOPPING && c->failed) {
        bool named = names(&c->first, &failure), names_it = names(&failure, &c->first);
        if (named != names_it ? named : failure.when < c->first.when) {
            c->first = failure;
        }
    }
}

static void on_done(td_coordinator *c, node *n)
{
    n->done = true;
    bool all = c->phase == RUNNING;
    for (int i = 0; i < c->count; i++) {
        node *other = &c->nodes[i];
        all &= !other->in_round || other->done;
    }
    if (all) {
        end_all(c, 0);
    }
}

/* A launcher that a signal ends also ends the job. An elastic job continues without the node,
 * unless it is the host. */
static void on_leave(td_coordinator *c, node *n, int signal)
{
    char how[64];
    snprintf(how, sizeof(how), "was stopped by %s", td_signal_name(signal));
    if (is_elastic(c) && n->pid != (long)getpid()) {
        lose_node(c, n, how, false);
        (void)td_link_send(&n->link, "end %d\n", 128 + signal);
        return;
    }
    snprintf(c->note, sizeof(c->note), "the launcher on host %s (pid %ld) %s", n->host, n->pid,
             how);
    end_all(c, 128 + signal);
}

static void on_message(td_coordinator *c, node *n, const char *text)
{
    int number = -1;
    n->last_heard = td_clock();
    if (strncmp(text, "join ", 5) == 0) {
        on_join(n, text);
    } else if (strncmp(text, "fail ", 5) == 0) {
        on_fail(c, text);
    } else if (sscanf(text, "done %d", &number) == 1 && number == c->round) {
        on_done(c, n);
    } else if (sscanf(text, "stopped %d", &number) == 1 && number == c->round) {
        n->stopped = true;
    } else if (sscanf(text, "leave %d", &number) == 1 && number >= 1 && number < NSIG) {
        on_leave(c, n, number);
    }
}

static void look_at_node(td_coordinator *c, node *n)
{
    char *text = NULL;
    while (td_link_receive(&n->link, &text) == TD_OK && text != NULL) {
        if (n->lost) { /* the node can be reached again, and would wait forever */
            n->lost = td_link_send(&n->link, "again") != TD_OK;
        } else {
            on_message(c, n, text);
        }
        free(text);
    }
    if (n->alive && td_clock() > n->last_heard + TD_LOST) {
        lose_node(c, n, "was lost: no sign of life for 5 s", true);
    }
    if (n->alive && n->asked > 0 && c->phase != ENDED) {
        look_at_asking(c, n);
    }
    if (c->phase == ENDED) {
        tell_end(c, n);
    }
}

static void look_for_new_nodes(td_coordinator *c)
{
    int agents;
    if (td_link_count(c->store, &agents) != TD_OK || agents <= c->count) {
        return;
    }
    if (agents > MAX_AGENTS) {
        agents = MAX_AGENTS;
        if (!c->told_full) {
            fprintf(stderr, "tdrun: no more than %d launchers may come in a job; others wait\n",
                    MAX_AGENTS);
        }
        c->told_full = true;
    }
    node *nodes = agents == c->count ? NULL : realloc(c->nodes, (size_t)agents * sizeof(node));
    if (nodes == NULL) {
        return; /* nothing is new, or the next check tries again */
    }
    c->nodes = nodes;
    for (; c->count < agents; c->count++) {
        c->nodes[c->count] = (node){
            .link = { .store = c->store, .agent = c->count },
            .alive = true,
            .last_heard = td_clock(),
        };
    }
}

void td_coordinator_look(td_coordinator *c)
{
    look_for_new_nodes(c);
    for (int i = 0; i < c->count; i++) {
        node *n = &c->nodes[i];
        look_at_node(c, n);
    }
    if (c->phase == GATHERING) {
        look_gathering(c);
    } else if (c->phase == STOPPING) {
        look_stopping(c);
    }
}

static void *coordinator_main(void *argument)
{
    td_coordinator *c = argument;
    while (!atomic_load(&c->finish)) {
        td_coordinator_look(c);
        td_sleep(LOOK_EVERY);
    }
    return NULL;
}

td_coordinator *td_coordinator_new(const td_launch_options *options, td_store *store)
{
    td_coordinator *c = calloc(1, sizeof(td_coordinator));
    if (c == NULL) {
        td_fail(TD_E_NOMEM, "no memory for the coordinator");
        return NULL;
    }
    c->options = options;
    c->store = store;
    c->gather_deadline = td_clock() + options->join_timeout;
    enter(c, GATHERING);
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

td_status td_coordinator_start(const td_launch_options *options, td_store *store,
                               td_coordinator **coordinator)
{
    td_coordinator *c = td_coordinator_new(options, store);
    if (c == NULL) {
        return TD_E_NOMEM;
    }
    int error = pthread_create(&c->thread, NULL, coordinator_main, c);
    if (error != 0) {
        td_coordinator_free(c);
        return td_fail(TD_E_NOMEM, "no thread for the coordinator: %s", strerror(error));
    }
    *coordinator = c;
    return TD_OK;
}

bool td_coordinator_stop(td_coordinator *c)
{
    if (c == NULL) {
        return false;
    }
    atomic_store(&c->finish, true);
    pthread_join(c->thread, NULL);
    return td_coordinator_free(c);
}

bool td_coordinator_free(td_coordinator *c)
{
    bool lost = false;
    for (int i = 0; i < c->count; i++) {
        lost |= c->nodes[i].lost;
    }
    free(c->nodes);
    free(c);
    return lost;
}
