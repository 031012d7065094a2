/* The gloo and mpi engines: the collectives. Each rank sends data directly to the ranks that need
 * it. */
#include "dist/comm/engines/p2p/job.h"

#include <stdlib.h>
#include <string.h>

/* ---- posting and waiting ---- */

/* Fails with the cause if a transfer has failed. */
static td_status check_transfer(const td_p2p_job *j, td_p2p_result result)
{
    return result == TD_P2P_OK ? TD_OK : td_p2p_fail(j->g, result);
}

td_status td_p2p_open_array(td_p2p_job *j, td_p2p_array *a, const void *memory, size_t bytes)
{
    void *both = (void *)(uintptr_t)memory; /* there is one kind of buffer for both ways */
    *a = (td_p2p_array){ .buffer = j->g->api->buffer(j->g->p2p, both, bytes, TD_P2P_WAITS) };
    TD_CHECK(a->buffer != NULL, TD_E_NOMEM, "out of memory for transfers");
    return TD_OK;
}

td_status td_p2p_send(td_p2p_job *j, td_p2p_array *a, td_p2p_use use, int r, int64_t from,
                      int64_t count)
{
    a->sends++;
    return check_transfer(j, j->g->api->send(a->buffer, r, td_p2p_slot(use, j->g->turn, j->c),
                                             (size_t)from * j->size, (size_t)count * j->size));
}

td_status td_p2p_receive(td_p2p_job *j, td_p2p_array *a, td_p2p_use use, int r, int64_t from,
                         int64_t count)
{
    a->recvs++;
    atomic_fetch_add(&j->g->moved, (uint64_t)count * j->size);
    return check_transfer(j, j->g->api->recv(a->buffer, r, td_p2p_slot(use, j->g->turn, j->c),
                                             (size_t)from * j->size, (size_t)count * j->size));
}

td_status td_p2p_wait_receive(td_p2p_job *j, td_p2p_array *a)
{
    a->recvs--;
    return check_transfer(j, j->g->api->wait_recv(a->buffer, td_p2p_patience(j->c)));
}

td_status td_p2p_wait(td_p2p_job *j, td_p2p_array *a)
{
    while (a->recvs > 0) {
        TD_TRY(td_p2p_wait_receive(j, a));
    }
    for (; a->sends > 0; a->sends--) {
        TD_TRY(check_transfer(j, j->g->api->wait_send(a->buffer, td_p2p_patience(j->c))));
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
            TD_TRY(check_transfer(j, g->api->recv(g->peers[r].heard_buffer, r, header_slot, 0,
                                                  sizeof(td_p2p_header))));
            TD_TRY(check_transfer(
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
            TD_TRY(check_transfer(
                j, g->api->wait_recv(g->peers[r].heard_buffer, td_p2p_patience(j->c))));
            TD_TRY(td_p2p_compare(g, j->c, r, &g->peers[r].heard));
        }
    }
    for (int r = 1; r < g->size; r++) {
        TD_TRY(check_transfer(j, g->api->wait_send(g->mine_buffer, td_p2p_patience(j->c))));
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
            TD_TRY(td_p2p_receive(j, &j->out, TD_P2P_DATA, r, piece_from(j, r) * count, count));
        }
        if (piece_to(j, r) >= 0) {
            TD_TRY(td_p2p_send(j, &j->in, TD_P2P_DATA, r, piece_to(j, r) * count, count));
        }
    }
    if (piece_from(j, rank) >= 0 && piece_to(j, rank) >= 0) {
        copy_own(j, piece_to(j, rank), piece_from(j, rank));
    }
    TD_TRY(td_p2p_listen(j));
    TD_TRY(td_p2p_wait(j, &j->out));
    return td_p2p_wait(j, &j->in);
}

/* all_to_all in place: sends from a copy, because received data overwrites the array. */
static td_status move_copied(td_p2p_job *j)
{
    const td_collective *c = j->c;
    size_t bytes = (size_t)(c->count * j->g->size) * j->size;
    void *copy = malloc(bytes);
    TD_CHECK(copy != NULL, TD_E_NOMEM, "out of memory for an all_to_all in place");
    memcpy(copy, c->in, bytes);
    td_p2p_array in = j->in;
    td_status status = td_p2p_open_array(j, &j->in, copy, bytes);
    status = status == TD_OK ? p2p_move(j) : status;
    td_p2p_free_buffer(j->g, j->in.buffer);
    j->in = in;
    free(copy);
    return status;
}

/* ---- choosing ---- */

static td_status transfer(td_p2p_job *j)
{
    const td_collective *c = j->c;
    const td_p2p_engine *g = j->g;
    int in = td_pieces_given(c, g->rank, g->size), out = td_pieces_taken(c, g->rank, g->size);
    TD_TRY(td_p2p_open_array(j, &j->in, c->in, (size_t)(in * c->count) * j->size));
    TD_TRY(td_p2p_open_array(j, &j->out, c->out, (size_t)(out * c->count) * j->size));
    TD_TRY(announce(j));
    if (td_kind_of(c->kind)->reduces) {
        return td_p2p_reduce(j);
    }
    bool overlaps = c->kind == TD_COLLECTIVE_ALL_TO_ALL && c->in == c->out;
    return overlaps ? move_copied(j) : p2p_move(j);
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
    for (int r = 0; j.scratch != NULL && r < j.g->size; r++) {
        td_p2p_free_buffer(j.g, j.scratch[r].buffer);
    }
    free(j.scratch);
    td_p2p_free_buffer(j.g, j.in.buffer);
    td_p2p_free_buffer(j.g, j.out.buffer);
    return status;
}
