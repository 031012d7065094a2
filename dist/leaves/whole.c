/* Every rank has whole gradients. A rank has neighbouring leaves, and adds up the largest nodes of
 * the tree in its range. Backward of a leaf writes its gradients into memory that no node uses, so
 * nothing is copied. Backward of the rank's last leaf adds the ranks' nodes, unit by unit: each
 * rank adds its piece of all nodes, and gathers the other ranks' pieces of the sum.
 *
 * Where the ranks' nodes are halves of each other, as td_all_reduce adds ranks, one td_all_reduce
 * does that. (NCCL adds in another order.) */
#include "dist/leaves/tree.h"

#include "autograd/hooks.h"
#include "dist/comm/collectives.h"
#include "nn/params.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stddef.h>
#include <stdlib.h>

enum { LINE = 64 }; /* bytes: ranks' pieces are whole cache lines */

/* A unit's nodes between the ranks. */
typedef struct whole_trade {
    td_work *works[TD_LEAF_DEPTH];
    int count;
} whole_trade;

/* A leaf of a part whose backward has begun and not ended. */
typedef struct whole_leaf {
    int place; /* -1: there is none */
    bool *has; /* of each parameter: a half of backward has given it a gradient */
} whole_leaf;

enum { PLACES = 2 * TD_LEAF_DEPTH };

typedef struct whole {
    td_leaf_stack *stacks; /* of each part: of this rank's leaves that are done. At a step's end all
                              are equal */
    whole_leaf *leaves;    /* of each part `open` */
    bool *has;             /* of all leaves */
    int parts, open;
    int places;              /* where there is one part, and one leaf is open */
    int current;             /* the place where the running leaf's gradients are */
    td_tensor *sums[PLACES]; /* by place: as long as the flat gradients, whose own memory is place
                                0 */
    td_tensor *come[TD_LEAF_DEPTH]; /* pieces of all ranks' k-th nodes */
    int nodes;                      /* of a rank, at most, when its leaves are done */
    bool pairs;                     /* td_all_reduce adds them */
    whole_trade *trades;            /* of each unit */
    int64_t grain;                  /* elements: units travel in multiples of this */
} whole;

static whole *whole_of(const td_leaves *v)
{
    return v->gradients;
}

static int first_leaf(const td_leaves *v, int rank)
{
    return (int)((int64_t)rank * v->count / v->ranks);
}

static int whole_turns(const td_leaves *v, int rank)
{
    return first_leaf(v, rank + 1) - first_leaf(v, rank);
}

static int whole_leaf_of(const td_leaves *v, int rank, int turn)
{
    return first_leaf(v, rank) + turn;
}

/* The nodes of a rank's leaves; the k-th node's place is k. *most: the most that there are on the
 * way. */
static td_leaf_stack nodes_of(const td_leaves *v, int rank, int *most)
{
    td_leaf_stack s = { .count = 0 };
    for (int leaf = first_leaf(v, rank); leaf < first_leaf(v, rank + 1); leaf++) {
        *most = s.count + 1 > *most ? s.count + 1 : *most;
        td_leaf_push(&s, v->count, (td_leaf_node){ leaf, leaf + 1, s.count }, NULL, NULL);
    }
    return s;
}

/* ---- inside of a rank ---- */

/* Elements of the flat gradients. */
typedef struct whole_range {
    td_leaves *v;
    int64_t begin, count;
} whole_range;

static td_tensor range_at(const void *range, int place)
{
    const whole_range *r = range;
    return td_ddp_stretch(whole_of(r->v)->sums[place], r->begin, r->count);
}

static void whole_write_at(td_leaves *v, int place)
{
    whole_of(v)->current = place;
    td_set_address(td_params_flat_grad(v->ddp->params), td_ptr(whole_of(v)->sums[place]));
}

/* range NULL: only says which nodes there will be. */
static void push_leaf(const td_leaves *v, td_leaf_stack *s, const whole_range *range)
{
    int leaf = whole_leaf_of(v, v->rank, v->turn);
    td_leaf_push(s, v->count, (td_leaf_node){ leaf, leaf + 1, whole_of(v)->current },
                 range != NULL ? range_at : NULL, range);
}

/* The running leaf's gradients of a part of the model. */
static void push_part(td_leaves *v, int part)
{
    td_leaf_stack *stack = &whole_of(v)->stacks[part], before = *stack;
    whole_range all = { v, 0, td_numel(whole_of(v)->sums[0]) };
    push_leaf(v, stack, v->parts == 1 ? &all : NULL);
    for (int i = 0; i < v->ddp->count && v->parts > 1; i++) {
        const td_param *param = td_params_get(v->ddp->params, i);
        td_leaf_stack again = before;
        if (v->part_of[i] == part) {
            push_leaf(v, &again, &(whole_range){ v, param->begin, param->count });
        }
    }
}

/* ---- a leaf's backward ---- */

static whole_leaf *leaf_at(const td_leaves *v, td_ddp_pass pass)
{
    const whole *w = whole_of(v);
    return &w->leaves[pass.part * w->open + pass.turn % w->open];
}

/* Whether a node or a running leaf of the part has a place. */
static bool is_used(const whole *w, int part, int place)
{
    bool used = false;
    for (int i = 0; i < w->stacks[part].count; i++) {
        used = used || w->stacks[part].list[i].place == place;
    }
    for (int k = 0; k < w->open; k++) {
        used = used || w->leaves[part * w->open + k].place == place;
    }
    return used;
}

static void whole_begin(td_leaves *v, td_ddp_pass pass)
{
    whole_leaf *leaf = leaf_at(v, pass);
    if (pass.kind != 'W') {
        int place = 0;
        while (is_used(whole_of(v), pass.part, place)) {
            place++;
        }
        leaf->place = place;
    }
    whole_write_at(v, leaf->place);
    for (int i = 0; i < v->ddp->count; i++) {
        td_tensor *parameter = td_params_get(v->ddp->params, i)->tensor;
        if (v->part_of[i] == pass.part && pass.kind == 'W' && leaf->has[i]) {
            td_mark_grad(parameter);
        } else if (v->part_of[i] == pass.part) {
            td_zero_grad_of(parameter);
        }
    }
}

/* Memory without a gradient holds old numbers, which count as zeros. */
static void whole_end(td_leaves *v, td_ddp_pass pass)
{
    whole_leaf *leaf = leaf_at(v, pass);
    bool keeps = pass.kind != 'I' && !td_leaf_is_last(v);
    for (int i = 0; i < v->ddp->count; i++) {
        td_tensor *parameter = td_params_get(v->ddp->params, i)->tensor;
        if (v->part_of[i] == pass.part) {
            leaf->has[i] = td_grad_begun(parameter);
            v->seen[i] = v->seen[i] || leaf->has[i];
            if (keeps && !leaf->has[i]) {
                td_fill_(td_grad_buffer(parameter), 0.0);
            }
        }
    }
    if (keeps) {
        push_part(v, pass.part);
        leaf->place = -1;
    }
}

/* ---- between ranks ---- */

/* What travels with a unit: from its begin to the next unit's, both rounded down. The elements that
 * so go to the next unit are ready then, because units are sent in their order. */
static whole_range range_of(td_leaves *v, const td_ddp_unit *u)
{
    const whole *w = whole_of(v);
    const td_ddp_units *units = &v->ddp->units;
    bool last = u == &units->list[units->count - 1];
    int64_t begin = u->b.begin / w->grain * w->grain;
    int64_t end = last ? td_numel(w->sums[0]) : u[1].b.begin / w->grain * w->grain;
    return (whole_range){ v, begin, end - begin };
}

/* Sends each rank its pieces of this rank's nodes. A rank with fewer nodes than others sends its
 * first node again. */
static td_status send_nodes(td_leaves *v, td_ddp_unit *u, const td_leaf_stack *s)
{
    whole *w = whole_of(v);
    whole_range range = range_of(v, u);
    whole_trade *trade = &w->trades[u - v->ddp->units.list];
    for (trade->count = 0; trade->count < w->nodes; trade->count++) {
        int k = trade->count;
        td_tensor come = td_ddp_stretch(w->come[k], range.begin, range.count);
        td_tensor go = range_at(&range, s->list[k < s->count ? k : 0].place);
        TD_TRY(td_all_to_all(v->ddp->group, &come, &go, &trade->works[k]));
    }
    u->work = trade->works[--trade->count]; /* works end in order */
    return TD_OK;
}

static td_status whole_average(td_leaves *v, td_ddp_unit *u)
{
    whole_range range = range_of(v, u);
    td_leaf_stack nodes = whole_of(v)->stacks[0];
    push_leaf(v, &nodes, &range);
    if (v->ranks == 1 || range.count == 0) {
        return TD_OK;
    }
    if (whole_of(v)->pairs) {
        td_tensor mine = range_at(&range, nodes.list[0].place);
        return td_all_reduce(v->ddp->group, &mine, v->ranks == v->count ? TD_AVERAGE : TD_SUM,
                             &u->work);
    }
    return send_nodes(v, u, &nodes);
}

/* A piece of rank r's k-th node is at place r * nodes + k. */
static td_tensor piece_at(const void *range, int place)
{
    const whole_range *r = range;
    const whole *w = whole_of(r->v);
    int64_t piece = r->count / r->v->ranks;
    return td_ddp_stretch(w->come[place % w->nodes], r->begin + place / w->nodes * piece, piece);
}

/* The first node of this rank: where the sum goes. */
static int first_place(const whole *w)
{
    return w->stacks[0].count > 0 ? w->stacks[0].list[0].place : w->current;
}

/* This rank's pieces of all nodes have come: adds them, and gathers the sum. */
static td_status send_sum(td_leaves *v, td_ddp_unit *u)
{
    whole *w = whole_of(v);
    whole_trade *trade = &w->trades[u - v->ddp->units.list];
    td_status status = v->ddp->failure.status;
    for (int k = 0; k < trade->count; k++) {
        td_status one = td_work_wait(trade->works[k], 0.0);
        status = status == TD_OK ? one : status;
    }
    trade->count = -1;
    TD_TRY(status);
    whole_range range = range_of(v, u);
    td_leaf_stack all = { .count = 0 };
    for (int r = 0, most = 0; r < v->ranks; r++) {
        td_leaf_stack nodes = nodes_of(v, r, &most);
        for (int k = 0; k < nodes.count; k++) {
            nodes.list[k].place += r * w->nodes;
            td_leaf_push(&all, v->count, nodes.list[k], piece_at, &range);
        }
    }
    td_tensor sum = piece_at(&range, all.list[0].place);
    td_tensor result = range_at(&range, first_place(w));
    td_tensor own = td_ddp_stretch(&result, v->rank * td_numel(&sum), td_numel(&sum));
    td_copy_(&own, &sum);
    return td_all_gather(v->ddp->group, &result, &own, &u->work);
}

static td_status make_trades(whole *w, int units)
{
    whole_trade *trades = realloc(w->trades, (size_t)units * sizeof *trades);
    TD_CHECK(trades != NULL, TD_E_NOMEM, "td_leaves: no memory for %d units", units);
    w->trades = trades;
    for (int k = 0; k < units; k++) {
        w->trades[k].count = -1;
    }
    return TD_OK;
}

static td_status whole_on(td_leaves *v, td_ddp_event event, td_ddp_unit *unit)
{
    whole *w = whole_of(v);
    bool trades = v->ranks > 1 && !w->pairs;
    if (event == TD_DDP_REDUCTION && trades) {
        return make_trades(w, v->ddp->units.count);
    }
    if (event == TD_DDP_WAITED && trades && w->trades[unit - v->ddp->units.list].count >= 0) {
        return send_sum(v, unit);
    }
    if (event == TD_DDP_REDUCED) {
        whole_write_at(v, first_place(w));
    }
    return TD_OK;
}

/* ---- beginning and end ---- */

/* Gives the flat gradients memory of `length` elements, of which they are the beginning. The
 * optimizer's state is as long as the gradients, and stays, whatever the number of ranks. */
static td_status lengthen_gradients(td_ddp_state *s, int64_t length)
{
    const td_tensor *flat = td_params_flat(s->params);
    td_tensor *memory = td_ddp_new_memory(s->group, td_device_of(flat), length, flat->dtype);
    td_tensor *grads = memory != NULL ? td_ddp_slice(memory, 0, td_numel(flat)) : NULL;
    td_free(memory);
    td_status status = grads != NULL ? td_params_set_memory(s->params, NULL, grads) : TD_E_NOMEM;
    if (status != TD_OK) {
        td_free(grads);
    }
    return status;
}

/* Memory of the flat gradients' length for each place, as far as it is not there. Collective. */
static bool make_sums(td_leaves *v, int places)
{
    whole *w = whole_of(v);
    const td_tensor *own = w->sums[0];
    bool made = true;
    for (int i = 1; i < places; i++) {
        if (w->sums[i] == NULL) {
            w->sums[i] =
                td_ddp_new_memory(v->ddp->group, td_device_of(own), td_numel(own), own->dtype);
        }
        made = made && w->sums[i] != NULL;
    }
    return made;
}

/* What other ranks' nodes come to. */
static bool make_come(td_leaves *v)
{
    whole *w = whole_of(v);
    const td_tensor *own = w->sums[0];
    bool made = true;
    for (int k = 0; v->ranks > 1 && !w->pairs && k < w->nodes; k++) {
        w->come[k] = td_zeros(TD_SHAPE(td_numel(own)), own->dtype, td_device_of(own));
        made = made && w->come[k] != NULL;
    }
    return made;
}

/* Tables for the parts of the model, and for `open` leaves in each. */
static td_status make_parts(td_leaves *v, int open)
{
    whole *w = whole_of(v);
    size_t leaves = (size_t)(v->parts * open), count = (size_t)v->ddp->count;
    free(w->stacks);
    free(w->leaves);
    free(w->has);
    w->stacks = calloc((size_t)v->parts, sizeof *w->stacks);
    w->leaves = calloc(leaves, sizeof *w->leaves);
    w->has = calloc(leaves * count, sizeof *w->has);
    bool made = w->stacks != NULL && w->leaves != NULL && w->has != NULL;
    w->parts = made ? v->parts : 0;
    w->open = made ? open : 0;
    return made ? TD_OK : td_fail(TD_E_NOMEM, "td_leaves: no memory for %d parts", v->parts);
}

static td_status whole_begin_step(td_leaves *v, int open)
{
    whole *w = whole_of(v);
    int places = w->places + open - 1;
    TD_CHECK(places <= PLACES, TD_E_UNSUPPORTED,
             "td_leaves: %d backwards between their halves; %d are possible", open,
             PLACES - w->places);
    TD_TRY(w->parts != v->parts || w->open != open ? make_parts(v, open) : TD_OK);
    for (int k = 0; k < v->parts * open; k++) { /* no leaf is done */
        w->leaves[k] = (whole_leaf){ -1, w->has + (ptrdiff_t)k * v->ddp->count };
        w->stacks[k / open].count = 0;
    }
    return make_sums(v, places) ? TD_OK : TD_E_NOMEM;
}

static td_status whole_open(td_leaves *v)
{
    whole *w = v->gradients = calloc(1, sizeof *w);
    td_ddp_state *s = v->ddp;
    const td_tensor *flat = td_params_flat(s->params);
    TD_CHECK(w != NULL, TD_E_NOMEM, "td_leaves: no memory");
    w->grain = v->ranks * (LINE / (int64_t)td_dtype_size(flat->dtype));
    int64_t length = (td_numel(flat) + w->grain - 1) / w->grain * w->grain;
    if (s->divided == TD_DIVIDES_NOTHING) { /* otherwise the strategy inside has done it */
        TD_TRY(lengthen_gradients(s, length));
    }
    w->places = 1;
    for (int r = 0; r < v->ranks; r++) {
        int nodes = nodes_of(v, r, &w->places).count;
        w->nodes = nodes > w->nodes ? nodes : w->nodes;
    }
    bool doubles = (v->ranks & (v->ranks - 1)) == 0 && v->count % v->ranks == 0;
    bool cpu = s->model->device.type == TD_DEVICE_CPU;
    w->pairs = cpu && (v->ranks == v->count || doubles);
    flat = td_params_flat_grad(s->params);
    w->sums[0] = td_borrow(td_ptr(flat), TD_SHAPE(length), flat->dtype, td_device_of(flat));
    bool made =
        w->sums[0] != NULL && make_sums(v, w->places) && make_come(v) && make_parts(v, 1) == TD_OK;
    return td_group_agree(s->group, made ? TD_OK : TD_E_NOMEM);
}

static void whole_close(td_leaves *v)
{
    whole *w = whole_of(v);
    if (w->sums[0] != NULL) {
        whole_write_at(v, 0); /* the flat gradients get their own memory back */
    }
    for (int k = 0; k < PLACES; k++) {
        td_free(w->sums[k]);
    }
    for (int k = 0; k < TD_LEAF_DEPTH; k++) {
        td_free(w->come[k]);
    }
    free(w->stacks);
    free(w->leaves);
    free(w->has);
    free(w->trades);
}

const td_leaf_way td_leaf_whole = { .turns = whole_turns,
                                    .leaf = whole_leaf_of,
                                    .open = whole_open,
                                    .close = whole_close,
                                    .average = whole_average,
                                    .on = whole_on,
                                    .begin_step = whole_begin_step,
                                    .begin = whole_begin,
                                    .end = whole_end };
