/* td_tensor_parallel: a plan, held against the model; cutting; and what a model's slices are for
 * checkpoints and clipping. */
#include "dist/slices/internal.h"

#include "dist/comm/collectives.h"
#include "dist/comm/mesh.h"
#include "nn/module.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tensor/system/text.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan ---- */

typedef struct slices_plan {
    const td_tensor_parallel_options *options;
    td_slices *slices;
    td_site at;
    int *matched;     /* modules of each rule */
    const char *rows; /* the path of the latest SEQUENCE module; NULL: none */
} slices_plan;

static const td_tp_rule *slices_rule(slices_plan *p, const td_module *m, const char *path)
{
    const td_tp_rule *found = NULL;
    for (int i = 0; i < p->options->count; i++) {
        const td_tp_rule *rule = &p->options->rules[i];
        if (fnmatch(rule->path, path, 0) == 0) {
            TD_REQUIRE(found == NULL, p->at,
                       "td_tensor_parallel: '%s' matches two rules, \"%s\" and \"%s\"",
                       td_node_of(m)->label, found->path, rule->path);
            found = rule;
            p->matched[i]++;
        }
    }
    return found;
}

/* Whether a module's state has the address of a tensor. */
static bool slices_mentions(const td_module *m, const td_tensor *t)
{
    bool found = false;
    for (size_t at = 0; at + sizeof t <= td_node_of(m)->state_size; at += sizeof t) {
        found = found || memcmp((const char *)m->state + at, &t, sizeof t) == 0;
    }
    return found;
}

/* The cut of the tensor of another module that m uses; NULL: there is none. */
static const td_cut *slices_tied(const td_slices *s, const td_module *m)
{
    for (int i = 0; i < s->slicing.count; i++) {
        if (slices_mentions(m, s->slicing.cuts[i].tensor)) {
            return &s->slicing.cuts[i];
        }
    }
    return NULL;
}

/* A module that a style can cut: a Linear, or, of words, an embedding or a head. */
static void require_fit(const slices_plan *p, const td_module *m, const td_tp_rule *rule)
{
    const td_tensor *w = m->tensor_count > 0 ? m->tensors[0].tensor : NULL;
    bool words = rule->style == TD_TP_VOCAB, indices = m->type->takes_indices;
    bool bias = m->tensor_count == 2 && m->tensors[1].tensor->ndim == 1;
    bool alone = m->child_count == 0 || td_is_linear(m); /* whose child is an adapter (td_lora) */
    bool fits = alone && (w == NULL || w->ndim == 2) &&
                (words ? m->tensor_count <= 1 && (indices || m->type->forward2 != NULL)
                       : w != NULL && !indices && (m->tensor_count == 1 || bias));
    TD_REQUIRE(fits, p->at, "td_tensor_parallel: '%s', which rule \"%s\" matches, is no %s",
               td_node_of(m)->label, rule->path, words ? "embedding or head" : "Linear");
    TD_REQUIRE(!indices || !((const td_embedding_options *)m->state)->has_padding, p->at,
               "td_tensor_parallel: '%s' has a padding_idx, which slices of a vocabulary have not",
               td_node_of(m)->label);
    TD_REQUIRE(td_cut_of(&p->slices->slicing, w) == NULL, p->at,
               "td_tensor_parallel: '%s' shares its weight with a module that another rule cuts",
               td_node_of(m)->label);
}

/* The parts' lengths, which all slices must divide. */
static td_cut slices_lengths(const slices_plan *p, const td_module *m, const td_tp_rule *rule,
                             const td_tensor *t, int dim)
{
    td_cut cut = { .tensor = t, .dim = dim };
    const int64_t *parts = rule->parts;
    int64_t units = parts[0] + parts[1] + parts[2], length = t->shape[dim];
    const char *what = rule->style == TD_TP_VOCAB ? "words" : dim == 0 ? "outputs" : "inputs";
    int slices = p->slices->slicing.slices;
    TD_REQUIRE(units >= 0 && (units == 0 || length % units == 0), p->at,
               "td_tensor_parallel: '%s' has %lld %s, which are no %lld parts of one size",
               td_node_of(m)->label, (long long)length, what, (long long)units);
    for (int i = 0; i < TD_CUT_PARTS; i++) {
        int64_t number = units > 0 ? parts[i] : i == 0 ? length : 0;
        TD_REQUIRE(number >= 0 && number % slices == 0, p->at,
                   "td_tensor_parallel: '%s' (rule \"%s\"): %lld %s are not divisible by %d slices",
                   td_node_of(m)->label, rule->path, (long long)number, units > 0 ? "heads" : what,
                   slices);
        cut.parts[i] = units > 0 ? length / units * number : number;
    }
    return cut;
}

/* ---- cutting ---- */

/* Draws a deferred parameter, and cuts the parameter if cut is not NULL. */
static td_status slices_cut(td_slices *s, td_tensor *t, const td_cut *cut)
{
    TD_TRY(td_parameter_draw(t));
    if (cut == NULL) {
        return TD_OK;
    }
    td_shape shape = td_shape_of(t);
    shape.dim[cut->dim] /= s->slicing.ranks;
    td_tensor *own = td_parameter_like(t, shape);
    TD_CHECK(own != NULL, TD_E_NOMEM, "no memory to cut %s", td_label(t));
    td_cut_copy(&s->slicing, cut, s->slicing.rank, t, own, false);
    td_parameter_exchange(t, own, td_is_leaf(t));
    return TD_OK;
}

static td_status slices_add(slices_plan *p, const td_module *m, const td_tp_rule *rule, int i,
                            int dim)
{
    td_slicing *slicing = &p->slices->slicing;
    td_cut *cut = &slicing->cuts[slicing->count++];
    *cut = slices_lengths(p, m, rule, m->tensors[i].tensor, dim);
    return slices_cut(p->slices, m->tensors[i].tensor, cut);
}

/* Cuts the weight and a bias of outputs that are cut; a head without a weight has the embedding's.
 */
static td_status slices_cut_module(slices_plan *p, const td_module *m, const td_tp_rule *rule,
                                   td_sliced *sliced)
{
    td_slicing *slicing = &p->slices->slicing;
    if (m->tensor_count == 0) {
        sliced->cut = slices_tied(p->slices, m);
        TD_REQUIRE(sliced->cut != NULL, p->at,
                   "td_tensor_parallel: '%s' (rule \"%s\") has no weight, and uses none of a "
                   "module before it that is cut",
                   td_node_of(m)->label, rule->path);
        sliced->weight = (td_tensor *)(uintptr_t)sliced->cut->tensor;
        return TD_OK;
    }
    sliced->cut = &slicing->cuts[slicing->count];
    sliced->weight = m->tensors[0].tensor;
    sliced->bias = m->tensor_count > 1 ? m->tensors[1].tensor : NULL;
    bool inputs = rule->style == TD_TP_ROW; /* of a weight [out,in] */
    td_status status = slices_add(p, m, rule, 0, inputs ? 1 : 0);
    return status == TD_OK && sliced->bias != NULL && rule->style == TD_TP_COLUMN
               ? slices_add(p, m, rule, 1, 0)
               : status;
}

/* rule NULL: a module inside a SEQUENCE module that is not cut. */
static td_status slices_surround(slices_plan *p, td_module *m, const td_tp_rule *rule, bool rows)
{
    static const td_around_fn run[] = { [TD_TP_COLUMN] = td_slices_column,
                                        [TD_TP_ROW] = td_slices_row,
                                        [TD_TP_VOCAB] = td_slices_vocabulary,
                                        [TD_TP_SEQUENCE] = td_slices_sequence };
    td_sliced *sliced = calloc(1, sizeof *sliced);
    TD_CHECK(sliced != NULL, TD_E_NOMEM, "no memory to cut '%s'", td_node_of(m)->label);
    *sliced = (td_sliced){ .slices = p->slices, .rows = rows };
    bool cuts = rule != NULL && rule->style != TD_TP_SEQUENCE;
    if (cuts) {
        require_fit(p, m, rule);
    }
    td_around around = { .run = rule != NULL ? run[rule->style] : td_slices_rows,
                         .free = free,
                         .user = sliced,
                         .inside = true };
    td_status status = cuts ? slices_cut_module(p, m, rule, sliced) : TD_OK;
    status = status == TD_OK ? td_module_surround(m, &around) : status;
    if (status != TD_OK) {
        free(sliced);
    }
    return status;
}

/* Inside a SEQUENCE module. */
static void require_rows(const slices_plan *p, const td_module *m, const td_tp_rule *rule)
{
    bool linear = rule != NULL && (rule->style == TD_TP_COLUMN || rule->style == TD_TP_ROW);
    bool buffers = false;
    for (int i = 0; i < m->tensor_count; i++) {
        buffers = buffers || m->tensors[i].buffer;
    }
    TD_REQUIRE(linear || (rule == NULL && m->tensor_count <= TD_SLICES_ROW_PARAMETERS && !buffers),
               p->at, "td_tensor_parallel: '%s' inside '%s' does not compute rows one by one",
               td_node_of(m)->label, p->rows);
}

/* A Dropout in front of a ROW layer, or of rows, draws the whole tensor's masks. */
static bool slices_dropout(const slices_plan *p, td_module *m, const td_tp_rule *rule, bool rows)
{
    bool columns = rule != NULL && rule->style == TD_TP_COLUMN;
    if (td_dropout_place_of(m) == NULL || (!rows && rule == NULL)) {
        return false;
    }
    const td_slicing *s = &p->slices->slicing;
    TD_REQUIRE((columns || rule == NULL) && td_dropout_set_part(m, s->rank, s->ranks, columns),
               p->at,
               "td_tensor_parallel: '%s' cannot draw a part of its masks; a Dropout can, by "
               "TD_TP_COLUMN",
               td_node_of(m)->label);
    return true;
}

static td_status slices_visit(slices_plan *p, td_module *m, const char *path)
{
    const td_tp_rule *rule = slices_rule(p, m, path);
    size_t length = p->rows != NULL ? strlen(p->rows) : 0;
    bool rows = p->rows != NULL && strncmp(path, p->rows, length) == 0 && path[length] == '.';
    if (slices_dropout(p, m, rule, rows)) {
        return TD_OK;
    }
    if (rows) {
        require_rows(p, m, rule);
    }
    if (rule != NULL || (rows && m->tensor_count > 0)) {
        TD_TRY(slices_surround(p, m, rule, rows));
    }
    for (int i = 0; i < m->tensor_count; i++) {
        TD_TRY(slices_cut(p->slices, m->tensors[i].tensor, NULL)); /* what is still deferred */
    }
    if (rule != NULL && rule->style == TD_TP_SEQUENCE) {
        p->rows = td_node_of(m)->path;
        p->slices->slicing.rows = true;
    }
    return TD_OK;
}

/* ---- the whole ---- */

static td_tensor *run_sliced(const td_around_rest *rest, td_tensor *x, void *user)
{
    (void)user;
    return td_run_rest(rest, x);
}

static void slices_free(void *user)
{
    td_slices *s = user;
    td_module_set_slicing(s->model, NULL);
    free(s->slicing.cuts);
    free(s->slicing.sums);
    free(s);
}

td_status td_tensor_parallel_check(td_module *net)
{
    td_slices *s = td_surrounded_by(net, run_sliced);
    return s != NULL ? td_slices_compare(s) : TD_OK;
}

static td_status slices_agree(td_status mine, void *user)
{
    td_slices *s = user;
    return s->slicing.ranks > 1 ? td_group_agree(s->group, mine) : mine;
}

static td_status slices_all_gather(td_tensor *all, const td_tensor *mine, void *user)
{
    return td_all_gather(((td_slices *)user)->group, all, mine, NULL);
}

static void slices_sum_numbers(double *numbers, int count, void *user)
{
    td_slices *s = user;
    if (s->slicing.ranks > 1) {
        td_slices_require(s, td_all_reduce_numbers(s->group, numbers, count), TD_NOWHERE);
    }
}

/* *group NULL: this rank alone. */
static td_status slices_find_group(const td_tensor_parallel_options *o, td_group **group)
{
    bool alone = o->group == NULL && o->mesh == NULL && !td_dist_is_initialized();
    *group = o->group != NULL  ? o->group
             : o->mesh != NULL ? td_mesh_group(o->mesh, "tp")
             : alone           ? NULL
                               : td_dist_world();
    return alone || *group != NULL ? TD_OK : TD_E_NETWORK; /* with the mesh's message */
}

/* NULL with td_last_error(). Fatal if the number of slices does not fit. */
static td_slices *slices_new(const td_tensor_parallel_options *o, td_site at)
{
    td_group *group;
    if (slices_find_group(o, &group) != TD_OK) {
        return NULL;
    }
    int rank = group != NULL ? td_group_rank(group) : 0;
    int ranks = group != NULL ? td_group_size(group) : 1,
        slices = o->slices > 0 ? o->slices : ranks;
    TD_REQUIRE(slices % ranks == 0, at,
               "td_tensor_parallel: %d slices are not divisible by %d ranks", slices, ranks);
    TD_REQUIRE(slices / ranks <= TD_SLICES_HERE, at,
               "td_tensor_parallel: %d slices on %d ranks; a rank has at most %d", slices, ranks,
               TD_SLICES_HERE);
    td_state_list list = td_module_state(o->model);
    size_t most = (size_t)(list.count > 0 ? list.count : 1);
    td_state_list_free(&list);
    td_slices *s = calloc(1, sizeof *s);
    TD_CHECK_NULL(s != NULL, TD_E_NOMEM, "td_tensor_parallel: no memory");
    *s = (td_slices){ .model = o->model, .group = group, .here = slices / ranks };
    s->slicing = (td_slicing){ .rank = rank,
                               .ranks = ranks,
                               .slices = slices,
                               .cuts = calloc(most, sizeof *s->slicing.cuts),
                               .sums = calloc((size_t)slices, sizeof *s->slicing.sums),
                               .all_gather = slices_all_gather,
                               .sum = slices_sum_numbers,
                               .agree = slices_agree,
                               .user = s };
    if (s->slicing.cuts == NULL || s->slicing.sums == NULL) {
        slices_free(s);
        td_fail(TD_E_NOMEM, "td_tensor_parallel: no memory");
        return NULL;
    }
    return s;
}

/* A module that no rule cuts must not compute with a slice of another's. */
static void require_no_tie(slices_plan *p, const td_module *m, const char *path)
{
    const td_cut *tied = slices_tied(p->slices, m);
    TD_REQUIRE(tied == NULL || slices_rule(p, m, path) != NULL, p->at,
               "td_tensor_parallel: '%s' uses %s, which is cut, and no rule matches '%s'",
               td_node_of(m)->label, td_label(tied->tensor), path);
}

static void require_matches(const slices_plan *p)
{
    for (int i = 0; i < p->options->count; i++) {
        TD_REQUIRE(p->matched[i] > 0, p->at,
                   "td_tensor_parallel: rule %d, \"%s\", matches no module of the model", i,
                   p->options->rules[i].path);
    }
}

static td_status slices_apply(const td_tensor_parallel_options *o, td_site at)
{
    td_slices *s = slices_new(o, at);
    if (s == NULL) {
        return TD_E_NOMEM;
    }
    slices_plan plan = {
        .options = o, .slices = s, .at = at, .matched = calloc((size_t)o->count + 1, sizeof(int))
    };
    td_status status = plan.matched != NULL
                           ? TD_OK
                           : td_fail(TD_E_NOMEM, "td_tensor_parallel: no memory for a plan");
    status = slices_agree(status, s);
    status = status == TD_OK ? td_slices_compare(s) : status;
    if (status == TD_OK) {
        td_module *net = o->model;
        for (td_module *m = net; m != NULL && status == TD_OK; m = td_module_next(net, m)) {
            status = slices_visit(&plan, m, td_module_path(net, m));
        }
        if (status == TD_OK) {
            require_matches(&plan);
        }
        for (td_module *m = net; m != NULL && status == TD_OK; m = td_module_next(net, m)) {
            require_no_tie(&plan, m, td_module_path(net, m));
        }
        status = slices_agree(status, s);
    }
    free(plan.matched);
    td_around around = { .run = run_sliced,
                         .free = slices_free,
                         .user = s,
                         .wrapper = "td_tensor_parallel",
                         .inside = true };
    td_module_set_slicing(o->model, &s->slicing);
    td_status kept = td_module_surround(o->model, &around);
    if (kept != TD_OK) {
        slices_free(s);
    }
    return status == TD_OK ? kept : status;
}

td_module *td_tensor_parallel_at(td_tensor_parallel_options o, td_site at)
{
    TD_REQUIRE(o.group == NULL || o.mesh == NULL, at,
               "td_tensor_parallel: .group and .mesh: give one of them");
    TD_REQUIRE(o.count > 0 && o.rules != NULL, at, "td_tensor_parallel: there are no rules");
    TD_REQUIRE(o.slices >= 0, at, "td_tensor_parallel: .slices is %d", o.slices);
    if (o.model == NULL) {
        return NULL;
    }
    const char *wrapper = td_module_wrapper(o.model);
    TD_REQUIRE(o.model->name[0] == '\0', at,
               "td_tensor_parallel: '%s' is a part of a larger model; give the whole model",
               o.model->name);
    TD_REQUIRE(wrapper == NULL, at,
               "td_tensor_parallel: the model went through %s already: cut it first", wrapper);
    TD_REQUIRE(td_params_laid_out(o.model) == NULL, at,
               "td_tensor_parallel: the parameters are laid out flat already; call it before "
               "td_parameters and td_ddp");
    if (slices_apply(&o, at) != TD_OK) {
        td_module_free(o.model);
        return NULL;
    }
    return o.model;
}
