/* Small helpers of training loops on several ranks: evaluation, means, and printing on rank 0. */
#include "data/inspect.h"
#include "dist/comm/collectives.h"
#include "dist/dist.h"
#include "nn/around.h"
#include "nn/internal.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static td_status broadcast_buffers(td_module *net, td_group *group)
{
    td_status status = TD_OK;
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        if (list.items[i].buffer) {
            status = td_broadcast(group, list.items[i].tensor, 0, NULL);
        }
    }
    td_state_list_free(&list);
    return list.count < 0 ? TD_E_NOMEM : status;
}

td_status td_broadcast_buffers(td_module *net)
{
    return broadcast_buffers(net, NULL);
}

/* What td_evaluate measures without .measure. Tokens' logits are a classifier's, row by row. */
static td_tensor *classify(td_module *net, const td_batch *batch, td_tensor **sums, td_site at)
{
    td_tensor *logits = td_forward_at(net, batch->x, at), *labels = batch->y;
    if (labels->ndim > 1) {
        int64_t classes = logits->shape[logits->ndim - 1];
        logits = td_reshape_at(logits, TD_SHAPE(td_numel(labels), classes), at);
        labels = td_reshape_at(labels, TD_SHAPE(td_numel(labels)), at);
    }
    sums[0] = td_count_top_at(logits, labels, 1, at);
    return td_cross_entropy_at((td_cross_entropy_options){ .logits = logits, .labels = labels },
                               at);
}

/* loss is a sum, too, until means are shown. */
static void add_batch(const td_evaluate_options *o, const td_batch *batch, int64_t targets,
                      td_evaluation *e, td_site at)
{
    td_tensor *sums[TD_SUMS] = { NULL };
    td_step_begin();
    td_tensor *loss = o->measure != NULL ? o->measure(o->net, batch, sums, o->user)
                                         : classify(o->net, batch, sums, at);
    e->loss += td_item(loss) * (double)targets;
    for (int i = 0; i < TD_SUMS; i++) {
        e->sums[i] += sums[i] != NULL ? td_item(sums[i]) : 0;
    }
    e->seen += targets;
    e->batches++;
    td_step_end();
}

static td_evaluation means_of(const td_evaluation *sums)
{
    td_evaluation e = *sums;
    e.right = (int64_t)e.sums[0];
    e.accuracy = e.sums[0] / (double)e.seen;
    e.loss /= (double)e.seen;
    return e;
}

/* This rank's batches. */
static void run_batches(const td_evaluate_options *o, td_evaluation *sums, td_site at)
{
    int64_t targets = td_dataset_targets(td_loader_dataset(o->loader));
    bool more = true;
    td_eval_for_now(o->net);
    /* somebody may have read a part of the epoch */
    td_loader_seek(o->loader, td_loader_epoch(o->loader), 0);
    td_no_grad_begin();
    for (td_batch batch; more && td_loader_next(o->loader, &batch);) {
        add_batch(o, &batch, batch.size * targets, sums, at);
        td_evaluation so_far = means_of(sums);
        more = o->batch_done == NULL || o->batch_done(&so_far, o->user);
    }
    td_no_grad_end();
    td_give_modes_back(o->net);
    sums->status = td_loader_status(o->loader);
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

enum { LOSS, SEEN, FAILED, LENGTH, HASH, SUMS, NUMBERS = SUMS + TD_SUMS };

/* What several ranks forget most easily gives no error, only wrong numbers. */
static void warn_of_mistakes(const double *mine, const double *sums, int ranks, td_site at)
{
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
static td_status add_ranks(const td_evaluate_options *o, td_evaluation *e, td_site at)
{
    const td_module *net = o->net;
    const td_dataset *dataset = td_loader_dataset(o->loader);
    td_group *group = o->group != NULL ? o->group : td_dist_world();
    int64_t targets = td_dataset_targets(dataset);
    double mine[NUMBERS] = { [LOSS] = e->loss,
                             [SEEN] = (double)(e->seen / targets), /* samples */
                             [FAILED] = e->status != TD_OK,
                             [LENGTH] = (double)dataset->length,
                             [HASH] = td_module_wrapper(net) != NULL ? 0 : hash_parameters(net) };
    double sums[NUMBERS];
    memcpy(mine + SUMS, e->sums, sizeof e->sums);
    memcpy(sums, mine, sizeof sums);
    td_status own = e->status, reduced = td_all_reduce_numbers(group, sums, NUMBERS);
    if (reduced == TD_OK) {
        e->loss = sums[LOSS];
        e->seen = (int64_t)sums[SEEN] * targets;
        memcpy(e->sums, sums + SUMS, sizeof e->sums);
    }
    TD_TRY(own);
    TD_TRY(reduced);
    TD_CHECK(sums[FAILED] <= 0, TD_E_PEER,
             "td_evaluate: %.0f other rank(s) failed; see their messages", sums[FAILED]);
    if (td_dist_rank() == 0) {
        warn_of_mistakes(mine, sums, td_group_size(group), at);
    }
    return TD_OK;
}

/* Nobody should take NaN for a number. */
static td_status check_numbers(const td_evaluation *e)
{
    TD_CHECK(e->seen != 0, TD_E_ARG,
             "td_evaluate: there is no sample: the loader's sampler gives none");
    return isfinite(e->loss)
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "td_evaluate: the loss is %g over %lld samples: weights or running "
                         "statistics are so large, or so far from the data, that the model's "
                         "numbers overflow; try a lower learning rate or larger batches; "
                         "td_set_debug_nan(true) stops at the operation where it begins",
                         e->loss, (long long)e->seen);
}

td_evaluation td_evaluate_at(td_evaluate_options o, td_site at)
{
    TD_REQUIRE(o.net != NULL && o.loader != NULL, at,
               "td_evaluate: the %s is NULL: an earlier call "
               "failed (%s)",
               o.net == NULL ? "module" : "loader", td_last_error());
    TD_REQUIRE(!td_in_step(), at,
               "td_evaluate: call it outside of a step (TD_STEP): each of its batches is a step");
    td_evaluation e = { .status = TD_OK };
    if (td_dist_is_initialized()) {
        e.status = broadcast_buffers(o.net, o.group);
    }
    if (e.status == TD_OK) { /* ranks may have different numbers of batches */
        e.status = td_module_gather(o.net, true);
    }
    if (e.status == TD_OK) {
        run_batches(&o, &e, at);
    }
    if (td_dist_is_initialized()) {
        e.status = add_ranks(&o, &e, at);
    }
    td_module_gather(o.net, false);
    e = means_of(&e);
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
