/* Lists what a checkpoint holds, in the order of the file. */
#include "nn/io/records.h"
#include "nn/io/fingerprint.h"

#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/optim/optim_internal.h"
#include "tensor/system/list.h"
#include "tensor/system/number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list ---- */

/* The cut of a parameter; NULL: there is none. */
static const td_cut *cut_of(const td_records *l, const td_tensor *parameter)
{
    return l->slicing != NULL ? l->slicing->type->of(l->slicing, parameter) : NULL;
}

static int stage_of(const td_records *l, const td_tensor *t)
{
    int place = l->stages != NULL ? td_staging_place(l->stages, t) : -1;
    return place >= 0 ? l->stages->owners[place] : 0;
}

/* Takes the name over, and the tensor if it is a view. */
static void push_tensor(td_records *l, td_tensor_record r)
{
    r.cut = r.cut == NULL ? cut_of(l, r.tensor) : r.cut;
    l->failed = l->failed || r.name == NULL || r.tensor == NULL ||
                !td_grow(&l->tensors, l->tensor_count, sizeof *l->tensors);
    if (l->failed) {
        free(r.name);
        td_free(r.view ? r.tensor : NULL);
    } else {
        l->tensors[l->tensor_count++] = r;
    }
}

/* Parameter i's part of what the ranks may share, or what is packed: `flat`, a window then. */
static void push_share(td_records *l, td_tensor_part part, char *name, const td_params *params,
                       int i, td_tensor *flat, bool shared)
{
    td_tensor *t = shared ? td_params_get(params, i)->tensor : td_params_view(params, flat, i);
    td_tensor *window = shared ? flat : NULL;
    const td_tensor *parameter = td_params_get(params, i)->tensor;
    push_tensor(l,
                (td_tensor_record){ name, t, !shared, window, i, .part = part,
                                    .stage = stage_of(l, parameter), .cut = cut_of(l, parameter) });
}

/* Takes the key over, and while saving the text. */
static void push_text(td_records *l, td_text_record r)
{
    bool saving = l->file == NULL;
    l->failed = l->failed || r.key == NULL || (saving && r.text == NULL) ||
                !td_grow(&l->texts, l->text_count, sizeof *l->texts);
    if (l->failed) {
        free(r.key);
        free(saving ? r.text : NULL);
    } else {
        l->texts[l->text_count++] = r;
    }
}

/* A value's text: made while saving, the file's while loading; NULL: there is none. */
static char *text_of(const td_records *l, const char *key, const td_text_kind *kind, const void *of)
{
    const char *there =
        l->file != NULL && key != NULL ? td_safetensors_metadata(l->file, key) : NULL;
    return l->file == NULL ? kind->put(of) : (char *)(uintptr_t)there;
}

/* Takes the key over. */
static void add_text(td_records *l, char *key, const td_text_kind *kind, const void *of)
{
    push_text(l, (td_text_record){ key, text_of(l, key, kind, of), kind, (void *)(uintptr_t)of });
}

static void add(td_records *l, const char *key, const td_text_kind *kind, const void *of)
{
    add_text(l, td_format("%s", key), kind, of);
}

/* A text that is only saved. */
static void note(td_records *l, const char *key, char *text)
{
    push_text(l, (td_text_record){ .key = td_format("%s", key), .text = text });
}

void td_records_free(td_records *list)
{
    for (int i = 0; i < list->tensor_count; i++) {
        free(list->tensors[i].name);
        td_free(list->tensors[i].view ? list->tensors[i].tensor : NULL);
    }
    for (int i = 0; i < list->text_count; i++) {
        free(list->texts[i].key);
        free(list->file == NULL ? list->texts[i].text : NULL);
    }
    free(list->order);
    free(list->data);
    free(list->used);
    free(list->tensors);
    free(list->texts);
}

/* ---- the parts ---- */

/* Data parallelism lays parameters out in the order in which gradients become ready. */
static bool is_moved(const td_params *params)
{
    int k = 0, count = td_params_count(params);
    while (k < count && params->order[k] == k) {
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
            push_share(l, TD_PART_MODEL, name, params, number, td_params_flat(params), true);
        } else {
            push_tensor(
                l, (td_tensor_record){
                       .name = name, .tensor = t, .part = TD_PART_MODEL, .stage = stage_of(l, t) });
        }
    }
    td_state_list_free(&state);
}

/* What td_load_model makes the model with, and the program's own. */
static void list_notes(td_records *l, const td_checkpoint_options *c)
{
    td_model_record r = td_model_record_of(c->model); /* all zero if another way made the model */
    note(l, TD_KEY_FORMAT, td_format("%d", TD_CHECKPOINT_FORMAT));
    note(l, TD_KEY_FINGERPRINT, td_format("%016d", 0)); /* until all has been put */
    if (r.arch != NULL) {
        note(l, TD_KEY_ARCH, td_format("%s", r.arch));
        note(l, TD_KEY_CLASSES, td_format("%" PRId64, r.classes));
        note(l, TD_KEY_STEM, td_format("%s", r.stem == TD_STEM_CIFAR ? "cifar" : "imagenet"));
    }
    if (r.image_size > 0) {
        note(l, TD_KEY_IMAGE_SIZE, td_format("%" PRId64, r.image_size));
    }
    for (int i = 0; i < c->metadata_count; i++) {
        note(l, c->metadata[i].key, td_format("%s", c->metadata[i].value));
    }
}

/* A parameter that has made no step, here or in the file, has no state there. */
static void list_parameter(td_records *l, td_optim *o, int i)
{
    static char none[] = "0";
    const char *path = td_params_get(o->params, i)->name;
    char *key = td_format(TD_KEY_OPTIMIZER_STEP, path);
    char *text = text_of(l, key, &td_text_count, &o->steps[i]);
    text = text == NULL && l->file != NULL ? none : text;
    bool stepped = text != NULL && strcmp(text, none) != 0;
    if (l->file == NULL && text != NULL && !stepped) {
        free(key);
        free(text);
        return;
    }
    push_text(l, (td_text_record){ key, text, &td_text_count, &o->steps[i] });
    td_tensor_part part = stepped ? TD_PART_OTHER : TD_PART_EMPTY;
    bool shared = td_params_peers_of(o->params) != NULL || o->kind->packed != TD_F32;
    for (int k = 0; k < TD_OPTIM_STATES; k++) {
        if (o->state[k] != NULL) {
            push_share(l, part, td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[k]),
                       o->params, i, o->state[k], shared);
        }
    }
}

/* Sets numbers[k] of all stages' tensors, in the order of the whole model: steps[i] (NULL: 1) if
 * tensor k is parameter i of the rank that has it, 0 for buffers. Collective. */
static void number_stages(td_records *l, const td_params *params, const int64_t *steps)
{
    const td_staging *all = l->stages;
    for (int k = 0; k < all->count; k++) {
        const td_tensor *t = all->tensors[k];
        int i = all->owners[k] == all->rank ? number_of(params, t) : -1;
        all->numbers[k] = i < 0 ? 0.0 : steps != NULL ? (double)steps[i] : 1.0;
    }
    l->failed = l->failed || all->sum(all->numbers, all->count, all->user) != TD_OK;
}

/* push_share of tensor k of all stages'; of another stage's only what it is called. */
static void push_of_stages(td_records *l, char *name, const td_params *params, int k,
                           td_tensor *flat, bool shared)
{
    const td_staging *all = l->stages;
    td_tensor *t = all->tensors[k];
    if (all->owners[k] == all->rank) {
        push_share(l, TD_PART_OTHER, name, params, number_of(params, t), flat, shared);
    } else {
        push_tensor(
            l, (td_tensor_record){
                   .name = name, .tensor = t, .part = TD_PART_OTHER, .stage = all->owners[k] });
    }
}

static void list_stages(td_records *l, const td_optim *o)
{
    const td_staging *all = l->stages;
    bool shared = td_params_peers_of(o->params) != NULL || o->kind->packed != TD_F32;
    number_stages(l, o->params, o->steps);
    for (int k = 0; k < all->count && !l->failed; k++) {
        const char *path = all->tensors[k]->name;
        int64_t steps = (int64_t)all->numbers[k];
        if (steps > 0) {
            add_text(l, td_format(TD_KEY_OPTIMIZER_STEP, path), &td_text_count, &steps);
        }
        for (int s = 0; s < TD_OPTIM_STATES && steps > 0; s++) {
            if (o->state[s] != NULL) {
                push_of_stages(l, td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[s]),
                               o->params, k, o->state[s], shared);
            }
        }
    }
}

static void list_optimizer(td_records *l, td_optim *o)
{
    const char *here = o->kind->name, *there = here;
    if (l->file == NULL) {
        td_optim_settle(o);
        note(l, TD_KEY_OPTIMIZER_KIND, td_format("%s", here));
    } else {
        there = td_safetensors_metadata(l->file, TD_KEY_OPTIMIZER_KIND);
    }
    if (there == NULL) {
        td_differ(&l->missing, "the state of an optimizer (%s)", here);
        return;
    }
    if (strcmp(there, here) != 0) {
        td_differ(&l->unlike, "the optimizer is %.20s in the file, %s here", there, here);
        return;
    }
    add(l, TD_KEY_OPTIMIZER_LR, &td_text_rate, &o->lr);
    if (l->file == NULL && l->stages != NULL) {
        list_stages(l, o);
        return;
    }
    for (int i = 0; i < td_params_count(o->params); i++) {
        list_parameter(l, o, i);
    }
}

/* Adds r, of which each rank has its own. Loading: false: the file has none. */
static bool push_own(td_records *l, const char *prefix, const char *name, td_tensor_record r)
{
    const td_params_peers *ranks = td_records_ranks(l->options);
    int count = ranks != NULL ? ranks->count : 1;
    int there = l->file != NULL ? td_records_in_file(l->file, prefix) : count;
    bool alone = l->file != NULL && there == count; /* only this rank's is read */
    int first = alone && ranks != NULL ? ranks->rank : 0, end = alone ? first + 1 : there;
    for (int rank = first; rank < end; rank++) {
        r.name = td_records_own_name(l, prefix, rank, there, name);
        r.owner = rank;
        r.mean_of = l->file != NULL && !alone ? there : 0;
        if (rank == first && l->file != NULL && r.name != NULL &&
            td_safetensors_find(l->file, r.name) == NULL) {
            free(r.name);
            return false;
        }
        push_tensor(l, r);
    }
    return there > 0;
}

/* In the middle of an accumulation: gradients that all ranks have alike, or each its own. */
static void list_gradient(td_records *l, td_params *params, int i)
{
    const td_param *p = td_params_get(params, i);
    bool saving = l->file == NULL, apart = td_params_training_of(params)->apart;
    bool waits = saving && (apart || td_params_waiting(params, i) != NULL);
    if (!td_is_leaf(p->tensor) || (saving && !waits)) {
        return;
    }
    td_tensor_record r = { .tensor = td_grad_buffer(p->tensor),
                           .param = i,
                           .part = TD_PART_GRADIENT,
                           .cut = cut_of(l, p->tensor) };
    if (saving && apart && td_grad(p->tensor) == NULL) { /* other ranks may have one */
        td_fill_(r.tensor, 0);
        td_mark_grad(p->tensor);
    }
    char *name = td_format(TD_KEY_GRADIENT "%s", p->name);
    l->failed = l->failed || name == NULL;
    if (name != NULL && (saving ? !apart : td_safetensors_find(l->file, name) != NULL)) {
        r.name = name;
        push_tensor(l, r);
        return;
    }
    free(name);
    (void)push_own(l, TD_KEY_OWN_GRADIENT, p->name, r);
}

/* ---- parts (tensor/part.h) ---- */

static bool part_text(td_part_list *list, const char *key, const td_text_kind *kind, void *value)
{
    td_records *l = (td_records *)list;
    if (l->file == NULL) {
        add(l, key, kind, value);
        return true;
    }
    const char *text = td_safetensors_metadata(l->file, key);
    if (text != NULL && kind->read(text, value)) {
        return true;
    }
    if (text != NULL) {
        td_differ(&l->unlike, "%s is '%.40s', %s", key, text, kind->unfit);
    } else if (!kind->optional) {
        td_differ(&l->missing, "%s%s", kind->missing != NULL ? kind->missing : key,
                  kind->missing != NULL ? "" : " (metadata)");
    }
    return false;
}

static void part_tensor(td_part_list *list, const char *prefix, const char *name, td_tensor *tensor)
{
    push_tensor((td_records *)list, (td_tensor_record){ .name = td_format("%s%s", prefix, name),
                                                        .tensor = tensor,
                                                        .part = TD_PART_OTHER });
}

static bool part_own(td_part_list *list, const char *prefix, const char *name, td_tensor *tensor)
{
    return push_own((td_records *)list, prefix, name,
                    (td_tensor_record){ .tensor = tensor, .part = TD_PART_OTHER });
}

static bool part_has(td_part_list *list, const char *prefix, const char *name,
                     const td_tensor *tensor)
{
    char *full = td_format("%s%s", prefix, name);
    const td_safetensors_entry *e =
        full != NULL ? td_safetensors_find(((td_records *)list)->file, full) : NULL;
    free(full);
    return e != NULL && td_shape_equal(e->shape, td_shape_of(tensor));
}

void td_records_flat(td_part_list *list, const char *prefix, const td_params *params,
                     td_tensor *flat)
{
    td_records *l = (td_records *)list;
    const td_staging *all = l->file == NULL ? l->stages : NULL;
    bool shared = shares_values(params);
    for (int i = 0; i < td_params_count(params) && all == NULL; i++) {
        char *name = td_format("%s%s", prefix, td_params_get(params, i)->name);
        if (name != NULL && l->file != NULL && td_safetensors_find(l->file, name) == NULL) {
            /* Frozen when the file was made: its value is its average. */
            memmove(name, name + strlen(prefix), strlen(name) - strlen(prefix) + 1);
        }
        push_share(l, TD_PART_OTHER, name, params, i, flat, shared);
    }
    if (all != NULL) {
        number_stages(l, params, NULL);
    }
    for (int k = 0; all != NULL && k < all->count && !l->failed; k++) {
        if (all->numbers[k] > 0.0) {
            push_of_stages(l, td_format("%s%s", prefix, all->tensors[k]->name), params, k, flat,
                           shared);
        }
    }
}

void td_records_buffer(td_part_list *list, const char *prefix, const char *name,
                       const td_tensor *buffer, td_tensor *kept)
{
    td_records *l = (td_records *)list;
    push_tensor(l, (td_tensor_record){ .name = td_format("%s%s", prefix, name),
                                       .tensor = kept,
                                       .part = TD_PART_OTHER,
                                       .stage = stage_of(l, buffer) });
}

static void part_differ(td_part_list *list, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    td_differ(&((td_records *)list)->unlike, "%s", text);
}

static void list_parts(td_records *l)
{
    l->parts =
        (td_part_list){ l->file != NULL, part_text, part_tensor, part_own, part_has, part_differ };
    for (int i = 0; i < TD_CHECKPOINT_PARTS; i++) {
        td_checkpoint_part *part = td_records_part(l->options, i);
        if (part != NULL) {
            part->list(part, &l->parts);
        }
    }
}

static void list_dropouts(td_records *l, td_module *net)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        const td_dropout_place *place = td_dropout_place_of(m);
        if (place != NULL) {
            char *key = td_format(TD_KEY_DROPOUT, td_module_path(net, m));
            add_text(l, key, &td_text_dropout, place);
        }
    }
}

void td_records_list(td_records *l)
{
    const td_checkpoint_options *c = l->options;
    l->slicing = td_node_of(c->model)->slicing;
    l->stages = td_node_of(c->model)->staging;
    list_model(l, c->model);
    if (l->file == NULL) {
        list_notes(l, c);
    }
    if (c->optim != NULL) {
        list_optimizer(l, c->optim);
        for (int i = 0; i < td_params_count(c->optim->params); i++) {
            list_gradient(l, c->optim->params, i);
        }
    }
    list_parts(l);
    for (int i = 0; i < c->extra_count; i++) {
        push_tensor(l, (td_tensor_record){ .name = td_format("%s", c->extra[i].name),
                                           .tensor = c->extra[i].tensor,
                                           .part = TD_PART_OTHER });
    }
    if (c->with_random || c->loader != NULL) {
        td_generator *g = td_default_generator();
        add(l, TD_KEY_RANDOM, &td_text_generator, g);
        if (l->file != NULL || g->order.kind != TD_ORDER_UNKNOWN) {
            add(l, TD_KEY_RANDOM_ORDER, &td_text_order, &g->order);
        }
        list_dropouts(l, c->model);
    }
    const td_params *params = td_params_laid_out(c->model);
    bool ours = params != NULL && td_params_peers_of(params) == NULL; /* not the ranks' */
    if (l->file == NULL && ours && l->stages == NULL && is_moved(params)) {
        note(l, TD_KEY_ORDER, td_order_text(params));
    }
}
