/* Loading a checkpoint. First everything is looked up, compared and counted; only when all of it
 * fits is anything changed. */
#include "nn/io/checkpoint_differ.h"
#include "nn/io/checkpoint_internal.h"
#include "nn/internal.h"
#include "nn/extra/ema_internal.h"
#include "nn/extra/scaler.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "autograd/hooks.h"
#include "nn/io/safetensors.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what goes where ---- */

typedef struct transfer {
    td_tensor *to;
    const td_safetensors_entry *from; /* NULL: zeros */
    bool view;                        /* `to` was made for this */
} transfer;

typedef struct loading {
    const td_checkpoint *checkpoint;
    td_safetensors *file;
    bool *used; /* of each entry of the file */
    transfer *transfers;
    int count;
    td_params *params; /* NULL: the order in memory stays */
    int *order;
    int64_t *steps;  /* of the optimizer's parameters */
    int64_t updates; /* of the averages */
    td_scaler_state scaler;
    double lr;
    td_generator *random;     /* NULL: not asked for */
    td_dropout_place *places; /* of the model's modules, in their order, where they are Dropouts */
    int place_count;
    td_differences differ;
    td_status status; /* the first failure that is no difference */
} loading;

static const td_safetensors_entry *take_entry(loading *l, const char *name)
{
    const td_safetensors_entry *entry = td_safetensors_find(l->file, name);
    if (entry != NULL) {
        l->used[entry - td_safetensors_get(l->file, 0)] = true;
    }
    return entry;
}

static const td_safetensors_entry *take_prefixed(loading *l, const char *prefix, const char *name)
{
    char *prefixed = td_format("%s%s", prefix, name);
    if (prefixed == NULL) {
        l->status = TD_E_NOMEM;
        return NULL;
    }
    const td_safetensors_entry *entry = take_entry(l, prefixed);
    free(prefixed);
    return entry;
}

/* Data-parallel wrappers elsewhere put "module." in front of every name. */
static const td_safetensors_entry *take_model_entry(loading *l, const char *name)
{
    const td_safetensors_entry *entry = take_entry(l, name);
    return entry != NULL ? entry : take_prefixed(l, "module.", name);
}

static bool dtypes_fit(td_dtype a, td_dtype b)
{
    return a == b || (td_is_float(a) && td_is_float(b));
}

/* Plans one transfer, or notes why it cannot be. */
static void plan(loading *l, const char *name, td_tensor *to, const td_safetensors_entry *from,
                 bool view)
{
    if (from == NULL) {
        td_differ(&l->differ.missing, "%s %s", name, td_describe_shape(td_shape_of(to)));
    } else if (!td_shape_equal(from->shape, td_shape_of(to)) ||
               !dtypes_fit(from->dtype, to->dtype)) {
        td_differ(&l->differ.unlike, "%s is %s%s in the file, %s%s here", name,
                  td_dtype_name(from->dtype), td_describe_shape(from->shape),
                  td_dtype_name(to->dtype), td_describe_shape(td_shape_of(to)));
    }
    l->transfers[l->count++] = (transfer){ to, from, view };
}

static void plan_model(loading *l, const td_state_list *state, bool averages)
{
    averages = averages && td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL;
    for (int i = 0; i < state->count; i++) {
        const char *name = state->items[i].name;
        const td_safetensors_entry *entry = take_model_entry(l, name);
        const td_safetensors_entry *average = averages ? take_prefixed(l, TD_KEY_EMA, name) : NULL;
        plan(l, name, state->items[i].tensor, average != NULL ? average : entry, false);
    }
}

/* ---- the optimizer ---- */

/* The count that the file has under a key; 0 where it has none. */
static int64_t read_count(loading *l, const char *key)
{
    const char *text = td_safetensors_metadata(l->file, key);
    char *end = NULL;
    int64_t count = text != NULL ? strtoll(text, &end, 10) : 0;
    if (text != NULL && (end == text || *end != '\0' || count < 0)) {
        td_differ(&l->differ.unlike, "%s is '%.20s', no count", key, text);
        count = 0;
    }
    return count;
}

/* How many steps the file says that a parameter has made. */
static int64_t read_steps(loading *l, const char *path)
{
    char *key = td_format(TD_KEY_OPTIMIZER_STEP, path);
    int64_t steps = 0;
    if (key == NULL) {
        l->status = TD_E_NOMEM;
    } else {
        steps = read_count(l, key);
    }
    free(key);
    return steps;
}

static void plan_parameter_state(loading *l, td_optim *o, int i)
{
    const char *path = td_params_get(o->params, i)->name;
    l->steps[i] = read_steps(l, path);
    for (int k = 0; k < TD_OPTIM_STATES && o->state[k] != NULL; k++) {
        td_tensor *view = td_params_view(o->params, o->state[k], i);
        char *name = td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[k]);
        if (view == NULL || name == NULL) {
            td_free(view);
            l->status = TD_E_NOMEM;
        } else if (l->steps[i] > 0) {
            plan(l, name, view, take_entry(l, name), true);
        } else {
            l->transfers[l->count++] = (transfer){ view, NULL, true };
        }
        free(name);
    }
}

static void plan_optimizer(loading *l, td_optim *o)
{
    const char *kind = td_safetensors_metadata(l->file, TD_KEY_OPTIMIZER_KIND);
    const char *lr = td_safetensors_metadata(l->file, TD_KEY_OPTIMIZER_LR);
    if (kind == NULL) {
        td_differ(&l->differ.missing, "the state of an optimizer (%s)", o->kind->name);
        return;
    }
    if (strcmp(kind, o->kind->name) != 0) {
        td_differ(&l->differ.unlike, "the optimizer is %.20s in the file, %s here", kind,
                  o->kind->name);
        return;
    }
    l->lr = lr != NULL ? strtod(lr, NULL) : o->lr;
    for (int i = 0; i < td_params_count(o->params); i++) {
        plan_parameter_state(l, o, i);
    }
}

/* ---- averages of the weights ---- */

static void plan_average(loading *l, const char *path, td_tensor *to, bool view)
{
    char *name = td_format(TD_KEY_EMA "%s", path);
    if (name == NULL || to == NULL) {
        l->status = TD_E_NOMEM;
    }
    if (name != NULL && to != NULL) {
        plan(l, name, to, take_entry(l, name), view);
    } else if (view) {
        td_free(to);
    }
    free(name);
}

static void plan_averages(loading *l, td_ema *e)
{
    if (td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) == NULL) {
        td_differ(&l->differ.missing, "averages of the weights (%s*)", TD_KEY_EMA);
        return;
    }
    l->updates = read_count(l, TD_KEY_EMA_UPDATES);
    for (int i = 0; i < td_params_count(e->params); i++) {
        plan_average(l, td_params_get(e->params, i)->name, td_params_view(e->params, e->average, i),
                     true);
    }
    for (int i = 0; i < e->buffers.count; i++) {
        plan_average(l, e->buffers.items[i].name, e->buffers.items[i].copy, false);
    }
}

/* ---- the program's own ---- */

static void plan_extra(loading *l)
{
    const td_checkpoint *asked = l->checkpoint;
    for (int i = 0; i < asked->extra_count; i++) {
        const char *name = asked->extra[i].name;
        plan(l, name, asked->extra[i].tensor, take_entry(l, name), false);
    }
}

/* ---- a loss scaler ---- */

static void plan_scaler(loading *l, td_scaler *scaler)
{
    const char *text = td_safetensors_metadata(l->file, TD_KEY_SCALER);
    l->scaler = td_scaler_now(scaler);
    if (text == NULL) {
        return; /* the run was in another precision */
    }
    td_scaler_state state;
    int used = 0;
    int found = sscanf(text, "%lf %" SCNd64 " %" SCNd64 "%n", &state.scale, &state.good,
                       &state.skipped, &used);
    if (found != 3 || text[used] != '\0' || !(state.scale > 0 && state.scale < INFINITY) ||
        state.good < 0 || state.skipped < 0) {
        td_differ(&l->differ.unlike, "%s is '%.60s', no loss scale with two counts", TD_KEY_SCALER,
                  text);
        return;
    }
    l->scaler = state;
}

/* ---- the order in memory ---- */

/* Whether a tape still knows of the parameters: what it has saved must not move. */
static bool in_use(const td_params *params)
{
    bool used = false;
    for (int i = 0; i < td_params_count(params); i++) {
        used = used || td_leaf_uses(td_params_get(params, i)->tensor) > 0;
    }
    return used;
}

/* Other parameters may take gradients here than when the file was made: then the order has no
 * meaning, and the present one stays. */
static void plan_order(loading *l)
{
    const char *text = td_safetensors_metadata(l->file, TD_KEY_ORDER);
    td_params *params = td_params_laid_out(l->checkpoint->model);
    if (text == NULL || params == NULL || in_use(params)) {
        return;
    }
    int count = td_params_count(params);
    bool same_count;
    l->order = calloc((size_t)count + 1, sizeof *l->order);
    if (l->order == NULL) {
        l->status = td_fail(TD_E_NOMEM, "no memory for the order of %d parameters", count);
    } else if (!td_order_from_text(text, l->order, count, &same_count)) {
        td_differ(&l->differ.unlike, "%s is '%.40s', no order", TD_KEY_ORDER, text);
    } else if (same_count &&
               memcmp(l->order, td_params_order(params), (size_t)count * sizeof(int)) != 0) {
        l->params = params;
    }
}

/* ---- random states ---- */

static void plan_dropout(td_module *m, const char *path, void *user)
{
    loading *l = user;
    if (td_dropout_place_of(m) == NULL) {
        return;
    }
    char *key = td_format(TD_KEY_DROPOUT, path);
    if (key == NULL) {
        l->status = TD_E_NOMEM;
        return;
    }
    const char *text = td_safetensors_metadata(l->file, key);
    td_dropout_place *place = &l->places[l->place_count++];
    if (text == NULL) {
        td_differ(&l->differ.missing, "%s (metadata)", key);
    } else if (sscanf(text, "%" SCNu64 " %" SCNu64, &place->seed, &place->calls) != 2) {
        td_differ(&l->differ.unlike, "%s is '%.40s', not two numbers", key, text);
    }
    free(key);
}

static void plan_random(loading *l)
{
    const char *text = td_safetensors_metadata(l->file, TD_KEY_RANDOM);
    if (text == NULL) {
        td_differ(&l->differ.missing, "%s (metadata)", TD_KEY_RANDOM);
    } else if (!td_generator_from_text(text, l->random)) {
        td_differ(&l->differ.unlike, "%s is no state of a generator", TD_KEY_RANDOM);
    }
    td_module_each(l->checkpoint->model, plan_dropout, l);
}

static void apply_dropout(td_module *m, const char *path, void *user)
{
    (void)path;
    loading *l = user;
    td_dropout_place *place = td_dropout_place_of(m);
    if (place != NULL) {
        *place = l->places[l->place_count++];
    }
}

/* ---- the whole ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* What a file may hold beside what was asked for. */
static bool may_stay(const loading *l, const char *name)
{
    const td_checkpoint *asked = l->checkpoint;
    return (asked->optim == NULL && begins_with(name, TD_KEY_OPTIMIZER)) ||
           (asked->ema == NULL && begins_with(name, TD_KEY_EMA) &&
            td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL) ||
           begins_with(name, TD_KEY_EXTRA) || ends_with(name, "num_batches_tracked");
}

/* Names in the file that nothing asked for. */
static void note_unused(loading *l)
{
    for (int i = 0; i < td_safetensors_count(l->file); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(l->file, i);
        if (!l->used[i] && !may_stay(l, entry->name)) {
            td_differ(&l->differ.unexpected, "%s %s", entry->name, td_describe_shape(entry->shape));
        }
    }
}

static void count_module(td_module *m, const char *path, void *user)
{
    (void)m, (void)path;
    ++*(int *)user;
}

static bool make_room(loading *l, const td_state_list *state)
{
    const td_optim *o = l->checkpoint->optim;
    int modules = 0;
    td_module_each(l->checkpoint->model, count_module, &modules);
    size_t params = o != NULL ? (size_t)td_params_count(o->params) : 0;
    l->used = calloc((size_t)td_safetensors_count(l->file) + 1, sizeof *l->used);
    size_t averages = l->checkpoint->ema != NULL ? (size_t)state->count : 0;
    size_t extra = (size_t)l->checkpoint->extra_count;
    l->transfers = calloc((size_t)state->count + averages + params * TD_OPTIM_STATES + extra + 1,
                          sizeof *l->transfers);
    l->steps = calloc(params + 1, sizeof *l->steps);
    l->places = calloc((size_t)modules, sizeof *l->places);
    l->random = malloc(sizeof *l->random);
    return l->used != NULL && l->transfers != NULL && l->steps != NULL && l->places != NULL &&
           l->random != NULL;
}

static void plan_all(loading *l, const td_state_list *state, bool averages)
{
    plan_model(l, state, averages);
    if (l->checkpoint->optim != NULL) {
        plan_optimizer(l, l->checkpoint->optim);
    }
    if (l->checkpoint->ema != NULL) {
        plan_averages(l, l->checkpoint->ema);
    }
    plan_extra(l);
    if (l->checkpoint->scaler != NULL) {
        plan_scaler(l, l->checkpoint->scaler);
    }
    if (l->checkpoint->with_random) {
        plan_random(l);
    }
    plan_order(l);
    note_unused(l);
}

static td_status apply(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        const transfer *t = &l->transfers[i];
        if (t->from != NULL) {
            td_write(t->to, t->from->data, t->from->dtype);
        } else {
            td_fill_(t->to, 0.0);
        }
    }
    td_optim *o = l->checkpoint->optim;
    if (o != NULL) {
        o->lr = l->lr;
        memcpy(o->steps, l->steps, (size_t)td_params_count(o->params) * sizeof *o->steps);
        td_left_out_begin(&o->left_out, o->params);
    }
    if (l->checkpoint->ema != NULL) {
        *td_ema_count(l->checkpoint->ema) = l->updates;
        td_left_out_begin(&l->checkpoint->ema->left_out, l->checkpoint->ema->params);
    }
    if (l->checkpoint->scaler != NULL) {
        td_scaler_set(l->checkpoint->scaler, &l->scaler);
    }
    if (l->checkpoint->with_random) {
        *td_default_generator() = *l->random;
        l->place_count = 0;
        td_module_each(l->checkpoint->model, apply_dropout, l);
    }
    /* Last, since it moves what `transfers` holds views of. */
    return l->params != NULL ? td_params_reorder(l->params, l->order) : TD_OK;
}

static void free_loading(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        if (l->transfers[i].view) {
            td_free(l->transfers[i].to);
        }
    }
    free(l->used);
    free(l->transfers);
    free(l->order);
    free(l->steps);
    free(l->places);
    free(l->random);
    td_safetensors_close(l->file);
}

td_status td_checkpoint_load_model(const char *path, const td_checkpoint *checkpoint, bool averages)
{
    TD_REQUIRE(path != NULL && checkpoint != NULL && checkpoint->model != NULL, TD_HERE,
               "td_checkpoint_load: there is no path or no model");
    TD_REQUIRE(checkpoint->ema == NULL || !checkpoint->ema->swapped, TD_HERE,
               "td_checkpoint_load: the model holds the averages at the moment; td_ema_swap them "
               "back first");
    td_check_extra(checkpoint, "td_checkpoint_load");
    loading l = { .checkpoint = checkpoint, .differ = TD_NO_DIFFERENCES };
    TD_TRY(td_checkpoint_open(path, &l.file));
    td_state_list state = td_module_state(checkpoint->model);
    if (state.count < 0 || !make_room(&l, &state)) {
        l.status = td_fail(TD_E_NOMEM, "no memory to load '%s'", path);
    } else {
        plan_all(&l, &state, averages);
    }
    if (l.status == TD_OK) {
        l.status = td_differences_report(&l.differ, path);
    }
    if (l.status == TD_OK) {
        l.status = apply(&l);
    }
    free_loading(&l);
    td_state_list_free(&state);
    return l.status;
}

td_status td_checkpoint_load(const char *path, const td_checkpoint *checkpoint)
{
    return td_checkpoint_load_model(path, checkpoint, false);
}
