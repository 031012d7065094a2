/* The gloo and mpi engines: reductions. The rank that needs a sum computes it, in the tree of
 * reduce_math.h, so the bits are those of the shm engine.
 *
 * A large all-reduce cuts the array into one slice per rank. Each rank sums its slice and sends the
 * result to all ranks. Slices are exchanged piece by piece, so that the network carries the next
 * piece while this one is summed. */
#include "dist/comm/engines/p2p/job.h"

#include "dist/comm/engines/reduce_math.h"

#include <stdlib.h>

enum { SMALL_BYTES = 16 << 10 }; /* up to this size each rank sends its whole array to each rank */

/* Elements of a piece. */
static int64_t piece_elements(const td_p2p_job *j)
{
    return (int64_t)(j->g->api->piece_bytes / j->size);
}

/* ---- scratch memory ---- */

/* The scratch memory has a row for each rank: for the data that the rank sends here. This rank's
 * own row is for results that it sends. */
static size_t row_bytes(const td_p2p_job *j)
{
    return j->g->scratch_bytes / (size_t)j->g->size;
}

static char *row_of(const td_p2p_job *j, int r)
{
    return j->g->scratch + (size_t)r * row_bytes(j);
}

/* Makes scratch memory with rows of `count` elements. */
static td_status take_scratch(td_p2p_job *j, int64_t count)
{
    td_p2p_engine *g = j->g;
    size_t each = ((size_t)count * j->size + 63) / 64 * 64;
    if (row_bytes(j) < each) {
        free(g->scratch);
        g->scratch = malloc(each * (size_t)g->size);
        g->scratch_bytes = g->scratch != NULL ? each * (size_t)g->size : 0;
    }
    j->scratch = calloc((size_t)g->size, sizeof *j->scratch);
    TD_CHECK(g->scratch != NULL && j->scratch != NULL, TD_E_NOMEM,
             "out of memory for what other ranks send to be summed");
    for (int r = 0; r < g->size; r++) {
        TD_TRY(td_p2p_open_array(j, &j->scratch[r], row_of(j, r), row_bytes(j)));
    }
    return TD_OK;
}

/* ---- reductions ---- */

/* out = the sum of `own` and of the other ranks' rows from element `at` on. */
static void sum_up(const td_p2p_job *j, const void **terms, const char *own, int64_t at, void *out,
                   int64_t count)
{
    const td_p2p_engine *g = j->g;
    for (int r = 0; r < g->size; r++) {
        terms[r] = r == g->rank ? own : row_of(j, r) + (size_t)at * j->size;
    }
    td_reduce_arrays(&out, 1, terms, g->size, count, j->c->dtype, j->c->op);
}

/* Each rank that takes a sum receives all other ranks' data for it in one piece. */
static td_status reduce_at_once(td_p2p_job *j, const void **terms)
{
    const td_collective *c = j->c;
    const int rank = j->g->rank, size = j->g->size;
    const bool cuts = td_kind_of(c->kind)->gives_all; /* a piece for each rank, or the whole */
    const bool takes = td_pieces_taken(c, rank, size) > 0;
    TD_TRY(takes ? take_scratch(j, c->count) : TD_OK);
    for (int r = 0; r < size; r++) {
        if (r != rank && td_pieces_taken(c, r, size) > 0) {
            TD_TRY(td_p2p_send(j, &j->in, TD_P2P_DATA, r, cuts ? r * c->count : 0, c->count));
        }
        TD_TRY(r != rank && takes ? td_p2p_receive(j, &j->scratch[r], TD_P2P_DATA, r, 0, c->count)
                                  : TD_OK);
    }
    TD_TRY(td_p2p_listen(j));
    for (int r = 0; r < size; r++) {
        TD_TRY(r != rank && takes ? td_p2p_wait_receive(j, &j->scratch[r]) : TD_OK);
    }
    /* In place: data that the sum overwrites must have been sent. */
    TD_TRY(td_p2p_wait(j, &j->in));
    if (takes) {
        const char *own = (const char *)c->in + (size_t)(cuts ? rank * c->count : 0) * j->size;
        sum_up(j, terms, own, 0, c->out, c->count);
    }
    return TD_OK;
}

/* ---- all-reduce by slices ---- */

/* Piece k of rank r's slice: its number of elements, 0 after the slice's end. */
static int64_t reduce_piece_of(const td_p2p_job *j, int r, int64_t k, int64_t *begin)
{
    const int64_t line = 64 / (int64_t)j->size, piece = piece_elements(j);
    int64_t part = (j->c->count + j->g->size - 1) / j->g->size;
    part = (part + line - 1) / line * line;
    int64_t end = (r + 1) * part < j->c->count ? (r + 1) * part : j->c->count;
    *begin = r * part + k * piece;
    int64_t left = end - *begin;
    return left <= 0 ? 0 : left < piece ? left : piece;
}

/* Exchanges piece k of all slices: sends each to the rank that sums it. The scratch memory has room
 * for two pieces. */
static td_status exchange_piece(td_p2p_job *j, int64_t k)
{
    const int rank = j->g->rank;
    int64_t begin, count = reduce_piece_of(j, rank, k, &begin);
    int64_t place = (k & 1) * piece_elements(j);
    for (int r = 0; r < j->g->size; r++) {
        if (r == rank) {
            continue;
        }
        if (count > 0) {
            TD_TRY(td_p2p_receive(j, &j->scratch[r], TD_P2P_DATA, r, place, count));
        }
        int64_t theirs_begin, theirs = reduce_piece_of(j, r, k, &theirs_begin);
        if (theirs > 0) {
            TD_TRY(td_p2p_send(j, &j->in, TD_P2P_DATA, r, theirs_begin, theirs));
        }
    }
    return TD_OK;
}

/* Posts the receives of the other slices' results. A rank sends a result only after it has received
 * this rank's data of that piece, so nothing is overwritten too early. */
static td_status expect_results(td_p2p_job *j)
{
    const td_collective *c = j->c;
    for (int r = 0; r < j->g->size; r++) {
        int64_t begin, count;
        if (r == j->g->rank || td_pieces_taken(c, j->g->rank, j->g->size) == 0) {
            continue;
        }
        for (int64_t k = 0; (count = reduce_piece_of(j, r, k, &begin)) > 0; k++) {
            TD_TRY(td_p2p_receive(j, &j->out, TD_P2P_RESULT, r, begin, count));
        }
    }
    return TD_OK;
}

/* Sums piece k of this rank's slice, from element `begin` on, and sends the result to the ranks
 * that take it. The array of a rank that takes nothing must not change, so there the result goes
 * into its own row. */
static td_status sum_piece(td_p2p_job *j, const void **terms, int64_t k, int64_t begin,
                           int64_t count)
{
    const td_collective *c = j->c;
    const int rank = j->g->rank, size = j->g->size;
    const size_t at = (size_t)begin * j->size;
    const bool takes = td_pieces_taken(c, rank, size) > 0;
    for (int r = 0; r < size; r++) {
        TD_TRY(r != rank ? td_p2p_wait_receive(j, &j->scratch[r]) : TD_OK);
    }
    sum_up(j, terms, (const char *)c->in + at, (k & 1) * piece_elements(j),
           takes ? (char *)c->out + at : row_of(j, rank), count);
    if (!takes) {
        TD_TRY(td_p2p_send(j, &j->scratch[rank], TD_P2P_RESULT, c->peer, 0, count));
        return td_p2p_wait(j, &j->scratch[rank]);
    }
    for (int r = 0; r < size; r++) {
        if (r != rank && td_pieces_taken(c, r, size) > 0) {
            TD_TRY(td_p2p_send(j, &j->out, TD_P2P_RESULT, r, begin, count));
        }
    }
    return TD_OK;
}

static td_status reduce_large(td_p2p_job *j, const void **terms)
{
    int64_t begin;
    TD_TRY(take_scratch(j, 2 * piece_elements(j)));
    TD_TRY(exchange_piece(j, 0));
    TD_TRY(expect_results(j));
    TD_TRY(td_p2p_listen(j));
    /* Rank 0's slice is the longest. */
    for (int64_t k = 0; reduce_piece_of(j, 0, k, &begin) > 0; k++) {
        TD_TRY(exchange_piece(j, k + 1));
        int64_t count = reduce_piece_of(j, j->g->rank, k, &begin);
        if (count > 0) {
            TD_TRY(sum_piece(j, terms, k, begin, count));
        }
    }
    TD_TRY(td_p2p_wait(j, &j->out));
    return td_p2p_wait(j, &j->in);
}

td_status td_p2p_reduce(td_p2p_job *j)
{
    const void **terms = calloc((size_t)j->g->size, sizeof *terms);
    TD_CHECK(terms != NULL, TD_E_NOMEM, "out of memory for a sum over ranks");
    bool small = (size_t)j->c->count * j->size <= SMALL_BYTES;
    td_status status = small || td_kind_of(j->c->kind)->gives_all ? reduce_at_once(j, terms)
                                                                  : reduce_large(j, terms);
    free(terms);
    return status;
}
