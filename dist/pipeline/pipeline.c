/* Pipelines: a step, which follows the schedule's list of actions; and making a model a pipeline.
 *
 * All micro-batches of a step are on one tape. A stage's input is a persistent tensor, into which
 * the message is received, and a leaf: its gradient is what the stage before gets. Gradients of
 * weights add up micro-batch after micro-batch, in the same order in every schedule, so their bits
 * depend neither on the schedule nor on the number of ranks. */
#include "dist/pipeline/stages.h"

#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "dist/comm/mesh.h"
#include "dist/ddp/ddp.h"
#include "nn/around.h"
#include "nn/shared/shared.h"
#include "tensor/clock.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- forward ---- */

td_tensor *td_pipe_run(td_pipe *p, int chunk, td_tensor *x, td_tensor *second, td_site at)
{
    const td_tensor *input = x;
    int stage = td_pipe_stage(p, chunk);
    int64_t scope = td_scope_begin();
    for (int i = p->cuts[stage]; i < p->cuts[stage + 1]; i++) {
        const td_chain_link *link = &p->links[i];
        if (i == p->link_count - 1 && second != NULL) {
            x = link->end(link->self, x, second, at);
        } else {
            x = link->run != NULL ? link->run(link->self, x, at)
                                  : td_forward_at(link->parts[0], x, at);
        }
        td_scope_keep(scope, x);
    }
    td_scope_end(scope, x == input ? NULL : x);
    return x;
}

static td_tensor *pipeline_around(const td_around_rest *rest, td_tensor *x, void *user)
{
    td_pipe *p = user;
    if (p->stepping) {
        return td_pipe_run(p, p->now, x, rest->second, rest->at);
    }
    TD_REQUIRE(!td_grad_enabled(), rest->at,
               "td_forward: a pipeline trains by td_pipeline_step; without gradients "
               "(td_no_grad_begin) td_forward runs all stages");
    td_tensor *y;
    if (td_pipe_evaluate(p, x, rest->second, rest->at, &y) != TD_OK) {
        td_fatal(rest->at, "td_forward of a pipeline: %s", td_last_error());
    }
    return y;
}

td_pipe *td_pipe_of(const td_module *net, const char *function, td_site at)
{
    td_pipe *p = net != NULL ? td_surrounded_by(net, pipeline_around) : NULL;
    TD_REQUIRE(p != NULL, at, "%s: %s is no pipeline: td_pipeline comes first", function,
               net == NULL ? "NULL" : net->type->name);
    return p;
}

/* ---- a step ---- */

typedef struct pipe_step {
    td_pipe *p;
    const td_pipeline_step_options *o;
    td_ddp_state *ddp; /* NULL: one rank along dp */
    bool overlaps;     /* gradients are exchanged while the last backward runs, not after it */
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
    return td_step_view(t, t->offset + k * rows * t->stride[0], shape, t->stride, s->at);
}

/* The loss of a micro-batch, multiplied as the gradient needs it. */
static td_tensor *step_loss(pipe_step *s, td_tensor *x, int k)
{
    const td_pipeline_step_options *o = s->o;
    td_tensor *sums[TD_SUMS] = { NULL }, *y = o->y != NULL ? step_part(s, o->y, k) : NULL, *loss;
    td_batch batch = { .x = x, .y = y, .size = x->shape[0], .index = k };
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
    return td_mul_scalar_at(loss, scale / s->p->plan.micro, s->at);
}

static td_status step_forward(pipe_step *s, td_action a)
{
    td_pipe *p = s->p;
    int ranks = p->plan.ranks, stage = td_pipe_stage(p, a.chunk), last = td_pipe_stages(p) - 1;
    int before = (stage + ranks - 1) % ranks, after = (stage + 1) % ranks;
    td_tensor *x = NULL;
    if (stage > 0 && before != p->rank) {
        TD_TRY(td_pipe_need(p, a, before));
    }
    td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    if (stage == 0) {
        x = step_part(s, s->o->x, a.micro);
    } else { /* with a node of its own for the input, the first product can be divided, too */
        x = p->plan.kind == TD_PLAN_ZB ? td_reshape_at(slot->in, td_shape_of(slot->in), s->at)
                                       : slot->in;
    }
    p->now = a.chunk;
    slot->y = stage == last ? step_loss(s, x, a.micro) : td_forward_at(s->o->model, x, s->at);
    return stage < last ? td_pipe_send(p, a, slot->y, after) : TD_OK;
}

/* Whether this backward and those that follow are what td_ddp exchanges. */
static bool step_is_last(const pipe_step *s, td_action a)
{
    return s->ddp != NULL && s->overlaps && a.kind != 'W' && a.micro == s->p->plan.micro - 1;
}

static td_status step_backward(pipe_step *s, td_action a)
{
    td_pipe *p = s->p;
    int ranks = p->plan.ranks, stage = td_pipe_stage(p, a.chunk), last = td_pipe_stages(p) - 1;
    int before = (stage + ranks - 1) % ranks, after = (stage + 1) % ranks;
    td_pipe_slot *slot = td_pipe_slot_of(p, a.chunk, a.micro);
    td_tensor *gradient = NULL;
    if (stage < last && after != p->rank) {
        TD_TRY(td_pipe_need(p, (td_action){ 'B', a.chunk, a.micro }, after));
        gradient = slot->gradient;
    } else if (stage < last) {
        gradient = td_grad(td_pipe_slot_of(p, (stage + 1) / ranks, a.micro)->in);
    }
    if (stage > 0) {
        td_zero_grad_of(slot->in);
    }
    if (step_is_last(s, a)) {
        td_ddp_no_sync_end(s->o->model);
    }
    if (td_needs_grad(slot->y)) { /* not in a first stage without weights */
        td_backward_at((td_backward_options){ .loss = slot->y,
                                              .gradient = gradient,
                                              .rest = a.kind == 'I' ? &slot->rest : NULL },
                       s->at);
    }
    return stage > 0 ? td_pipe_send_gradient(p, a, before) : TD_OK;
}

static td_status step_run(pipe_step *s, td_action a, bool first)
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

/* ---- the whole step ---- */

static td_status step_check(pipe_step *s)
{
    td_pipe *p = s->p;
    const td_pipeline_step_options *o = s->o;
    int64_t rows = o->x->ndim > 0 ? o->x->shape[0] : 0;
    if (rows == 0 || rows % p->plan.micro != 0 ||
        (o->y != NULL && (o->y->ndim == 0 || o->y->shape[0] % p->plan.micro != 0))) {
        return td_fail(TD_E_ARG,
                       "td_pipeline_step: a batch of %lld cannot be cut into %d equal "
                       "micro-batches",
                       (long long)rows, p->plan.micro);
    }
    if (s->ddp != NULL && s->ddp->reducer.always && (!s->overlaps || p->plan.kind == TD_PLAN_ZB)) {
        return td_fail(TD_E_UNSUPPORTED,
                       "td_pipeline_step: td_zero(2) and td_zero(3) over replicas (rep above 1) "
                       "exchange gradients in each backward, before %s: take td_zero(1), or %s",
                       p->shared_count > 0 ? "the other stage's part of a shared weight is there"
                       : p->plan.kind == TD_PLAN_ZB ? "weights have theirs"
                                                    : "the rank's other stages have run",
                       p->shared_count > 0 ? "a model without shared weights" : "1f1b");
    }
    if (!td_shape_equal(td_shape_of(o->x), p->batch)) {
        for (int c = 0; c < p->plan.chunks; c++) {
            p->chunks[c].knows_in = p->chunks[c].knows_out = false;
        }
    }
    p->batch = td_shape_of(o->x);
    return TD_OK;
}

static td_status step_actions(pipe_step *s)
{
    td_pipe *p = s->p;
    TD_TRY(td_pipe_begin_messages(p));
    for (int i = 0; i < td_plan_count(&p->plan); i++) {
        p->arrived = td_clock();
        TD_TRY(step_run(s, p->actions[i], i == 0));
        p->spans[i] = (td_span){ p->arrived, td_clock() };
    }
    return td_pipe_share_gradients(p);
}

/* Gradients that could not be exchanged while backward ran. */
static void step_exchange(const pipe_step *s)
{
    if (s->ddp != NULL && !s->overlaps) {
        td_ddp_no_sync_end(s->o->model);
        if (s->ddp->no_sync_depth == 0) {
            td_params_training_of(s->ddp->params)->apart = false;
            td_reducer_finish(s->ddp);
            td_ddp_report(s->ddp);
        }
    }
}

/* Ranks of other pipelines wait for this one along dp. */
static void step_tell(const pipe_step *s, const char *cause)
{
    if (s->ddp != NULL) {
        td_group_abort(s->ddp->group, cause);
        td_ddp_abort(s->ddp, cause);
    }
}

static void step_fail(const pipe_step *s, td_status status, td_pipeline_result *r)
{
    char cause[1024];
    snprintf(cause, sizeof cause, "%s", td_last_error());
    td_group_abort(s->p->group, cause);
    step_tell(s, cause);
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
    s.overlaps = p->plan.chunks == 1 && p->shared_count == 0;
    r.status = step_check(&s);
    if (r.status != TD_OK) {
        return r; /* on all ranks: each has looked at the same batch */
    }
    int depth = s.ddp != NULL ? s.ddp->no_sync_depth++ : 0;
    p->stepping = true;
    td_status status = step_actions(&s);
    p->stepping = false;
    if (status == TD_OK) {
        step_exchange(&s);
        status = td_pipe_end_messages(p);
    }
    if (status == TD_OK) {
        status = td_all_reduce_numbers(p->group, s.numbers, 1 + TD_SUMS);
    }
    if (s.ddp != NULL) {
        s.ddp->no_sync_depth = depth;
    }
    if (status != TD_OK) {
        step_fail(&s, status, &r);
    }
    td_pipe_skip_draws(p, p->plan.micro);
    r.loss = s.numbers[0];
    memcpy(r.sums, s.numbers + 1, sizeof r.sums);
    return r;
}

/* ---- beginning and end ---- */

static td_status stages_sum(double *numbers, int count, void *user)
{
    return td_all_reduce_numbers(user, numbers, count);
}

static td_status stages_broadcast(td_tensor *t, int from, void *user)
{
    return td_broadcast(user, t, from, NULL);
}

static td_status stages_agree(td_status mine, void *user)
{
    return td_group_agree(user, mine);
}

static void pipe_free_chunk(td_pipe_chunk *c)
{
    for (int k = 0; c->slots != NULL && k < c->count; k++) {
        td_free(c->slots[k].in);
        td_free(c->slots[k].out);
        td_free(c->slots[k].gradient);
    }
    td_free(c->shape_in);
    td_free(c->shape_out);
    free(c->slots);
}

static void pipeline_free(void *user)
{
    td_pipe *p = user;
    for (int c = 0; p->chunks != NULL && c < p->plan.chunks; c++) {
        pipe_free_chunk(&p->chunks[c]);
    }
    for (int r = 0; p->streams != NULL && r < p->plan.ranks; r++) {
        free(p->streams[r].items);
        free(p->streams[r].works);
    }
    free(p->links);
    free(p->cuts);
    free(p->actions);
    free(p->spans);
    free(p->chunks);
    free(p->streams);
    free(p->shared);
    free(p->sharers);
    td_module_set_staging(p->model, NULL);
    free(p->staging.tensors);
    free(p->staging.owners);
    free(p->staging.numbers);
    free(p);
}

static bool pipe_make_chunk(const td_pipe *p, int chunk)
{
    td_pipe_chunk *c = &p->chunks[chunk];
    int held = td_plan_held(&p->plan, p->rank, chunk) + TD_PIPE_AHEAD;
    c->count = p->plan.chunks > 1 || held > p->plan.micro ? p->plan.micro : held;
    c->slots = calloc((size_t)c->count, sizeof *c->slots);
    c->shape_in = td_zeros(TD_SHAPE(TD_PIPE_SHAPE), TD_I64, TD_CPU);
    c->shape_out = td_zeros(TD_SHAPE(TD_PIPE_SHAPE), TD_I64, TD_CPU);
    return c->slots != NULL && c->shape_in != NULL && c->shape_out != NULL;
}

static td_status pipe_make_lists(td_pipe *p)
{
    size_t count = (size_t)td_plan_count(&p->plan), ranks = (size_t)p->plan.ranks;
    p->actions = calloc(count, sizeof *p->actions);
    p->spans = calloc(count, sizeof *p->spans);
    p->chunks = calloc((size_t)p->plan.chunks, sizeof *p->chunks);
    p->streams = calloc(ranks, sizeof *p->streams);
    bool room = p->actions != NULL && p->spans != NULL && p->chunks != NULL && p->streams != NULL;
    for (int c = 0; room && c < p->plan.chunks; c++) {
        room = pipe_make_chunk(p, c);
    }
    for (size_t r = 0; room && r < ranks; r++) {
        p->streams[r].items = calloc(count, sizeof(td_action));
        p->streams[r].works = calloc(count, sizeof(td_work *));
        room = p->streams[r].items != NULL && p->streams[r].works != NULL;
    }
    if (!room) {
        return td_fail(TD_E_NOMEM, "td_pipeline: no memory for lists of actions");
    }
    td_plan_actions(&p->plan, p->rank, p->actions);
    return TD_OK;
}

static td_status pipe_make(td_pipe *p, const td_pipeline_options *o)
{
    int ranks = td_group_size(p->group);
    p->rank = td_group_rank(p->group);
    TD_TRY(td_plan_read(o->schedule, ranks, o->micro != 0 ? o->micro : 2 * ranks, &p->plan));
    p->staging = (td_staging){ .rank = p->rank,
                               .ranks = ranks,
                               .sum = stages_sum,
                               .broadcast = stages_broadcast,
                               .agree = stages_agree,
                               .user = p->group };
    TD_TRY(pipe_make_lists(p));
    TD_TRY(td_pipe_cut(p, o->cut));
    td_module_set_staging(p->model, &p->staging);
    return TD_OK;
}

/* Ranks with other options would wait for messages that nothing sends. */
static td_status pipe_compare(const td_pipe *p)
{
    enum { NUMBERS = 6 };
    double mine[NUMBERS] = { p->plan.kind, p->plan.chunks, p->plan.micro, p->link_count,
                             (double)td_parameter_count(p->model) };
    double all[NUMBERS];
    for (int s = 1; s < td_pipe_stages(p); s++) {
        mine[5] += (double)p->cuts[s] * s;
    }
    memcpy(all, mine, sizeof all);
    TD_TRY(td_all_reduce_numbers(p->group, all, NUMBERS));
    for (int i = 0; i < NUMBERS; i++) {
        if (all[i] != mine[i] * p->plan.ranks) {
            return td_fail(TD_E_MISMATCH,
                           "td_pipeline: the ranks differ in schedule, .micro, .cut or model; this "
                           "one has %d micro-batches, %d stages a rank and %d links",
                           p->plan.micro, p->plan.chunks, p->link_count);
        }
    }
    return TD_OK;
}

static td_status pipe_surround(td_module *model, td_group *group, const td_pipeline_options *o)
{
    td_pipe *p = calloc(1, sizeof *p);
    td_status status = TD_E_NOMEM;
    if (p != NULL) {
        p->model = model;
        p->group = group;
        status = pipe_make(p, o);
    }
    status = td_group_agree(group, status); /* all ranks, or none */
    if (status == TD_OK) {
        status = td_group_agree(group, pipe_compare(p));
    }
    if (status == TD_OK) {
        td_around around = { .run = pipeline_around,
                             .free = pipeline_free,
                             .user = p,
                             .wrapper = "td_pipeline",
                             .inside = true };
        status = td_module_surround(model, &around);
    }
    if (status != TD_OK && p != NULL) {
        pipeline_free(p);
    }
    return status;
}

td_module *td_pipeline_at(td_pipeline_options o, td_site at)
{
    td_module *model = o.model;
    TD_REQUIRE(o.group == NULL || o.mesh == NULL, at,
               "td_pipeline: .group and .mesh: give one of them");
    TD_REQUIRE(td_dist_is_initialized(), at,
               "td_pipeline: there is no process group: td_dist_init comes first");
    TD_REQUIRE(model == NULL || model->name[0] == '\0', at,
               "td_pipeline: '%s' is a part of a larger model; td_pipeline takes the whole model",
               model->name);
    const char *wrapper = model != NULL ? td_module_wrapper(model) : NULL;
    bool again = model != NULL && td_surrounded_by(model, pipeline_around) != NULL;
    TD_REQUIRE(wrapper == NULL || (strcmp(wrapper, "td_tensor_parallel") == 0 && !again), at,
               "td_pipeline: the model went through %s already", again ? "it" : wrapper);
    TD_REQUIRE(model == NULL || td_params_laid_out(model) == NULL, at,
               "td_pipeline: the parameters are laid out already: td_pipeline comes before "
               "td_parameters");
    td_group *group = o.group != NULL  ? o.group
                      : o.mesh != NULL ? td_mesh_group(o.mesh, "pp")
                                       : td_dist_world();
    if (model != NULL && (group == NULL || pipe_surround(model, group, &o) != TD_OK)) {
        td_module_free(model);
        return NULL;
    }
    return model;
}
