/* How ranks find each other: who am I, where is the store, and is everybody there? */
#ifndef TD_DIST_RENDEZVOUS_H
#define TD_DIST_RENDEZVOUS_H

#include "dist/dist.h"
#include "dist/socket.h"
#include "dist/tcp.h"

typedef struct td_rendezvous_result {
    int rank, world_size;
    int local_rank, local_world_size; /* among the ranks of this host */
    bool one_host;                    /* all ranks are on this one */
    td_store *store;                  /* for this init alone: keys of an earlier one are not seen */
    char address[TD_ADDRESS_BYTES];   /* of this host, for the others; "" if unknown */

    /* Its own. */
    td_store *base; /* what store is a prefix of */
    bool base_is_ours;
    td_tcp_server *server; /* rank 0's, if no launcher hosts it */
} td_rendezvous_result;

/* Reads the options and the environment, opens the store, and waits for the other ranks. On a
 * failure there is nothing to end; every rank that has come gets the same message: who is missing,
 * which rank has come twice, whose world size differs. */
td_status td_rendezvous(const td_dist_options *options, td_rendezvous_result *result);

/* "node2, pid 1234", of a rank that has come; to be freed. */
td_status td_rendezvous_who(const td_rendezvous_result *result, int rank, char **who);

/* Closes the store. The rank that hosts it waits until the others have left, a few seconds at most.
 */
void td_rendezvous_end(td_rendezvous_result *result);

/* ---- its parts, for tests ---- */

typedef struct td_rendezvous_plan {
    enum { TD_MEET_AT_STORE, TD_MEET_OVER_TCP, TD_MEET_IN_FILE } way;
    const char *source; /* "env://", "Slurm", ...: for messages */
    char host[256];     /* TCP: where the store is */
    int port;
    char path[4096];                  /* file */
    bool hosts_server;                /* this process starts the server: rank 0, unless ... */
    bool served_by_agent;             /* ... the launcher has one */
    int rank, world_size;             /* rank may be out of range; the meeting tells the others */
    int local_rank, local_world_size; /* -1: found out by the meeting */
    char run_id[256];                 /* "": none; tells runs that meet at the same place apart */
    int attempt;                      /* of this run, counted by the launcher */
} td_rendezvous_plan;

/* Looks at options and environment only. */
td_status td_rendezvous_plan_make(const td_dist_options *options, td_rendezvous_plan *plan);

#endif
