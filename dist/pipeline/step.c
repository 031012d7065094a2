/* A step of a pipeline, which follows the schedule's list of actions.
 *
 * All micro-batches of a step are on one tape. A stage's input is a persistent tensor, into which
 * the message is received, and a leaf: its gradient is what the stage before gets. Gradients of
 * weights add up micro-batch after micro-batch, in the same order in every schedule, so their bits
 * depend neither on the schedule nor on the number of ranks. */
#include "dist/pipeline/stages.h"

#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "dist/ddp/ddp.h"
#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <string.h>

typedef struct pipe_step {
    td_pipe *p;
    const td_pipeline_step_options *o;
    td_ddp_state *ddp;         /* NULL: one rank along dp */
    const td_ddp_turns *turns; /* micro-batches are turns; NULL: their gradients add up */
    int number;                /* of the running micro-batch, among all ranks' along dp in turns */
    bool overlaps; /* gradients are exchanged while the last backward runs, not after it */
    td_tensor *sums[TD_SUMS];
    double numbers[1 + TD_SUMS]; /* loss and sums */
    td_site at;
} pipe_step;

/* Micro-batch k of a batch, as a view of the step. */
static td_tensor *step_part(const pipe_step *s, td_tensor *t, int k)
{
    int64_t rows = t->shape[0] / s->p->plan.micro;
    td_shape shape = td_shape_of(t);
    shape.dim[0] = rows;
    td_tensor *part = td_step_view(t, t->offset + k * rows * t->stride[0], shape, t->stride, s->at);
    if (s->turns == NULL || td_is_dense(part)) {
        return part;
    }
    td_tensor *dense = td_step_new_like(part, s->at); /* a kernel's order may depend on gaps */
    td_copy_(dense, part);
    return dense;
}

/* The loss of a micro-batch, multiplied as the gradient needs it. */
static td_tensor *step_loss(pipe_step *s, td_tensor *x, int k)
{
    const td_pipeline_step_options *o = s->o;
    td_tensor *sums[TD_SUMS] = { NULL }, *y = o->y != NULL ? step_part(s, o->y, k) : NULL, *loss;
    td_batch batch = { .x = x, .y = y, .size = x->shape[0], .index = s->number };
    if (o->measure != NULL) {
        loss = o->measure(o->model, &batch, sums, o->user);
    } else if (o->model->type->forward2 != NULL) {
        loss = td_forward2_at(o->model, x, y, s->at);
    } else {
        td_cross_entropy_options ce = { .logits = td_forward_at(o->model, x, s->at), .labels = y };
        loss = td_cross_entropy_at(ce, s->at);
    }
    s->numbers[0] += td_item(loss) / s->p->plan.micro;
    for (int i = 0; i < TD_SUMS; i++) {
        s->numbers[1 + i] += sums[i] != NULL ? td_item(sums[i]) : 0.0;
    }
    double scale = o->scale != 0.0 ? o->scale : 1.0;
    return td_mul_scalar_at(loss, s->turns != NULL ? scale : scale / s->p->plan.micro, s->at);
}

static td_status step_forward(pipe_step *s, td_action a)
{
    td_pipe *p = s->p;
    int stage = td_pipe_stage(p, a.chunk), last = td_pipe_stages(p) - 1;
    TD_TRY(stage > 0 ? td_pipe_need(p, a, (stage - 1) % p->plan.ranks) : TD_OK);
    td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    td_tensor *x = stage == 0 ? step_part(s, s->o->x, a.micro) : slot->in;
    if (stage > 0 && p->plan.kind == TD_PLAN_ZB) { /* so the first product can be divided, too */
        x = td_reshape_at(x, td_shape_of(x), s->at);
    }
    p->now = a.chunk;
    slot->y = stage == last ? step_loss(s, x, a.micro) : td_forward_at(s->o->model, x, s->at);
    return stage < last ? td_pipe_send(p, a, slot->y) : TD_OK;
}

/* Whether this backward and those that follow are what td_ddp exchanges. */
static bool step_is_last(const pipe_step *s, td_action a)
{
    return s->ddp != NULL && s->overlaps && a.kind != 'W' && a.micro == s->p->plan.micro - 1;
}

static td_status step_backward(pipe_step *s, td_action a)
{
    td_pipe *p = s->p;
    int stage = td_pipe_stage(p, a.chunk), last = td_pipe_stages(p) - 1;
    td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    td_action gradient = { .kind = 'B', a.chunk, a.micro };
    TD_TRY(stage < last ? td_pipe_need(p, gradient, (stage + 1) % p->plan.ranks) : TD_OK);
    if (stage > 0) {
        td_zero_grad_of(slot->in);
    }
    TD_TRY(p->turns ? td_pipe_begin_shared(p, a.micro) : TD_OK);
    if (step_is_last(s, a)) {
        td_ddp_no_sync_end(s->o->model);
    }
    if (td_needs_grad(slot->y)) { /* not in a first stage without weights */
        td_backward_at((td_backward_options){ .loss = slot->y,
                                              .gradient = stage < last ? slot->gradient : NULL,
                                              .rest = a.kind == 'I' ? &slot->rest : NULL },
                       s->at);
    }
    TD_TRY(stage > 0 ? td_pipe_send_gradient(p, a) : TD_OK);
    return p->turns ? td_pipe_send_shared(p, a.micro) : TD_OK;
}

static td_status step_pass(pipe_step *s, td_action a, bool first)
{
    td_pipe *p = s->p;
    if (a.kind == 'F') { /* running statistics are broadcast along dp before the first one */
        if (first && s->ddp != NULL) {
            td_ddp_no_sync_end(s->o->model);
        }
        td_status status = step_forward(s, a);
        if (first && s->ddp != NULL) {
            td_ddp_no_sync_begin(s->o->model);
        }
        return status;
    }
    if (a.kind == 'W') {
        td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
        if (slot->rest != NULL) {
            td_backward_rest_at(slot->rest, s->at);
        }
        slot->rest = NULL;
    } else {
        TD_TRY(step_backward(s, a));
    }
    p->chunks[a.chunk].done += a.kind != 'I';
    return TD_OK;
}

static td_status step_run(pipe_step *s, td_action a, bool first)
{
    td_ddp_pass pass = { a.kind, a.chunk, a.micro };
    s->number = s->turns != NULL ? s->turns->begin(s->ddp, pass) : a.micro;
    TD_TRY(step_pass(s, a, first));
    if (s->turns != NULL) {
        s->turns->end(s->ddp, pass);
    }
    return TD_OK;
}

/* ---- the whole step ---- */

/* In turns a step has as many micro-batches as there are turns. */
static td_status step_check_turns(pipe_step *s)
{
    td_pipe *p = s->p;
    int turns = s->turns->count(s->ddp);
    TD_TRY(td_plan_check_micro(&p->plan, turns));
    if (p->ties.several && (p->plan.chunks > 1 || p->plan.kind == TD_PLAN_ZB)) {
        return td_fail(
            TD_E_UNSUPPORTED,
            "td_pipeline_step: with leaves a weight that stages share gets its gradient "
            "from the last stage to the first, leaf after leaf: take 1f1b or gpipe, or a "
            "model without shared weights");
    }
    p->plan.micro = turns;
    return TD_OK;
}

static td_status step_check(pipe_step *s)
{
    td_pipe *p = s->p;
    const td_pipeline_step_options *o = s->o;
    TD_TRY(s->turns != NULL && p->actions == NULL ? step_check_turns(s) : TD_OK);
    int64_t rows = o->x->ndim > 0 ? o->x->shape[0] : 0;
    if (rows == 0 || rows % p->plan.micro != 0 ||
        (o->y != NULL && (o->y->ndim == 0 || o->y->shape[0] % p->plan.micro != 0))) {
        return td_fail(TD_E_ARG,
                       "td_pipeline_step: a batch of %lld cannot be cut into %d equal "
                       "micro-batches",
                       (long long)rows, p->plan.micro);
    }
    bool whole = p->plan.chunks == 1 && p->ties.count == 0 && p->plan.kind != TD_PLAN_ZB;
    TD_CHECK(s->ddp == NULL || !s->ddp->reducer.always || whole, TD_E_UNSUPPORTED,
             "td_pipeline_step: td_zero(2) and td_zero(3) over replicas (rep above 1), "
             "and with leaves, exchange gradients in each backward, before %s: take "
             "td_zero(1), or %s",
             p->ties.count > 0            ? "the other stage's part of a shared weight is there"
             : p->plan.kind == TD_PLAN_ZB ? "weights have theirs"
                                          : "the rank's other stages have run",
             p->ties.count > 0 ? "a model without shared weights" : "1f1b");
    if (!td_shape_equal(td_shape_of(o->x), p->batch)) {
        for (int c = 0; c < p->plan.chunks && p->chunks != NULL; c++) {
            p->chunks[c].knows_in = p->chunks[c].knows_out = false;
        }
    }
    p->batch = td_shape_of(o->x);
    return TD_OK;
}

static td_status step_actions(pipe_step *s)
{
    td_pipe *p = s->p;
    bool halves = p->plan.kind == TD_PLAN_ZB;
    td_ddp_runner runner = { .parts = p->plan.chunks,
                             .part_of = p->plan.chunks > 1 ? td_pipe_chunk_of : NULL,
                             .user = p,
                             .open = halves ? p->rank + 1 : 1 };
    TD_TRY(p->actions == NULL ? td_pipe_make_lists(p) : TD_OK);
    TD_TRY(s->turns != NULL ? s->turns->begin_step(s->ddp, &runner) : TD_OK);
    TD_TRY(td_pipe_begin_messages(p));
    for (int i = 0; i < td_plan_count(&p->plan); i++) {
        p->arrived = td_clock();
        TD_TRY(step_run(s, p->actions[i], i == 0));
        p->actions[i].begin = p->arrived;
        p->actions[i].end = td_clock();
    }
    return TD_OK;
}

/* Gradients that could not be exchanged while backward ran. In turns the ranks along dp exchange
 * before the stages do. */
static td_status step_exchange(const pipe_step *s)
{
    TD_TRY(s->turns == NULL ? td_pipe_share_gradients(s->p) : TD_OK);
    if (s->ddp != NULL && !s->overlaps) {
        td_ddp_no_sync_end(s->o->model);
        if (s->ddp->no_sync_depth == 0) {
            td_params_training_of(s->ddp->params)->apart = false;
            td_reducer_finish(s->ddp);
            td_ddp_report(s->ddp);
        }
    }
    if (s->turns != NULL) {
        s->turns->end_step(s->ddp);
        return td_pipe_share_gradients(s->p);
    }
    return TD_OK;
}

/* Ranks of other pipelines wait for this one along dp. */
static void step_fail(const pipe_step *s, td_status status, td_pipeline_result *r)
{
    char cause[1024];
    snprintf(cause, sizeof cause, "%s", td_last_error());
    td_group_abort(s->p->group, cause);
    if (s->ddp != NULL) {
        td_group_abort(s->ddp->group, cause);
        td_ddp_abort(s->ddp, cause);
    }
    (void)td_pipe_end_messages(s->p);
    r->status = td_fail(status, "%s", cause);
}

td_pipeline_result td_pipeline_step_at(td_pipeline_step_options o, td_site at)
{
    pipe_step s = { .p = td_pipe_of(o.model, "td_pipeline_step", at), .o = &o, .at = at };
    td_pipe *p = s.p;
    td_pipeline_result r = { .status = TD_OK };
    TD_REQUIRE(td_in_step(), at, "td_pipeline_step outside a step: put it into TD_STEP { }");
    TD_REQUIRE(o.x != NULL, at, "td_pipeline_step: the batch is NULL");
    s.ddp = td_is_ddp(o.model) ? td_ddp_state_of(o.model) : NULL;
    s.turns = s.ddp != NULL ? s.ddp->turns : NULL;
    p->turns = s.turns != NULL;
    s.overlaps = p->plan.chunks == 1 && p->ties.here == 0 &&
                 (!p->turns || p->plan.kind != TD_PLAN_ZB); /* all gradients become ready last */
    r.status = step_check(&s);
    if (r.status != TD_OK) {
        return r; /* on all ranks: each has looked at the same batch */
    }
    int depth = s.ddp != NULL ? s.ddp->no_sync_depth++ : 0;
    p->stepping = true;
    td_status status = step_actions(&s);
    p->stepping = false;
    status = status == TD_OK ? step_exchange(&s) : status;
    status = status == TD_OK ? td_pipe_end_messages(p) : status;
    status = status == TD_OK ? td_all_reduce_numbers(p->group, s.numbers, 1 + TD_SUMS) : status;
    if (s.ddp != NULL) {
        s.ddp->no_sync_depth = depth;
    }
    if (status != TD_OK) {
        step_fail(&s, status, &r);
    }
    td_pipe_skip_draws(p, p->turns ? 0 : p->plan.micro);
    r.loss = s.numbers[0];
    memcpy(r.sums, s.numbers + 1, sizeof r.sums);
    return r;
}
