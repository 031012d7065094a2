/* The gloo and mpi engines: beginning, failing and end. */
#include "dist/comm/engines/p2p/p2p.h"

#include "tensor/clock.h"
#include "tensor/system/text.h"
#include "dist/comm/process.h"
#include "dist/comm/watchdog.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double PARTING = 1.0;  /* seconds for sending the last messages, behind data; longer
                                       than a round of the watchdog: see gloo_look */
static const double LINGER = 2.0;   /* seconds for small messages that were not received yet */
static const double BACKSTOP = 5.0; /* seconds after the deadline */

/* ---- slots and headers ---- */

/* A hash of all that must be equal on both ranks. */
static uint32_t signature(const td_collective *c)
{
    td_entered what = td_entered_of(c);
    what.number = 0; /* the turn is in the slot */
    uint64_t hash = td_hash_bytes(TD_HASH_BEGIN, (const char *)&what, sizeof what);
    return (uint32_t)(hash ^ hash >> 32);
}

uint64_t td_p2p_slot(td_p2p_use use, uint64_t turn, const td_collective *c)
{
    uint64_t low = c != NULL ? signature(c) : 0;
    return (uint64_t)use << 60 | (turn & 0xfffffff) << 32 | low;
}

void td_p2p_fill_header(td_p2p_header *header, uint64_t turn, const td_collective *c)
{
    atomic_store(&header->turn, turn);
    header->what = td_entered_of(c);
    atomic_store(&header->turn_again, turn);
}

/* Notes that rank r's process is stopped, if that can be seen: it is on this host. */
static void note_stopped(const td_p2p_engine *g, int r, char note[TD_NOTE_BYTES])
{
    const char *host = strstr(g->peers[r].process, " on ");
    const char *own = strstr(g->peers[g->rank].process, " on ");
    int pid;
    if (host != NULL && own != NULL && strcmp(host, own) == 0 &&
        sscanf(g->peers[r].process, "pid %d", &pid) == 1) {
        td_process_note((pid_t)pid, note, TD_NOTE_BYTES);
    }
}

static bool p2p_entered(void *engine, int rank, td_entered *entered, char note[TD_NOTE_BYTES])
{
    const td_p2p_engine *g = engine;
    const td_p2p_header *heard = &g->peers[rank].heard;
    uint64_t turn = atomic_load(&heard->turn);
    *entered = heard->what;
    note_stopped(g, rank, note);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load(&heard->turn_again) == turn; /* otherwise the header is still arriving */
}

td_status td_p2p_compare(const td_p2p_engine *g, const td_collective *c, int r,
                         const td_p2p_header *header)
{
    td_entered mine = td_entered_of(c);
    if (td_entered_match(&mine, &header->what)) {
        return TD_OK;
    }
    char this_text[192], other_text[192];
    td_describe_entered(&mine, this_text, sizeof this_text);
    td_describe_entered(&header->what, other_text, sizeof other_text);
    return td_fail(TD_E_MISMATCH,
                   "the ranks do not do the same: rank %d calls %s; rank %d calls %s. All ranks "
                   "must call the same collectives, in the same order, on tensors of the same size",
                   g->rank, this_text, r, other_text);
}

double td_p2p_patience(const td_collective *c)
{
    return c->deadline - td_clock() + BACKSTOP;
}

/* ---- failing ---- */

/* Whether rank r's parting has arrived. *closed: when the link to rank r was first seen closed; 0:
 * it is open. Any thread. */
static bool has_parted(td_p2p_engine *g, int r, double *closed)
{
    td_p2p_peer *peer = &g->peers[r];
    pthread_mutex_lock(&g->lock);
    if (!peer->parted && peer->closed == 0.0) {
        td_p2p_result result = g->api->wait_recv(peer->parting_buffer, 0);
        peer->parted = result == TD_P2P_OK;
        peer->closed = result == TD_P2P_FAILED ? td_clock() : 0.0;
    }
    bool parted = peer->parted;
    *closed = peer->closed;
    pthread_mutex_unlock(&g->lock);
    return parted;
}

bool td_p2p_is_closed(td_p2p_engine *g, int r)
{
    double closed;
    return has_parted(g, r, &closed) || closed > 0.0;
}

static td_status fail_with_own_reason(td_p2p_engine *g)
{
    pthread_mutex_lock(&g->lock);
    td_status status = g->broken;
    if (status != TD_OK) {
        td_fail(status, "%s", g->reason);
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* Fails with the cause if a rank has failed or died; TD_OK: none has, as far as known. Who hears of
 * a death closes its links, too, so the dead rank is the one whose link was closed first, before
 * `until`. *left: a rank that has left as planned, or -1. words: the library's. */
static td_status find_failure(td_p2p_engine *g, double until, const char *words, int *left)
{
    int dead = -1;
    *left = -1;
    for (int r = 0; r < g->size; r++) {
        double closed;
        if (r == g->rank) {
            continue;
        }
        bool parted = has_parted(g, r, &closed);
        TD_CHECK(!parted || g->peers[r].parting.status == TD_OK,
                 (td_status)g->peers[r].parting.status, "%s", g->peers[r].parting.reason);
        *left = parted && *left < 0 ? r : *left;
        if (closed > 0.0 && closed < until) {
            dead = r;
            until = closed;
        }
    }
    return dead < 0 ? TD_OK
                    : td_fail(TD_E_PEER,
                              "rank %d (%s) has died, or has ended before the others, or its host "
                              "has died (%s: %s)",
                              dead, g->peers[dead].process, g->api->name, words);
}

/* Fails also if a rank has left as planned. */
static td_status find_cause(td_p2p_engine *g, const char *words)
{
    int left;
    TD_TRY(find_failure(g, INFINITY, words, &left));
    return left >= 0
               ? td_fail(TD_E_PEER, "rank %d (%s) has left the group", left, g->peers[left].process)
               : TD_OK;
}

td_status td_p2p_fail(td_p2p_engine *g, td_p2p_result result)
{
    enum { LOOKS = 10 };
    char words[512];
    snprintf(words, sizeof words, "%s", g->api->error());
    td_status status = fail_with_own_reason(g);
    if (status != TD_OK || result == TD_P2P_TIMEOUT) {
        return status != TD_OK ? status : td_fail(TD_E_TIMEOUT, "timed out");
    }
    /* The connections of a rank that leaves do not all close at the same instant. */
    for (int look = 0; look < LOOKS; look++) {
        status = find_cause(g, words);
        if (status != TD_OK) {
            return status;
        }
        td_sleep(0.01);
    }
    return td_fail(TD_E_NETWORK, "%s: %s", g->api->name, words);
}

/* Begins to send this rank's parting to rank r; NULL: not possible. */
static td_p2p_buffer *send_parting(td_p2p_engine *g, int r, td_p2p_parting *parting)
{
    size_t bytes = offsetof(td_p2p_parting, reason) + strlen(parting->reason) + 1;
    uint64_t slot = td_p2p_slot(TD_P2P_PARTING, 0, NULL);
    td_p2p_buffer *buffer = g->api->buffer(g->p2p, parting, bytes, TD_P2P_WAITS);
    if (buffer != NULL && g->api->send(buffer, r, slot, 0, bytes) != TD_P2P_OK) {
        g->api->buffer_free(buffer);
        buffer = NULL;
    }
    return buffer;
}

/* Tells all other ranks why this rank leaves, and closes the connections. Any thread; only once. */
static void p2p_part(void *engine, td_status status, const char *reason)
{
    td_p2p_engine *g = engine;
    pthread_mutex_lock(&g->lock);
    bool told = g->parted;
    g->parted = true;
    if (!told) {
        g->broken = status;
        snprintf(g->reason, sizeof g->reason, "%s", reason);
    }
    pthread_mutex_unlock(&g->lock);
    if (told) {
        return;
    }
    double end = td_clock() + PARTING;
    td_p2p_parting *parting = calloc(1, sizeof *parting);
    td_p2p_buffer **sent = calloc((size_t)g->size, sizeof(td_p2p_buffer *));
    if (parting != NULL && sent != NULL) {
        parting->status = (int32_t)status;
        snprintf(parting->reason, sizeof parting->reason, "%s", reason);
        for (int r = 0; r < g->size; r++) {
            sent[r] = r != g->rank ? send_parting(g, r, parting) : NULL;
        }
    }
    for (int r = 0; sent != NULL && r < g->size; r++) {
        if (sent[r] != NULL) {
            (void)g->api->wait_send(sent[r], end - td_clock()); /* a failure does not matter */
            g->api->buffer_free(sent[r]);
        }
    }
    free(sent);
    free(parting);
    g->api->interrupt(g->p2p, reason);
}

/* ---- beginning and end ---- */

/* An address of this host if none was given: of the first network that is up. The address of the
 * host's name is often 127.0.1.1. */
static void p2p_find_address(char *text, size_t size)
{
    struct ifaddrs *all = NULL;
    snprintf(text, size, "127.0.0.1");
    if (getifaddrs(&all) != 0) {
        return;
    }
    for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        bool usable = (a->ifa_flags & IFF_UP) != 0 && (a->ifa_flags & IFF_LOOPBACK) == 0;
        if (usable && a->ifa_addr != NULL && a->ifa_addr->sa_family == AF_INET &&
            getnameinfo(a->ifa_addr, sizeof(struct sockaddr_in), text, (socklen_t)size, NULL, 0,
                        NI_NUMERICHOST) == 0) {
            break;
        }
    }
    freeifaddrs(all);
}

static int store_set(void *store, const char *key, const void *value, size_t size)
{
    return td_store_set(store, key, value, size);
}

static int store_get(void *store, const char *key, double timeout, void **value, size_t *size)
{
    return td_store_get(store, key, timeout, value, size);
}

/* Writes into the store which process this is, for other ranks' messages. */
static td_status introduce(const td_p2p_engine *g, td_store *store)
{
    char key[32], text[TD_P2P_PROCESS_BYTES], host[TD_P2P_PROCESS_BYTES - 32] = "";
    snprintf(key, sizeof key, "process/%d", g->rank);
    (void)gethostname(host, sizeof host - 1); /* on failure the name is empty */
    snprintf(text, sizeof text, "pid %d%s%s", (int)getpid(), host[0] != '\0' ? " on " : "", host);
    return td_store_set_text(store, key, text);
}

static td_status p2p_meet(td_p2p_engine *g, td_store *store, double timeout)
{
    for (int r = 0; r < g->size; r++) {
        char key[32], *text;
        snprintf(key, sizeof key, "process/%d", r);
        TD_TRY(td_store_get_text(store, key, timeout, &text));
        snprintf(g->peers[r].process, sizeof g->peers[r].process, "%s", text);
        free(text);
    }
    return TD_OK;
}

static td_status engine_open_p2p(td_p2p_engine *g, const td_engine_init *init)
{
    char address[NI_MAXHOST];
    if (init->address != NULL) {
        snprintf(address, sizeof address, "%s", init->address);
    } else {
        p2p_find_address(address, sizeof address);
    }
    td_p2p_options options = { .rank = g->rank,
                               .size = g->size,
                               .address = address,
                               .timeout = init->connect,
                               .store = init->store,
                               .set = store_set,
                               .get = store_get,
                               .release = free };
    td_p2p_result result = g->api->open(&g->p2p, &options);
    if (result == TD_P2P_OK) {
        return TD_OK;
    }
    TD_CHECK(result != TD_P2P_REFUSED, TD_E_NETWORK, "%s: rank %d: %s", g->api->name, g->rank,
             g->api->error());
    return td_fail(result == TD_P2P_TIMEOUT ? TD_E_TIMEOUT : TD_E_NETWORK,
                   "%s: rank %d, at address %s, cannot connect to all other ranks within %.1f s: "
                   "%s. Can the hosts reach each other at the addresses that they have?",
                   g->api->name, g->rank, address, init->connect, g->api->error());
}

/* Makes the buffers that live as long as the engine. */
static td_status make_buffers(td_p2p_engine *g)
{
    g->mine_buffer = g->api->buffer(g->p2p, &g->mine, sizeof g->mine, TD_P2P_WAITS);
    bool made = g->mine_buffer != NULL;
    for (int r = 0; r < g->size && made; r++) {
        td_p2p_peer *peer = &g->peers[r];
        if (r == g->rank) {
            continue;
        }
        peer->heard_buffer = g->api->buffer(g->p2p, &peer->heard, sizeof peer->heard, TD_P2P_WAITS);
        peer->parting_buffer =
            g->api->buffer(g->p2p, &peer->parting, sizeof peer->parting, TD_P2P_LAST);
        made = peer->heard_buffer != NULL && peer->parting_buffer != NULL &&
               g->api->recv(peer->parting_buffer, r, td_p2p_slot(TD_P2P_PARTING, 0, NULL), 0,
                            sizeof peer->parting) == TD_P2P_OK;
    }
    return made ? TD_OK : td_fail(TD_E_NETWORK, "%s: %s", g->api->name, g->api->error());
}

void td_p2p_free_buffer(const td_p2p_engine *g, td_p2p_buffer *buffer)
{
    if (buffer != NULL) {
        g->api->buffer_free(buffer);
    }
}

static void p2p_destroy(void *engine)
{
    td_p2p_engine *g = engine;
    if (g->p2p != NULL) {
        td_p2p_end_messages(g, LINGER);
        p2p_part(g, TD_OK, "");
        td_p2p_free_buffer(g, g->mine_buffer);
        for (int r = 0; r < g->size; r++) {
            td_p2p_free_buffer(g, g->peers[r].heard_buffer);
            td_p2p_free_buffer(g, g->peers[r].parting_buffer);
        }
        g->api->close(g->p2p);
    }
    pthread_mutex_destroy(&g->lock);
    free(g->scratch);
    free(g);
}

static td_status p2p_init(void **engine, const td_engine_init *init)
{
    td_p2p_engine *g = calloc(1, sizeof *g + (size_t)init->size * sizeof g->peers[0]);
    TD_CHECK(g != NULL, TD_E_NOMEM, "out of memory for a process group");
    pthread_mutex_init(&g->lock, NULL);
    g->rank = init->rank;
    g->size = init->size;
    g->api = td_p2p_load(init->backend);
    td_status status = g->api != NULL ? introduce(g, init->store) : TD_E_UNSUPPORTED;
    status = status == TD_OK ? engine_open_p2p(g, init) : status;
    status = status == TD_OK ? make_buffers(g) : status;
    status = status == TD_OK ? p2p_meet(g, init->store, init->timeout) : status;
    if (status != TD_OK) {
        char text[1024];
        snprintf(text, sizeof text, "%s", td_last_error());
        p2p_destroy(g);
        return td_fail(status, "%s", text);
    }
    *engine = g;
    return TD_OK;
}

static double p2p_cpu_seconds(void *engine)
{
    const td_p2p_engine *g = engine;
    return g->api->cpu_seconds != NULL ? g->api->cpu_seconds() : 0.0;
}

/* libgloo does not tell who waits for the end of a send that the other rank has died. All ranks see
 * a closed link in one round of their watchdogs before one of them closes its own. */
static td_status gloo_look(void *engine)
{
    static const double ROUNDS = 0.5; /* seconds */
    int left;
    return find_failure(engine, td_clock() - ROUNDS, "its connection is closed", &left);
}

static uint64_t p2p_moved(void *engine)
{
    return atomic_load(&((td_p2p_engine *)engine)->moved);
}

/* MPI cannot cancel a transfer, so after a time-out the process ends. */
#define P2P_ENGINE(NAME, CANNOT_ABORT, LOOK)                                                       \
    {                                                                                              \
        .name = NAME, .cannot_abort = CANNOT_ABORT, .init = p2p_init, .run = td_p2p_run,           \
        .start = td_p2p_start, .poll = td_p2p_poll, .abort = p2p_part, .entered = p2p_entered,     \
        .look = LOOK, .cpu_seconds = p2p_cpu_seconds, .moved = p2p_moved, .destroy = p2p_destroy   \
    }

static const td_engine_type td_gloo_engine = P2P_ENGINE("gloo", false, gloo_look);
static const td_engine_type td_mpi_engine = P2P_ENGINE("mpi", true, NULL);

const td_engine_type *td_p2p_engine_find(const char *name)
{
    if (td_p2p_load(name) == NULL) {
        return NULL;
    }
    return strcmp(name, "mpi") == 0 ? &td_mpi_engine : &td_gloo_engine;
}
