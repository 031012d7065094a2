/* NCCL for emulated GPUs, whose ranks are processes of this host ($TANDEM_NCCL=emulated). A
 * collective is work of a stream that waits for the other ranks when it is run: all of them meet in
 * shared memory, piece by piece. Communicators do not block; aborting one ends its waits, and then
 * blocks, as NCCL does, until the program has freed all graphs with collectives. With
 * $TANDEM_EMULATE_NCCL=notices a communicator fails when a rank's process has ended, as NCCL does
 * where a connection is closed. */
#include "dist/comm/engines/nccl/nccl_api.h"

#include "cuda_runtime_api.h"
#include "dist/comm/engines/reduce_math.h"
#include "tandem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, PIECE = 1 << 18, CALLS = 2 * RANKS, INVALID = 4, SYSTEM = 2, REMOTE = 6 };

typedef struct shared {
    atomic_uint_fast64_t arrived[RANKS]; /* at so many meetings */
    atomic_int joined[RANKS];            /* the rank's process */
    _Alignas(64) char slot[RANKS][PIECE];
} shared;

typedef struct comm {
    struct comm *before; /* in the list of all */
    int rank, size;
    char name[64];
    shared *s;
    uint64_t meetings;
    atomic_bool aborted;
} comm;

typedef enum call_kind { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER } call_kind;

typedef struct call {
    comm *c;
    call_kind kind;
    const void *in;
    void *out;
    size_t count;
    td_dtype dtype;
    td_reduction op;
    int root;
} call;

/* Sends and receives of a group. */
typedef struct exchange {
    comm *c;
    void *stream;
    int count;
    struct {
        bool sends;
        int peer;
        void *memory;
        size_t bytes;
    } parts[CALLS];
} exchange;

static _Thread_local exchange group;
static _Thread_local int group_depth;

static td_dtype dtype_of(int type)
{
    switch (type) {
    case TD_NCCL_U8:
        return TD_U8;
    case TD_NCCL_I32:
        return TD_I32;
    case TD_NCCL_I64:
        return TD_I64;
    case TD_NCCL_F16:
        return TD_F16;
    case TD_NCCL_F64:
        return TD_F64;
    case TD_NCCL_BF16:
        return TD_BF16;
    default:
        return TD_F32;
    }
}

static td_reduction reduction_of(int op)
{
    static const td_reduction ops[] = { TD_SUM, TD_PRODUCT, TD_MAX, TD_MIN, TD_AVERAGE };
    return ops[op];
}

/* ---- meeting ---- */

/* false: the communicator was aborted. */
static bool meet(comm *c)
{
    uint64_t meeting = ++c->meetings;
    atomic_store(&c->s->arrived[c->rank], meeting);
    int depth = td_emulate_let_go();
    for (int r = 0; r < c->size; r++) {
        while (atomic_load(&c->s->arrived[r]) < meeting && !atomic_load(&c->aborted)) {
            nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
        }
    }
    td_emulate_take_again(depth);
    return !atomic_load(&c->aborted);
}

/* The size bytes from `in` on, at most PIECE, of all ranks are in their slots. */
static bool show(comm *c, const void *in, size_t bytes)
{
    if (in != NULL) {
        memcpy(c->s->slot[c->rank], in, bytes);
    }
    return meet(c);
}

static bool reduce_piece(const call *k, const char *in, char *out, size_t count)
{
    const void *all[RANKS];
    comm *c = k->c;
    if (!show(c, in, count * td_dtype_size(k->dtype))) {
        return false;
    }
    for (int r = 0; r < c->size; r++) {
        all[r] = c->s->slot[r];
    }
    if (out != NULL) {
        td_reduce_arrays((void *[]){ out }, 1, all, c->size, (int64_t)count, k->dtype, k->op);
    }
    return meet(c); /* the slots may be written again */
}

static bool copy_piece(const call *k, const char *in, char *out, size_t bytes)
{
    comm *c = k->c;
    size_t whole = k->count * td_dtype_size(k->dtype);
    bool gathers = k->kind == ALL_GATHER;
    if (!show(c, gathers || c->rank == k->root ? in : NULL, bytes)) {
        return false;
    }
    for (int r = 0; r < c->size; r++) {
        if (gathers || r == k->root) {
            memmove(gathers ? out + (size_t)r * whole : out, c->s->slot[r], bytes);
        }
    }
    return meet(c);
}

static void run_call(void *arguments)
{
    const call *k = arguments;
    size_t size = td_dtype_size(k->dtype), most = PIECE / size;
    int parts = k->kind == REDUCE_SCATTER ? k->c->size : 1;
    bool right = true;
    for (int part = 0; part < parts && right; part++) {
        const char *in = (const char *)k->in + (size_t)part * k->count * size;
        bool mine = k->kind == ALL_REDUCE || (k->kind == REDUCE && k->root == k->c->rank) ||
                    (k->kind == REDUCE_SCATTER && part == k->c->rank);
        for (size_t at = 0; at < k->count && right; at += most) {
            size_t n = k->count - at < most ? k->count - at : most;
            char *out = (char *)k->out + at * size;
            right = k->kind == BROADCAST || k->kind == ALL_GATHER
                        ? copy_piece(k, in + at * size, out, n * size)
                        : reduce_piece(k, in + at * size, mine ? out : NULL, n);
        }
    }
}

/* Every rank takes part, with parts of the same size: so are the engine's. */
static void run_exchange(void *arguments)
{
    const exchange *e = arguments;
    comm *c = e->c;
    size_t bytes = e->parts[0].bytes;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        for (int to = 0; to < c->size; to++) {
            for (int i = 0; i < e->count; i++) {
                if (e->parts[i].sends && e->parts[i].peer == to) {
                    memcpy(c->s->slot[c->rank], (char *)e->parts[i].memory + at, n);
                }
            }
            if (!meet(c)) {
                return;
            }
            for (int i = 0; i < e->count; i++) {
                if (!e->parts[i].sends && to == c->rank) {
                    memcpy((char *)e->parts[i].memory + at, c->s->slot[e->parts[i].peer], n);
                }
            }
            if (!meet(c)) {
                return;
            }
        }
    }
}

/* ---- communicators ---- */

static td_nccl_result get_version(int *version)
{
    *version = 22809;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result get_unique_id(td_nccl_id *id)
{
    uint64_t number;
    memset(id, 0, sizeof *id);
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        return (td_nccl_result)SYSTEM;
    }
    snprintf(id->bytes, sizeof id->bytes, "/tandem-nccl-%016llx", (unsigned long long)number);
    return TD_NCCL_SUCCESS;
}

/* All that were made: what is on streams may name a communicator that has ended, so records stay.
 */
static comm *_Atomic latest;

static td_nccl_result init_rank_config(td_nccl_comm *made, int size, td_nccl_id id, int rank,
                                       td_nccl_config *config)
{
    (void)config;
    *made = NULL;
    comm *c = size <= RANKS ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        return (td_nccl_result)INVALID;
    }
    c->rank = rank;
    c->size = size;
    snprintf(c->name, sizeof c->name, "%.60s", id.bytes);
    int file = shm_open(c->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory = file >= 0 && ftruncate(file, sizeof(shared)) == 0
                       ? mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
    if (file >= 0) {
        close(file);
    }
    if (memory == MAP_FAILED) {
        free(c);
        return (td_nccl_result)SYSTEM;
    }
    c->s = memory;
    atomic_store(&c->s->joined[rank], (int)getpid());
    c->before = atomic_exchange(&latest, c);
    *made = c;
    return TD_NCCL_IN_PROGRESS;
}

/* Whether a process has ended, if its parent knows or not. */
static bool has_ended(int process)
{
    char path[64], state;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    bool read = file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    if (file != NULL) {
        fclose(file);
    }
    return !read || state == 'Z';
}

static td_nccl_result async_error(td_nccl_comm of, int *result)
{
    comm *c = of;
    const char *wish = getenv("TANDEM_EMULATE_NCCL");
    bool notices = wish != NULL && strcmp(wish, "notices") == 0;
    *result = TD_NCCL_SUCCESS;
    for (int r = 0; r < c->size; r++) {
        int process = atomic_load(&c->s->joined[r]);
        if (process == 0) {
            *result = TD_NCCL_IN_PROGRESS;
        } else if (notices && has_ended(process)) {
            *result = REMOTE;
        }
    }
    return TD_NCCL_SUCCESS;
}

static td_nccl_result finalize(td_nccl_comm of)
{
    (void)of;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result end(td_nccl_comm of)
{
    comm *c = of;
    atomic_store(&c->aborted, true);
    (void)shm_unlink(c->name);
    while (td_emulate_graphs_that_wait() > 0) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return TD_NCCL_SUCCESS;
}

/* ---- calls ---- */

static td_nccl_result put(call k, void *stream)
{
    td_emulate_enqueue_waiting(stream, run_call, &k, sizeof k);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result all_reduce(const void *in, void *out, size_t count, int type, int op,
                                 td_nccl_comm c, void *stream)
{
    return put((call){ c, ALL_REDUCE, in, out, count, dtype_of(type), reduction_of(op), 0 },
               stream);
}

static td_nccl_result broadcast(const void *in, void *out, size_t count, int type, int root,
                                td_nccl_comm c, void *stream)
{
    return put((call){ c, BROADCAST, in, out, count, dtype_of(type), TD_SUM, root }, stream);
}

static td_nccl_result reduce(const void *in, void *out, size_t count, int type, int op, int root,
                             td_nccl_comm c, void *stream)
{
    return put((call){ c, REDUCE, in, out, count, dtype_of(type), reduction_of(op), root }, stream);
}

static td_nccl_result all_gather(const void *in, void *out, size_t count, int type, td_nccl_comm c,
                                 void *stream)
{
    return put((call){ c, ALL_GATHER, in, out, count, dtype_of(type), TD_SUM, 0 }, stream);
}

static td_nccl_result reduce_scatter(const void *in, void *out, size_t count, int type, int op,
                                     td_nccl_comm c, void *stream)
{
    return put((call){ c, REDUCE_SCATTER, in, out, count, dtype_of(type), reduction_of(op), 0 },
               stream);
}

static td_nccl_result group_start(void)
{
    if (group_depth++ == 0) {
        group.count = 0;
    }
    return TD_NCCL_SUCCESS;
}

static td_nccl_result group_end(void)
{
    if (--group_depth == 0 && group.count > 0) {
        td_emulate_enqueue_waiting(group.stream, run_exchange, &group, sizeof group);
    }
    return TD_NCCL_SUCCESS;
}

static td_nccl_result add(bool sends, void *memory, size_t count, int type, int peer, void *c,
                          void *stream)
{
    if (group_depth == 0 || group.count == CALLS) {
        return (td_nccl_result)INVALID;
    }
    group.c = c;
    group.stream = stream;
    int i = group.count++;
    group.parts[i].sends = sends;
    group.parts[i].peer = peer;
    group.parts[i].memory = memory;
    group.parts[i].bytes = count * td_dtype_size(dtype_of(type));
    return TD_NCCL_SUCCESS;
}

static td_nccl_result send(const void *in, size_t count, int type, int peer, td_nccl_comm c,
                           void *stream)
{
    return add(true, (void *)(uintptr_t)in, count, type, peer, c, stream);
}

static td_nccl_result recv(void *out, size_t count, int type, int peer, td_nccl_comm c,
                           void *stream)
{
    return add(false, out, count, type, peer, c, stream);
}

static const char *error_string(int result)
{
    return result == INVALID  ? "invalid argument"
           : result == SYSTEM ? strerror(errno)
           : result == REMOTE ? "remote process exited"
                              : "no error";
}

static const char *last_error(td_nccl_comm c)
{
    (void)c;
    return "emulated NCCL";
}

extern const td_nccl_api td_emulated_nccl; /* dist/comm/engines/nccl/load.c */
const td_nccl_api td_emulated_nccl = {
    .get_version = get_version,
    .get_unique_id = get_unique_id,
    .init_rank_config = init_rank_config,
    .async_error = async_error,
    .finalize = finalize,
    .destroy = end,
    .abort = end,
    .group_start = group_start,
    .group_end = group_end,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .reduce = reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .send = send,
    .recv = recv,
    .error_string = error_string,
    .last_error = last_error,
};
