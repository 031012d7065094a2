/* The coordinator, internal: coordinator.c decides, coordinator_nodes.c reads what nodes say. */
#pragma once

#include "dist/comm/launch/launcher.h"
#include "dist/comm/launch/link.h"

enum { TD_COORDINATOR_NOTE = 3500 }; /* bytes */

typedef enum td_coordinator_phase { GATHERING, RUNNING, STOPPING, ENDED } td_coordinator_phase;

typedef struct td_coordinator_node {
    td_link link;
    bool joined, alive, in_round, done, stopped;
    bool lost; /* given up; the node does not know, because only its network may have failed */
    char host[128];
    long pid;
    int wanted_rank, workers;
    double last_heard, asked; /* asked: when it asked to join; 0: the answer was sent */
} td_coordinator_node;

struct td_coordinator {
    const td_launch_options *options;
    td_store *store;

    /* Seconds. All times below are of this clock, which does not count a pause of this process. */
    double now, looked; /* looked: td_clock() of the last look */
    td_coordinator_phase phase;
    double since; /* when the phase began; while gathering: when the last node arrived */
    double gather_deadline;
    td_coordinator_node *nodes; /* all nodes so far; [agent number] */
    int count;
    bool told_full;
    int round, restarts;
    char run_id[128];
    bool uses_budget;        /* the round stops because of a failure, not of a change of nodes */
    bool failed;             /* a worker has failed in the round */
    td_worker_failure first; /* the round's first failure, if one has */
    int end_code;
    char note[TD_COORDINATOR_NOTE]; /* why the round stops, or the job ended */
};

/* All nodes so far. */
#define TD_EACH_NODE(c, n)                                                                         \
    for (td_coordinator_node *n = (c)->nodes; n != NULL && n < (c)->nodes + (c)->count; n++)

/* ---- coordinator.c ---- */

/* Fewer nodes than the most that may take part are enough. */
bool td_coordinator_is_elastic(const td_coordinator *c);
int td_coordinator_alive(const td_coordinator *c); /* nodes that have joined and are not lost */
/* Removes a node: all nodes start again. lost: the node does not know. In an elastic job this uses
 * no restart of the budget. */
void td_coordinator_lose(td_coordinator *c, td_coordinator_node *n, const char *how, bool lost);
/* Stops the round on all nodes. lost: because a node was lost. */
void td_coordinator_stop_round(td_coordinator *c, bool lost);
/* Ends the job, with c->note as the reason. */
void td_coordinator_end(td_coordinator *c, int code);
/* Tells a node the end, unless it knows. */
void td_coordinator_tell_end(td_coordinator *c, td_coordinator_node *n);

/* ---- coordinator_nodes.c ---- */

/* Adds launchers that have come. */
void td_coordinator_find_nodes(td_coordinator *c);
/* Reads a node's messages, and whether it still lives. */
void td_coordinator_look_at(td_coordinator *c, td_coordinator_node *n);
