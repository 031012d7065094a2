/* The gloo and mpi engines: the collectives. Each rank sends data directly to the ranks that need
 * it. */
#include "dist/comm/engines/p2p/job.h"

#include <stdlib.h>
#include <string.h>

/* ---- posting and waiting ---- */

td_status td_p2p_check(const td_p2p_job *j, td_p2p_result result)
{
    return result == TD_P2P_OK ? TD_OK : td_p2p_fail(j->g, result);
}

uint64_t td_p2p_job_slot(const td_p2p_job *j, td_p2p_use use)
{
    return td_p2p_slot(use, j->g->turn, j->c);
}

/* Posts a send of elements from `from` on of the array in to rank r. */
td_status td_p2p_send_in(td_p2p_job *j, int r, int64_t from, int64_t count)
{
    j->in_sends++;
    return td_p2p_check(j, j->g->api->send(j->in, r, td_p2p_job_slot(j, TD_P2P_DATA),
                                           (size_t)from * j->size, (size_t)count * j->size));
}

td_status td_p2p_receive_out(td_p2p_job *j, td_p2p_use use, int r, int64_t from, int64_t count)
{
    j->out_recvs++;
    atomic_fetch_add(&j->g->moved, (uint64_t)count * j->size);
    return td_p2p_check(j, j->g->api->recv(j->out, r, td_p2p_job_slot(j, use),
                                           (size_t)from * j->size, (size_t)count * j->size));
}

/* Waits for all posted transfers of the caller's arrays. */
td_status td_p2p_wait_arrays(td_p2p_job *j)
{
    const td_p2p_api *api = j->g->api;
    for (; j->out_recvs > 0; j->out_recvs--) {
        TD_TRY(td_p2p_check(j, api->wait_recv(j->out, td_p2p_patience(j->c))));
    }
    for (; j->in_sends > 0; j->in_sends--) {
        TD_TRY(td_p2p_check(j, api->wait_send(j->in, td_p2p_patience(j->c))));
    }
    for (; j->out_sends > 0; j->out_sends--) {
        TD_TRY(td_p2p_check(j, api->wait_send(j->out, td_p2p_patience(j->c))));
    }
    return TD_OK;
}

/* ---- headers ---- */

/* Sends this rank's header to all other ranks, and posts the receives of theirs. */
static td_status announce(const td_p2p_job *j)
{
    td_p2p_engine *g = j->g;
    const uint64_t header_slot = td_p2p_slot(TD_P2P_HEADER, ++g->turn, NULL);
    td_p2p_fill_header(&g->mine, g->turn, j->c);
    for (int r = 0; r < g->size; r++) {
        if (r != g->rank) {
            TD_TRY(td_p2p_check(j, g->api->recv(g->peers[r].heard_buffer, r, header_slot, 0,
                                                sizeof(td_p2p_header))));
            TD_TRY(td_p2p_check(
                j, g->api->send(g->mine_buffer, r, header_slot, 0, sizeof(td_p2p_header))));
        }
    }
    return TD_OK;
}

/* Waits for the other ranks' headers and compares. */
td_status td_p2p_listen(const td_p2p_job *j)
{
    const td_p2p_engine *g = j->g;
    for (int r = 0; r < g->size; r++) {
        if (r != g->rank) {
            TD_TRY(td_p2p_check(
                j, g->api->wait_recv(g->peers[r].heard_buffer, td_p2p_patience(j->c))));
            TD_TRY(td_p2p_compare(g, j->c, r, &g->peers[r].heard));
        }
    }
    for (int r = 1; r < g->size; r++) {
        TD_TRY(td_p2p_check(j, g->api->wait_send(g->mine_buffer, td_p2p_patience(j->c))));
    }
    return TD_OK;
}

/* ---- collectives that only move data ---- */

/* Copies piece `from` of in to piece `to` of out. */
static void copy_own(const td_p2p_job *j, int64_t from, int64_t to)
{
    const td_collective *c = j->c;
    size_t bytes = (size_t)c->count * j->size;
    memmove((char *)c->out + (size_t)to * bytes, (const char *)c->in + (size_t)from * bytes, bytes);
}

/* Which piece of in is sent to rank r, and which piece of out comes from rank r; negative: none. */
static int64_t piece_to(const td_p2p_job *j, int r)
{
    int size = j->g->size, given = td_pieces_given(j->c, j->g->rank, size);
    bool moves = given > 0 && td_pieces_taken(j->c, r, size) > 0;
    return !moves ? -1 : td_kind_of(j->c->kind)->gives_all ? r : 0;
}

static int64_t piece_from(const td_p2p_job *j, int r)
{
    int size = j->g->size, taken = td_pieces_taken(j->c, j->g->rank, size);
    bool moves = taken > 0 && td_pieces_given(j->c, r, size) > 0;
    return !moves ? -1 : td_kind_of(j->c->kind)->takes_all ? r : 0;
}

static td_status p2p_move(td_p2p_job *j)
{
    const int rank = j->g->rank;
    const int64_t count = j->c->count;
    for (int i = 1; i < j->g->size; i++) {
        /* Each rank begins with the next rank, so that not all send to the same one. */
        int r = (rank + i) % j->g->size;
        if (piece_from(j, r) >= 0) {
            TD_TRY(td_p2p_receive_out(j, TD_P2P_DATA, r, piece_from(j, r) * count, count));
        }
        if (piece_to(j, r) >= 0) {
            TD_TRY(td_p2p_send_in(j, r, piece_to(j, r) * count, count));
        }
    }
    if (piece_from(j, rank) >= 0 && piece_to(j, rank) >= 0) {
        copy_own(j, piece_to(j, rank), piece_from(j, rank));
    }
    TD_TRY(td_p2p_listen(j));
    return td_p2p_wait_arrays(j);
}

/* all_to_all in place: sends from a copy, because received data overwrites the array. */
static td_status move_copied(td_p2p_job *j)
{
    const td_collective *c = j->c;
    td_p2p_engine *g = j->g;
    size_t bytes = (size_t)(c->count * g->size) * j->size;
    void *copy = malloc(bytes);
    TD_CHECK(copy != NULL, TD_E_NOMEM, "out of memory for an all_to_all in place");
    memcpy(copy, c->in, bytes);
    td_p2p_buffer *in = j->in;
    j->in = g->api->buffer(g->p2p, copy, bytes, TD_P2P_WAITS);
    td_status status =
        j->in != NULL ? p2p_move(j) : td_fail(TD_E_NOMEM, "out of memory for a transfer");
    if (j->in != NULL) {
        g->api->buffer_free(j->in);
    }
    j->in = in;
    free(copy);
    return status;
}

/* ---- choosing ---- */

static td_status transfer(td_p2p_job *j)
{
    const td_collective *c = j->c;
    td_p2p_engine *g = j->g;
    int in = td_pieces_given(c, g->rank, g->size), out = td_pieces_taken(c, g->rank, g->size);
    void *source = (void *)(uintptr_t)c->in; /* there is one kind of buffer for both ways */
    j->in = g->api->buffer(g->p2p, source, (size_t)(in * c->count) * j->size, TD_P2P_WAITS);
    j->out = g->api->buffer(g->p2p, c->out, (size_t)(out * c->count) * j->size, TD_P2P_WAITS);
    TD_CHECK(j->in != NULL && j->out != NULL, TD_E_NOMEM, "out of memory for transfers");
    TD_TRY(announce(j));
    if (td_kind_of(c->kind)->reduces) {
        return td_p2p_reduce(j);
    }
    bool overlaps = c->kind == TD_COLLECTIVE_ALL_TO_ALL && c->in == c->out;
    return overlaps ? move_copied(j) : p2p_move(j);
}

static void free_buffers(const td_p2p_job *j)
{
    const td_p2p_api *api = j->g->api;
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

td_status td_p2p_run(void *engine, const td_collective *c)
{
    td_p2p_job j = { .g = engine, .c = c, .size = td_dtype_size(c->dtype) };
    if (j.g->api->in_background != NULL) {
        j.g->api->in_background(j.g->p2p, c->background);
    }
    if (c->kind == TD_COLLECTIVE_BARRIER || c->count == 0) {
        TD_TRY(announce(&j));
        return td_p2p_listen(&j);
    }
    td_status status = transfer(&j);
    free_buffers(&j);
    return status;
}
