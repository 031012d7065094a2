/* Small helpers of training loops on several ranks: evaluation, means, and printing on rank 0. */
#include "data/inspect.h"
#include "dist/comm/collectives.h"
#include "dist/dist.h"
#include "nn/around.h"
#include "nn/internal.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

/* Differs, almost surely, if parameters differ. Below 2^32, so that sums are exact; NaN: no memory.
 */
static double hash_parameters(const td_module *net)
{
    uint64_t hash = TD_HASH_BEGIN;
    td_state_list list = td_module_state(net);
    bool read = list.count >= 0;
    for (int i = 0; i < list.count && read; i++) {
        const td_tensor *t = list.items[i].tensor;
        size_t bytes = list.items[i].buffer ? 0 : (size_t)td_numel(t) * sizeof(double);
        char *values = malloc(bytes + 1);
        read = values != NULL;
        if (read && bytes > 0) {
            td_read(t, values, TD_F64);
            hash = td_hash_bytes(hash, values, bytes);
        }
        free(values);
    }
    td_state_list_free(&list);
    return read ? (double)(uint32_t)hash : NAN;
}

enum { LOSS, RIGHT, SEEN, FAILED, LENGTH, HASH, NUMBERS };

/* What several ranks forget most easily gives no error, only wrong numbers. */
static void warn_of_mistakes(const double *mine, const double *sums, td_site at)
{
    int ranks = td_dist_world_size();
    if (fabs(sums[HASH] - mine[HASH] * ranks) > 0) {
        fprintf(stderr,
                "tandem: warning: %s:%d: td_evaluate: the parameters differ between ranks, so each "
                "rank trains a model of its own: td_ddp is missing\n",
                at.file, at.line);
    }
    if (sums[LENGTH] == mine[LENGTH] * ranks && sums[SEEN] > mine[LENGTH]) {
        fprintf(
            stderr,
            "tandem: warning: %s:%d: td_evaluate: %.0f samples seen of a dataset of %.0f: if the "
            "ranks have the same dataset, give the loader td_distributed_sampler(.no_padding = "
            "true)\n",
            at.file, at.line, sums[SEEN], mine[LENGTH]);
    }
}

/* A rank that has failed comes here, too, or the others would wait for it. What surrounds the model
 * (DDP) keeps the parameters of all ranks equal, and may keep them in parts. */
static td_status add_ranks(const td_module *net, const td_loader *loader, td_evaluation *e,
                           td_site at)
{
    double mine[NUMBERS] = { [LOSS] = e->loss,
                             [RIGHT] = (double)e->right,
                             [SEEN] = (double)e->seen,
                             [FAILED] = e->status != TD_OK,
                             [LENGTH] = (double)td_loader_dataset(loader)->length,
                             [HASH] = td_module_wrapper(net) != NULL ? 0 : hash_parameters(net) };
    double sums[NUMBERS];
    memcpy(sums, mine, sizeof sums);
    td_status own = e->status, reduced = td_all_reduce_numbers(NULL, sums, NUMBERS);
    if (reduced == TD_OK) {
        e->loss = sums[LOSS];
        e->right = (int64_t)sums[RIGHT];
        e->seen = (int64_t)sums[SEEN];
    }
    TD_TRY(own);
    TD_TRY(reduced);
    if (sums[FAILED] > 0) {
        return td_fail(TD_E_PEER, "td_evaluate: %.0f other rank(s) failed; see their messages",
                       sums[FAILED]);
    }
    if (td_dist_rank() == 0) {
        warn_of_mistakes(mine, sums, at);
    }
    return TD_OK;
}

/* Nobody should take NaN for a number. */
static td_status check_numbers(const td_evaluation *e)
{
    if (e->seen == 0) {
        return td_fail(TD_E_ARG,
                       "td_evaluate: there is no sample: the loader's sampler gives none");
    }
    return isfinite(e->loss)
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "td_evaluate: the loss is %g over %lld samples: weights or running "
                         "statistics are so large, or so far from the data, that the model's "
                         "numbers overflow; try a lower learning rate or larger batches; "
                         "td_set_debug_nan(true) stops at the operation where it begins",
                         e->loss, (long long)e->seen);
}

td_evaluation td_evaluate_at(td_module *net, td_loader *loader, td_site at)
{
    TD_REQUIRE(net != NULL && loader != NULL, at,
               "td_evaluate: the %s is NULL: an earlier call "
               "failed (%s)",
               net == NULL ? "module" : "loader", td_last_error());
    TD_REQUIRE(!td_in_step(), at,
               "td_evaluate: call it outside of a step (TD_STEP): each of its batches is a step");
    td_evaluation e = { .status = TD_OK };
    if (td_dist_is_initialized()) {
        e.status = td_broadcast_buffers(net);
    }
    if (e.status == TD_OK) { /* ranks may have different numbers of batches */
        e.status = td_module_gather(net, true);
    }
    if (e.status == TD_OK) {
        run_batches(net, loader, &e, at);
    }
    if (td_dist_is_initialized()) {
        e.status = add_ranks(net, loader, &e, at);
    }
    td_module_gather(net, false);
    e.loss /= (double)e.seen;
    e.accuracy = (double)e.right / (double)e.seen;
    e.status = e.status == TD_OK ? check_numbers(&e) : e.status;
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
