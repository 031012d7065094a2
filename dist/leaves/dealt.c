/* Each rank has its window of the gradients (td_zero from stage 2 on). Leaves are dealt out: in
 * round j rank r computes leaf j * ranks + r. Where otherwise a reduce-scatter averages a unit's
 * gradients, each rank gets its piece of all leaves of the round, as many bytes, and pushes the
 * pieces in the order of leaves. So no rank ever has a whole node, and all ranks run the same. */
#include "dist/leaves/tree.h"

#include "dist/comm/collectives.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <stdlib.h>

typedef struct dealt_unit {
    td_leaf_stack stack; /* of the unit's pieces */
    td_tensor *come;     /* the round's pieces; NULL: none are under way */
} dealt_unit;

typedef struct dealt {
    td_tensor *sums[TD_LEAF_DEPTH]; /* by place: as long as the window */
    dealt_unit *units;
} dealt;

/* A unit's piece of the window. */
typedef struct dealt_piece {
    const td_leaves *v;
    int64_t begin, count;
} dealt_piece;

static dealt *dealt_of(const td_leaves *v)
{
    return v->gradients;
}

static int dealt_turns(const td_leaves *v, int rank)
{
    (void)rank;
    return (v->count + v->ranks - 1) / v->ranks;
}

static int dealt_leaf(const td_leaves *v, int rank, int turn)
{
    return turn * v->ranks + rank;
}

static td_status dealt_average(td_leaves *v, td_ddp_unit *u)
{
    dealt_unit *unit = &dealt_of(v)->units[u - v->ddp->units.list];
    const td_tensor *t = u->b.grad;
    unit->come = td_new(TD_SHAPE(td_numel(t)), t->dtype, td_device_of(t));
    return unit->come != NULL ? td_all_to_all(v->ddp->group, unit->come, t, &u->work) : TD_E_NOMEM;
}

static td_tensor sum_at(const void *piece, int place)
{
    const dealt_piece *p = piece;
    return td_ddp_stretch(dealt_of(p->v)->sums[place], p->begin, p->count);
}

/* Pushes the pieces of a round. After the last leaf the sum takes the place of the unit's average,
 * which sharding moves into the window next. */
static void take_pieces(td_leaves *v, td_ddp_unit *u)
{
    dealt_unit *unit = &dealt_of(v)->units[u - v->ddp->units.list];
    int64_t count = td_numel(u->b.grad) / v->ranks;
    dealt_piece piece = { v, u->b.begin / v->ranks, count };
    for (int r = 0; r < v->ranks && dealt_leaf(v, r, v->turn) < v->count; r++) {
        int leaf = dealt_leaf(v, r, v->turn), place = td_leaf_free_place(&unit->stack);
        td_tensor from = td_ddp_stretch(unit->come, r * count, count), to = sum_at(&piece, place);
        td_copy_(&to, &from);
        td_leaf_push(&unit->stack, v->count, (td_leaf_node){ leaf, leaf + 1, place }, sum_at,
                     &piece);
        if (leaf == v->count - 1) {
            td_tensor mine = td_ddp_stretch(u->b.grad, v->rank * count, count);
            td_tensor sum = sum_at(&piece, unit->stack.list[0].place);
            td_copy_(&mine, &sum);
            unit->stack.count = 0;
        }
    }
}

static td_status dealt_on(td_leaves *v, td_ddp_event event, td_ddp_unit *u)
{
    bool good = v->ddp->failure.status == TD_OK;
    dealt_unit *units = dealt_of(v)->units;
    if (event == TD_DDP_WAITED && units[u - v->ddp->units.list].come != NULL) {
        dealt_unit *unit = &units[u - v->ddp->units.list];
        if (good) {
            take_pieces(v, u);
        }
        td_free(unit->come);
        unit->come = NULL;
    }
    for (int k = 0; event == TD_DDP_REDUCED && !good && k < v->ddp->units.count; k++) {
        units[k].stack.count = 0;
        td_free(units[k].come); /* its all-to-all has not begun */
        units[k].come = NULL;
    }
    return TD_OK;
}

/* The sum over all gradients in the order of parameters, for td_clip_grad_norm. A parameter's rank
 * computes its sum; a parameter in several ranks' windows is brought together on every rank. */
static double sum_in_order(const td_params *params, td_part_sum of, double p)
{
    td_tensor *window = td_params_flat_grad(params);
    int count = td_params_count(params), rank = td_params_peers_of(params)->rank;
    double sum = 0.0, *sums = calloc((size_t)count, sizeof *sums);
    TD_REQUIRE(sums != NULL, TD_HERE, "td_clip_grad_norm: no memory for sums");
    for (int i = 0; i < count; i++) {
        const td_param *param = td_params_get(params, i);
        int owner = td_params_owner(params, i);
        td_tensor *whole = NULL, part, *grad = NULL;
        if (td_grad(param->tensor) != NULL && owner < 0) {
            whole = td_new(TD_SHAPE(param->count), window->dtype, td_device_of(window));
            TD_REQUIRE(whole != NULL, TD_HERE, "td_clip_grad_norm: %s", td_last_error());
            (void)td_params_collect(params, window, i, whole); /* a failure ends td_params_sum */
            grad = rank == 0 ? whole : NULL;
        } else if (owner == rank) {
            grad = td_params_grad_here(params, i, &part);
        }
        sums[i] = grad != NULL ? of(grad, p) : 0.0;
        td_free(whole);
    }
    td_params_sum(params, sums, count);
    for (int i = 0; i < count; i++) {
        sum += sums[i];
    }
    free(sums);
    return sum;
}

static td_status dealt_open(td_leaves *v)
{
    td_ddp_state *s = v->ddp;
    dealt *d = v->gradients = calloc(1, sizeof *d);
    if (d != NULL) { /* a unit has a parameter or more */
        d->units = calloc((size_t)s->count, sizeof *d->units);
    }
    bool made = d != NULL && d->units != NULL;
    td_leaf_stack all = { .count = 0 };
    for (int leaf = 0; leaf < v->count && made; leaf++) {
        int place = td_leaf_free_place(&all);
        if (d->sums[place] == NULL) {
            td_tensor *window = td_params_flat_grad(s->params);
            d->sums[place] =
                td_zeros(TD_SHAPE(td_numel(window)), window->dtype, td_device_of(window));
            made = d->sums[place] != NULL;
        }
        td_leaf_push(&all, v->count, (td_leaf_node){ leaf, leaf + 1, place }, NULL, NULL);
    }
    s->reducer.always = true;
    td_params_training_of(s->params)->sum_parts = sum_in_order;
    return td_group_agree(s->group, made ? TD_OK : TD_E_NOMEM);
}

static void dealt_close(td_leaves *v)
{
    dealt *d = dealt_of(v);
    td_params_training_of(v->ddp->params)->sum_parts = NULL;
    for (int k = 0; k < TD_LEAF_DEPTH; k++) {
        td_free(d->sums[k]);
    }
    free(d->units);
}

const td_leaf_way td_leaf_dealt = { .dealt = true,
                                    .turns = dealt_turns,
                                    .leaf = dealt_leaf,
                                    .open = dealt_open,
                                    .close = dealt_close,
                                    .average = dealt_average,
                                    .on = dealt_on };
