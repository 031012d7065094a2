/* libtandem-mpi.so: connections over MPI, see api.h.
 *
 * MPI moves data only while somebody calls it, and MPI's own waits spin on the core. So all
 * transfers are non-blocking, and a waiting thread tests its transfer again and again: first at
 * once, then it yields between tests, then it sleeps briefly. On the communication thread it sleeps
 * from the beginning. One lock is around all calls of MPI, so MPI need not be thread-safe. */
#include "dist/comm/engines/p2p/mpi/internal.h"

#include "tensor/system/list.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 256 << 10,
    BLOCK_BYTES = 1 << 20, /* the unit for more than INT_MAX bytes, since MPI counts in int */
    SPINS = 2000,          /* tests before the first sleep, if the program itself waits */
    USE_BITS = 3,          /* a slot's upper four bits are 1 to 6 */
};

static const double GRACE = 0.2; /* seconds for data that still arrives when its sender has gone */
/* Sent data may still wait in this process for calls of MPI. So at the end of a group and after a
 * failure MPI is called until the other ranks have left, at most for this time. */
static const double LINGER = 2, LINGER_FAILED = 1;
static const double TAKE_BACK = 1; /* seconds for a failed group's transfers to end */
static const double SHORTEST_NAP = 5e-6, LONGEST_NAP = 100e-6;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(double seconds)
{
    struct timespec t = { .tv_nsec = (long)(seconds * 1e9) };
    nanosleep(&t, NULL);
}

static const char *mpi_error(void)
{
    return td_mpi_error;
}

/* ---- transfers (with the lock) ---- */

/* Two slots may have the same tag. MPI keeps the order of transfers with the same tag, and ranks
 * that do the same make them in the same order. */
static int tag_of(const td_p2p *p2p, uint64_t slot)
{
    const int bits = p2p->tag_bits - USE_BITS;
    uint64_t rest = (slot << 4) * UINT64_C(0x9e3779b97f4a7c15);
    return (int)((slot >> 60) << bits | rest >> (64 - bits));
}

/* An MPI type and *count of it for `bytes` bytes. The caller frees the type if it is not MPI_BYTE.
 */
static int mpi_type_of(size_t bytes, int *count, MPI_Datatype *type)
{
    *type = MPI_BYTE;
    *count = (int)bytes;
    if (bytes <= INT_MAX) {
        return MPI_SUCCESS;
    }
    MPI_Datatype block, types[2];
    int lengths[2] = { (int)(bytes / BLOCK_BYTES), (int)(bytes % BLOCK_BYTES) };
    MPI_Aint places[2] = { 0, (MPI_Aint)(bytes - bytes % BLOCK_BYTES) };
    int code = MPI_Type_contiguous(BLOCK_BYTES, MPI_BYTE, &block);
    if (code == MPI_SUCCESS) {
        types[0] = block;
        types[1] = MPI_BYTE;
        code = MPI_Type_create_struct(2, lengths, places, types, type);
        MPI_Type_free(&block);
    }
    *count = 1;
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

static td_p2p_result mpi_begin(td_p2p_buffer *b, int rank, uint64_t slot, size_t offset,
                               size_t bytes, bool sends)
{
    td_p2p *p2p = b->p2p;
    td_mpi_transfer *t = malloc(sizeof *t);
    if (t == NULL) {
        return td_mpi_fail("out of memory");
    }
    MPI_Datatype type;
    int count, tag = tag_of(p2p, slot), code = mpi_type_of(bytes, &count, &type);
    *t = (td_mpi_transfer){ .rank = rank, .sends = sends };
    if (code == MPI_SUCCESS) {
        code = sends
                   ? MPI_Isend(b->memory + offset, count, type, rank, tag, p2p->comm, &t->request)
                   : MPI_Irecv(b->memory + offset, count, type, rank, tag, p2p->comm, &t->request);
    }
    if (type != MPI_BYTE && count == 1) {
        MPI_Type_free(&type);
    }
    if (code != MPI_SUCCESS) {
        free(t);
        return td_mpi_check(code, sends ? "MPI_Isend" : "MPI_Irecv");
    }
    *TD_LINK_TO(&b->transfers, NULL) = t;
    return TD_P2P_OK;
}

static void drop(td_mpi_transfer **link)
{
    td_mpi_transfer *t = *link;
    *link = t->next;
    free(t);
}

/* Notes that the last message for which b waits has arrived. */
static void note_last(const td_p2p_buffer *b)
{
    double *gone = &b->p2p->gone[b->last_of];
    *gone = *gone == 0 ? now() : *gone;
}

static void note_gone(td_p2p *p2p)
{
    for (td_p2p_buffer *b = p2p->lasts; b != NULL; b = b->next_last) {
        int come = 0;
        if (b->transfers != NULL && p2p->gone[b->last_of] == 0 &&
            MPI_Request_get_status(b->transfers->request, &come, MPI_STATUS_IGNORE) ==
                MPI_SUCCESS &&
            come) {
            note_last(b);
        }
    }
}

/* Tests the first of the buffer's sends or receives. MPI matches transfers in order but does not
 * end them in order: over TCP a short one overtakes a long one. */
static td_p2p_result mpi_look(td_p2p_buffer *b, bool sends)
{
    td_mpi_transfer **link = &b->transfers;
    while (*link != NULL && (*link)->sends != sends) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return td_mpi_fail("nothing is under way");
    }
    int done = 0, code = MPI_Test(&(*link)->request, &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && !done) {
        return TD_P2P_NOT_YET;
    }
    drop(link);
    if (code == MPI_SUCCESS && !sends && b->manner == TD_P2P_LAST) {
        note_last(b); /* note_gone cannot see it any more */
    }
    return td_mpi_check(code, sends ? "a send" : "a receive");
}

/* After a test without success: fails if the transfer cannot end any more. */
static td_p2p_result is_there_hope(const td_p2p_buffer *b, bool sends)
{
    const td_p2p *p2p = b->p2p;
    if (atomic_load(&p2p->interrupted)) {
        return td_mpi_fail(p2p->reason);
    }
    for (const td_mpi_transfer *t = b->transfers; t != NULL; t = t->next) {
        if (t->sends == sends && p2p->gone[t->rank] > 0 && now() - p2p->gone[t->rank] > GRACE) {
            snprintf(td_mpi_error, sizeof td_mpi_error, "rank %d has gone", t->rank);
            return TD_P2P_FAILED;
        }
    }
    return TD_P2P_NOT_YET;
}

/* ---- waiting (without the lock) ---- */

static td_p2p_result mpi_wait_for(td_p2p_buffer *b, double seconds, bool sends)
{
    td_p2p *p2p = b->p2p;
    const bool polled = b->manner != TD_P2P_WAITS;
    double end = 0, pause = SHORTEST_NAP;
    for (int spins = 0;; spins++) {
        pthread_mutex_lock(&td_mpi_lock);
        td_p2p_result result = mpi_look(b, sends);
        if (result == TD_P2P_NOT_YET && (polled || spins % 16 == 15)) {
            note_gone(p2p);
            result = is_there_hope(b, sends);
        }
        pthread_mutex_unlock(&td_mpi_lock);
        if (result != TD_P2P_NOT_YET || polled) {
            return result;
        }
        double time = now();
        end = end == 0 ? time + seconds : end;
        if (time >= end) {
            snprintf(td_mpi_error, sizeof td_mpi_error, "Timed out");
            return TD_P2P_TIMEOUT;
        }
        if (p2p->background || spins >= SPINS) {
            nap(pause);
            pause = pause * 2 < LONGEST_NAP ? pause * 2 : LONGEST_NAP;
        } else if (spins % 8 == 7) {
            sched_yield(); /* the other rank may need this core */
        }
    }
}

static td_p2p_result mpi_wait_send(td_p2p_buffer *buffer, double seconds)
{
    return mpi_wait_for(buffer, seconds, true);
}

static td_p2p_result mpi_wait_receive(td_p2p_buffer *buffer, double seconds)
{
    return mpi_wait_for(buffer, seconds, false);
}

static void in_background(td_p2p *p2p, bool background)
{
    p2p->background = background;
}

/* ---- buffers ---- */

static td_p2p_buffer *mpi_make_buffer(td_p2p *p2p, void *memory, size_t bytes, td_p2p_manner manner)
{
    (void)bytes;
    td_p2p_buffer *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return NULL;
    }
    b->p2p = p2p;
    b->memory = memory;
    b->manner = manner;
    return b;
}

/* Ends a buffer's transfers that have failed or are not needed any more. A receive that has not
 * begun can be cancelled. A send cannot, and MPI may read its memory at any time. */
static void take_back(td_p2p_buffer *b)
{
    for (td_mpi_transfer *t = b->transfers; t != NULL; t = t->next) {
        if (!t->sends) {
            MPI_Cancel(&t->request);
        }
    }
    const double end = now() + TAKE_BACK;
    while (b->transfers != NULL && now() < end) {
        int done = 0;
        if (MPI_Test(&b->transfers->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            drop(&b->transfers);
        } else {
            nap(LONGEST_NAP);
        }
    }
    if (b->transfers != NULL) {
        fprintf(stderr,
                "tandem: %s; a transfer with rank %d is under way, which MPI cannot take back, so "
                "this process ends\n",
                b->p2p->reason, b->transfers->rank);
        _exit(1);
    }
}

static void mpi_free_buffer(td_p2p_buffer *b)
{
    pthread_mutex_lock(&td_mpi_lock);
    if (b->transfers != NULL) {
        take_back(b);
    }
    for (td_p2p_buffer **link = &b->p2p->lasts; *link != NULL; link = &(*link)->next_last) {
        if (*link == b) {
            *link = b->next_last;
            break;
        }
    }
    pthread_mutex_unlock(&td_mpi_lock);
    free(b);
}

static td_p2p_result mpi_send(td_p2p_buffer *b, int rank, uint64_t slot, size_t offset,
                              size_t bytes)
{
    pthread_mutex_lock(&td_mpi_lock);
    td_p2p_result result = mpi_begin(b, rank, slot, offset, bytes, true);
    pthread_mutex_unlock(&td_mpi_lock);
    return result;
}

static td_p2p_result mpi_receive(td_p2p_buffer *b, int rank, uint64_t slot, size_t offset,
                                 size_t bytes)
{
    pthread_mutex_lock(&td_mpi_lock);
    td_p2p_result result = mpi_begin(b, rank, slot, offset, bytes, false);
    if (result == TD_P2P_OK && b->manner == TD_P2P_LAST) {
        b->last_of = rank;
        b->next_last = b->p2p->lasts;
        b->p2p->lasts = b;
    }
    pthread_mutex_unlock(&td_mpi_lock);
    return result;
}

/* Calls MPI until all other ranks have gone; false: time-out. */
static bool linger(td_p2p *p2p, double seconds)
{
    const double end = now() + seconds;
    bool all = false;
    while (!all && now() < end) {
        pthread_mutex_lock(&td_mpi_lock);
        note_gone(p2p);
        all = true;
        for (const td_p2p_buffer *b = p2p->lasts; b != NULL; b = b->next_last) {
            all = all && p2p->gone[b->last_of] > 0;
        }
        pthread_mutex_unlock(&td_mpi_lock);
        nap(LONGEST_NAP);
    }
    return all;
}

static void mpi_interrupt(td_p2p *p2p, const char *reason)
{
    bool failed = reason[0] != '\0';
    pthread_mutex_lock(&td_mpi_lock);
    bool before = atomic_load(&p2p->interrupted);
    if (!before) {
        snprintf(p2p->reason, sizeof p2p->reason, "%s", reason);
        p2p->failed = failed;
        atomic_store(&p2p->interrupted, true);
    }
    pthread_mutex_unlock(&td_mpi_lock);
    if (!before && !linger(p2p, failed ? LINGER_FAILED : LINGER) && failed) {
        pthread_mutex_lock(&td_mpi_lock);
        td_mpi_spoilt = true;
        pthread_mutex_unlock(&td_mpi_lock);
    }
}

__attribute__((visibility("default"))) const td_p2p_api *td_p2p_entry(void)
{
    static const td_p2p_api api = {
        .version = TD_P2P_VERSION,
        .name = "mpi",
        .piece_bytes = PIECE_BYTES,
        .open = td_mpi_open,
        .buffer = mpi_make_buffer,
        .buffer_free = mpi_free_buffer,
        .send = mpi_send,
        .recv = mpi_receive,
        .wait_send = mpi_wait_send,
        .wait_recv = mpi_wait_receive,
        .in_background = in_background,
        .error = mpi_error,
        .interrupt = mpi_interrupt,
        .close = td_mpi_close,
    };
    return &api;
}
