/* Messages between an agent and the coordinator: two queues of texts in the store.
 *
 *   launch/agents            how many agents there have been; an agent's number is what it was
 * before launch/<agent>/up/<n>    from the agent, n counted from 0; whoever reads one deletes it
 *   launch/<agent>/down/<n>  to the agent
 *
 * Up:    join HOST PID NODE_RANK WORKERS     NODE_RANK -1: any
 *        beat                                every TD_BEAT seconds
 *        done ROUND                          all workers of this node ended well
 *        fail ROUND ...                      a worker failed (launcher_report.h); the others are
 *                                            being stopped
 *        stopped ROUND                       none runs any more
 *        leave SIGNAL                        the launcher was told to end
 * Down:  start ROUND RESTARTS NODE NODES FIRST_RANK WORLD RUN_ID\nNOTE
 *        stop ROUND
 *        again                               to a node that was given up and is heard again: stop
 * the workers and join anew end CODE\nTEXT */
#ifndef TD_DIST_LAUNCHER_LINK_H
#define TD_DIST_LAUNCHER_LINK_H

#include "dist/store.h"

/* A node that has been silent for TD_LOST seconds is lost. */
#define TD_BEAT 1.0
#define TD_LOST 5.0

typedef struct td_link {
    td_store *store;
    int agent, sent, received;
    bool is_agent;
} td_link;

/* Both ends: the agent's gets a new number. */
td_status td_link_open(td_store *store, td_link *link);
td_status td_link_count(td_store *store, int *agents);

td_status td_link_send(td_link *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* *text: the next message, malloc'ed, or NULL if there is none yet. */
td_status td_link_receive(td_link *link, char **text);

#endif
