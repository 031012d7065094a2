/* Shards: ranks have divided the state, and it goes on when one of them dies.
 *
 * After the optimizer's step n each rank exports its windows of the values and of the optimizer's
 * state, sends them to the next rank (the last rank to the first), and keeps what comes from the
 * rank before. Then comes a barrier. Until a rank has left it, the rank keeps the copies of
 * step n - 1, too. A rank that leaves the barrier knows that all have the copies of step n: it
 * counts the step, and frees those of step n - 1.
 *
 * When a rank has died, each process says which step it has counted, and which cut it has: the
 * world whose windows are in its copies. The latest cut goes on, and in it the latest step n
 * (members.c). If one process has counted n, then all have the copies of n, and those that have not
 * counted get the rest of the state from one that has. If none has, all are at n - 1, and do step
 * n again.
 *
 * The next world divides the model again. Its ranks say which copies they have. For each window of
 * the old cut the first of them broadcasts the bytes, and each rank takes what is in its new
 * window. Then all export and exchange in the new cut, as after a step; the copies of the old cut
 * stay until the barrier. So a death
 *
 *     before the gradients are there                 leads to n - 1: nothing has changed
 *     in the update or in the exchange               leads to n - 1, from copies
 *     in the barrier                                 leads to n if one has left it, or to n - 1
 *     while the next world divides the model         leads to the next world, with the same copies
 *     of two neighbours before the next barrier      leaves a window that no rank has: the run
 *                                                    ends, and asks for its latest checkpoint
 */
#include "dist/elastic/internal.h"

#include "dist/comm/collectives.h"
#include "nn/optim/optim_internal.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <stdlib.h>

static td_params *divided(const td_elastic *e)
{
    return td_params_trained(e->options.state->model);
}

td_status td_elastic_can_divide(const td_elastic_options *o)
{
    const td_checkpoint_options *state = o->state;
    const td_params *params = td_params_laid_out(state->model);
    TD_CHECK(state->model->device.type == TD_DEVICE_CPU && state->ema == NULL &&
                 state->scaler == NULL,
             TD_E_UNSUPPORTED,
             "td_elastic_open: a .strategy is for models on the CPU so far, without averages of "
             "the weights and without a loss scaler, which a step that is undone would change");
    return params != NULL ? td_params_check_export(params) : TD_OK;
}

/* ---- copies ---- */

static void free_copies(td_elastic_copies *c)
{
    td_free(c->own);
    td_free(c->before);
    *c = (td_elastic_copies){ 0 };
}

void td_elastic_free_copies(td_elastic *e)
{
    free_copies(&e->shards.now);
    free_copies(&e->shards.next);
}

size_t td_elastic_copy_bytes(const td_elastic *e)
{
    const td_elastic_copies *c = &e->shards.now;
    return td_tensor_bytes(c->own) + td_tensor_bytes(c->before);
}

static bool copies_fit(const td_elastic *e, const td_elastic_copies *c)
{
    return c->own != NULL && c->cut == e->shards.cut && c->step == e->step;
}

/* The copies of the step before are not needed any more. */
static void next_counts(td_elastic_shards *s)
{
    free_copies(&s->now);
    s->now = s->next;
    s->next = (td_elastic_copies){ 0 };
}

static td_status make_copies(const td_elastic *e, td_elastic_copies *c)
{
    int64_t bytes = td_params_export_bytes(divided(e));
    c->own = td_zeros(TD_SHAPE(bytes), TD_U8, TD_CPU);
    c->before = c->own != NULL && c->ranks > 1 ? td_zeros(TD_SHAPE(bytes), TD_U8, TD_CPU) : NULL;
    if (c->own == NULL || (c->before == NULL && c->ranks > 1)) {
        return TD_E_NOMEM;
    }
    td_params_export(divided(e), td_ptr(c->own));
    return TD_OK;
}

static td_status copies_exchange(td_elastic_copies *c)
{
    td_work *sent = NULL, *come = NULL;
    td_status status = td_send(NULL, c->own, (c->rank + 1) % c->ranks, &sent);
    TD_TRY(status);
    status = td_recv(NULL, c->before, (c->rank + c->ranks - 1) % c->ranks, &come);
    status = status == TD_OK ? td_work_wait(come, 0.0) : status;
    td_status outcome = td_work_wait(sent, 0.0);
    return status == TD_OK ? outcome : status;
}

td_status td_elastic_copy(td_elastic *e, int64_t step)
{
    td_elastic_shards *s = &e->shards;
    td_elastic_copies *next = &s->next;
    free_copies(next);
    *next = (td_elastic_copies){
        .cut = e->world, .step = step, .rank = e->rank, .ranks = e->members.count
    };
    td_status status = make_copies(e, next);
    status = status == TD_OK && next->ranks > 1 ? copies_exchange(next) : status;
    if (status != TD_OK) {
        free_copies(next);
        return status;
    }
    TD_TRY(td_barrier(NULL));
    next_counts(s);
    s->cut = e->world;
    return TD_OK;
}

/* ---- the next world ---- */

td_status td_elastic_settle_copies(td_elastic *e)
{
    td_elastic_shards *s = &e->shards;
    s->cut = e->members.cut;
    if (copies_fit(e, &s->next)) {
        next_counts(s);
    }
    if (s->cut > 0 || copies_fit(e, &s->now) || e->rank >= e->members.whole) {
        return TD_OK;
    }
    free_copies(&s->now);
    s->now = (td_elastic_copies){ .step = e->step, .ranks = 1 };
    return make_copies(e, &s->now);
}

/* What a rank has: copies of a window and of the one before, and their bytes. */
typedef struct copies_row {
    double window, windows, bytes; /* windows 0: it has none */
} copies_row;

static bool row_has(const copies_row *row, int window)
{
    int own = (int)row->window, all = (int)row->windows;
    return all > 0 && (own == window || (own + all - 1) % all == window);
}

/* Takes a window of the old cut from the first rank that has it. */
static td_status bring_window(td_elastic *e, const copies_row *table, int window)
{
    int from = 0;
    while (from < e->members.count && !row_has(&table[from], window)) {
        from++;
    }
    e->shards.lost = from == e->members.count;
    TD_CHECK(!e->shards.lost, TD_E_PEER,
             "the processes that had window %d of the state after step %" PRId64 " and its copy "
             "have both died: start the run again from its latest checkpoint (tdrun --max-restarts "
             "N does)",
             window, e->step);
    const td_elastic_copies *c = &e->shards.now;
    bool has = row_has(&table[e->rank], window);
    td_tensor *bytes = has && c->rank == window ? c->own
                       : has                    ? c->before
                             : td_zeros(TD_SHAPE((int64_t)table[from].bytes), TD_U8, TD_CPU);
    td_status status = bytes != NULL ? td_broadcast(NULL, bytes, from, NULL) : TD_E_NOMEM;
    if (status == TD_OK) {
        td_params_import(divided(e), td_ptr(bytes));
    }
    td_free(has ? NULL : bytes);
    return status;
}

/* table: zeros; a row for each rank, and one for rank 0's learning rate. */
static td_status bring_windows(td_elastic *e, copies_row *table)
{
    const td_elastic_copies *c = &e->shards.now;
    int ranks = e->members.count, windows = 1;
    td_optim *optim = e->options.state->optim;
    if (copies_fit(e, c)) {
        table[e->rank] = (copies_row){ c->rank, c->ranks, (double)td_tensor_bytes(c->own) };
    }
    table[ranks].bytes = e->rank == 0 && optim != NULL ? optim->lr : 0.0;
    TD_TRY(td_all_reduce_numbers(NULL, &table->window, 3 * (ranks + 1)));
    for (int r = 0; r < ranks; r++) {
        windows = table[r].windows > windows ? (int)table[r].windows : windows;
    }
    for (int window = 0; window < windows; window++) {
        TD_TRY(bring_window(e, table, window));
    }
    if (optim != NULL) {
        optim->lr = table[ranks].bytes;
    }
    return TD_OK;
}

td_status td_elastic_divide(td_elastic *e)
{
    copies_row *table = calloc((size_t)e->members.count + 1, sizeof *table);
    TD_CHECK(table != NULL, TD_E_NOMEM, "no memory to divide the run's state");
    td_params_meet(divided(e));
    td_status status = bring_windows(e, table);
    free(table);
    TD_TRY(status);
    td_params_meet(divided(e));
    return td_elastic_copy(e, e->step);
}
