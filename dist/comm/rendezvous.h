/* Rendezvous: finds this process's rank and the store, and waits for all ranks. */
#pragma once

#include "dist/comm/comm.h"
#include "dist/comm/store.h"
#include "dist/comm/token.h"

typedef struct td_rendezvous_result {
    int rank, world_size;
    int local_rank, local_world_size; /* among the ranks of this host */
    bool one_host;                    /* all ranks are on this host */
    uint64_t *hosts;                  /* of each rank: equal numbers for ranks of one host */
    td_store *store;                  /* for this init only: it does not show earlier inits' keys */
    char address[TD_ADDRESS_BYTES];   /* this host's, for other ranks; "": unknown */

    /* Internal. */
    td_store *base; /* the store without the prefix */
    bool base_is_ours;
    td_tcp_server *server; /* on rank 0, if no launcher has the server */
} td_rendezvous_result;

/* Reads the options and the environment, opens the store, and waits for the other ranks. On failure
 * all ranks that have come get the same message: which ranks are missing, which rank has come
 * twice, or whose world size differs. There is nothing to end then. */
td_status td_rendezvous(const td_dist_options *options, td_rendezvous_result *result);

/* *who: "node2, pid 1234" of a rank that has come, malloc'ed. */
td_status td_rendezvous_who(const td_rendezvous_result *result, int rank, char **who);

/* Whether `count` ranks of the world are on one host; ranks NULL: all. */
bool td_rendezvous_on_one_host(const td_rendezvous_result *result, const int *ranks, int count);

/* Closes the store. The rank that has the server waits until the others have left, at most a few
 * seconds. */
void td_rendezvous_end(td_rendezvous_result *result);

/* ---- the store of a group that is being made ---- */

/* Opens a store over base whose waits end soon after one of the group's ranks has died, not only at
 * the time-out. The store watches `count` ranks of the world; ranks NULL: all. Closing the store
 * leaves base open. */
td_status td_watched_store_open(td_store *base, const td_rendezvous_result *met, const int *ranks,
                                int count, td_store **store);

/* Tells the other ranks why there will be no group; their waits fail with this cause. false: a
 * cause was told before. */
bool td_watched_store_tell(td_store *store, td_status status, const char *cause);

/* ---- parts, for tests ---- */

typedef struct td_rendezvous_plan {
    enum { TD_MEET_AT_STORE, TD_MEET_OVER_TCP, TD_MEET_IN_FILE } way;
    const char *source; /* "env://", "Slurm", ...: for messages */
    char host[256];     /* TCP: the store's host */
    int port;
    char path[4096];                  /* the store's file */
    bool hosts_server;                /* this process starts the server (rank 0) */
    bool served_by_agent;             /* the launcher has the server */
    int rank, world_size;             /* rank may be out of range: then all ranks are told */
    int local_rank, local_world_size; /* -1: the rendezvous finds them */
    bool one_spawn;                   /* all ranks come from one td_spawn */
    char run_id[256];                 /* "": none; distinguishes runs with the same store */
    int attempt;                      /* the launcher's count of starts of this run */
    td_token token;                   /* the job's, for a store over TCP */
} td_rendezvous_plan;

/* Reads options and environment only. */
td_status td_rendezvous_plan_make(const td_dist_options *options, td_rendezvous_plan *plan);
