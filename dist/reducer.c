/* Reduction while backward runs. A parameter's ready hook counts down the gradients that its bucket
 * still needs. Full buckets are launched in the order of their numbers, so all ranks launch them in
 * the same order. The end of backward launches the other buckets and waits for all. */
#include "dist/ddp.h"

#include "dist/clock.h"
#include "dist/device_engine.h"
#include "dist/trace.h"
#include "dist/collectives.h"
#include "autograd/hooks.h"
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

/* ---- failures ---- */

void td_ddp_note(td_ddp_state *s, td_status status)
{
    if (status != TD_OK && s->status == TD_OK) {
        s->status = status;
        snprintf(s->message, sizeof s->message, "%s", td_last_error());
    }
}

void td_ddp_report(td_ddp_state *s)
{
    if (s->status == TD_OK) {
        return;
    }
    td_status status = s->status;
    s->status = TD_OK;
    if (s->on_error != NULL) {
        s->on_error(status, s->message, s->error_user);
    } else {
        td_fatal((td_site){ NULL, 0 }, "DistributedDataParallel, rank %d: %s", s->rank, s->message);
    }
}

/* ---- sending ---- */

double td_ddp_divisor(const td_ddp_state *s)
{
    return s->join.on && !s->join.by_initial_world ? s->join.live : s->world;
}

td_status td_ddp_average(td_ddp_state *s, td_tensor *t, td_work **work)
{
    if (td_ddp_divisor(s) == s->world) {
        return td_all_reduce(s->group, t, TD_AVERAGE, work);
    }
    td_mul_scalar_(t, 1.0 / td_ddp_divisor(s));
    return td_all_reduce(s->group, t, TD_SUM, work);
}

/* Copies parameter i's gradient to `kept` (KEEP) or back (RESTORE), or writes zeros (CLEAR). */
typedef enum gradient_copy { KEEP, RESTORE, CLEAR } gradient_copy;

static td_status copy_gradient(td_ddp_state *s, int i, gradient_copy copy)
{
    const td_param *p = td_params_get(s->params, i);
    td_tensor *grad = td_ddp_part(td_params_flat_grad(s->params), p->begin, p->count);
    if (grad == NULL) {
        return TD_E_NOMEM;
    }
    if (copy == CLEAR) {
        td_fill_(grad, 0.0);
    } else {
        td_tensor kept = td_ddp_stretch(s->kept, p->begin, p->count);
        td_copy_(copy == RESTORE ? grad : &kept, copy == RESTORE ? &kept : grad);
    }
    td_free(grad);
    return TD_OK;
}

/* Before a bucket is launched: a parameter without a gradient gets zeros, since its memory holds
 * old numbers. A gradient to which no backward has added since the last reduction is copied to
 * `kept`; if no rank has added to it, restore_unreached writes it back. */
static void clear_missing(td_ddp_state *s, const td_ddp_bucket *b)
{
    for (int i = 0; i < s->count; i++) {
        td_tensor *leaf = td_params_get(s->params, i)->tensor;
        if (&s->buckets[s->bucket_of[i]] != b || s->ready[i]) {
            continue;
        }
        if (td_grad(leaf) == NULL) {
            td_ddp_note(s, copy_gradient(s, i, CLEAR));
        } else if (s->kept != NULL && !s->used[i]) {
            td_ddp_note(s, copy_gradient(s, i, KEEP));
        }
    }
}

static void restore_unreached(td_ddp_state *s)
{
    for (int i = 0; s->kept != NULL && i < s->count; i++) {
        if (s->never_used[i] && td_grad(td_params_get(s->params, i)->tensor) != NULL) {
            td_ddp_note(s, copy_gradient(s, i, RESTORE));
        }
    }
}

/* Announces the reduction to the other ranks, once. */
static void begin_reduction(td_ddp_state *s)
{
    if (!s->launched) {
        s->launched = true;
        td_ddp_note(s, td_ddp_announce(s, TD_DDP_REDUCTION));
    }
}

/* Starts the all-reduce of the bucket's round: of its gradients, or of what the codec encodes. */
static void send_round(td_ddp_state *s, td_ddp_bucket *b)
{
    td_wire wire = { b->b.grad, false };
    if (s->status == TD_OK && s->codec != NULL) {
        double begin = td_ddp_mark(s);
        wire.tensor = NULL;
        td_ddp_note(s, s->codec->encode(s->codec_state, b->part, &b->b, b->round,
                                        1.0 / td_ddp_divisor(s), &wire));
        td_ddp_note_packing(s, begin);
    }
    if (s->status == TD_OK && wire.tensor != NULL) {
        td_ddp_note(s, wire.scaled ? td_all_reduce(s->group, wire.tensor, TD_SUM, &b->work)
                                   : td_ddp_average(s, wire.tensor, &b->work));
    }
}

static void launch(td_ddp_state *s, td_ddp_bucket *b)
{
    double begin = td_ddp_mark(s);
    begin_reduction(s);
    clear_missing(s, b);
    b->round = 0;
    send_round(s, b);
    td_ddp_note_launch(s, begin);
}

static void launch_full(td_ddp_state *s)
{
    while (s->next < s->bucket_count && s->buckets[s->next].pending == 0) {
        launch(s, &s->buckets[s->next++]);
    }
}

/* ---- the hooks ---- */

static void note_static(td_ddp_state *s, int param)
{
    if (s->usage_known && s->never_used[param]) {
        td_ddp_note(s, td_fail(TD_E_MISMATCH,
                               "the parameter '%s' was not used in the first step but is now, "
                               "although static_graph promises that this does not change",
                               td_params_get(s->params, param)->name));
    }
}

static void on_ready(td_tensor *leaf, void *user)
{
    (void)leaf;
    const td_ddp_watch *watch = user;
    td_ddp_state *s = watch->ddp;
    int i = watch->param;
    s->active = true;
    s->used[i] = true;
    note_static(s, i);
    if (s->no_sync_depth > 0 || s->ready[i]) {
        return;
    }
    s->ready[i] = true;
    s->ready_order[s->ready_count++] = i;
    if (!(s->usage_known && s->never_used[i])) {
        s->buckets[s->bucket_of[i]].pending--;
        launch_full(s);
    }
}

static void on_backward_end(td_tensor *const *unused, int count, void *user)
{
    (void)unused, (void)count; /* leaves of other models may be in the list */
    td_ddp_state *s = user;
    if (!s->active) {
        return; /* a backward that reached none of our parameters */
    }
    s->active = false;
    if (s->no_sync_depth == 0) {
        td_ddp_finish(s);
    }
    td_ddp_report(s);
}

bool td_ddp_watch_gradients(td_ddp_state *s)
{
    for (int i = 0; i < s->count; i++) {
        s->watches[i] = (td_ddp_watch){ s, i, 0 };
        s->watches[i].hook =
            td_on_grad_ready(td_params_get(s->params, i)->tensor, on_ready, &s->watches[i]);
        if (s->watches[i].hook < 0) {
            return false;
        }
    }
    s->end_hook = td_on_backward_end(on_backward_end, s);
    return s->end_hook > 0;
}

void td_ddp_arm(td_ddp_state *s)
{
    for (int i = 0; i < s->bucket_count; i++) {
        s->buckets[i].pending = 0;
    }
    for (int i = 0; i < s->count; i++) {
        s->ready[i] = s->used[i] = false;
        if (s->bucket_of[i] < s->bucket_count) { /* not if memory for buckets was short */
            s->buckets[s->bucket_of[i]].pending += !(s->usage_known && s->never_used[i]);
        }
    }
    s->ready_count = s->next = 0;
    s->launched = false;
}

/* ---- unused parameters ---- */

static bool finds_unused(const td_ddp_state *s)
{
    return s->options.find_unused_parameters || s->options.static_graph;
}

/* Fails if a parameter got no gradient. The other ranks wait for its bucket, so the group is
 * aborted with the reason. Only without find_unused_parameters and static_graph. */
static void fail_unused(td_ddp_state *s)
{
    char names[600] = "";
    size_t length = 0;
    int missing = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->used[i]) {
            continue;
        }
        const char *name = td_params_get(s->params, i)->name;
        if (length + strlen(name) + 16 < sizeof names) {
            length += (size_t)snprintf(names + length, sizeof names - length, "%s'%s'",
                                       missing > 0 ? ", " : "", name);
        }
        missing++;
    }
    if (missing == 0 || s->status != TD_OK) {
        return;
    }
    td_ddp_note(s, td_fail(TD_E_MISMATCH,
                           "%d parameter%s got no gradient in this backward, so its bucket cannot "
                           "be reduced: %s. If the loss does not always depend on all parameters, "
                           "set find_unused_parameters",
                           missing, missing == 1 ? "" : "s", names));
    char reason[800];
    snprintf(reason, sizeof reason, "rank %d: no gradient for %s (find_unused_parameters)", s->rank,
             names);
    td_group_abort(s->group, reason);
}

/* Finds which parameters no rank has used. A parameter that only other ranks have used gets a
 * gradient here as well: their sum is in its memory. */
static td_status share_usage(td_ddp_state *s)
{
    uint8_t *usage = td_data_rw(s->usage);
    for (int i = 0; i < s->count; i++) {
        usage[i] = s->used[i];
    }
    TD_TRY(td_all_reduce(s->group, s->usage, TD_MAX, NULL));
    for (int i = 0; i < s->count; i++) {
        if (usage[i] && !s->used[i]) {
            td_mark_grad(td_params_get(s->params, i)->tensor);
        }
        s->never_used[i] = !usage[i];
    }
    s->usage_known = s->options.static_graph;
    return TD_OK;
}

/* ---- the end of backward ---- */

/* When a bucket's all-reduce began; 0: not yet. */
static double begun_at(const td_ddp_state *s, int bucket)
{
    double queued, begun = 0.0, ended;
    if (bucket < s->bucket_count && s->buckets[bucket].work != NULL) {
        td_work_times(s->buckets[bucket].work, &queued, &begun, &ended);
    }
    return begun;
}

/* Waits for one bucket and notes its times. The times of a work can be read only before
 * td_work_wait. If the all-reduce still runs then, its times come from its neighbours, because
 * all-reduces follow each other: it began when the last one ended, and ended when the next one
 * began or when the wait returned. */
static void wait_for(td_ddp_state *s, int bucket, double *last_end)
{
    td_ddp_bucket *b = &s->buckets[bucket];
    if (b->work == NULL) {
        return;
    }
    double queued, begun, ended;
    bool done = td_work_test(b->work);
    td_work_times(b->work, &queued, &begun, &ended);
    td_ddp_note(s, td_work_wait(b->work, 0.0));
    b->work = NULL;
    if (!done || ended == 0.0) {
        double next = begun_at(s, bucket + 1);
        ended = next > 0.0 ? next : td_clock();
    }
    begun = begun > 0.0 ? begun : queued > *last_end ? queued : *last_end;
    *last_end = ended;
    s->stats.communication += ended - begun;
    td_trace_communication(b->name, begun, ended,
                           b->b.count * (int64_t)td_dtype_size(b->b.grad->dtype));
}

static void wait_for_all(td_ddp_state *s)
{
    if (s->status == TD_OK) { /* on a GPU the optimizer waits for the last bucket's event only */
        td_ddp_note(s, td_device_join_all(s->group));
    }
    double last_end = 0.0;
    bool under_way = true;
    while (under_way) { /* until no codec has another round */
        under_way = false;
        for (int i = 0; i < s->bucket_count; i++) {
            td_ddp_bucket *b = &s->buckets[i];
            bool summed = b->work != NULL;
            wait_for(s, i, &last_end);
            if (summed && s->codec != NULL && s->status == TD_OK) {
                b->round++;
                send_round(s, b);
                under_way = under_way || b->work != NULL;
            }
        }
    }
    for (int i = 0; i < s->bucket_count && s->codec != NULL && s->status == TD_OK; i++) {
        double begin = td_ddp_mark(s);
        td_ddp_note(s, s->codec->decode(s->codec_state, s->buckets[i].part, &s->buckets[i].b));
        td_ddp_note_packing(s, begin);
    }
}

void td_ddp_finish(td_ddp_state *s)
{
    td_ddp_begin_wait(s);
    if (!finds_unused(s) && !s->join.ran_out) {
        fail_unused(s);
    }
    while (s->status == TD_OK && s->next < s->bucket_count) {
        launch(s, &s->buckets[s->next++]);
    }
    if (s->status == TD_OK && finds_unused(s) && !s->usage_known) {
        td_ddp_note(s, share_usage(s));
    }
    wait_for_all(s);
    if (s->status == TD_OK) {
        restore_unreached(s);
    }
    td_ddp_keep_stats(s);
    if (s->codec != NULL && s->codec->stepped != NULL) {
        s->codec->stepped(s->codec_state);
    }
    if (s->status == TD_OK && !s->rebuilt && !s->options.find_unused_parameters) {
        td_ddp_note(s, td_ddp_rebuild(s));
    }
    td_ddp_arm(s);
}
