/* What the coordinator does about each node's messages (link.h), and about its silence. */
#include "dist/comm/launch/coordinator.h"
#include "dist/comm/process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In the course of a job, with all that came again. */
enum { MAX_AGENTS = 4 * TD_LAUNCH_MAX_NODES };

/* Whether a node may take part: 1; -1: no, and why; 0: not known yet. A second node with the same
 * wanted rank is refused, unless it is the same host that was started again: then the first node is
 * silent. */
static int node_admit(td_coordinator *c, td_coordinator_node *n, char *why, size_t size)
{
    if (n->wanted_rank >= c->options->max_nodes) {
        snprintf(why, size, "node rank %d: there are %d nodes, from rank 0", n->wanted_rank,
                 c->options->max_nodes);
        return -1;
    }
    for (int i = 0; i < c->count && n->wanted_rank >= 0; i++) {
        td_coordinator_node *other = &c->nodes[i];
        if (other == n || !other->alive || !other->joined || other->wanted_rank != n->wanted_rank) {
            continue;
        }
        bool returned = strcmp(other->host, n->host) == 0 && other->last_heard <= n->asked;
        if (returned && c->now < n->asked + 2 * TD_BEAT) {
            return 0;
        }
        if (!returned) {
            snprintf(why, size, "node rank %d is taken by host %s (pid %ld)", n->wanted_rank,
                     other->host, other->pid);
            return -1;
        }
        td_coordinator_lose(c, other, "ended and was started again", true);
    }
    if (c->phase != GATHERING && !td_coordinator_is_elastic(c) &&
        td_coordinator_alive(c) >= c->options->max_nodes) {
        snprintf(why, size, "the job has its %d nodes already", c->options->max_nodes);
        return -1;
    }
    return 1;
}

/* If an elastic job has room for a new node during a round, all nodes start again. */
static void welcome(td_coordinator *c, const td_coordinator_node *n)
{
    bool any_done = false;
    int members = 0;
    TD_EACH_NODE (c, other) {
        any_done |= other->in_round && other->done;
        members += other->in_round && other->alive;
    }
    if (c->phase == RUNNING && td_coordinator_is_elastic(c) && members < c->options->max_nodes &&
        !any_done) {
        snprintf(c->note, sizeof(c->note), "node on host %s (pid %ld) has joined", n->host, n->pid);
        c->uses_budget = false;
        td_coordinator_stop_round(c, false);
    }
}

static void look_at_asking(td_coordinator *c, td_coordinator_node *n)
{
    char why[400];
    int answer = node_admit(c, n, why, sizeof(why));
    if (answer == 0) {
        return;
    }
    n->asked = 0;
    n->joined = answer > 0;
    if (answer < 0) {
        (void)td_link_send(&n->link, "end 1\nthis node cannot take part: %s", why);
        n->alive = false;
    } else if (c->phase == GATHERING) {
        c->since = c->now;
    } else {
        welcome(c, n);
    }
}

/* Only a node's first valid request counts: what it has said before stays. */
static void on_join(td_coordinator_node *n, const char *text)
{
    td_coordinator_node asks = *n;
    if (!n->joined && n->asked == 0 &&
        sscanf(text, "join %127s %ld %d %d", asks.host, &asks.pid, &asks.wanted_rank,
               &asks.workers) == 4 &&
        asks.workers >= 1 && asks.workers <= TD_LAUNCH_MAX_WORKERS) {
        *n = asks;
        n->asked = n->last_heard;
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
        td_coordinator_stop_round(c, false);
    } else if (c->phase == STOPPING && c->failed) {
        bool named = names(&c->first, &failure), names_it = names(&failure, &c->first);
        if (named != names_it ? named : failure.when < c->first.when) {
            c->first = failure;
        }
    }
}

static void on_done(td_coordinator *c, td_coordinator_node *n)
{
    n->done = true;
    bool all = c->phase == RUNNING;
    TD_EACH_NODE (c, other) {
        all &= !other->in_round || other->done;
    }
    if (all) {
        td_coordinator_end(c, 0);
    }
}

/* Whether the node's launcher is this process. Containers of several hosts may have equal pids. */
static bool is_host(const td_coordinator_node *n)
{
    char host[sizeof n->host] = "";
    gethostname(host, sizeof(host) - 1);
    return n->pid == (long)getpid() && strcmp(n->host, host) == 0;
}

/* A launcher that a signal ends also ends the job. An elastic job continues without the node,
 * unless it is the host. */
static void on_leave(td_coordinator *c, td_coordinator_node *n, int signal)
{
    char how[64];
    snprintf(how, sizeof(how), "was stopped by %s", td_signal_name(signal));
    if (td_coordinator_is_elastic(c) && !is_host(n)) {
        td_coordinator_lose(c, n, how, false);
        (void)td_link_send(&n->link, "end %d\n", 128 + signal);
        return;
    }
    snprintf(c->note, sizeof(c->note), "the launcher on host %s (pid %ld) %s", n->host, n->pid,
             how);
    td_coordinator_end(c, 128 + signal);
}

static void on_message(td_coordinator *c, td_coordinator_node *n, const char *text)
{
    int number = -1;
    n->last_heard = c->now;
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

void td_coordinator_look_at(td_coordinator *c, td_coordinator_node *n)
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
    if (n->alive && c->now > n->last_heard + TD_LOST) {
        td_coordinator_lose(c, n, "was lost: no sign of life for 5 s", true);
    }
    if (n->alive && n->asked > 0 && c->phase != ENDED) {
        look_at_asking(c, n);
    }
    if (c->phase == ENDED) {
        td_coordinator_tell_end(c, n);
    }
}

void td_coordinator_find_nodes(td_coordinator *c)
{
    int agents;
    if (td_link_count(c->store, &agents) != TD_OK || agents <= c->count) {
        return;
    }
    if (agents > MAX_AGENTS) {
        agents = MAX_AGENTS;
        if (!c->told_full && td_stderr_is_read(0)) { /* the job does not wait for a reader */
            fprintf(stderr, "tdrun: no more than %d launchers may come in a job; others wait\n",
                    MAX_AGENTS);
            c->told_full = true;
        }
    }
    td_coordinator_node *nodes =
        agents == c->count ? NULL : realloc(c->nodes, (size_t)agents * sizeof(td_coordinator_node));
    if (nodes == NULL) {
        return; /* nothing is new, or the next check tries again */
    }
    c->nodes = nodes;
    for (; c->count < agents; c->count++) {
        c->nodes[c->count] = (td_coordinator_node){
            .link = { .store = c->store, .agent = c->count },
            .alive = true,
            .last_heard = c->now,
        };
    }
}
