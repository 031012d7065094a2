/* The gloo and mpi engines, internal view: collectives over point-to-point transfers. A library
 * makes the transfers (api.h): libgloo over TCP, or MPI over the cluster's network. All else,
 * including the sums, is the same for both, and so are the bits of the results.
 *
 * Before the data of a collective moves, each rank sends each other rank a header that says what it
 * is about to do. So ranks that do different things find out, and reports can say who has come. The
 * last message of a rank (its parting) says why it leaves. */
#pragma once

#include "dist/comm/engine.h"
#include "dist/comm/engines/p2p/api.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TD_P2P_REASON_BYTES = 2048, TD_P2P_PROCESS_BYTES = 128 };

/* What a slot is for: the slot's upper four bits. */
typedef enum td_p2p_use {
    TD_P2P_HEADER = 1,
    TD_P2P_DATA,
    TD_P2P_RESULT, /* reduced data */
    TD_P2P_MESSAGE_HEADER,
    TD_P2P_MESSAGE,
    TD_P2P_PARTING,
} td_p2p_use;

/* What a rank is about to do. The watchdog reads a header while it may be arriving. */
typedef struct td_p2p_header {
    _Atomic uint64_t turn; /* number among the engine's collectives, from 1 */
    td_entered what;
    _Atomic uint64_t turn_again; /* equal to turn: the header is complete */
} td_p2p_header;

/* Why a rank leaves. */
typedef struct td_p2p_parting {
    int32_t status; /* TD_OK: it leaves the group as planned */
    char reason[TD_P2P_REASON_BYTES];
} td_p2p_parting;

typedef struct td_p2p_peer {
    td_p2p_header heard;
    td_p2p_parting parting;
    char process[TD_P2P_PROCESS_BYTES]; /* "pid 1234 on node2" */
    td_p2p_buffer *heard_buffer, *parting_buffer;
    bool parted;             /* `parting` has arrived */
    double closed;           /* when the link was first seen closed; 0: it is open */
    uint64_t sent, received; /* numbers of messages */
} td_p2p_peer;

typedef struct td_p2p_request td_p2p_request;

typedef struct td_p2p_engine {
    const td_p2p_api *api;
    td_p2p *p2p;
    int rank, size;
    uint64_t turn;
    td_p2p_header mine; /* this rank's header, as sent */
    td_p2p_buffer *mine_buffer;
    char *scratch;
    size_t scratch_bytes;
    td_p2p_request *copies;     /* small messages whose copies are still being sent */
    atomic_uint_fast64_t moved; /* bytes of data that come from other ranks; no headers */

    pthread_mutex_t lock; /* protects the next three members, and peers' `parted` and `closed` */
    bool parted;          /* this rank's parting has been sent */
    td_status broken;
    char reason[TD_P2P_REASON_BYTES];

    td_p2p_peer peers[]; /* by rank; this rank's own is not used */
} td_p2p_engine;

/* The shim of "gloo" or "mpi", loaded; NULL with td_last_error(): what to install. */
const td_p2p_api *td_p2p_load(const char *name);

/* The slot for a use of a turn (for a message: of its number). The slot also depends on what the
 * collective is. So data of ranks that do different things never meets, and what arrives fits. */
uint64_t td_p2p_slot(td_p2p_use use, uint64_t turn, const td_collective *c);

/* Fails with the cause of a failed transfer, if it can be found. */
td_status td_p2p_fail(td_p2p_engine *g, td_p2p_result result);

void td_p2p_free_buffer(const td_p2p_engine *g, td_p2p_buffer *buffer); /* NULL is fine */

/* Whether rank r has left, or its connection is closed. */
bool td_p2p_is_closed(td_p2p_engine *g, int r);

/* Fails if rank r's header does not agree with c. */
td_status td_p2p_compare(const td_p2p_engine *g, const td_collective *c, int r,
                         const td_p2p_header *header);

void td_p2p_fill_header(td_p2p_header *header, uint64_t turn, const td_collective *c);

/* The library's time-out for a transfer: a few seconds after the deadline, at which the watchdog
 * ends the transfer. */
double td_p2p_patience(const td_collective *c);

td_status td_p2p_run(void *engine, const td_collective *c);
td_status td_p2p_start(void *engine, const td_collective *c, void **request);
td_status td_p2p_poll(void *engine, void *request, bool *done);
/* Waits at most `seconds` for small messages that are still being sent, and forgets them. */
void td_p2p_end_messages(td_p2p_engine *g, double seconds);
