/* Saving a checkpoint: a list of all that belongs into the file, then one tensor after the other.
 */
#include "nn/io/checkpoint_internal.h"
#include "nn/internal.h"
#include "nn/extra/ema_internal.h"
#include "nn/extra/scaler.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "nn/io/safetensors_internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* What will be in the file. Names and values that were made for it are kept in `texts`. */
typedef struct contents {
    td_safetensors_entry *entries;
    td_tensor **tensors; /* of each entry */
    bool *views;         /* tensors[i] was made for the file */
    int count;
    td_metadata *metadata;
    int metadata_count;
    char **texts;
    int text_count;
    bool failed;  /* memory was short */
    void *buffer; /* one tensor's elements, row-major */
} contents;

static const char *keep_text(contents *c, char *text)
{
    if (text == NULL) {
        c->failed = true;
    } else {
        c->texts[c->text_count++] = text;
    }
    return text;
}

static void add_tensor(contents *c, const char *name, td_tensor *t, bool view)
{
    if (name == NULL || t == NULL) {
        c->failed = true;
        return;
    }
    c->entries[c->count] = (td_safetensors_entry){
        .name = name,
        .dtype = t->dtype,
        .shape = td_shape_of(t),
        .bytes = (size_t)td_numel(t) * td_dtype_size(t->dtype),
    };
    c->views[c->count] = view;
    c->tensors[c->count++] = t;
}

static void add_metadata(contents *c, const char *key, const char *value)
{
    if (key == NULL || value == NULL) {
        c->failed = true;
        return;
    }
    c->metadata[c->metadata_count++] = (td_metadata){ key, value };
}

/* ---- the parts ---- */

static void add_model(contents *c, const td_state_list *state)
{
    for (int i = 0; i < state->count; i++) {
        add_tensor(c, state->items[i].name, state->items[i].tensor, false);
    }
}

/* What td_load_model makes the model with. */
static void add_record(contents *c, const td_module *model)
{
    td_model_record r = td_model_record_of(model);
    if (r.arch == NULL) {
        return;
    }
    add_metadata(c, TD_KEY_ARCH, r.arch);
    add_metadata(c, TD_KEY_CLASSES, keep_text(c, td_format("%" PRId64, r.classes)));
    add_metadata(c, TD_KEY_STEM, r.stem == TD_STEM_CIFAR ? "cifar" : "imagenet");
    if (r.image_size > 0) {
        add_metadata(c, TD_KEY_IMAGE_SIZE, keep_text(c, td_format("%" PRId64, r.image_size)));
    }
    if (r.widths[0] > 0) {
        add_metadata(c, TD_KEY_WIDTHS,
                     keep_text(c, td_format("%" PRId64 " %" PRId64 " %" PRId64, r.widths[0],
                                            r.widths[1], r.widths[2])));
    }
    if (r.unit_head) {
        add_metadata(c, TD_KEY_UNIT_HEAD, "yes");
    }
}

static void add_optimizer(contents *c, td_optim *o)
{
    td_optim_settle(o);
    add_metadata(c, TD_KEY_OPTIMIZER_KIND, o->kind->name);
    add_metadata(c, TD_KEY_OPTIMIZER_LR, keep_text(c, td_format("%.17g", o->lr)));
    for (int i = 0; i < td_params_count(o->params); i++) {
        const char *path = td_params_get(o->params, i)->name;
        if (o->steps[i] == 0) {
            continue; /* nothing to remember */
        }
        add_metadata(c, keep_text(c, td_format(TD_KEY_OPTIMIZER_STEP, path)),
                     keep_text(c, td_format("%" PRId64, o->steps[i])));
        for (int k = 0; k < TD_OPTIM_STATES && o->state[k] != NULL; k++) {
            const char *name =
                keep_text(c, td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[k]));
            add_tensor(c, name, td_params_view(o->params, o->state[k], i), true);
        }
    }
}

static void add_averages(contents *c, td_ema *e)
{
    add_metadata(c, TD_KEY_EMA_UPDATES, keep_text(c, td_format("%" PRId64, td_ema_updates(e))));
    for (int i = 0; i < td_params_count(e->params); i++) {
        const char *name =
            keep_text(c, td_format(TD_KEY_EMA "%s", td_params_get(e->params, i)->name));
        add_tensor(c, name, td_params_view(e->params, e->average, i), true);
    }
    for (int i = 0; i < e->buffers.count; i++) {
        add_tensor(c, keep_text(c, td_format(TD_KEY_EMA "%s", e->buffers.items[i].name)),
                   e->buffers.items[i].copy, false);
    }
}

static void add_extra(contents *c, const td_checkpoint *checkpoint)
{
    for (int i = 0; i < checkpoint->extra_count; i++) {
        add_tensor(c, checkpoint->extra[i].name, checkpoint->extra[i].tensor, false);
    }
}

static void add_scaler(contents *c, td_scaler *scaler)
{
    td_scaler_state now = td_scaler_now(scaler);
    add_metadata(
        c, TD_KEY_SCALER,
        keep_text(c, td_format("%.17g %" PRId64 " %" PRId64, now.scale, now.good, now.skipped)));
}

/* Data parallelism lays parameters out in the order in which gradients become ready. */
static void add_order(contents *c, const td_params *params)
{
    const int *order = td_params_order(params);
    int count = td_params_count(params), k = 0;
    while (k < count && order[k] == k) {
        k++;
    }
    if (k < count) {
        add_metadata(c, TD_KEY_ORDER, keep_text(c, td_order_to_text(order, count)));
    }
}

static void add_dropout(td_module *m, const char *path, void *user)
{
    contents *c = user;
    const td_dropout_place *place = td_dropout_place_of(m);
    if (place != NULL) {
        add_metadata(c, keep_text(c, td_format(TD_KEY_DROPOUT, path)),
                     keep_text(c, td_format("%" PRIu64 " %" PRIu64, place->seed, place->calls)));
    }
}

static void add_random(contents *c, td_module *model)
{
    char *text = malloc(TD_GENERATOR_TEXT);
    if (text != NULL) {
        td_generator_to_text(td_default_generator(), text);
    }
    add_metadata(c, TD_KEY_RANDOM, keep_text(c, text));
    td_module_each(model, add_dropout, c);
}

static void count_module(td_module *m, const char *path, void *user)
{
    (void)m, (void)path;
    ++*(int *)user;
}

enum { FIXED_METADATA = 16 }; /* at least as many as add_metadata is called for once in a file */

/* Room for the most that there can be. */
static bool make_room(contents *c, const td_checkpoint *checkpoint, const td_state_list *state)
{
    int modules = 0;
    td_module_each(checkpoint->model, count_module, &modules);
    int params = checkpoint->optim != NULL ? td_params_count(checkpoint->optim->params) : 0;
    int averages = checkpoint->ema != NULL ? state->count : 0;
    size_t tensors = (size_t)(state->count + averages + params * TD_OPTIM_STATES) +
                     (size_t)checkpoint->extra_count + 1;
    size_t metadata = (size_t)(checkpoint->metadata_count + params + modules) + FIXED_METADATA;
    c->entries = calloc(tensors, sizeof *c->entries);
    c->tensors = calloc(tensors, sizeof(td_tensor *));
    c->views = calloc(tensors, sizeof *c->views);
    c->metadata = calloc(metadata, sizeof *c->metadata);
    c->texts = calloc(tensors + 2 * metadata, sizeof(char *));
    return c->entries != NULL && c->tensors != NULL && c->views != NULL && c->metadata != NULL &&
           c->texts != NULL;
}

static bool make_buffer(contents *c)
{
    size_t largest = 1;
    for (int i = 0; i < c->count; i++) {
        largest = c->entries[i].bytes > largest ? c->entries[i].bytes : largest;
    }
    c->buffer = malloc(largest);
    return c->buffer != NULL;
}

static void free_contents(contents *c)
{
    for (int i = 0; c->views != NULL && i < c->count; i++) {
        if (c->views[i]) {
            td_free(c->tensors[i]);
        }
    }
    for (int i = 0; i < c->text_count; i++) {
        free(c->texts[i]);
    }
    free(c->entries);
    free(c->tensors);
    free(c->views);
    free(c->metadata);
    free(c->texts);
    free(c->buffer);
}

/* ---- the whole ---- */

/* From the device's order to the file's. */
static const void *fetch_row_major(int i, void *user)
{
    contents *c = user;
    td_read(c->tensors[i], c->buffer, c->entries[i].dtype);
    return c->buffer;
}

static void collect(contents *c, const td_checkpoint *checkpoint, const td_state_list *state)
{
    add_model(c, state);
    add_metadata(c, TD_KEY_FORMAT, keep_text(c, td_format("%d", TD_CHECKPOINT_FORMAT)));
    add_record(c, checkpoint->model);
    for (int i = 0; i < checkpoint->metadata_count; i++) {
        add_metadata(c, checkpoint->metadata[i].key, checkpoint->metadata[i].value);
    }
    if (checkpoint->optim != NULL) {
        add_optimizer(c, checkpoint->optim);
    }
    if (checkpoint->ema != NULL) {
        add_averages(c, checkpoint->ema);
    }
    add_extra(c, checkpoint);
    if (checkpoint->scaler != NULL) {
        add_scaler(c, checkpoint->scaler);
    }
    const td_params *params = td_params_laid_out(checkpoint->model);
    if (params != NULL) {
        add_order(c, params);
    }
    if (checkpoint->with_random) {
        add_random(c, checkpoint->model);
    }
}

td_status td_checkpoint_save(const char *path, const td_checkpoint *checkpoint)
{
    TD_REQUIRE(path != NULL && checkpoint != NULL && checkpoint->model != NULL, TD_HERE,
               "td_checkpoint_save: there is no path or no model");
    TD_REQUIRE(checkpoint->ema == NULL || !checkpoint->ema->swapped, TD_HERE,
               "td_checkpoint_save: the model holds the averages at the moment; td_ema_swap them "
               "back first, or save without .ema what is to be used");
    for (int i = 0; i < checkpoint->metadata_count; i++) {
        TD_REQUIRE(checkpoint->metadata[i].key != NULL && checkpoint->metadata[i].value != NULL,
                   TD_HERE, "td_checkpoint_save: metadata[%d] has a NULL key or value", i);
    }
    td_check_extra(checkpoint, "td_checkpoint_save");
    td_state_list state = td_module_state(checkpoint->model);
    contents c = { .failed = false };
    bool made = state.count >= 0 && make_room(&c, checkpoint, &state);
    if (made) {
        collect(&c, checkpoint, &state);
        made = !c.failed && make_buffer(&c);
    }
    td_status status = made ? td_safetensors_write_from(path, c.entries, c.count, c.metadata,
                                                        c.metadata_count, fetch_row_major, &c)
                            : td_fail(TD_E_NOMEM, "no memory to save a checkpoint to '%s'", path);
    free_contents(&c);
    td_state_list_free(&state);
    return status;
}
