/* The shm engine: the collectives.
 *
 * Data goes from rank to rank through the staging areas, a chunk at a time. Each rank puts its data
 * into its own area, all ranks meet at a barrier, and each rank gets data from the others' areas.
 * The next chunk goes into the other area of each rank, so each chunk needs one barrier only. Data
 * in registered memory needs no staging: the other ranks read it where it lies, in one piece.
 *
 * A large all-reduce cuts the array into one slice per rank. Each rank reduces its slice in rank
 * order and gives the result to all ranks. */
#include "dist/engines/shm/shm.h"

#include "dist/engines/reduce_math.h"

#include <string.h>

/* A running collective. */
typedef struct job {
    td_shm *shm;
    const td_collective *c;
    const td_kind *kind;
    size_t size;                   /* bytes of an element */
    int64_t capacity;              /* elements of a piece that fit into an area at once */
    bool direct;                   /* all data is in registered memory */
    char *given[TD_SHM_MAX_RANKS]; /* direct: every rank's data */
} job;

static bool gives(const job *j, int r)
{
    return td_pieces_given(j->c, r, j->shm->size) > 0;
}

static bool takes(const job *j)
{
    return td_pieces_taken(j->c, j->shm->rank, j->shm->size) > 0;
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
    if (!gives(j, j->shm->rank)) {
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
    char *out = (char *)c->out + (size_t)from * j->size;
    if (!takes(j)) {
        return;
    }
    if (j->kind->reduces) {
        get_reduced(j, from, k);
        return;
    }
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
static td_status exchange(const job *j)
{
    for (int64_t from = 0; from < j->c->count; from += j->capacity) {
        int64_t left = j->c->count - from;
        int64_t k = left < j->capacity ? left : j->capacity;
        put(j, from, k);
        TD_TRY(td_shm_step(j->shm, j->c));
        get(j, from, k);
        j->shm->parity ^= 1;
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

/* ---- all-reduce by slices ---- */

/* Rank r's slice of an array, or of a chunk, with k elements. */
static void slice_of(const job *j, int64_t k, int r, int64_t *begin, int64_t *count)
{
    /* Slices begin on cache lines, so that no line is written by two ranks. */
    int64_t line = 64 / (int64_t)j->size;
    int64_t part = (k + j->shm->size - 1) / j->shm->size;
    part = (part + line - 1) / line * line;
    int64_t first = r * part < k ? r * part : k;
    *begin = first;
    *count = k - first < part ? k - first : part;
}

/* Registered memory: reads all ranks' arrays and writes the result into them. */
static td_status reduce_direct(const job *j)
{
    const td_collective *c = j->c;
    int64_t begin, count;
    slice_of(j, c->count, j->shm->rank, &begin, &count);
    const void *in[TD_SHM_MAX_RANKS];
    void *out[TD_SHM_MAX_RANKS];
    for (int r = 0; r < j->shm->size; r++) {
        out[r] = j->given[r] + (size_t)begin * j->size;
        in[r] = out[r];
    }
    bool all = c->kind == TD_COLLECTIVE_ALL_REDUCE;
    td_reduce_arrays(all ? out : &out[c->peer], all ? j->shm->size : 1, in, j->shm->size, count,
                     c->dtype, c->op);
    int written = all ? j->shm->size - 1 : c->peer != j->shm->rank;
    count_moved(j, (j->shm->size - 1 + written) * count);
    return td_shm_step(j->shm, c);
}

/* A slice's place in an area does not depend on the chunk's size. */
static int64_t place_elements(const job *j)
{
    int64_t line = 64 / (int64_t)j->size;
    return TD_SHM_AREA_BYTES / (int64_t)j->size / j->shm->size / line * line;
}

/* Where rank `in`'s area holds the slice of rank r. */
static char *place_of(const job *j, int parity, int in, int r)
{
    return td_shm_area(j->shm, parity, in) + (size_t)(r * place_elements(j)) * j->size;
}

/* Puts the other ranks' slices of a chunk into this rank's area. Its own slice needs no copy. */
static void put_slices(const job *j, int parity, int64_t from, int64_t k)
{
    for (int r = 0; r < j->shm->size; r++) {
        int64_t begin, count;
        slice_of(j, k, r, &begin, &count);
        if (r != j->shm->rank) {
            memcpy(place_of(j, parity, j->shm->rank, r),
                   (const char *)j->c->in + (size_t)(from + begin) * j->size,
                   (size_t)count * j->size);
        }
    }
}

/* Reduces this rank's slice into `out` and into its place in this rank's area. */
static void reduce_slice(const job *j, int parity, int64_t from, int64_t k, bool wanted)
{
    const td_shm *shm = j->shm;
    int64_t begin, count;
    slice_of(j, k, shm->rank, &begin, &count);
    const void *in[TD_SHM_MAX_RANKS];
    for (int r = 0; r < shm->size; r++) {
        in[r] = r == shm->rank ? (const char *)j->c->in + (size_t)(from + begin) * j->size
                               : place_of(j, parity, r, shm->rank);
    }
    void *out[2] = { place_of(j, parity, shm->rank, shm->rank),
                     (char *)j->c->out + (size_t)(from + begin) * j->size };
    td_reduce_arrays(out, wanted ? 2 : 1, in, shm->size, count, j->c->dtype, j->c->op);
    count_moved(j, (shm->size - 1) * count);
}

/* Gets the other ranks' results from their areas. */
static void get_slices(const job *j, int parity, int64_t from, int64_t k)
{
    for (int r = 0; r < j->shm->size; r++) {
        int64_t begin, count;
        slice_of(j, k, r, &begin, &count);
        if (r != j->shm->rank) {
            memcpy((char *)j->c->out + (size_t)(from + begin) * j->size, place_of(j, parity, r, r),
                   (size_t)count * j->size);
            count_moved(j, count);
        }
    }
}

/* Through the staging areas. The next chunk is put before the barrier that follows this chunk's
 * reduction, so each chunk needs one barrier only. Nothing is overwritten too early: the other
 * ranks' slices in an area were reduced before the last barrier, and a rank writes its result after
 * one. */
static td_status reduce_staged(const job *j)
{
    const td_collective *c = j->c;
    td_shm *shm = j->shm;
    const int64_t capacity = place_elements(j) * shm->size;
    const bool wanted = takes(j);
    int64_t k = c->count < capacity ? c->count : capacity;
    put_slices(j, shm->parity, 0, k);
    TD_TRY(td_shm_step(shm, c));
    for (int64_t from = 0; from < c->count;) {
        int64_t next = from + k;
        int64_t left = c->count - next;
        int64_t next_k = left < capacity ? left : capacity;
        reduce_slice(j, shm->parity, from, k, wanted);
        if (next_k > 0) {
            put_slices(j, shm->parity ^ 1, next, next_k);
        }
        TD_TRY(td_shm_step(shm, c));
        if (wanted) {
            get_slices(j, shm->parity, from, k);
        }
        shm->parity ^= 1;
        from = next;
        k = next_k;
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
    job j = { .shm = shm, .c = c, .kind = td_kind_of(c->kind), .size = td_dtype_size(c->dtype) };
    if (c->kind == TD_COLLECTIVE_BARRIER || c->count == 0) {
        return td_shm_enter(shm, c, -1, 0);
    }
    const int given = td_pieces_given(c, shm->rank, shm->size);
    const bool sliced = j.kind->reduces && !j.kind->gives_all; /* all_reduce, reduce */
    j.capacity = TD_SHM_AREA_BYTES / (int64_t)j.size / (j.kind->gives_all ? shm->size : 1);
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
    if (sliced) {
        return j.direct ? reduce_direct(&j) : reduce_staged(&j);
    }
    return j.direct ? get_direct(&j) : exchange(&j);
}
