#include "nn/io/records.h"

#include "nn/extra/ema_internal.h"
#include "nn/internal.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 10 }; /* differences in a message */

void td_differ(td_difference *d, const char *format, ...)
{
    size_t length = strlen(d->text), left = sizeof d->text - length;
    if (d->count < LISTED && left > 16) {
        char item[256];
        va_list args;
        va_start(args, format);
        vsnprintf(item, sizeof item, format, args);
        va_end(args);
        snprintf(d->text + length, left - 6, "%s%s", d->count > 0 ? ", " : "", item);
    } else if (d->count == LISTED) { /* room was left for it */
        memcpy(d->text + length, ", ...", 6);
    }
    d->count++;
}

/* ---- the options ---- */

void td_records_require(const td_checkpoint_options *c, const char *function, td_site at)
{
    TD_REQUIRE(c->path != NULL && c->model != NULL, at, "%s: there is no path or no model",
               function);
    TD_REQUIRE(
        c->ema == NULL || !c->ema->swapped, at,
        "%s: the model holds the averages at the moment; td_ema_swap them back first%s", function,
        strcmp(function, "td_checkpoint_save") == 0 ? ", or save without .ema what is to be used"
                                                    : "");
    for (int i = 0; i < c->extra_count; i++) {
        const char *name = c->extra[i].name != NULL ? c->extra[i].name : "NULL";
        TD_REQUIRE(strncmp(name, TD_KEY_EXTRA, strlen(TD_KEY_EXTRA)) == 0 &&
                       c->extra[i].tensor != NULL,
                   at, "%s: extra[%d] is '%s': it needs a tensor and a name that begins with '%s'",
                   function, i, name, TD_KEY_EXTRA);
    }
}

const td_params *td_records_shared(const td_checkpoint_options *c)
{
    const td_params *params = td_params_laid_out(c->model);
    const td_params_peers *peers = params != NULL ? td_params_peers_of(params) : NULL;
    return peers != NULL && (c->optim != NULL || peers->own_values) ? params : NULL;
}

/* ---- the list ---- */

/* Room for one more: it doubles. */
static void *grow(td_records *l, void *items, int count, size_t size)
{
    if ((count & (count - 1)) != 0) {
        return items;
    }
    void *more = realloc(items, (size_t)(count > 0 ? 2 * count : 1) * size);
    l->failed = l->failed || more == NULL;
    return more != NULL ? more : items;
}

/* Takes the name over, and the tensor if it is a view. */
static void add_tensor(td_records *l, td_tensor_part part, char *name, td_tensor *t, bool view)
{
    l->failed = l->failed || name == NULL || t == NULL;
    l->tensors = grow(l, l->tensors, l->tensor_count, sizeof *l->tensors);
    if (l->failed) {
        free(name);
        td_free(view ? t : NULL);
        return;
    }
    l->tensors[l->tensor_count++] =
        (td_tensor_record){ .name = name, .tensor = t, .view = view, .part = part };
}

/* Parameter i's part of what the ranks may share, or what is packed: `flat`, a window then. */
static void add_share(td_records *l, td_tensor_part part, char *name, const td_params *params,
                      int i, td_tensor *flat, bool shared)
{
    add_tensor(l, part, name,
               shared ? td_params_get(params, i)->tensor : td_params_view(params, flat, i),
               !shared);
    if (shared && !l->failed) {
        l->tensors[l->tensor_count - 1].window = flat;
        l->tensors[l->tensor_count - 1].param = i;
    }
}

/* Takes the key over. */
static void add_text(td_records *l, char *key, const td_text_kind *kind, const void *of)
{
    char *text = l->file == NULL && key != NULL ? kind->put(of) : NULL;
    l->failed = l->failed || key == NULL || (l->file == NULL && text == NULL);
    l->texts = grow(l, l->texts, l->text_count, sizeof *l->texts);
    if (l->failed) {
        free(key);
        free(text);
        return;
    }
    l->texts[l->text_count++] =
        (td_text_record){ .key = key, .text = text, .kind = kind, .of = (void *)(uintptr_t)of };
}

static void add(td_records *l, const char *key, const td_text_kind *kind, const void *of)
{
    add_text(l, td_format("%s", key), kind, of);
}

void td_records_free(td_records *list)
{
    for (int i = 0; i < list->tensor_count; i++) {
        free(list->tensors[i].name);
        td_free(list->tensors[i].view ? list->tensors[i].tensor : NULL);
    }
    for (int i = 0; i < list->text_count; i++) {
        free(list->texts[i].key);
        free(list->texts[i].text);
    }
    free(list->tensors);
    free(list->texts);
}

/* ---- the parts ---- */

/* Data parallelism lays parameters out in the order in which gradients become ready. */
static bool is_moved(const td_params *params)
{
    int k = 0, count = td_params_count(params);
    while (k < count && td_params_order(params)[k] == k) {
        k++;
    }
    return k < count;
}

/* Which parameter a tensor is; -1: none. */
static int number_of(const td_params *params, const td_tensor *t)
{
    int i = td_params_count(params) - 1;
    while (i >= 0 && td_params_get(params, i)->tensor != t) {
        i--;
    }
    return i;
}

/* Whether ranks have a window of the values alone. */
static bool shares_values(const td_params *params)
{
    const td_params_peers *peers = params != NULL ? td_params_peers_of(params) : NULL;
    return peers != NULL && peers->own_values;
}

static void list_model(td_records *l, td_module *model)
{
    const td_params *params = td_params_laid_out(model);
    td_state_list state = td_module_state(model);
    l->failed = state.count < 0;
    for (int i = 0; i < state.count; i++) {
        td_tensor *t = state.items[i].tensor;
        char *name = td_format("%s", state.items[i].name);
        int number = shares_values(params) ? number_of(params, t) : -1;
        if (number >= 0) {
            add_share(l, TD_PART_MODEL, name, params, number, td_params_flat(params), true);
        } else {
            add_tensor(l, TD_PART_MODEL, name, t, false);
        }
    }
    td_state_list_free(&state);
}

/* What td_load_model makes the model with, and the program's own. */
static void list_notes(td_records *l, const td_checkpoint_options *c)
{
    int64_t format = TD_CHECKPOINT_FORMAT;
    td_model_record r = td_model_record_of(c->model); /* all zero if another way made the model */
    add(l, TD_KEY_FORMAT, &td_text_count, &format);
    if (r.arch != NULL) {
        add(l, TD_KEY_ARCH, &td_text_string, r.arch);
        add(l, TD_KEY_CLASSES, &td_text_count, &r.classes);
        add(l, TD_KEY_STEM, &td_text_string, r.stem == TD_STEM_CIFAR ? "cifar" : "imagenet");
    }
    if (r.image_size > 0) {
        add(l, TD_KEY_IMAGE_SIZE, &td_text_count, &r.image_size);
    }
    if (r.widths[0] > 0) {
        char widths[64];
        snprintf(widths, sizeof widths, "%" PRId64 " %" PRId64 " %" PRId64, r.widths[0],
                 r.widths[1], r.widths[2]);
        add(l, TD_KEY_WIDTHS, &td_text_string, widths);
    }
    if (r.unit_head) {
        add(l, TD_KEY_UNIT_HEAD, &td_text_string, "yes");
    }
    for (int i = 0; i < c->metadata_count; i++) {
        add(l, c->metadata[i].key, &td_text_string, c->metadata[i].value);
    }
}

/* A parameter that has made no step, here or in the file, has no state there. */
static void list_parameter(td_records *l, td_optim *o, int i)
{
    const char *path = td_params_get(o->params, i)->name;
    char *key = td_format(TD_KEY_OPTIMIZER_STEP, path);
    int64_t steps = o->steps[i];
    if (l->file != NULL && key != NULL) {
        steps = 0;
        (void)td_text_count.take(&steps, td_safetensors_metadata(l->file, key), true);
    }
    if (l->file == NULL && steps == 0) {
        free(key);
        return;
    }
    add_text(l, key, &td_text_count, &o->steps[i]);
    td_tensor_part part = steps > 0 ? TD_PART_OTHER : TD_PART_EMPTY;
    bool shared = td_params_peers_of(o->params) != NULL || o->kind->packed != TD_F32;
    for (int k = 0; k < TD_OPTIM_STATES; k++) {
        td_tensor *own = NULL;
        bool has_own = o->kind->own_state != NULL && o->kind->own_state(o, i, k, &own);
        char *name = o->kind->states[k] != NULL
                         ? td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[k])
                         : NULL;
        if (has_own) {
            add_tensor(l, part, name, own, true);
        } else if (o->kind->own_state == NULL && o->state[k] != NULL) {
            add_share(l, part, name, o->params, i, o->state[k], shared);
        } else {
            free(name);
        }
    }
}

static void list_optimizer(td_records *l, td_optim *o)
{
    const char *here = o->kind->name, *kind = here;
    if (l->file == NULL) {
        td_optim_settle(o);
    } else {
        kind = td_safetensors_metadata(l->file, TD_KEY_OPTIMIZER_KIND);
    }
    if (kind == NULL) {
        td_differ(&l->missing, "the state of an optimizer (%s)", here);
        return;
    }
    if (strcmp(kind, here) != 0) {
        td_differ(&l->unlike, "the optimizer is %.20s in the file, %s here", kind, here);
        return;
    }
    add(l, TD_KEY_OPTIMIZER_KIND, &td_text_string, here);
    add(l, TD_KEY_OPTIMIZER_LR, &td_text_rate, &o->lr);
    for (int i = 0; i < td_params_count(o->params); i++) {
        list_parameter(l, o, i);
    }
}

static void list_averages(td_records *l, td_ema *e)
{
    if (l->file == NULL) {
        td_ema_settle(e);
    } else if (td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) == NULL) {
        td_differ(&l->missing, "averages of the weights (%s*)", TD_KEY_EMA);
        return;
    }
    add(l, TD_KEY_EMA_UPDATES, &td_text_count, td_ema_count(e));
    for (int i = 0; i < td_params_count(e->of.params); i++) {
        add_share(l, TD_PART_OTHER,
                  td_format(TD_KEY_EMA "%s", td_params_get(e->of.params, i)->name), e->of.params, i,
                  e->of.flat, shares_values(e->of.params));
    }
    for (int i = 0; i < e->of.buffer_count; i++) {
        add_tensor(l, TD_PART_OTHER, td_format(TD_KEY_EMA "%s", e->of.buffers[i].name),
                   e->of.buffers[i].copy, false);
    }
}

static void list_dropout(td_module *m, const char *path, void *user)
{
    const td_dropout_place *place = td_dropout_place_of(m);
    if (place != NULL) {
        add_text(user, td_format(TD_KEY_DROPOUT, path), &td_text_dropout, place);
    }
}

void td_records_list(td_records *l)
{
    const td_checkpoint_options *c = l->options;
    list_model(l, c->model);
    if (l->file == NULL) {
        list_notes(l, c);
    }
    if (c->optim != NULL) {
        list_optimizer(l, c->optim);
    }
    if (c->ema != NULL) {
        list_averages(l, c->ema);
    }
    for (int i = 0; i < c->extra_count; i++) {
        add_tensor(l, TD_PART_OTHER, td_format("%s", c->extra[i].name), c->extra[i].tensor, false);
        if (!l->failed) {
            l->tensors[l->tensor_count - 1].owner = c->extra[i].owner;
        }
    }
    if (c->scaler != NULL) {
        add(l, TD_KEY_SCALER, &td_text_scaler, c->scaler);
    }
    if (c->with_random) {
        add(l, TD_KEY_RANDOM, &td_text_generator, td_default_generator());
        td_module_each(c->model, list_dropout, l);
    }
    const td_params *params = td_params_laid_out(c->model);
    bool ours = params != NULL && td_params_peers_of(params) == NULL; /* not the ranks' */
    if (params != NULL && (l->file != NULL || (ours && is_moved(params)))) {
        add(l, TD_KEY_ORDER, &td_text_order, params);
    }
}
