/* The gloo engine: the collectives. Every rank sends what another needs straight to it; sums are
 * taken by the rank that needs them, in rank order, so the bits are those of the shm engine.
 *
 * All-reduce of more than a little: the array is cut into one slice per rank, and every rank sums
 * its slice and sends the result to all. This goes piece by piece, so that the network carries the
 * next piece while this one is summed. */
#include "dist/gloo.h"

#include "dist/reduce_math.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALL_BYTES = 16 << 10, /* all-reduce up to here: everything to everybody */
    PIECE_BYTES = 512 << 10,
};

/* One collective under way. */
typedef struct job {
    td_gloo_engine *g;
    const td_collective *c;
    size_t size;                            /* bytes of an element */
    td_gloo_buffer *in, *out;               /* the arrays of the caller */
    int64_t in_sends, out_sends, out_recvs; /* that have been posted and not waited for */
    td_gloo_buffer **scratch;               /* by rank: what it sends, to be summed */
} job;

/* ---- posting and waiting ---- */

static td_status check(const job *j, td_gloo_result result)
{
    return result == TD_GLOO_OK ? TD_OK : td_gloo_fail(j->g, result);
}

static uint64_t slot(const job *j, td_gloo_use use)
{
    return td_gloo_slot(use, j->g->turn, j->c);
}

/* Elements from.. of the array in to rank r. */
static td_status send_in(job *j, int r, int64_t from, int64_t count)
{
    j->in_sends++;
    return check(j, j->g->api->send(j->in, r, slot(j, TD_GLOO_DATA), (size_t)from * j->size,
                                    (size_t)count * j->size));
}

static td_status receive_out(job *j, td_gloo_use use, int r, int64_t from, int64_t count)
{
    j->out_recvs++;
    return check(j, j->g->api->recv(j->out, r, slot(j, use), (size_t)from * j->size,
                                    (size_t)count * j->size));
}

static td_status send_result(job *j, int r, int64_t from, int64_t count)
{
    j->out_sends++;
    return check(j, j->g->api->send(j->out, r, slot(j, TD_GLOO_RESULT), (size_t)from * j->size,
                                    (size_t)count * j->size));
}

static td_status receive_scratch(job *j, int r, int64_t from, int64_t count)
{
    return check(j, j->g->api->recv(j->scratch[r], r, slot(j, TD_GLOO_DATA), (size_t)from * j->size,
                                    (size_t)count * j->size));
}

static td_status wait_scratch(const job *j, int r)
{
    return check(j, j->g->api->wait_recv(j->scratch[r], td_gloo_patience(j->c)));
}

/* All that has been posted on the caller's arrays. */
static td_status wait_arrays(job *j)
{
    const td_gloo_api *api = j->g->api;
    for (; j->out_recvs > 0; j->out_recvs--) {
        TD_TRY(check(j, api->wait_recv(j->out, td_gloo_patience(j->c))));
    }
    for (; j->in_sends > 0; j->in_sends--) {
        TD_TRY(check(j, api->wait_send(j->in, td_gloo_patience(j->c))));
    }
    for (; j->out_sends > 0; j->out_sends--) {
        TD_TRY(check(j, api->wait_send(j->out, td_gloo_patience(j->c))));
    }
    return TD_OK;
}

/* ---- headers ---- */

/* Tells all others what is to be done, and asks them. */
static td_status announce(const job *j)
{
    td_gloo_engine *g = j->g;
    const uint64_t header_slot = td_gloo_slot(TD_GLOO_HEADER, ++g->turn, NULL);
    td_gloo_fill_header(&g->mine, g->turn, j->c);
    for (int r = 0; r < g->size; r++) {
        if (r != g->rank) {
            TD_TRY(check(j, g->api->recv(g->peers[r].heard_buffer, r, header_slot, 0,
                                         sizeof(td_gloo_header))));
            TD_TRY(
                check(j, g->api->send(g->mine_buffer, r, header_slot, 0, sizeof(td_gloo_header))));
        }
    }
    return TD_OK;
}

/* Hears them all. */
static td_status listen(const job *j)
{
    const td_gloo_engine *g = j->g;
    for (int r = 0; r < g->size; r++) {
        if (r != g->rank) {
            TD_TRY(check(j, g->api->wait_recv(g->peers[r].heard_buffer, td_gloo_patience(j->c))));
            TD_TRY(td_gloo_compare(g, j->c, r, &g->peers[r].heard));
        }
    }
    for (int r = 1; r < g->size; r++) {
        TD_TRY(check(j, g->api->wait_send(g->mine_buffer, td_gloo_patience(j->c))));
    }
    return TD_OK;
}

/* ---- scratch memory ---- */

/* Every rank has a row: for what it sends; this rank's own for what it sends itself. */
static size_t row_bytes(const job *j)
{
    return j->g->scratch_bytes / (size_t)j->g->size;
}

static char *row_of(const job *j, int r)
{
    return j->g->scratch + (size_t)r * row_bytes(j);
}

/* Rows of `count` elements. */
static td_status take_scratch(job *j, int64_t count)
{
    td_gloo_engine *g = j->g;
    size_t each = ((size_t)count * j->size + 63) / 64 * 64;
    if (row_bytes(j) < each) {
        free(g->scratch);
        g->scratch = malloc(each * (size_t)g->size);
        g->scratch_bytes = g->scratch != NULL ? each * (size_t)g->size : 0;
    }
    j->scratch = calloc((size_t)g->size, sizeof(td_gloo_buffer *));
    if (g->scratch == NULL || j->scratch == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for what other ranks send to be summed");
    }
    for (int r = 0; r < g->size; r++) {
        j->scratch[r] = g->api->buffer(g->gloo, row_of(j, r), row_bytes(j), false);
        if (j->scratch[r] == NULL) {
            return td_fail(TD_E_NOMEM, "out of memory for gloo's buffers");
        }
    }
    return TD_OK;
}

/* ---- reductions ---- */

/* out gets the sum, by rank, of own and what is in the other ranks' rows from element `at` on. */
static void sum_up(const job *j, const void **terms, const char *own, int64_t at, void *out,
                   int64_t count)
{
    const td_gloo_engine *g = j->g;
    for (int r = 0; r < g->size; r++) {
        terms[r] = r == g->rank ? own : row_of(j, r) + (size_t)at * j->size;
    }
    td_reduce_arrays(&out, 1, terms, g->size, count, j->c->dtype, j->c->op);
}

/* Everything at once: what every other rank has for this one, whose own part is at `own`. */
static td_status reduce_at_once(job *j, const void **terms, int64_t own)
{
    const td_collective *c = j->c;
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank) {
            TD_TRY(receive_scratch(j, r, 0, c->count));
        }
    }
    TD_TRY(listen(j));
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank) {
            TD_TRY(wait_scratch(j, r));
        }
    }
    /* In place, what is overwritten must have gone. */
    TD_TRY(wait_arrays(j));
    sum_up(j, terms, (const char *)c->in + (size_t)own * j->size, 0, c->out, c->count);
    return TD_OK;
}

/* Sums whole arrays: on all ranks, or on the root. */
static td_status reduce_small(job *j, const void **terms)
{
    const td_collective *c = j->c;
    const bool all = c->kind == TD_COLLECTIVE_ALL_REDUCE;
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank && (all || r == c->peer)) {
            TD_TRY(send_in(j, r, 0, c->count));
        }
    }
    if (all || j->g->rank == c->peer) {
        TD_TRY(take_scratch(j, c->count));
        return reduce_at_once(j, terms, 0);
    }
    TD_TRY(listen(j));
    return wait_arrays(j);
}

static td_status reduce_scatter(job *j, const void **terms)
{
    const td_collective *c = j->c;
    TD_TRY(take_scratch(j, c->count));
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank) {
            TD_TRY(send_in(j, r, r * c->count, c->count));
        }
    }
    return reduce_at_once(j, terms, j->g->rank * c->count);
}

/* ---- all-reduce by slices ---- */

/* Piece k of rank r's slice; an empty one beyond its end. */
static int64_t piece_of(const job *j, int r, int64_t k, int64_t *begin)
{
    const int64_t line = 64 / (int64_t)j->size, piece = PIECE_BYTES / (int64_t)j->size;
    int64_t part = (j->c->count + j->g->size - 1) / j->g->size;
    part = (part + line - 1) / line * line;
    int64_t end = (r + 1) * part < j->c->count ? (r + 1) * part : j->c->count;
    *begin = r * part + k * piece;
    int64_t left = end - *begin;
    return left <= 0 ? 0 : left < piece ? left : piece;
}

/* Piece k of every slice goes to the rank that sums it; the scratch memory has room for two. */
static td_status exchange_piece(job *j, int64_t k)
{
    const int rank = j->g->rank;
    int64_t begin, count = piece_of(j, rank, k, &begin);
    int64_t place = (k & 1) * (PIECE_BYTES / (int64_t)j->size);
    for (int r = 0; r < j->g->size; r++) {
        if (r == rank) {
            continue;
        }
        if (count > 0) {
            TD_TRY(receive_scratch(j, r, place, count));
        }
        int64_t theirs_begin, theirs = piece_of(j, r, k, &theirs_begin);
        if (theirs > 0) {
            TD_TRY(send_in(j, r, theirs_begin, theirs));
        }
    }
    return TD_OK;
}

/* The results of the other slices, into their places. A rank sends them when it has got what was
 * there before. */
static td_status expect_results(job *j)
{
    const td_collective *c = j->c;
    for (int r = 0; r < j->g->size; r++) {
        int64_t begin, count;
        if (r == j->g->rank || (c->kind == TD_COLLECTIVE_REDUCE && c->peer != j->g->rank)) {
            continue;
        }
        for (int64_t k = 0; (count = piece_of(j, r, k, &begin)) > 0; k++) {
            TD_TRY(receive_out(j, TD_GLOO_RESULT, r, begin, count));
        }
    }
    return TD_OK;
}

/* Sums piece k of this rank's slice, element `begin` on, and sends the result to those who want it:
 * to all, or, on the root, to nobody. */
static td_status sum_for_all(job *j, const void **terms, int64_t k, int64_t begin, int64_t count)
{
    const td_collective *c = j->c;
    const size_t at = (size_t)begin * j->size;
    sum_up(j, terms, (const char *)c->in + at, (k & 1) * (PIECE_BYTES / (int64_t)j->size),
           (char *)c->out + at, count);
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank && c->kind == TD_COLLECTIVE_ALL_REDUCE) {
            TD_TRY(send_result(j, r, begin, count));
        }
    }
    return TD_OK;
}

/* The same for the root alone: this rank's array stays as it is, so the result goes into its row.
 */
static td_status sum_for_root(job *j, const void **terms, int64_t k, int64_t begin, int64_t count)
{
    const td_collective *c = j->c;
    td_gloo_buffer *row = j->scratch[j->g->rank];
    sum_up(j, terms, (const char *)c->in + (size_t)begin * j->size,
           (k & 1) * (PIECE_BYTES / (int64_t)j->size), row_of(j, j->g->rank), count);
    TD_TRY(check(
        j, j->g->api->send(row, c->peer, slot(j, TD_GLOO_RESULT), 0, (size_t)count * j->size)));
    return check(j, j->g->api->wait_send(row, td_gloo_patience(c)));
}

static td_status sum_piece(job *j, const void **terms, int64_t k, int64_t begin, int64_t count)
{
    const td_collective *c = j->c;
    for (int r = 0; r < j->g->size; r++) {
        if (r != j->g->rank) {
            TD_TRY(wait_scratch(j, r));
        }
    }
    if (c->kind == TD_COLLECTIVE_REDUCE && c->peer != j->g->rank) {
        return sum_for_root(j, terms, k, begin, count);
    }
    return sum_for_all(j, terms, k, begin, count);
}

static td_status reduce_large(job *j, const void **terms)
{
    int64_t begin;
    TD_TRY(take_scratch(j, 2 * (PIECE_BYTES / (int64_t)j->size)));
    TD_TRY(exchange_piece(j, 0));
    TD_TRY(expect_results(j));
    TD_TRY(listen(j));
    /* Rank 0's slice is the longest. */
    for (int64_t k = 0; piece_of(j, 0, k, &begin) > 0; k++) {
        TD_TRY(exchange_piece(j, k + 1));
        int64_t count = piece_of(j, j->g->rank, k, &begin);
        if (count > 0) {
            TD_TRY(sum_piece(j, terms, k, begin, count));
        }
    }
    return wait_arrays(j);
}

static td_status reduce(job *j)
{
    const void **terms = calloc((size_t)j->g->size, sizeof *terms);
    if (terms == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for a sum over ranks");
    }
    td_status status;
    if (j->c->kind == TD_COLLECTIVE_REDUCE_SCATTER) {
        status = reduce_scatter(j, terms);
    } else if ((size_t)j->c->count * j->size <= SMALL_BYTES) {
        status = reduce_small(j, terms);
    } else {
        status = reduce_large(j, terms);
    }
    free(terms);
    return status;
}

/* ---- what only moves data ---- */

/* Piece `from` of in becomes piece `to` of out. */
static void copy_own(const job *j, int64_t from, int64_t to)
{
    const td_collective *c = j->c;
    size_t bytes = (size_t)c->count * j->size;
    memmove((char *)c->out + (size_t)to * bytes, (const char *)c->in + (size_t)from * bytes, bytes);
}

/* Which piece of in goes to rank r, negative: none; and which of out comes from there. */
static int64_t piece_to(const job *j, int r)
{
    const bool root = j->g->rank == j->c->peer;
    switch (j->c->kind) {
    case TD_COLLECTIVE_BROADCAST:
        return root ? 0 : -1;
    case TD_COLLECTIVE_SCATTER:
        return root ? r : -1;
    case TD_COLLECTIVE_GATHER:
        return r == j->c->peer ? 0 : -1;
    case TD_COLLECTIVE_ALL_GATHER:
        return 0;
    default: /* all_to_all */
        return r;
    }
}

static int64_t piece_from(const job *j, int r)
{
    switch (j->c->kind) {
    case TD_COLLECTIVE_BROADCAST:
    case TD_COLLECTIVE_SCATTER:
        return r == j->c->peer ? 0 : -1;
    case TD_COLLECTIVE_GATHER:
        return j->g->rank == j->c->peer ? r : -1;
    default:
        return r;
    }
}

static td_status move(job *j)
{
    const int rank = j->g->rank;
    const int64_t count = j->c->count;
    for (int i = 1; i < j->g->size; i++) {
        /* Begin with the next rank, so that not all send to the same. */
        int r = (rank + i) % j->g->size;
        if (piece_from(j, r) >= 0) {
            TD_TRY(receive_out(j, TD_GLOO_DATA, r, piece_from(j, r) * count, count));
        }
        if (piece_to(j, r) >= 0) {
            TD_TRY(send_in(j, r, piece_to(j, r) * count, count));
        }
    }
    if (piece_from(j, rank) >= 0 && piece_to(j, rank) >= 0) {
        copy_own(j, piece_to(j, rank), piece_from(j, rank));
    }
    TD_TRY(listen(j));
    return wait_arrays(j);
}

/* All_to_all in place: what is to be sent must not be overwritten. */
static td_status move_copied(job *j)
{
    const td_collective *c = j->c;
    td_gloo_engine *g = j->g;
    size_t bytes = (size_t)(c->count * g->size) * j->size;
    void *copy = malloc(bytes);
    if (copy == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for an all_to_all in place");
    }
    memcpy(copy, c->in, bytes);
    td_gloo_buffer *in = j->in;
    j->in = g->api->buffer(g->gloo, copy, bytes, false);
    td_status status = j->in != NULL ? move(j) : td_fail(TD_E_NOMEM, "out of memory for gloo");
    if (j->in != NULL) {
        g->api->buffer_free(j->in);
    }
    j->in = in;
    free(copy);
    return status;
}

/* ---- choosing ---- */

/* How many pieces of c->count elements the arrays in and out have on this rank. */
static void count_pieces(const job *j, int64_t *in, int64_t *out)
{
    const bool root = j->g->rank == j->c->peer;
    const td_collective_kind kind = j->c->kind;
    bool many_in = kind == TD_COLLECTIVE_REDUCE_SCATTER || kind == TD_COLLECTIVE_ALL_TO_ALL ||
                   (kind == TD_COLLECTIVE_SCATTER && root);
    bool many_out = kind == TD_COLLECTIVE_ALL_GATHER || kind == TD_COLLECTIVE_ALL_TO_ALL ||
                    (kind == TD_COLLECTIVE_GATHER && root);
    *in = j->c->in == NULL ? 0 : many_in ? j->g->size : 1;
    *out = j->c->out == NULL ? 0 : many_out ? j->g->size : 1;
}

static td_status transfer(job *j)
{
    const td_collective *c = j->c;
    td_gloo_engine *g = j->g;
    int64_t in, out;
    count_pieces(j, &in, &out);
    void *source = (void *)(uintptr_t)c->in; /* gloo has one kind of buffer for both directions */
    j->in = g->api->buffer(g->gloo, source, (size_t)(in * c->count) * j->size, false);
    j->out = g->api->buffer(g->gloo, c->out, (size_t)(out * c->count) * j->size, false);
    if (j->in == NULL || j->out == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for gloo's buffers");
    }
    TD_TRY(announce(j));
    switch (c->kind) {
    case TD_COLLECTIVE_ALL_REDUCE:
    case TD_COLLECTIVE_REDUCE:
    case TD_COLLECTIVE_REDUCE_SCATTER:
        return reduce(j);
    case TD_COLLECTIVE_ALL_TO_ALL:
        return c->in == c->out ? move_copied(j) : move(j);
    default:
        return move(j);
    }
}

static void free_buffers(const job *j)
{
    const td_gloo_api *api = j->g->api;
    for (int r = 0; j->scratch != NULL && r < j->g->size; r++) {
        if (j->scratch[r] != NULL) {
            api->buffer_free(j->scratch[r]);
        }
    }
    free(j->scratch);
    if (j->in != NULL) {
        api->buffer_free(j->in);
    }
    if (j->out != NULL) {
        api->buffer_free(j->out);
    }
}

td_status td_gloo_run(void *engine, const td_collective *c)
{
    job j = { .g = engine, .c = c, .size = td_dtype_size(c->dtype) };
    if (c->kind == TD_COLLECTIVE_BARRIER || c->count == 0) {
        TD_TRY(announce(&j));
        return listen(&j);
    }
    td_status status = transfer(&j);
    free_buffers(&j);
    return status;
}
