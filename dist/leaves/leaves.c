/* td_leaves, a strategy of td_ddp, and a step of a model with leaves: one leaf after another. */
#include "dist/leaves/tree.h"

#include "autograd/hooks.h"
#include "dist/comm/collectives.h"
#include "dist/comm/mesh.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/hooks.h"

#include <stdlib.h>

/* ---- a step ---- */

typedef enum draws_when { BEFORE_STEP, BEFORE_LEAF, AFTER_LEAF } draws_when;

/* Each leaf draws as a rank with its number, from where the step began. A step draws as often as a
 * leaf, also if this rank's last leaf had no samples and drew nothing. */
static void place_dropout(const td_leaves *v, td_module *m, td_leaf_draw *draw, draws_when when)
{
    td_dropout_place *place = td_dropout_place_of(m);
    if (when == BEFORE_STEP) {
        draw->before = place->calls;
    } else if (when == BEFORE_LEAF) {
        td_dropout_set_replica(m, (uint64_t)td_leaf_number(v));
        place->calls = draw->before;
    } else {
        bool ran = place->calls != draw->before;
        draw->calls = ran ? place->calls - draw->before : draw->calls;
        place->calls = draw->before + draw->calls;
    }
}

static void place_dropouts(td_leaves *v, draws_when when)
{
    td_module *net = v->ddp->model;
    td_leaf_draw *draw = v->draws;
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        if (td_dropout_place_of(m) != NULL) {
            place_dropout(v, m, draw++, when);
        }
    }
}

int td_leaf_number(const td_leaves *v)
{
    int leaf = v->way->leaf(v, v->rank, v->turn);
    return leaf < v->count ? leaf : v->count - 1;
}

bool td_leaf_is_last(const td_leaves *v)
{
    return v->turn == v->way->turns(v, v->rank) - 1;
}

/* Whether the running leaf's backward reduces. */
static bool leaf_reduces(const td_leaves *v)
{
    return v->way->dealt || td_leaf_is_last(v);
}

/* ---- turns, as DDP knows them ---- */

static int leaves_turns(const td_ddp_state *s)
{
    const td_leaves *v = td_leaves_of(s);
    return v->way->turns(v, v->rank);
}

static td_status leaves_begin_step(td_ddp_state *s, const td_ddp_runner *runner)
{
    td_leaves *v = td_leaves_of(s);
    for (int i = 0; i < s->count; i++) {
        v->seen[i] = false;
        v->part_of[i] = runner->part_of != NULL
                            ? runner->part_of(runner->user, td_params_get(s->params, i)->tensor)
                            : 0;
    }
    v->parts = runner->parts;
    place_dropouts(v, BEFORE_STEP);
    if (s->buffers.bytes != NULL) {
        td_ddp_copy_buffers(s, true);
    }
    return v->way->begin_step != NULL ? v->way->begin_step(v, runner->open) : TD_OK;
}

static int leaves_begin(td_ddp_state *s, td_ddp_pass pass)
{
    td_leaves *v = td_leaves_of(s);
    v->turn = pass.turn;
    place_dropouts(v, BEFORE_LEAF);
    if (pass.kind != 'F' && v->way->begin != NULL) {
        v->way->begin(v, pass);
    }
    for (int i = 0; i < s->count && pass.kind != 'F' && v->way->begin == NULL; i++) {
        td_zero_grad_of(td_params_get(s->params, i)->tensor);
    }
    return td_leaf_number(v);
}

/* Running statistics become those of leaf 0, or what they were. */
static void leaves_end(td_ddp_state *s, td_ddp_pass pass)
{
    td_leaves *v = td_leaves_of(s);
    place_dropouts(v, AFTER_LEAF);
    if (pass.kind == 'F' && s->buffers.bytes != NULL) {
        td_ddp_copy_buffers(s, td_leaf_number(v) == 0);
    } else if (pass.kind != 'F' && v->way->end != NULL) {
        v->way->end(v, pass);
    }
}

/* All ranks get leaf 0's running statistics. */
static void leaves_end_step(td_ddp_state *s)
{
    if (s->buffers.bytes != NULL) {
        td_ddp_note(s, td_broadcast(s->group, s->buffers.bytes, 0, NULL));
        td_ddp_copy_buffers(s, false);
        td_ddp_report(s);
    }
    td_leaves_of(s)->turn = -1;
}

static const td_ddp_turns leaves_turns_of_step = { .count = leaves_turns,
                                                   .begin_step = leaves_begin_step,
                                                   .begin = leaves_begin,
                                                   .end = leaves_end,
                                                   .end_step = leaves_end_step };

/* ---- a step, turn after turn ---- */

static void begin_leaf(td_leaves *v)
{
    leaves_begin(v->ddp, (td_ddp_pass){ 'B', 0, v->turn + 1 });
    v->ddp->no_sync_depth += !leaf_reduces(v);
    v->reduced = false;
}

static void end_leaf(td_leaves *v)
{
    td_ddp_state *s = v->ddp;
    if (!leaf_reduces(v)) {
        s->no_sync_depth--;
    } else if (!v->reduced) { /* without samples */
        td_reducer_finish(s);
        td_ddp_report(s);
    }
    leaves_end(s, (td_ddp_pass){ 'F', 0, v->turn });
    leaves_end(s, (td_ddp_pass){ 'B', 0, v->turn });
}

td_leaves *td_leaves_required(const td_module *net, const char *what)
{
    td_leaves *v = td_is_ddp(net) ? td_leaves_of(td_ddp_state_of(net)) : NULL;
    TD_REQUIRE(v != NULL, TD_HERE,
               "%s: the model has no leaves: td_ddp(net, .strategy = "
               "td_leaves(8)) comes first",
               what);
    return v;
}

int td_leaf_next(td_module *net)
{
    td_leaves *v = td_leaves_required(net, "td_leaf_next");
    TD_REQUIRE(v->turn >= 0 || v->ddp->no_sync_depth == 0, TD_HERE,
               "td_leaf_next: after td_ddp_no_sync_begin; a model with leaves accumulates by "
               "having more of them");
    if (v->turn >= 0) {
        end_leaf(v);
    } else {
        td_ddp_note(v->ddp, leaves_begin_step(v->ddp, &(td_ddp_runner){ .parts = 1, .open = 1 }));
        td_ddp_report(v->ddp);
    }
    if (v->turn >= 0 && td_leaf_is_last(v)) {
        leaves_end_step(v->ddp);
        return -1;
    }
    begin_leaf(v);
    return td_leaf_number(v);
}

bool td_leaf_counts(const td_module *net)
{
    const td_leaves *v = td_leaves_required(net, "td_leaf_counts");
    return v->turn >= 0 && v->way->leaf(v, v->rank, v->turn) < v->count;
}

int td_leaf_count(const td_module *net)
{
    const td_leaves *v = td_is_ddp(net) ? td_leaves_of(td_ddp_state_of(net)) : NULL;
    return v != NULL ? v->count : 0;
}

/* ---- DDP's events ---- */

/* A parameter that any leaf has used has a gradient, whichever leaf ran last, and if this rank's
 * leaves had no samples. */
static void mark_gradients(const td_leaves *v)
{
    const td_ddp_options *o = &v->ddp->options;
    bool all = !o->find_unused_parameters && !o->static_graph;
    for (int i = 0; i < v->ddp->count; i++) {
        td_tensor *leaf = td_params_get(v->ddp->params, i)->tensor;
        v->seen[i] = v->seen[i] || td_grad(leaf) != NULL;
        if ((all || v->seen[i]) && td_leaf_is_last(v) && td_grad(leaf) == NULL) {
            td_mark_grad(leaf);
        }
    }
}

static td_status leaves_on(td_ddp_part *part, td_ddp_state *s, td_ddp_event event,
                           td_ddp_unit *unit)
{
    (void)s;
    td_leaves *v = (td_leaves *)part;
    if (event == TD_DDP_FORWARD) {
        td_not_recordable("the gradients of leaves are written to other memory in turn");
    }
    TD_CHECK(event != TD_DDP_REDUCTION || v->turn >= 0, TD_E_ARG,
             "td_backward outside of a leaf: td_leaf_next begins one");
    if (event == TD_DDP_SUMMED) {
        mark_gradients(v);
    }
    v->reduced = v->reduced || event == TD_DDP_REDUCED;
    return v->way->on(v, event, unit);
}

td_leaves *td_leaves_of(const td_ddp_state *s)
{
    return (td_leaves *)td_ddp_find_part(s, leaves_on);
}

static td_status leaves_average(td_ddp_state *s, td_ddp_unit *u, td_tensor *t)
{
    (void)t;
    td_leaves *v = td_leaves_of(s);
    return v->way->average(v, u);
}

static void end_leaves(td_ddp_part *part)
{
    td_leaves *v = (td_leaves *)part;
    if (v->gradients != NULL) {
        v->way->close(v);
    }
    free(v->gradients);
    free(v->part_of);
    free(v->seen);
    free(v->draws);
    free(v);
}

/* ---- the strategy ---- */

static const td_leaves_options *leaf_options(const td_strategy *self)
{
    return (const td_leaves_options *)self;
}

static td_divided leaves_check(const td_strategy *self, const td_ddp_options *ddp, td_site at)
{
    const td_leaves_options *o = leaf_options(self);
    const td_strategy *inside = o->strategy;
    TD_REQUIRE(o->count >= 1 && o->count <= TD_LEAVES_MOST, at,
               "td_leaves(%d): there are 1 to %d leaves", o->count, (int)TD_LEAVES_MOST);
    TD_REQUIRE(inside == NULL || inside->type != self->type, at,
               "td_leaves: its .strategy is td_leaves again");
    TD_REQUIRE(ddp->comm_hook == NULL, at,
               "td_leaves: a communication hook (%s) rounds what a rank sends, which depends on "
               "the number of ranks: use no hook, or no leaves",
               ddp->comm_hook);
    TD_REQUIRE(!ddp->no_broadcast_buffers, at,
               "td_leaves: all ranks have the running statistics of leaf 0, so "
               ".no_broadcast_buffers cannot be");
    TD_REQUIRE(ddp->model == NULL || !td_has_batch_norm_override(ddp->model), at,
               "td_leaves: the model has SyncBatchNorm, whose statistics are those of all samples "
               "at once, and a rank computes its leaves one after another: use plain BatchNorm, "
               "whose statistics are a leaf's");
    td_divided divided = inside != NULL ? inside->type->check(inside, ddp, at) : TD_DIVIDES_NOTHING;
    TD_REQUIRE(divided < TD_DIVIDES_GRADIENTS || ddp->mesh == NULL ||
                   td_mesh_size(ddp->mesh, "rep") == 1,
               at,
               "td_leaves: with replicas no rank has its piece of all leaves' gradients: use a "
               "mesh with rep=1, or td_zero(1)");
    return divided;
}

static void leaves_describe(const td_strategy *self, FILE *out)
{
    const td_leaves_options *o = leaf_options(self);
    fprintf(out, ", leaves %d", o->count);
    if (o->strategy != NULL) {
        o->strategy->type->describe(o->strategy, out);
    }
}

static td_status leaves_open(const td_strategy *self, td_ddp_state *s)
{
    int count = leaf_options(self)->count;
    const td_strategy *inside = leaf_options(self)->strategy;
    TD_CHECK(td_group_size(s->group) <= count, TD_E_ARG,
             "td_leaves: there are %d ranks and %d leaves: a rank without a leaf would "
             "compute nothing; use at least as many leaves",
             td_group_size(s->group), count);
    size_t dropouts = 1; /* or one more */
    for (td_module *m = s->model; m != NULL; m = td_module_next(s->model, m)) {
        dropouts += td_dropout_place_of(m) != NULL;
    }
    td_leaves *v = calloc(1, sizeof *v);
    TD_CHECK(v != NULL, TD_E_NOMEM, "td_leaves: no memory");
    *v = (td_leaves){ .part = { .on = leaves_on, .free = end_leaves },
                      .ddp = s,
                      .way = s->divided < TD_DIVIDES_GRADIENTS ? &td_leaf_whole : &td_leaf_dealt,
                      .count = count,
                      .ranks = td_group_size(s->group),
                      .rank = td_group_rank(s->group),
                      .turn = -1,
                      .parts = 1,
                      .part_of = calloc((size_t)s->count, sizeof *v->part_of),
                      .seen = calloc((size_t)s->count, sizeof *v->seen),
                      .draws = calloc(dropouts, sizeof *v->draws) };
    if (v->part_of == NULL || v->seen == NULL || v->draws == NULL) {
        end_leaves(&v->part);
        return td_fail(TD_E_NOMEM, "td_leaves: no memory");
    }
    for (size_t k = 0; k < dropouts; k++) {
        v->draws[k].calls = 1;
    }
    td_ddp_add_part(s, &v->part); /* before what moves averages into windows */
    TD_TRY(inside != NULL ? inside->type->open(inside, s) : TD_OK);
    s->units.stays = true;
    s->options.no_broadcast_buffers = true; /* they are broadcast at a step's end */
    TD_TRY(v->way->open(v));
    s->reducer.average = leaves_average;
    s->turns = &leaves_turns_of_step;
    return TD_OK;
}

const td_strategy_type td_leaves_type = { .check = leaves_check,
                                          .describe = leaves_describe,
                                          .open = leaves_open };
