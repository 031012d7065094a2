/* The shm engine: the collectives.
 *
 * Data goes from rank to rank through the staging areas, a chunk at a time. Each rank puts its data
 * into its own area, all ranks meet at a barrier, and each rank gets data from the others' areas.
 * The next chunk goes into the other area of each rank, so each chunk needs one barrier only. Data
 * in registered memory needs no staging: the other ranks read it where it lies, in one piece.
 *
 * A large all-reduce is a reduce-scatter, after which each rank has the sums of its slice of the
 * array, and an all-gather of the slices. */
#include "dist/comm/engines/shm/shm.h"

#include "dist/comm/engines/reduce_math.h"

#include <string.h>

/* A running collective. */
typedef struct job {
    td_shm *shm;
    const td_collective *c;
    const td_kind *kind;
    size_t size;      /* bytes of an element */
    int64_t capacity; /* elements of a piece that fit into an area at once */
    bool direct;      /* all data is in registered memory */
    char **given;     /* direct: every rank's data */
} job;

static bool gives(const job *j, int r)
{
    return td_pieces_given(j->c, r, j->shm->size) > 0;
}

static job job_of(td_shm *shm, const td_collective *c)
{
    job j = { .shm = shm, .c = c, .kind = td_kind_of(c->kind), .size = td_dtype_size(c->dtype) };
    j.capacity = TD_SHM_AREA_BYTES / (int64_t)j.size / (j.kind->gives_all ? shm->size : 1);
    return j;
}

/* The data from rank r for this rank. from: the element at which the current chunk begins. */
static const char *given_by(const job *j, int r, int64_t from)
{
    const td_shm *shm = j->shm;
    int64_t piece = j->kind->gives_all ? shm->rank : 0;
    if (r == shm->rank) {
        return (const char *)j->c->in + (size_t)(piece * j->c->count + from) * j->size;
    }
    if (j->direct) {
        return j->given[r] + (size_t)(piece * j->c->count + from) * j->size;
    }
    return td_shm_area(shm, shm->parity, r) + (size_t)(piece * j->capacity) * j->size;
}

/* Counts elements that other ranks' memory has given to this one, or got from it. */
static void count_moved(const job *j, int64_t elements)
{
    atomic_fetch_add(&j->shm->moved, (uint64_t)elements * j->size);
}

/* ---- put, meet, get ---- */

static void put(const job *j, int64_t from, int64_t k)
{
    if (k == 0 || !gives(j, j->shm->rank)) { /* k is 0: the pointers may be NULL */
        return;
    }
    char *area = td_shm_area(j->shm, j->shm->parity, j->shm->rank);
    const char *in = (const char *)j->c->in + (size_t)from * j->size;
    size_t bytes = (size_t)k * j->size;
    if (!j->kind->gives_all) {
        memcpy(area, in, bytes);
        return;
    }
    for (int r = 0; r < j->shm->size; r++) {
        if (r != j->shm->rank) {
            memcpy(area + (size_t)(r * j->capacity) * j->size,
                   in + (size_t)(r * j->c->count) * j->size, bytes);
        }
    }
}

static void get_reduced(const job *j, int64_t from, int64_t k)
{
    const void *in[TD_SHM_MAX_RANKS];
    for (int r = 0; r < j->shm->size; r++) {
        in[r] = given_by(j, r, from);
    }
    void *out = (char *)j->c->out + (size_t)from * j->size;
    td_reduce_arrays(&out, 1, in, j->shm->size, k, j->c->dtype, j->c->op);
    count_moved(j, (j->shm->size - 1) * k);
}

static void get(const job *j, int64_t from, int64_t k)
{
    const td_collective *c = j->c;
    if (k == 0 || td_pieces_taken(c, j->shm->rank, j->shm->size) == 0) {
        return;
    }
    if (j->kind->reduces) {
        get_reduced(j, from, k);
        return;
    }
    char *out = (char *)c->out + (size_t)from * j->size;
    for (int r = 0; r < j->shm->size; r++) {
        if (gives(j, r)) {
            int64_t piece = j->kind->takes_all ? r : 0;
            memmove(out + (size_t)(piece * c->count) * j->size, given_by(j, r, from),
                    (size_t)k * j->size);
            count_moved(j, r != j->shm->rank ? k : 0);
        }
    }
}

/* Chunk after chunk. All ranks have entered the same collective. */
static td_status shm_exchange(td_shm *shm, const td_collective *c)
{
    const job j = job_of(shm, c);
    for (int64_t from = 0; from < c->count; from += j.capacity) {
        int64_t left = c->count - from;
        int64_t k = left < j.capacity ? left : j.capacity;
        put(&j, from, k);
        TD_TRY(td_shm_step(shm, c));
        get(&j, from, k);
        shm->parity ^= 1;
    }
    return TD_OK;
}

/* Data that fits into one chunk is put before td_shm_enter, which is then the only barrier. */
static td_status exchange_at_once(const job *j)
{
    put(j, 0, j->c->count);
    TD_TRY(td_shm_enter(j->shm, j->c, -1, 0));
    get(j, 0, j->c->count);
    j->shm->parity ^= 1;
    return TD_OK;
}

/* ---- large all-reduces ---- */

/* Slices are whole cache lines, so that no line is written by two ranks. */
static int64_t line_elements(const td_collective *c)
{
    return 64 / (int64_t)td_dtype_size(c->dtype);
}

/* Registered memory: reads this rank's slice of all ranks' arrays and writes the result into them.
 */
static td_status reduce_direct(const job *j)
{
    const td_collective *c = j->c;
    const int size = j->shm->size;
    const int64_t line = line_elements(c), lines = (c->count + line - 1) / line;
    const int64_t slice = (lines + size - 1) / size * line, begin = j->shm->rank * slice;
    const int64_t left = c->count > begin ? c->count - begin : 0,
                  count = left < slice ? left : slice;
    const void *in[TD_SHM_MAX_RANKS];
    void *out[TD_SHM_MAX_RANKS];
    for (int r = 0; r < size; r++) {
        out[r] = j->given[r] + (size_t)(count > 0 ? begin : 0) * j->size;
        in[r] = out[r];
    }
    bool all = c->kind == TD_COLLECTIVE_ALL_REDUCE;
    td_reduce_arrays(all ? out : &out[c->peer], all ? size : 1, in, size, count, c->dtype, c->op);
    int written = all ? size - 1 : c->peer != j->shm->rank;
    count_moved(j, (size - 1 + written) * count);
    return td_shm_step(j->shm, c);
}

/* A part of a collective: from element `from` on of its arrays. */
static td_collective part_of(const td_collective *c, int64_t from, int64_t count)
{
    td_collective part = *c;
    part.in = (const char *)c->in + (size_t)from * td_dtype_size(c->dtype);
    part.out = (char *)c->out + (size_t)from * td_dtype_size(c->dtype);
    part.count = count;
    return part;
}

/* An all-reduce of what fits into an area. What does not make whole lines for all ranks, at the end
 * of an array, each rank reduces. */
static td_status reduce_chunk(td_shm *shm, const td_collective *c)
{
    const int64_t line = line_elements(c), slice = c->count / shm->size / line * line;
    const td_collective own = part_of(c, shm->rank * slice, slice);
    td_collective scatter = own, gather = own;
    scatter.kind = TD_COLLECTIVE_REDUCE_SCATTER;
    scatter.in = c->in;
    gather.kind = TD_COLLECTIVE_ALL_GATHER;
    gather.in = own.out;
    gather.out = c->out;
    const td_collective rest = part_of(c, slice * shm->size, c->count - slice * shm->size);
    TD_TRY(shm_exchange(shm, &scatter));
    TD_TRY(shm_exchange(shm, &gather));
    return shm_exchange(shm, &rest);
}

/* Through the staging areas: both halves of a chunk's all-reduce while it is in the caches. */
static td_status reduce_staged(td_shm *shm, const td_collective *c)
{
    const int64_t lines = shm->size * line_elements(c);
    const int64_t most = TD_SHM_AREA_BYTES / (int64_t)td_dtype_size(c->dtype) / lines * lines;
    for (int64_t from = 0; from < c->count; from += most) {
        int64_t left = c->count - from;
        const td_collective chunk = part_of(c, from, left < most ? left : most);
        TD_TRY(reduce_chunk(shm, &chunk));
    }
    return TD_OK;
}

/* ---- choosing ---- */

/* After all ranks have entered: whether all data is in registered memory. The same on all ranks. */
static bool find_given(job *j)
{
    const td_shm *shm = j->shm;
    for (int r = 0; r < shm->size; r++) {
        const td_shm_entry *entry = td_shm_entered_by(shm, r);
        bool needed = gives(j, r);
        if (needed && entry->region < 0) {
            return false;
        }
        j->given[r] = needed ? shm->regions[entry->region].base[r] + entry->place : NULL;
    }
    return true;
}

/* In one piece, because nothing has to fit into an area. */
static td_status get_direct(const job *j)
{
    get(j, 0, j->c->count);
    return td_shm_step(j->shm, j->c);
}

td_status td_shm_run(void *engine, const td_collective *c)
{
    td_shm *shm = engine;
    char *given_data[TD_SHM_MAX_RANKS];
    job j = job_of(shm, c);
    j.given = given_data;
    if (c->kind == TD_COLLECTIVE_BARRIER || c->count == 0) {
        return td_shm_enter(shm, c, -1, 0);
    }
    const int given = td_pieces_given(c, shm->rank, shm->size);
    const bool sliced = j.kind->reduces && !j.kind->gives_all; /* all_reduce, reduce */
    int64_t at_once = sliced ? TD_SHM_EAGER_BYTES / (int64_t)j.size : j.capacity;
    if (c->count <= at_once) {
        return exchange_at_once(&j);
    }
    int region = -1;
    if (given > 0 && !(c->kind == TD_COLLECTIVE_ALL_TO_ALL && c->in == c->out)) {
        region = td_shm_find_region(shm, c->in, (size_t)(c->count * given) * j.size);
    }
    uint64_t place =
        region >= 0 ? (uint64_t)((const char *)c->in - shm->regions[region].base[shm->rank]) : 0;
    TD_TRY(td_shm_enter(shm, c, region, place));
    j.direct = find_given(&j);
    if (j.direct) {
        return sliced ? reduce_direct(&j) : get_direct(&j);
    }
    return c->kind == TD_COLLECTIVE_ALL_REDUCE ? reduce_staged(shm, c) : shm_exchange(shm, c);
}
