/* Messages between an agent and the coordinator: two queues of texts in the store.
 *
 *   launch/agents            number of agents so far; a new agent gets the old value as its number
 *   launch/<agent>/up/<n>    from the agent, n counted from 0; the reader deletes it
 *   launch/<agent>/down/<n>  to the agent
 *
 * Up:    join HOST PID NODE_RANK WORKERS     NODE_RANK -1: any
 *        beat                                every TD_BEAT seconds
 *        done ROUND                          all workers of this node ended well
 *        fail ROUND ...                      a worker failed (td_failure_pack); the others are
 *                                            being stopped
 *        stopped ROUND                       no worker of this node runs
 *        leave SIGNAL                        a signal ends this launcher
 * Down:  start ROUND RESTARTS NODE NODES FIRST_RANK WORLD RUN_ID\nNOTE
 *        stop ROUND [lost]                   lost: because a node was lost
 *        again                               the node had been given up: stop, join again
 *        end CODE\nTEXT                      the job has ended */
#pragma once

#include "dist/comm/store.h"

/* A node that sends nothing for TD_LOST seconds is lost. */
#define TD_BEAT 1.0
#define TD_LOST 5.0

typedef struct td_link {
    td_store *store;
    int agent, sent, received;
    bool is_agent;
} td_link;

/* For both ends. An agent's link gets a new number. */
td_status td_link_open(td_store *store, td_link *link);
td_status td_link_count(td_store *store, int *agents);

td_status td_link_send(td_link *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* *text: the next message, malloc'ed; NULL: there is none yet. */
td_status td_link_receive(td_link *link, char **text);
