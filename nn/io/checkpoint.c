/* Saving and loading a checkpoint: walks over its list of records. */
#include "nn/extra/ema_internal.h"
#include "nn/internal.h"
#include "nn/io/records.h"
#include "nn/params.h"
#include "nn/optim/optim_internal.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

static void require_valid(const td_checkpoint_options *c, const char *function, td_site at)
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

/* ---- saving ---- */

typedef struct saving {
    const td_records *list;
    const td_params *params; /* of which there are windows, or several ranks have state; or NULL */
    const td_params_peers *peers;  /* the ranks; NULL: this one */
    td_safetensors_entry *entries; /* of each tensor */
    td_metadata *metadata;
    td_safetensors_out *out; /* NULL: this rank does not write */
    bool all_write;          /* every rank writes what it alone has */
    void *buffer;            /* one tensor's elements, row-major */
    td_tensor *whole;        /* the elements of one parameter or its state, in memory order */
    td_status status;        /* the first failure of writing */
} saving;

static const td_params *shared_params(const td_checkpoint_options *c)
{
    const td_params *params = td_params_laid_out(c->model);
    const td_params_peers *peers = params != NULL ? td_params_peers_of(params) : NULL;
    return peers != NULL && (c->optim != NULL || peers->own_values) ? params : NULL;
}

/* The parameters of which several ranks have state, so that all of them save. */
static const td_params *saved_together(const td_checkpoint_options *c)
{
    const td_params *params = shared_params(c);
    for (int i = 0; i < c->extra_count && params == NULL; i++) {
        params = c->extra[i].owner > 0 ? td_params_laid_out(c->model) : NULL;
    }
    return params;
}

/* A header of t's form over the elements in `memory`, for the time of a call. */
static td_tensor over(const td_tensor *memory, const td_tensor *t)
{
    td_tensor view;
    td_init_header(&view, memory->storage, memory->offset, td_shape_of(t), t->stride, t->dtype);
    return view;
}

/* Writes record i: from the device's order to the file's. NULL: another rank does. */
static void put(saving *s, int i, const td_tensor *t)
{
    if (t != NULL && s->out != NULL && s->status == TD_OK) {
        td_read(t, s->buffer, s->entries[i].dtype);
        s->status = td_safetensors_put(s->out, i, 0, s->buffer, s->entries[i].bytes);
    }
}

/* Writes this rank's rows of record i, which all ranks have; where the others cannot write, the
 * first rank writes all of it. */
static void put_rows(saving *s, int i, const td_tensor *t)
{
    int rank = s->peers->rank, ranks = s->all_write ? s->peers->count : 1;
    int64_t all = t->ndim > 0 ? t->shape[0] : 1;
    int64_t from = all * rank / ranks, to = all * (rank + 1) / ranks;
    td_tensor rows = *t;
    if (t->ndim > 0) {
        rows.shape[0] = to - from;
        rows.offset += from * t->stride[0];
    }
    if (rank < ranks && from < to && s->out != NULL && s->status == TD_OK) {
        size_t row = s->entries[i].bytes / (size_t)all;
        td_read(&rows, s->buffer, s->entries[i].dtype);
        s->status = td_safetensors_put(s->out, i, from * (int64_t)row, s->buffer,
                                       (size_t)(to - from) * row);
    }
}

/* Brings record i together on all ranks: what lies in several windows, or what its owner cannot
 * write. */
static td_status bring_together(saving *s, const td_tensor_record *r)
{
    td_tensor part = td_params_part(s->whole, 0, td_numel(r->tensor));
    if (r->window != NULL) {
        return td_params_collect(s->params, r->window, r->param, &part);
    }
    if (r->owner == s->peers->rank) {
        td_tensor to = over(s->whole, r->tensor);
        td_copy_(&to, r->tensor);
    }
    return s->peers->broadcast(&part, r->owner, s->peers->user);
}

/* All ranks do this, also those on which writing has failed. */
static td_status put_record(saving *s, int i)
{
    const td_tensor_record *r = &s->list->tensors[i];
    int rank = s->peers != NULL ? s->peers->rank : 0;
    int owner = r->window != NULL ? td_params_owner(s->params, r->param) : r->owner;
    bool apart = owner == 0 || (owner > 0 && s->all_write);
    if (!apart) {
        TD_TRY(bring_together(s, r));
        td_tensor whole = over(s->whole, r->tensor);
        put_rows(s, i, &whole);
    } else if (r->window != NULL) {
        if (owner == rank && s->status == TD_OK) {
            td_tensor part = td_params_part(s->whole, 0, td_numel(r->tensor));
            s->status = td_params_take(s->params, r->window, r->param, &part);
        }
        td_tensor whole = over(s->whole, r->tensor);
        put(s, i, owner == rank ? &whole : NULL);
    } else {
        put(s, i, owner == rank ? r->tensor : NULL);
    }
    return TD_OK;
}

static td_status put_all(saving *s)
{
    for (int i = 0; i < s->list->tensor_count; i++) {
        TD_TRY(put_record(s, i));
    }
    return s->status;
}

/* Memory for the largest parameter's state. */
static td_tensor *new_whole(const td_records *l, const td_params *params)
{
    int64_t largest = 1;
    for (int i = 0; i < l->tensor_count; i++) {
        const td_tensor_record *r = &l->tensors[i];
        int64_t count = r->window != NULL || r->owner > 0 ? td_numel(r->tensor) : 0;
        largest = count > largest ? count : largest;
    }
    const td_tensor *flat = td_params_flat(params);
    return td_zeros(TD_SHAPE(largest), flat->dtype, td_device_of(flat));
}

static bool describe_file(saving *s)
{
    const td_records *l = s->list;
    size_t largest = 1;
    s->entries = calloc((size_t)l->tensor_count + 1, sizeof *s->entries);
    s->metadata = calloc((size_t)l->text_count + 1, sizeof *s->metadata);
    if (s->entries == NULL || s->metadata == NULL) {
        return false;
    }
    for (int i = 0; i < l->tensor_count; i++) {
        const td_tensor *t = l->tensors[i].tensor;
        size_t bytes = (size_t)td_numel(t) * td_dtype_size(t->dtype);
        s->entries[i] = (td_safetensors_entry){
            .name = l->tensors[i].name, .dtype = t->dtype, .shape = td_shape_of(t), .bytes = bytes
        };
        largest = bytes > largest ? bytes : largest;
    }
    for (int i = 0; i < l->text_count; i++) {
        s->metadata[i] = (td_metadata){ l->texts[i].key, l->texts[i].text };
    }
    s->buffer = malloc(largest);
    s->whole = s->params != NULL ? new_whole(l, s->params) : NULL;
    return s->buffer != NULL && (s->params == NULL || s->whole != NULL);
}

static td_status plan(saving *s, const char *path)
{
    td_safetensors_out *out;
    td_status status = td_safetensors_plan(path, s->entries, s->list->tensor_count, s->metadata,
                                           s->list->text_count, &out);
    s->out = out;
    return status;
}

/* If ranks share the optimizer's state, a failure of one is a failure of all. */
static td_status agreed(const td_checkpoint_options *c, td_status status)
{
    const td_params *shared = shared_params(c);
    const td_params_peers *peers = shared != NULL ? td_params_peers_of(shared) : NULL;
    return peers != NULL ? peers->agree(status, peers->user) : status;
}

static td_status finish(saving *s, td_status status)
{
    td_status finished = td_safetensors_finish(s->out, status == TD_OK);
    s->out = NULL;
    return status == TD_OK ? finished : status;
}

/* Opens the first rank's file on the others. Where one of them does not see it, the first rank
 * writes all of it. */
static td_status join(saving *s)
{
    const td_params_peers *peers = s->peers;
    td_safetensors_place place = { .data = 0 };
    if (s->out != NULL) {
        place = *td_safetensors_place_of(s->out);
    }
    td_tensor *bytes = td_borrow(&place, TD_SHAPE(sizeof place), TD_U8, TD_CPU);
    td_status status = bytes != NULL ? peers->broadcast(bytes, 0, peers->user) : TD_E_NOMEM;
    td_free(bytes);
    TD_TRY(peers->agree(status, peers->user));
    place.file[sizeof place.file - 1] = '\0';
    td_safetensors_out *out = s->out;
    if (peers->rank > 0 && !peers->spare) {
        status = td_safetensors_join(&place, s->entries, s->list->tensor_count, &out);
    }
    s->out = out;
    TD_TRY(peers->agree(status == TD_E_MISMATCH ? status : TD_OK, peers->user));
    s->all_write = peers->agree(status, peers->user) == TD_OK;
    if (peers->rank > 0 && !s->all_write) {
        (void)td_safetensors_finish(s->out, false);
        s->out = NULL;
    }
    return TD_OK;
}

/* All return the same outcome, and all have the same collectives whether writing fails or not.
 * Spare ranks do so, too, and write nothing. */
static td_status write_together(saving *s, td_status status)
{
    const td_params_peers *peers = s->peers;
    TD_TRY(peers->agree(status, peers->user));
    if (peers->rank == 0 && !peers->spare) {
        status = plan(s, s->list->options->path);
    }
    status = peers->agree(status, peers->user);
    status = status == TD_OK ? join(s) : status;
    if (status != TD_OK) {
        return finish(s, status);
    }
    status = put_all(s);
    if (peers->rank > 0) {
        status = finish(s, status);
    }
    status = peers->agree(status, peers->user);
    bool written = status == TD_OK;
    if (peers->rank == 0) {
        status = finish(s, status);
    }
    return written ? peers->agree(status, peers->user) : status;
}

static td_status write_alone(saving *s, const char *path)
{
    TD_TRY(plan(s, path));
    return finish(s, put_all(s));
}

td_status td_checkpoint_save_at(td_checkpoint_options options, td_site at)
{
    require_valid(&options, "td_checkpoint_save", at);
    for (int i = 0; i < options.metadata_count; i++) {
        TD_REQUIRE(options.metadata[i].key != NULL && options.metadata[i].value != NULL, at,
                   "td_checkpoint_save: metadata[%d] has a NULL key or value", i);
    }
    td_records list = { .options = &options };
    saving s = { .list = &list, .params = saved_together(&options) };
    s.peers = s.params != NULL ? td_params_ranks_of(s.params) : NULL;
    if (s.params == NULL && options.optim != NULL && options.optim->kind->packed != TD_F32) {
        s.params = options.optim->params;
    }
    for (int i = 0; i < options.extra_count; i++) {
        int owner = options.extra[i].owner, ranks = s.peers != NULL ? s.peers->count : 1;
        TD_REQUIRE(owner >= 0 && owner < ranks, at,
                   "td_checkpoint_save: extra[%d] belongs to rank %d, and %d %s this model; take "
                   "the list from td_ddp_state_to_save",
                   i, owner, ranks, ranks == 1 ? "rank trains" : "ranks train");
    }
    td_records_list(&list);
    td_status status =
        !list.failed && describe_file(&s)
            ? TD_OK
            : td_fail(TD_E_NOMEM, "no memory to save a checkpoint to '%s'", options.path);
    if (s.peers != NULL) {
        status = write_together(&s, status);
    } else if (status == TD_OK) {
        status = write_alone(&s, options.path);
    }
    free(s.entries);
    free(s.metadata);
    free(s.buffer);
    td_free(s.whole);
    td_records_free(&list);
    return status;
}

/* ---- loading: all is compared before anything is changed ---- */

/* A file's entry of the name prefix + name, which is marked as used. */
static const td_safetensors_entry *find(td_records *l, bool *used, const char *prefix,
                                        const char *name)
{
    char *whole = td_format("%s%s", prefix, name);
    l->failed = l->failed || whole == NULL;
    const td_safetensors_entry *entry = whole != NULL ? td_safetensors_find(l->file, whole) : NULL;
    if (entry != NULL) {
        used[entry - td_safetensors_get(l->file, 0)] = true;
    }
    free(whole);
    return entry;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* What files of other programs or of older versions call the record; NULL if there is no such name
 * in the file. */
static const td_safetensors_entry *find_other_name(td_records *l, const td_tensor_record *r,
                                                   bool *used)
{
    /* PyTorch's DistributedDataParallel and torch.compile wrap the model, in any order. */
    static const char *const wrappers[] = { "module.", "_orig_mod.", "module._orig_mod.",
                                            "_orig_mod.module." };
    static const char momentum[] = ".momentum_buffer"; /* ".momentum" in files of 0.1.0 */
    const td_safetensors_entry *e = NULL;
    for (int i = 0; r->part == TD_PART_MODEL && e == NULL && i < 4; i++) {
        e = find(l, used, wrappers[i], r->name);
    }
    size_t length = strlen(r->name), end = sizeof momentum - 1;
    if (r->part == TD_PART_OTHER && begins_with(r->name, TD_KEY_OPTIMIZER) && length > end &&
        strcmp(r->name + length - end, momentum) == 0) {
        char *old = td_format("%.*s", (int)(length - strlen("_buffer")), r->name);
        l->failed = l->failed || old == NULL;
        e = old != NULL ? find(l, used, "", old) : NULL;
        free(old);
    }
    return e;
}

static void match_tensor(td_records *l, td_tensor_record *r, bool *used, bool averages)
{
    if (r->part == TD_PART_EMPTY) {
        return;
    }
    const td_safetensors_entry *e = find(l, used, "", r->name);
    e = e != NULL ? e : find_other_name(l, r, used);
    if (averages && r->part == TD_PART_MODEL) {
        const td_safetensors_entry *average = find(l, used, TD_KEY_EMA, r->name);
        e = average != NULL ? average : e;
    }
    r->from = e;
    const td_tensor *to = r->tensor;
    if (e == NULL) {
        td_differ(&l->missing, "%s %s", r->name, td_describe_shape(td_shape_of(to)));
    } else if (!td_shape_equal(e->shape, td_shape_of(to)) ||
               (e->dtype != to->dtype && !(td_is_float(e->dtype) && td_is_float(to->dtype)))) {
        td_differ(&l->unlike, "%s is %s%s in the file, %s%s here", r->name, td_dtype_name(e->dtype),
                  td_describe_shape(e->shape), td_dtype_name(to->dtype),
                  td_describe_shape(td_shape_of(to)));
    }
}

static void match_text(td_records *l, const td_text_record *r)
{
    const char *text = td_safetensors_metadata(l->file, r->key);
    if (r->kind->take == NULL || r->kind->take(r->of, text, false)) {
        return;
    }
    if (text == NULL) {
        td_differ(&l->missing, "%s (metadata)", r->key);
    } else {
        td_differ(&l->unlike, "%s is '%.40s', %s", r->key, text, r->kind->unfit);
    }
}

/* What a file may hold beside what was asked for. */
static bool may_stay(const td_records *l, const char *name)
{
    static const char counter[] = "num_batches_tracked"; /* PyTorch's, of each BatchNorm */
    const td_checkpoint_options *asked = l->options;
    size_t length = strlen(name), end = sizeof counter - 1;
    return (asked->optim == NULL && begins_with(name, TD_KEY_OPTIMIZER)) ||
           (asked->ema == NULL && begins_with(name, TD_KEY_EMA) &&
            td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL) ||
           begins_with(name, TD_KEY_EXTRA) ||
           (length >= end && strcmp(name + length - end, counter) == 0);
}

static void match(td_records *l, bool averages)
{
    bool *used = calloc((size_t)td_safetensors_count(l->file) + 1, sizeof *used);
    if (used == NULL) {
        l->failed = true;
        return;
    }
    averages = averages && td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL;
    for (int i = 0; i < l->tensor_count; i++) {
        match_tensor(l, &l->tensors[i], used, averages);
    }
    for (int i = 0; i < l->text_count; i++) {
        match_text(l, &l->texts[i]);
    }
    for (int i = 0; i < td_safetensors_count(l->file); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(l->file, i);
        if (!used[i] && !may_stay(l, entry->name)) {
            td_differ(&l->unexpected, "%s %s", entry->name, td_describe_shape(entry->shape));
        }
    }
    free(used);
}

static td_status report_differences(const td_records *l, const char *path)
{
    const td_difference *sorts[] = { &l->missing, &l->unexpected, &l->unlike };
    static const char *const what[] = { "missing in the file", "only in the file", "unlike" };
    char text[3][640] = { "", "", "" };
    int count = 0;
    for (int i = 0; i < 3; i++) {
        count += sorts[i]->count;
        if (sorts[i]->count > 0) {
            snprintf(text[i], sizeof text[i], "\n  %s (%d): %s", what[i], sorts[i]->count,
                     sorts[i]->text);
        }
    }
    return count == 0 ? TD_OK
                      : td_fail(TD_E_MISMATCH,
                                "'%s' does not fit; nothing was loaded. Was it saved from another "
                                "model or optimizer, or one of other sizes?%s%s%s",
                                path, text[0], text[1], text[2]);
}

/* This rank's part of a parameter's state, out of the file's whole. */
static td_status take_part(const td_tensor_record *r, const td_params *params)
{
    const td_tensor *form = r->tensor;
    td_tensor *whole = td_zeros(TD_SHAPE(td_numel(form)), form->dtype, td_device_of(form));
    if (whole == NULL) {
        return TD_E_NOMEM;
    }
    if (r->part != TD_PART_EMPTY) {
        td_tensor view = over(whole, form);
        td_write(&view, r->from->data, r->from->dtype);
    }
    td_status status = td_params_keep(params, r->window, r->param, whole);
    td_free(whole);
    return status;
}

static td_status take(const td_records *l)
{
    for (int i = 0; i < l->tensor_count; i++) {
        const td_tensor_record *r = &l->tensors[i];
        if (r->window != NULL) {
            TD_TRY(take_part(r, td_params_laid_out(l->options->model)));
        } else if (r->part == TD_PART_EMPTY) {
            td_fill_(r->tensor, 0.0);
        } else {
            td_write(r->tensor, r->from->data, r->from->dtype);
        }
    }
    bool taken = true;
    for (int i = 0; i < l->text_count; i++) {
        const td_text_record *r = &l->texts[i];
        taken = taken && (r->kind->take == NULL ||
                          r->kind->take(r->of, td_safetensors_metadata(l->file, r->key), true));
    }
    td_optim *o = l->options->optim;
    td_ema *e = l->options->ema;
    if (o != NULL) {
        o->skipped = td_params_skipped(o->params);
    }
    if (e != NULL) {
        e->skipped = td_params_skipped(e->of.params);
    }
    return taken ? TD_OK : TD_E_NOMEM;
}

/* Fails unless the file has what is asked for. Nothing is changed. */
static td_status compare(td_records *l, bool averages)
{
    td_records_list(l);
    if (!l->failed) {
        match(l, averages);
    }
    const char *path = l->options->path;
    return l->failed ? td_fail(TD_E_NOMEM, "no memory to load '%s'", path)
                     : report_differences(l, path);
}

td_status td_checkpoint_load_model(const td_checkpoint_options *options, bool averages, td_site at)
{
    require_valid(options, "td_checkpoint_load", at);
    td_safetensors *file = NULL;
    td_status status = td_checkpoint_open(options->path, &file);
    td_records list = { .options = options, .file = file };
    status = agreed(options, status == TD_OK ? compare(&list, averages) : status);
    if (status == TD_OK) {
        status = agreed(options, take(&list));
    }
    td_records_free(&list);
    td_safetensors_close(file);
    return status;
}

td_status td_checkpoint_load_at(td_checkpoint_options options, td_site at)
{
    return td_checkpoint_load_model(&options, false, at);
}
