/* The gloo engine from inside: collectives made of transfers between two ranks, which libgloo
 * carries over TCP (gloo/shim.h).
 *
 * Before the data of a collective moves, every rank tells every other what it is about to do, so
 * that ranks that do different things find out, and reports can say who has come. Links carry one
 * more message: the last, by which a rank tells why it goes. */
#ifndef TD_DIST_GLOO_H
#define TD_DIST_GLOO_H

#include "dist/backend.h"
#include "dist/gloo/shim.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TD_GLOO_REASON_BYTES = 2048, TD_GLOO_PROCESS_BYTES = 128 };

/* What a slot is for: its upper four bits. */
typedef enum td_gloo_use {
    TD_GLOO_HEADER = 1,
    TD_GLOO_DATA,
    TD_GLOO_RESULT, /* what has been reduced */
    TD_GLOO_MESSAGE_HEADER,
    TD_GLOO_MESSAGE,
    TD_GLOO_PARTING,
} td_gloo_use;

/* What a rank is about to do. The watchdog reads what is being received. */
typedef struct td_gloo_header {
    _Atomic uint64_t turn; /* collectives of the engine, from 1 */
    uint64_t number;       /* of the group, or of messages */
    int64_t count;
    int32_t kind, dtype, op, peer;
    _Atomic uint64_t turn_again; /* equal to turn: the rest is whole */
} td_gloo_header;

/* Why a rank goes. */
typedef struct td_gloo_parting {
    int32_t status; /* TD_OK: it leaves the group */
    char reason[TD_GLOO_REASON_BYTES];
} td_gloo_parting;

typedef struct td_gloo_peer {
    td_gloo_header heard;
    td_gloo_parting parting;
    char process[TD_GLOO_PROCESS_BYTES]; /* "pid 1234 on node2" */
    td_gloo_buffer *heard_buffer, *parting_buffer;
    bool parted;             /* parting is there */
    uint64_t sent, received; /* messages */
} td_gloo_peer;

typedef struct td_gloo_request td_gloo_request;

typedef struct td_gloo_engine {
    const td_gloo_api *api;
    td_gloo *gloo;
    int rank, size;
    uint64_t turn;
    td_gloo_header mine; /* what the others hear */
    td_gloo_buffer *mine_buffer;
    td_gloo_peer *peers; /* by rank; this rank's own is not used */
    char *scratch;
    size_t scratch_bytes;
    td_gloo_request *copies; /* of small messages that are on their way */

    pthread_mutex_t lock; /* of what follows */
    bool parted;          /* the others have been told */
    td_status broken;
    char reason[TD_GLOO_REASON_BYTES];
} td_gloo_engine;

/* The library with the shim, loaded; NULL with td_last_error(): what to install. */
const td_gloo_api *td_gloo_load(void);

/* &td_gloo_backend if the shim can be loaded, otherwise NULL with td_last_error(). */
const td_backend *td_gloo_backend_find(void);

/* A slot for a use of a turn (a message: its number). Ranks that do different things have different
 * slots for their data, so what arrives always fits. */
uint64_t td_gloo_slot(td_gloo_use use, uint64_t turn, const td_collective *c);

/* Fails with the cause of a failed transfer, as far as it can be found out. */
td_status td_gloo_fail(td_gloo_engine *g, td_gloo_result result);

/* Fails if what rank r does, by its header, is not c. */
td_status td_gloo_compare(const td_gloo_engine *g, const td_collective *c, int r,
                          const td_gloo_header *header);

void td_gloo_fill_header(td_gloo_header *header, uint64_t turn, const td_collective *c);

/* Tells every other rank why this one goes, and closes the links. Any thread; only once. */
void td_gloo_part(td_gloo_engine *g, td_status status, const char *reason);

/* How long a transfer may still take. The watchdog ends it at the deadline; libgloo's own time-out
 * comes a while after, in case. */
double td_gloo_patience(const td_collective *c);

td_status td_gloo_run(void *engine, const td_collective *c);
td_status td_gloo_start(void *engine, const td_collective *c, void **request);
td_status td_gloo_poll(void *engine, void *request, bool *done);
/* Waits so long for small messages that are still on their way, and forgets them. */
void td_gloo_end_messages(td_gloo_engine *g, double seconds);

#endif
