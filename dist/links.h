/* The gloo and mpi engines from inside: collectives made of transfers between two ranks. A library
 * carries those (links_api.h): libgloo over TCP, MPI over whatever the cluster has. Everything
 * else, the sums included, is the same for both, and so are the bits of the results.
 *
 * Before the data of a collective moves, every rank tells every other what it is about to do, so
 * that ranks that do different things find out, and reports can say who has come. Links carry one
 * more message: the last, by which a rank tells why it goes. */
#ifndef TD_DIST_GLOO_H
#define TD_DIST_GLOO_H

#include "dist/backend.h"
#include "dist/links_api.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TD_LINKS_REASON_BYTES = 2048, TD_LINKS_PROCESS_BYTES = 128 };

/* What a slot is for: its upper four bits. */
typedef enum td_links_use {
    TD_LINKS_HEADER = 1,
    TD_LINKS_DATA,
    TD_LINKS_RESULT, /* what has been reduced */
    TD_LINKS_MESSAGE_HEADER,
    TD_LINKS_MESSAGE,
    TD_LINKS_PARTING,
} td_links_use;

/* What a rank is about to do. The watchdog reads what is being received. */
typedef struct td_links_header {
    _Atomic uint64_t turn; /* collectives of the engine, from 1 */
    uint64_t number;       /* of the group, or of messages */
    int64_t count;
    int32_t kind, dtype, op, peer;
    _Atomic uint64_t turn_again; /* equal to turn: the rest is whole */
} td_links_header;

/* Why a rank goes. */
typedef struct td_links_parting {
    int32_t status; /* TD_OK: it leaves the group */
    char reason[TD_LINKS_REASON_BYTES];
} td_links_parting;

typedef struct td_links_peer {
    td_links_header heard;
    td_links_parting parting;
    char process[TD_LINKS_PROCESS_BYTES]; /* "pid 1234 on node2" */
    td_links_buffer *heard_buffer, *parting_buffer;
    bool parted;             /* parting is there */
    uint64_t sent, received; /* messages */
} td_links_peer;

typedef struct td_links_request td_links_request;

typedef struct td_links_engine {
    const td_links_api *api;
    td_links *links;
    int rank, size;
    uint64_t turn;
    td_links_header mine; /* what the others hear */
    td_links_buffer *mine_buffer;
    td_links_peer *peers; /* by rank; this rank's own is not used */
    char *scratch;
    size_t scratch_bytes;
    td_links_request *copies; /* of small messages that are on their way */

    pthread_mutex_t lock; /* of what follows */
    bool parted;          /* the others have been told */
    td_status broken;
    char reason[TD_LINKS_REASON_BYTES];
} td_links_engine;

/* The shim of "gloo" or "mpi", loaded; NULL with td_last_error(): what to install. */
const td_links_api *td_links_load(const char *name);

/* The backend of that name if its shim can be loaded, otherwise NULL with td_last_error(). */
const td_comm_backend *td_links_backend_find(const char *name);

/* A slot for a use of a turn (a message: its number). Ranks that do different things have different
 * slots for their data, so what arrives always fits. */
uint64_t td_links_slot(td_links_use use, uint64_t turn, const td_collective *c);

/* Fails with the cause of a failed transfer, as far as it can be found out. */
td_status td_links_fail(td_links_engine *g, td_links_result result);

/* Fails if what rank r does, by its header, is not c. */
td_status td_links_compare(const td_links_engine *g, const td_collective *c, int r,
                           const td_links_header *header);

void td_links_fill_header(td_links_header *header, uint64_t turn, const td_collective *c);

/* Tells every other rank why this one goes, and closes the links. Any thread; only once. */
void td_links_part(td_links_engine *g, td_status status, const char *reason);

/* How long a transfer may still take. The watchdog ends it at the deadline; the library's own
 * time-out comes a while after, in case. */
double td_links_patience(const td_collective *c);

td_status td_links_run(void *engine, const td_collective *c);
td_status td_links_start(void *engine, const td_collective *c, void **request);
td_status td_links_poll(void *engine, void *request, bool *done);
/* Waits so long for small messages that are still on their way, and forgets them. */
void td_links_end_messages(td_links_engine *g, double seconds);

#endif
