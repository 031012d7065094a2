/* Small helpers of training loops on several ranks: evaluation, means, and printing on rank 0. */
#include "data/inspect.h"
#include "dist/comm/collectives.h"
#include "dist/ddp/extra.h"
#include "nn/internal.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>

td_status td_broadcast_buffers(td_module *net)
{
    td_status status = TD_OK;
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        if (list.items[i].buffer) {
            status = td_broadcast(NULL, list.items[i].tensor, 0, NULL);
        }
    }
    td_state_list_free(&list);
    return list.count < 0 ? TD_E_NOMEM : status;
}

/* This rank's batches. loss is the sum over samples. */
static void run_batches(td_module *net, td_loader *loader, td_evaluation *sums, td_site at)
{
    bool *modes = td_eval_for_now(net);
    if (modes == NULL) {
        sums->status = TD_E_NOMEM;
        return;
    }
    td_loader_seek(loader, td_loader_epoch(loader), 0); /* somebody may have read a part of it */
    td_no_grad_begin();
    for (td_batch batch; td_loader_next(loader, &batch);) {
        td_step_begin();
        td_tensor *logits = td_forward_at(net, batch.x, at);
        sums->loss += td_item(td_cross_entropy(logits, batch.y)) * (double)batch.size;
        sums->right += (int64_t)td_item(td_count_top(logits, batch.y, 1));
        sums->seen += batch.size;
        td_step_end();
    }
    td_no_grad_end();
    td_give_modes_back(net, modes);
    sums->status = td_loader_status(loader);
}

/* A rank that has failed comes here, too, or the others would wait for it. */
static td_status add_ranks(td_evaluation *sums)
{
    double numbers[] = { sums->loss, (double)sums->right, (double)sums->seen,
                         sums->status != TD_OK };
    td_status own = sums->status, reduced = td_all_reduce_numbers(NULL, numbers, 4);
    if (reduced == TD_OK) {
        sums->loss = numbers[0];
        sums->right = (int64_t)numbers[1];
        sums->seen = (int64_t)numbers[2];
    }
    TD_TRY(own);
    TD_TRY(reduced);
    return numbers[3] == 0
               ? TD_OK
               : td_fail(TD_E_PEER, "td_evaluate: %g other rank(s) failed; see their messages",
                         numbers[3]);
}

td_evaluation td_evaluate_at(td_module *net, td_loader *loader, td_site at)
{
    TD_REQUIRE(net != NULL && loader != NULL, at,
               "td_evaluate: the %s is NULL: an earlier call "
               "failed (%s)",
               net == NULL ? "module" : "loader", td_last_error());
    td_evaluation e = { .status = TD_OK };
    if (td_dist_is_initialized()) {
        e.status = td_broadcast_buffers(net);
    }
    if (e.status == TD_OK) { /* ranks may have different numbers of batches */
        e.status = td_unshard(net);
    }
    if (e.status == TD_OK) {
        run_batches(net, loader, &e, at);
    }
    if (td_dist_is_initialized()) {
        e.status = add_ranks(&e);
    }
    td_reshard(net);
    e.loss /= (double)e.seen;
    e.accuracy = (double)e.right / (double)e.seen;
    return e;
}

double td_all_reduce_mean(double x)
{
    bool alone = !td_dist_is_initialized();
    return alone || td_all_reduce_numbers(NULL, &x, 1) == TD_OK ? x / td_dist_world_size() : NAN;
}

void td_printf_rank0(const char *format, ...)
{
    if (td_dist_rank() == 0) {
        va_list values;
        va_start(values, format);
        vprintf(format, values);
        va_end(values);
        fflush(stdout);
    }
}
