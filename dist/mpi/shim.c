/* libtandem-mpi.so: links over MPI, see links_api.h.
 *
 * MPI moves data only while somebody calls it, and any wait of its own would spin on the core. So
 * all transfers are non-blocking, and whoever waits for one tests it again and again: at once at
 * first, then leaving the core to others in between, then with short naps; on the communication
 * thread with naps from the beginning. One lock is around all calls of MPI, which need not be made
 * for several threads then.
 *
 * MPI is begun with the first group and ended when the process exits, since it can be begun only
 * once. */
#include "dist/links_api.h"

#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 256 << 10,
    BLOCK_BYTES = 1 << 20, /* MPI counts in int: more than INT_MAX bytes go as so many of these */
    SPINS = 2000,          /* tests before the first nap, in the program's way */
    CREATE_TAG = 7,
    USE_BITS = 3, /* a slot's upper four bits are 1 to 6 */
};

static const double GRACE = 0.2; /* seconds for what is on its way when its sender has gone */
/* What has been sent may still wait in this process for MPI to be called: at the end of a group,
 * and after a failure, it is called until the others have left, too, or for so long. */
static const double LINGER = 2, LINGER_FAILED = 1;
static const double TAKE_BACK = 1; /* for transfers of a group that has failed to come to an end */
static const double SHORTEST_NAP = 5e-6, LONGEST_NAP = 100e-6;

typedef struct transfer {
    struct transfer *next;
    MPI_Request request;
    int rank;
    bool sends;
} transfer;

struct td_links_buffer {
    td_links *links;
    char *memory;
    td_links_manner manner;
    transfer *transfers;               /* under way, in the order of their beginning */
    struct td_links_buffer *next_last; /* in the list of those for last messages */
    int last_of; /* a buffer for a last message: the rank that it comes from */
};

struct td_links {
    MPI_Comm comm;
    int size, tag_bits;
    bool background, failed;
    td_links_buffer *lasts;
    double *gone;     /* by rank: when its last message was seen, 0: not yet */
    transfer *unused; /* to be used again */
    atomic_bool interrupted;
    char reason[512];
};

static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER; /* around MPI, and all lists */
static int open_groups;
static bool spoilt; /* ranks have not answered: MPI_Finalize might wait for them for ever */
static _Thread_local char last_error[MPI_MAX_ERROR_STRING + 256];

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

/* ---- errors ---- */

static td_links_result fail(const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return TD_LINKS_FAILED;
}

static td_links_result check(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS) {
        return TD_LINKS_OK;
    }
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "error %d", code);
    }
    snprintf(last_error, sizeof last_error, "%s: %s", call, text);
    return TD_LINKS_FAILED;
}

static const char *error(void)
{
    return last_error;
}

/* ---- beginning and end of MPI ---- */

static void end_mpi(void)
{
    int ended = 0;
    /* A rank that ends without this makes mpirun end the others, which is right if it leaves in the
     * middle of a group. */
    if (open_groups == 0 && !spoilt && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) {
        MPI_Finalize();
    }
}

/* Without a launcher MPI would begin a world of this process alone, after seconds. */
static bool was_launched(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("PMI_RANK") != NULL;
}

static td_links_result begin_mpi(void)
{
    int begun = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    if (!begun) {
        if (!was_launched()) {
            return fail(
                "this process was not started by MPI's launcher: mpirun -n RANKS PROGRAM, or "
                "srun --mpi=pmix PROGRAM");
        }
        if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread") !=
            TD_LINKS_OK) {
            return TD_LINKS_FAILED;
        }
        atexit(end_mpi);
    }
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
        return fail("this MPI does not bear calls from several threads (MPI_THREAD_SERIALIZED)");
    }
    return TD_LINKS_OK;
}

/* ---- beginning and end of a group's links ---- */

static void name_key(char key[32], int rank)
{
    snprintf(key, 32, "mpi/%d", rank);
}

/* The ranks of the group, by their numbers in MPI's world. */
static td_links_result find_members(const td_links_options *o, int *members)
{
    char key[32], text[16];
    int mine, world;
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world < o->size) {
        snprintf(last_error, sizeof last_error,
                 "MPI's world has %d process%s, and the group has %d ranks: start that many, by "
                 "mpirun -n %d PROGRAM",
                 world, world == 1 ? "" : "es", o->size, o->size);
        return TD_LINKS_FAILED;
    }
    name_key(key, o->rank);
    snprintf(text, sizeof text, "%d", mine);
    if (o->set(o->store, key, text, strlen(text) + 1) != 0) {
        return fail("the store does not take this rank's number");
    }
    for (int r = 0; r < o->size; r++) {
        void *value;
        size_t size;
        name_key(key, r);
        if (o->get(o->store, key, o->timeout, &value, &size) != 0) {
            snprintf(last_error, sizeof last_error, "rank %d has not come", r);
            return TD_LINKS_TIMEOUT;
        }
        members[r] = atoi(value);
        o->release(value);
    }
    return TD_LINKS_OK;
}

static td_links_result make_communicator(td_links *links, const td_links_options *o)
{
    int *members = malloc((size_t)o->size * sizeof *members), *limit, found = 0;
    if (members == NULL) {
        return fail("out of memory");
    }
    td_links_result result = find_members(o, members);
    MPI_Group world, group;
    if (result == TD_LINKS_OK) {
        MPI_Comm_group(MPI_COMM_WORLD, &world);
        result = check(MPI_Group_incl(world, o->size, members, &group), "MPI_Group_incl");
        MPI_Group_free(&world);
    }
    free(members);
    if (result != TD_LINKS_OK) {
        return result;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    result = check(MPI_Comm_create_group(MPI_COMM_WORLD, group, CREATE_TAG, &links->comm),
                   "MPI_Comm_create_group");
    MPI_Group_free(&group);
    if (result != TD_LINKS_OK) {
        return result;
    }
    MPI_Comm_set_errhandler(links->comm, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(links->comm, MPI_TAG_UB, &limit, &found);
    links->tag_bits = 15; /* what MPI promises */
    while (found && links->tag_bits < 30 && *limit >= (1 << (links->tag_bits + 1)) - 1) {
        links->tag_bits++;
    }
    return TD_LINKS_OK;
}

static td_links_result open_links(td_links **out, const td_links_options *options)
{
    *out = NULL;
    td_links *links = calloc(1, sizeof *links);
    double *gone = calloc((size_t)options->size, sizeof *gone);
    if (links == NULL || gone == NULL) {
        free(links);
        free(gone);
        return fail("out of memory");
    }
    links->gone = gone;
    links->size = options->size;
    pthread_mutex_lock(&mpi_lock);
    td_links_result result = begin_mpi();
    if (result == TD_LINKS_OK) {
        result = make_communicator(links, options);
        open_groups += result == TD_LINKS_OK;
        spoilt = spoilt || result != TD_LINKS_OK;
    }
    pthread_mutex_unlock(&mpi_lock);
    if (result != TD_LINKS_OK) {
        free(gone);
        free(links);
        return result;
    }
    *out = links;
    return TD_LINKS_OK;
}

static void close_links(td_links *links)
{
    pthread_mutex_lock(&mpi_lock);
    open_groups--;
    if (!spoilt && !links->failed) {
        MPI_Comm_free(&links->comm);
    }
    while (links->unused != NULL) {
        transfer *t = links->unused;
        links->unused = t->next;
        free(t);
    }
    pthread_mutex_unlock(&mpi_lock);
    free(links->gone);
    free(links);
}

/* ---- transfers (with the lock) ---- */

/* Two slots may have the same tag: MPI keeps the order of what has the same tag, and so do the
 * engines, as long as the ranks do the same. */
static int tag_of(const td_links *links, uint64_t slot)
{
    const int bits = links->tag_bits - USE_BITS;
    uint64_t rest = (slot << 4) * UINT64_C(0x9e3779b97f4a7c15);
    return (int)((slot >> 60) << bits | rest >> (64 - bits));
}

/* The type of so many bytes, *count of it; the caller frees it if it is not MPI_BYTE. */
static int type_of(size_t bytes, int *count, MPI_Datatype *type)
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

static td_links_result begin(td_links_buffer *b, int rank, uint64_t slot, size_t offset,
                             size_t bytes, bool sends)
{
    td_links *links = b->links;
    transfer *t = links->unused;
    if (t != NULL) {
        links->unused = t->next;
    } else {
        t = malloc(sizeof *t);
        if (t == NULL) {
            return fail("out of memory");
        }
    }
    MPI_Datatype type;
    int count, tag = tag_of(links, slot), code = type_of(bytes, &count, &type);
    *t = (transfer){ .rank = rank, .sends = sends };
    if (code == MPI_SUCCESS) {
        code =
            sends ? MPI_Isend(b->memory + offset, count, type, rank, tag, links->comm, &t->request)
                  : MPI_Irecv(b->memory + offset, count, type, rank, tag, links->comm, &t->request);
    }
    if (type != MPI_BYTE && count == 1) {
        MPI_Type_free(&type);
    }
    if (code != MPI_SUCCESS) {
        t->next = links->unused;
        links->unused = t;
        return check(code, sends ? "MPI_Isend" : "MPI_Irecv");
    }
    transfer **end = &b->transfers;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = t;
    return TD_LINKS_OK;
}

static void drop(td_links_buffer *b, transfer **link)
{
    transfer *t = *link;
    *link = t->next;
    t->next = b->links->unused;
    b->links->unused = t;
}

static void note_gone(td_links *links)
{
    for (td_links_buffer *b = links->lasts; b != NULL; b = b->next_last) {
        int come = 0;
        if (b->transfers != NULL && links->gone[b->last_of] == 0 &&
            MPI_Request_get_status(b->transfers->request, &come, MPI_STATUS_IGNORE) ==
                MPI_SUCCESS &&
            come) {
            links->gone[b->last_of] = now();
        }
    }
}

/* Whether one of the buffer's sends (receives) has ended. */
static td_links_result look(td_links_buffer *b, bool sends)
{
    bool any = false;
    for (transfer **link = &b->transfers; *link != NULL; link = &(*link)->next) {
        transfer *t = *link;
        int done = 0;
        if (t->sends != sends) {
            continue;
        }
        any = true;
        int code = MPI_Test(&t->request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) {
            drop(b, link);
            return check(code, sends ? "a send" : "a receive");
        }
    }
    return any ? TD_LINKS_NOT_YET : fail("nothing is under way");
}

/* Nothing has ended: can it still? */
static td_links_result is_there_hope(const td_links_buffer *b, bool sends)
{
    const td_links *links = b->links;
    if (atomic_load(&links->interrupted)) {
        return fail(links->reason);
    }
    for (const transfer *t = b->transfers; t != NULL; t = t->next) {
        if (t->sends == sends && links->gone[t->rank] > 0 && now() - links->gone[t->rank] > GRACE) {
            snprintf(last_error, sizeof last_error, "rank %d has gone", t->rank);
            return TD_LINKS_FAILED;
        }
    }
    return TD_LINKS_NOT_YET;
}

/* ---- waiting (without the lock) ---- */

static td_links_result wait_for(td_links_buffer *b, double seconds, bool sends)
{
    td_links *links = b->links;
    const bool polled = b->manner != TD_LINKS_WAITS;
    double end = 0, pause = SHORTEST_NAP;
    for (int spins = 0;; spins++) {
        pthread_mutex_lock(&mpi_lock);
        td_links_result result = look(b, sends);
        if (result == TD_LINKS_NOT_YET && (polled || spins % 16 == 15)) {
            note_gone(links);
            result = is_there_hope(b, sends);
        }
        pthread_mutex_unlock(&mpi_lock);
        if (result != TD_LINKS_NOT_YET || polled) {
            return result;
        }
        double time = now();
        end = end == 0 ? time + seconds : end;
        if (time >= end) {
            snprintf(last_error, sizeof last_error, "Timed out");
            return TD_LINKS_TIMEOUT;
        }
        if (links->background || spins >= SPINS) {
            nap(pause);
            pause = pause * 2 < LONGEST_NAP ? pause * 2 : LONGEST_NAP;
        } else if (spins % 8 == 7) {
            sched_yield(); /* the other side may want this very core */
        }
    }
}

static td_links_result wait_send(td_links_buffer *buffer, double seconds)
{
    return wait_for(buffer, seconds, true);
}

static td_links_result wait_receive(td_links_buffer *buffer, double seconds)
{
    return wait_for(buffer, seconds, false);
}

static void in_background(td_links *links, bool background)
{
    links->background = background;
}

/* ---- buffers ---- */

static td_links_buffer *make_buffer(td_links *links, void *memory, size_t bytes,
                                    td_links_manner manner)
{
    (void)bytes;
    td_links_buffer *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return NULL;
    }
    b->links = links;
    b->memory = memory;
    b->manner = manner;
    return b;
}

/* What is still under way has failed, or is not wanted any more. Receives can be taken back, unless
 * they have begun; of sends MPI may read the memory at any time. */
static void take_back(td_links_buffer *b)
{
    for (transfer *t = b->transfers; t != NULL; t = t->next) {
        if (!t->sends) {
            MPI_Cancel(&t->request);
        }
    }
    const double end = now() + TAKE_BACK;
    while (b->transfers != NULL && now() < end) {
        int done = 0;
        if (MPI_Test(&b->transfers->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            drop(b, &b->transfers);
        } else {
            nap(LONGEST_NAP);
        }
    }
    if (b->transfers != NULL) {
        fprintf(stderr,
                "tandem: %s; a transfer with rank %d is under way, which MPI cannot take back, so "
                "this process ends\n",
                b->links->reason, b->transfers->rank);
        _exit(1);
    }
}

static void free_buffer(td_links_buffer *b)
{
    pthread_mutex_lock(&mpi_lock);
    if (b->transfers != NULL) {
        take_back(b);
    }
    for (td_links_buffer **link = &b->links->lasts; *link != NULL; link = &(*link)->next_last) {
        if (*link == b) {
            *link = b->next_last;
            break;
        }
    }
    pthread_mutex_unlock(&mpi_lock);
    free(b);
}

static td_links_result send(td_links_buffer *b, int rank, uint64_t slot, size_t offset,
                            size_t bytes)
{
    pthread_mutex_lock(&mpi_lock);
    td_links_result result = begin(b, rank, slot, offset, bytes, true);
    pthread_mutex_unlock(&mpi_lock);
    return result;
}

static td_links_result receive(td_links_buffer *b, int rank, uint64_t slot, size_t offset,
                               size_t bytes)
{
    pthread_mutex_lock(&mpi_lock);
    td_links_result result = begin(b, rank, slot, offset, bytes, false);
    if (result == TD_LINKS_OK && b->manner == TD_LINKS_LAST) {
        b->last_of = rank;
        b->next_last = b->links->lasts;
        b->links->lasts = b;
    }
    pthread_mutex_unlock(&mpi_lock);
    return result;
}

/* Keeps MPI going until all others have gone; whether they have. */
static bool linger(td_links *links, double seconds)
{
    const double end = now() + seconds;
    bool all = false;
    while (!all && now() < end) {
        pthread_mutex_lock(&mpi_lock);
        note_gone(links);
        all = true;
        for (const td_links_buffer *b = links->lasts; b != NULL; b = b->next_last) {
            all = all && links->gone[b->last_of] > 0;
        }
        pthread_mutex_unlock(&mpi_lock);
        nap(LONGEST_NAP);
    }
    return all;
}

static void interrupt(td_links *links, const char *reason)
{
    bool failed = reason[0] != '\0';
    pthread_mutex_lock(&mpi_lock);
    bool before = atomic_load(&links->interrupted);
    if (!before) {
        snprintf(links->reason, sizeof links->reason, "%s", reason);
        links->failed = failed;
        atomic_store(&links->interrupted, true);
    }
    pthread_mutex_unlock(&mpi_lock);
    if (!before && !linger(links, failed ? LINGER_FAILED : LINGER) && failed) {
        pthread_mutex_lock(&mpi_lock);
        spoilt = true;
        pthread_mutex_unlock(&mpi_lock);
    }
}

__attribute__((visibility("default"))) const td_links_api *td_links_entry(void)
{
    static const td_links_api api = {
        .version = TD_LINKS_VERSION,
        .name = "mpi",
        .piece_bytes = PIECE_BYTES,
        .open = open_links,
        .buffer = make_buffer,
        .buffer_free = free_buffer,
        .send = send,
        .recv = receive,
        .wait_send = wait_send,
        .wait_recv = wait_receive,
        .in_background = in_background,
        .error = error,
        .interrupt = interrupt,
        .close = close_links,
    };
    return &api;
}
