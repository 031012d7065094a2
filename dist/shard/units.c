/* Units: which modules' parameters travel together, and where they lie in the flat space. */
#include "dist/shard/shard.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOBODY = -2, ROOT = -1, GRAIN = 64 }; /* bytes: pieces begin on cache lines */

/* ---- which modules are units ---- */

typedef struct found_unit {
    td_module *module;
    const char *path;
} found_unit;

typedef struct found_param {
    int unit;
    bool narrow; /* it travels as bf16 */
} found_param;

typedef struct search {
    td_sharding *sh;
    bool marked; /* the model's blocks are marked */
    int count;   /* units so far, in the order of registration */
    found_unit *units;
    found_param *params;
} search;

static bool is_unit(const search *all, const td_module *m, const char *path)
{
    const td_zero_options *o = &all->sh->options;
    if (*path == '\0') {
        return false; /* the whole model: the root */
    }
    if (o->unit != NULL) {
        return o->unit(m, path, o->unit_user);
    }
    return all->marked ? td_module_part_of(m) == TD_PART_BLOCK
                       : m->child_count > 0 && strchr(path, '.') == NULL;
}

static bool is_inside(const char *path, const char *of)
{
    size_t length = strlen(of);
    return strncmp(path, of, length) == 0 && path[length] == '.';
}

/* Whether a tensor travels as bf16 with .wire: the weights of Linear and Conv2d, which multiply
 * them as bf16 under TD_PRECISION_BF16; but not a depthwise convolution's, which are no matrix. */
static bool is_narrow(const search *all, const td_module *m, const td_named_tensor *t)
{
    return all->sh->options.wire != NULL && strcmp(t->name, "weight") == 0 &&
           (strcmp(m->type->name, "Linear") == 0 || strcmp(m->type->name, "Conv2d") == 0) &&
           t->tensor->ndim >= 2 && t->tensor->shape[1] > 1;
}

/* A parameter that two units share belongs to the root, whose values are gathered while either unit
 * runs. A parameter that two modules share does not travel as bf16. */
static void shard_assign(search *all, const td_tensor *t, int unit, bool narrow)
{
    const td_params *params = all->sh->ddp->params;
    for (int i = 0; i < td_params_count(params); i++) {
        if (td_params_get(params, i)->tensor == t) {
            found_param *p = &all->params[i];
            p->narrow = narrow && p->unit == NOBODY;
            p->unit = p->unit == NOBODY || p->unit == unit ? unit : ROOT;
        }
    }
}

static void visit(search *all, td_module *m, const char *path)
{
    bool inside = all->count > 0 && is_inside(path, all->units[all->count - 1].path);
    if (!inside && is_unit(all, m, path)) {
        all->units[all->count++] = (found_unit){ m, path };
        inside = true;
    }
    for (int k = 0; k < m->tensor_count; k++) {
        shard_assign(all, m->tensors[k].tensor, inside ? all->count - 1 : ROOT,
                     is_narrow(all, m, &m->tensors[k]));
    }
}

/* Lists the units in the order of registration, and the unit of each parameter. */
static td_status shard_find(search *all)
{
    td_module *model = all->sh->ddp->model;
    int modules = 0;
    for (const td_module *m = model; m != NULL; m = td_module_next(model, m)) {
        modules++;
        all->marked |= td_module_part_of(m) == TD_PART_BLOCK;
    }
    all->units = calloc((size_t)modules + 1, sizeof *all->units);
    all->params = calloc((size_t)all->sh->ddp->count, sizeof *all->params);
    TD_CHECK(all->units != NULL && all->params != NULL, TD_E_NOMEM,
             "td_ddp: no memory to find units");
    for (int i = 0; i < all->sh->ddp->count; i++) {
        all->params[i].unit = NOBODY;
    }
    for (td_module *m = model; m != NULL; m = td_module_next(model, m)) {
        visit(all, m, td_module_path(model, m));
    }
    return TD_OK;
}

/* ---- in the flat space ---- */

static int64_t shard_round_up(int64_t count, int64_t unit)
{
    return (count + unit - 1) / unit * unit;
}

/* Places unit after unit in the flat space: the last block first, as in backward, and the root at
 * the end. In a unit the parameters that travel as bf16 come first; otherwise their order stays. */
static void shard_place(td_sharding *sh, const search *all, int *order, int64_t *begin)
{
    td_ddp_state *s = sh->ddp;
    int64_t size = (int64_t)td_dtype_size(td_params_flat(s->params)->dtype);
    int64_t line = GRAIN / size, at = 0;
    int64_t grain = sh->woven ? sysconf(_SC_PAGESIZE) / size : line; /* of a rank's piece */
    int placed = 0;
    for (int found = all->count - 1; found >= ROOT; found--) {
        td_shard_unit *u = &sh->units[sh->count];
        *u = (td_shard_unit){ .sharding = sh, .number = sh->count, .begin = at };
        u->module = found == ROOT ? s->model : all->units[found].module;
        u->path = found == ROOT ? "the rest" : all->units[found].path;
        for (int k = 0; k < 2 * s->count; k++) {
            int i = s->params->order[k % s->count];
            const found_param *p = &all->params[i];
            if (p->unit == found && p->narrow == (k < s->count)) {
                order[placed++] = i;
                begin[i] = at;
                sh->of_param[i] = sh->count;
                at += shard_round_up(td_params_get(s->params, i)->count, line);
                u->narrow = p->narrow ? at - u->begin : u->narrow;
            }
        }
        u->count = shard_round_up(at - u->begin, grain * sh->ranks);
        u->narrow = 2 * (u->count - u->narrow) * sh->ranks <= u->count ? u->narrow : 0;
        at = u->begin + u->count;
        if (u->count > 0) {
            sh->root = found == ROOT ? u : NULL;
            sh->cuts[++sh->count] = at;
        }
    }
}

/* ---- memory ---- */

/* A header of parameter i's shape and strides, over its place in its unit's memory; unit NULL: in
 * the flat memory. */
static td_tensor *form(const td_sharding *sh, int i, int64_t begin, const td_tensor *unit,
                       const td_tensor *flat)
{
    const td_tensor *t = td_params_get(sh->ddp->params, i)->tensor;
    int64_t first = unit != NULL ? sh->units[sh->of_param[i]].begin : 0;
    const td_tensor *base = unit != NULL ? unit : flat;
    return td_slice_of_storage(base, base->offset + begin - first, td_shape_of(t), t->stride);
}

static bool make_headers(td_sharding *sh, td_params_places *places)
{
    bool made = true;
    for (int i = 0; made && i < sh->ddp->count; i++) {
        const td_shard_unit *u = &sh->units[sh->of_param[i]];
        places->values[i] = form(sh, i, places->begin[i], u->values, places->flat);
        places->grads[i] = form(sh, i, places->begin[i], u->grads, NULL);
        made = places->values[i] != NULL && places->grads[i] != NULL;
    }
    return made;
}

/* Memory that lasts as long as the model: offloaded, or what a group exchanges. */
static td_tensor *new_lasting(const td_sharding *sh, td_group *group, int64_t count)
{
    td_dtype dtype = td_params_flat(sh->ddp->params)->dtype;
    const char *offload = sh->options.offload;
    return offload != NULL ? td_offload_new(offload, count, dtype)
           : group != NULL ? td_ddp_new_memory(group, sh->device, count, dtype)
                           : td_zeros(TD_SHAPE(count), dtype, sh->device);
}

/* A unit's header. It lasts as long as the model, while its memory comes and goes. */
static td_tensor *new_header(const td_sharding *sh, const td_shard_unit *u)
{
    td_dtype dtype = td_params_flat(sh->ddp->params)->dtype;
    return td_new_away(TD_SHAPE(u->count), dtype, TD_ROW_MAJOR, sh->device, NULL);
}

/* Makes what lasts: this rank's window of the gradients, its window of the values or all values,
 * and the units' headers. Collective; the ranks agree on the outcome later. */
static bool make_memory(td_sharding *sh, td_params_places *places)
{
    bool own_values = sh->options.stage == TD_SHARD_PARAMETERS;
    int64_t length = sh->cuts[sh->count], window = length / sh->ranks;
    places->flat = new_lasting(sh, sh->group, own_values ? window : length);
    places->flat_grad = new_lasting(sh, sh->replicas, window);
    bool made = places->flat != NULL && places->flat_grad != NULL;
    for (int k = 0; made && k < sh->count; k++) {
        td_shard_unit *u = &sh->units[k];
        u->grads = new_header(sh, u);
        u->values = own_values ? new_header(sh, u) : NULL;
        made = u->grads != NULL && (u->values != NULL || !own_values);
    }
    /* The windows of all ranks are mapped side by side, and the units' values are there. */
    char *all =
        made && sh->woven ? td_group_weave(sh->group, places->flat, sh->cuts, sh->count) : NULL;
    for (int k = 0; all != NULL && k < sh->count; k++) {
        td_set_address(sh->units[k].values,
                       all + (size_t)sh->cuts[k] * td_dtype_size(places->flat->dtype));
    }
    return made && (!sh->woven || all != NULL);
}

static td_status make_lists(td_sharding *sh, size_t units)
{
    size_t params = (size_t)sh->ddp->count;
    sh->units = calloc(units, sizeof *sh->units);
    sh->cuts = calloc(units + 1, sizeof *sh->cuts);
    sh->of_param = calloc(params, sizeof *sh->of_param);
    sh->held = calloc(params, sizeof *sh->held);
    return sh->units != NULL && sh->cuts != NULL && sh->of_param != NULL && sh->held != NULL
               ? TD_OK
               : td_fail(TD_E_NOMEM, "td_ddp: no memory for units");
}

td_status td_shard_lay_out(td_sharding *sh, td_params_peers *peers)
{
    size_t room = (size_t)sh->ddp->count;
    search all = { .sh = sh };
    int *order = calloc(room, sizeof *order);
    int64_t *begin = calloc(room, sizeof *begin);
    td_params_places places = { .order = order,
                                .begin = begin,
                                .values = calloc(room, sizeof(td_tensor *)),
                                .grads = calloc(room, sizeof(td_tensor *)) };
    bool made = order != NULL && begin != NULL && places.values != NULL && places.grads != NULL;
    td_status status = made ? shard_find(&all) : td_fail(TD_E_NOMEM, "td_ddp: no memory for units");
    status = status == TD_OK ? make_lists(sh, (size_t)all.count + 1) : status; /* with the root */
    if (status == TD_OK) {
        shard_place(sh, &all, order, begin);
        peers->cuts = sh->cuts;
        peers->stretches = sh->count;
        status = make_memory(sh, &places) && make_headers(sh, &places)
                     ? td_params_spread(sh->ddp->params, peers, &places)
                     : TD_E_NOMEM;
    }
    for (size_t i = 0; status != TD_OK && made && i < room; i++) {
        td_free(places.values[i]);
        td_free(places.grads[i]);
    }
    if (status != TD_OK) {
        td_free(places.flat);
        td_free(places.flat_grad);
    }
    free(all.units);
    free(all.params);
    free(order);
    free(begin);
    free(places.values);
    free(places.grads);
    return status;
}
