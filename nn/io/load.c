/* Loading a checkpoint: compares its list of records with the file, and then takes the values. */
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/io/fingerprint.h"
#include "nn/io/records.h"
#include "nn/optim/optim_internal.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- all is compared before anything is changed ---- */

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* The file's entry for a record, marked as used. The names of a model's tensors may begin as
 * PyTorch's DistributedDataParallel and torch.compile, in any order, have it; with l->averages the
 * average is taken where there is one. */
static const td_safetensors_entry *load_find(td_records *l, const td_tensor_record *r)
{
    static const char *const begins[] = {
        "", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", TD_KEY_EMA
    };
    enum { AVERAGE = sizeof begins / sizeof *begins - 1 };
    const td_safetensors_entry *entry = NULL;
    for (int i = 0; i <= (r->part == TD_PART_MODEL ? AVERAGE : 0); i++) {
        if (i < AVERAGE ? entry != NULL : !l->averages) {
            continue;
        }
        char *name = td_format("%s%s", begins[i], r->name);
        l->failed = l->failed || name == NULL;
        const td_safetensors_entry *found =
            name != NULL ? td_safetensors_find(l->file, name) : NULL;
        free(name);
        if (found != NULL) {
            l->used[found - td_safetensors_get(l->file, 0)] = true;
            entry = found;
        }
    }
    return entry;
}

static void match_tensor(td_records *l, td_tensor_record *r)
{
    if (r->part == TD_PART_EMPTY) {
        return;
    }
    const td_safetensors_entry *e = load_find(l, r);
    r->from = e;
    const td_tensor *to = r->tensor;
    td_shape shape = td_records_shape(l, r);
    if (e == NULL) {
        td_differ(&l->missing, "%s %s", r->name, td_describe_shape(shape));
    } else if (td_safetensors_unknown(l->file, e) != NULL) {
        td_differ(&l->unlike, "%s is %s in the file, %s%s here", r->name,
                  td_safetensors_unknown(l->file, e), td_dtype_name(to->dtype),
                  td_describe_shape(shape));
    } else if (!td_shape_equal(e->shape, shape) ||
               (e->dtype != to->dtype && !(td_is_float(e->dtype) && td_is_float(to->dtype)))) {
        td_differ(&l->unlike, "%s is %s%s in the file, %s%s here", r->name, td_dtype_name(e->dtype),
                  td_describe_shape(e->shape), td_dtype_name(to->dtype), td_describe_shape(shape));
    }
}

static void match_text(td_records *l, const td_text_record *r)
{
    union {
        int64_t count;
        double rate;
        td_epoch_order order;
        td_dropout_place dropout;
        td_generator generator;
    } value;
    if (r->text != NULL && !r->kind->read(r->text, &value)) {
        td_differ(&l->unlike, "%s is '%.40s', %s", r->key, r->text, r->kind->unfit);
    } else if (r->text == NULL && !r->kind->optional) {
        td_differ(&l->missing, "%s (metadata)", r->key);
    }
}

static void match_order(td_records *l)
{
    const td_params *params = td_params_laid_out(l->options->model);
    const char *text = td_safetensors_metadata(l->file, TD_KEY_ORDER);
    if (params != NULL && text != NULL && l->stages == NULL &&
        !td_order_read(text, params, &l->order)) {
        td_differ(&l->unlike, "%s is '%.40s', which is no order", TD_KEY_ORDER, text);
    }
}

/* What a file may hold beside what was asked for. */
static bool may_stay(const td_records *l, const char *name)
{
    static const char counter[] = "num_batches_tracked"; /* PyTorch's, of each BatchNorm */
    const td_checkpoint_options *asked = l->options;
    size_t length = strlen(name), end = sizeof counter - 1;
    bool apart = asked->optim == NULL || l->stages != NULL; /* other stages' */
    return (apart && begins_with(name, TD_KEY_OPTIMIZER)) ||
           (begins_with(name, TD_KEY_EMA) && /* with .ema: of what is frozen here */
            (asked->ema == NULL || td_safetensors_find(l->file, name + strlen(TD_KEY_EMA))) &&
            td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL) ||
           (asked->optim == NULL && begins_with(name, TD_KEY_GRADIENT)) ||
           begins_with(name, TD_KEY_EXTRA) ||
           (length >= end && strcmp(name + length - end, counter) == 0);
}

static void load_match(td_records *l)
{
    l->used = calloc((size_t)td_safetensors_count(l->file) + 1, sizeof *l->used);
    l->failed = l->failed || l->used == NULL;
    l->averages = l->averages && td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) != NULL;
    for (int i = 0; !l->failed && i < l->tensor_count; i++) {
        match_tensor(l, &l->tensors[i]);
    }
    for (int i = 0; i < l->text_count; i++) {
        match_text(l, &l->texts[i]);
    }
    match_order(l);
    for (int i = 0; !l->failed && i < td_safetensors_count(l->file); i++) {
        const td_safetensors_entry *entry = td_safetensors_get(l->file, i);
        if (!l->used[i] && !may_stay(l, entry->name)) {
            td_differ(&l->unexpected, "%s %s", entry->name, td_describe_shape(entry->shape));
        }
    }
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

/* ---- the values ---- */

/* Keeps this rank's slice of the data that has been read. */
static td_status load_slice(const td_records *l, const td_tensor_record *r)
{
    td_tensor *slice = td_new(td_shape_of(r->tensor), r->from->dtype, TD_CPU);
    if (slice == NULL) {
        return TD_E_NOMEM;
    }
    td_storage storage;
    td_tensor whole;
    td_init_borrowed(&whole, &storage, l->data, r->from->shape, r->from->dtype);
    l->slicing->type->copy(l->slicing, r->cut, l->slicing->rank, &whole, slice, false);
    memcpy(l->data, td_ptr(slice), td_tensor_bytes(slice));
    td_free(slice);
    return TD_OK;
}

/* Reads a record's data, of this rank's slice, into l->data. */
static td_status read_data(const td_records *l, const td_tensor_record *r)
{
    td_status status = td_safetensors_read(l->file, r->from, l->data);
    status = status == TD_OK && r->cut != NULL ? load_slice(l, r) : status;
    return status == TD_OK ? TD_OK
                           : td_fail_context(status, "'%s' was loaded in part, up to '%s'",
                                             l->options->path, r->name);
}

/* This rank's window of a parameter or of its state. A tensor of which the rank keeps nothing is
 * not read. */
static td_status take_window(td_records *l, const td_tensor_record *r)
{
    const td_params *params = td_params_laid_out(l->options->model);
    td_window here = td_params_here(params, r->param);
    if (here.count == 0) {
        return TD_OK;
    }
    td_tensor *part = td_zeros(TD_SHAPE(here.count), r->tensor->dtype, td_device_of(r->tensor));
    td_status status = part == NULL               ? TD_E_NOMEM
                       : r->part == TD_PART_EMPTY ? TD_OK
                                                  : read_data(l, r);
    if (status == TD_OK && r->part != TD_PART_EMPTY) {
        td_storage storage;
        td_tensor from;
        td_init_borrowed(&from, &storage, l->data, td_shape_of(r->tensor), r->from->dtype);
        td_params_read(params, &from, r->param, part);
    }
    status = status == TD_OK ? td_params_keep(params, r->window, r->param, part) : status;
    td_free(part);
    return status;
}

/* Adds a rank's share to the mean over the ranks of the file. */
static td_status add_share(const td_records *l, const td_tensor_record *r)
{
    td_tensor *share = td_clone(r->tensor);
    if (share == NULL) {
        return TD_E_NOMEM;
    }
    td_write(share, l->data, r->from->dtype);
    if (r->owner == 0) {
        td_fill_(r->tensor, 0.0);
    }
    td_begin_write(r->tensor, "td_checkpoint_load", TD_HERE);
    td_kernels_for(share)->axpy(r->tensor, 1.0 / r->mean_of, share);
    td_free(share);
    return TD_OK;
}

static td_status take_tensor(td_records *l, const td_tensor_record *r)
{
    if (r->window != NULL) {
        return take_window(l, r);
    }
    if (l->stages != NULL && r->tensor->storage->released) {
        return TD_OK; /* another stage's */
    }
    if (r->part == TD_PART_EMPTY) {
        td_fill_(r->tensor, 0.0);
        return TD_OK;
    }
    TD_TRY(read_data(l, r));
    if (r->mean_of > 0) {
        return add_share(l, r);
    }
    td_write(r->tensor, l->data, r->from->dtype);
    return TD_OK;
}

/* No gradient waits for more but those that the file has. */
static void forget_gradients(td_params *params)
{
    td_params_spend(params);
    for (int i = 0; i < td_params_count(params); i++) {
        td_tensor *leaf = td_params_get(params, i)->tensor;
        if (td_is_leaf(leaf)) {
            td_zero_grad_of(leaf);
        }
    }
}

static void note_gradient(const td_records *l, const td_tensor_record *r)
{
    td_params *params = l->options->optim->params;
    bool own = strncmp(r->name, TD_KEY_OWN_GRADIENT, strlen(TD_KEY_OWN_GRADIENT)) == 0;
    td_params_training_of(params)->apart = own && td_params_ranks_of(params) != NULL;
    td_params_training_of(params)->waits = true;
    td_mark_grad(td_params_get(params, r->param)->tensor);
}

static td_status take(td_records *l)
{
    const td_checkpoint_options *c = l->options;
    if (c->optim != NULL) {
        forget_gradients(c->optim->params);
    }
    for (int i = 0; i < l->tensor_count; i++) {
        TD_TRY(take_tensor(l, &l->tensors[i]));
        if (l->tensors[i].part == TD_PART_GRADIENT) {
            note_gradient(l, &l->tensors[i]);
        }
    }
    for (int i = 0; i < l->text_count; i++) {
        const td_text_record *r = &l->texts[i];
        if (r->text != NULL) {
            (void)r->kind->read(r->text, r->of);
        }
    }
    if (c->optim != NULL) {
        (void)td_skips_settle(&c->optim->skips, c->optim->params);
    }
    for (int i = 0; i < TD_CHECKPOINT_PARTS; i++) {
        td_checkpoint_part *part = td_records_part(c, i);
        TD_TRY(part != NULL && part->loaded != NULL ? part->loaded(part) : TD_OK);
    }
    return l->order != NULL ? td_params_reorder(td_params_laid_out(c->model), l->order) : TD_OK;
}

/* Memory for the data of any tensor that is read. */
static void load_make_room(td_records *l)
{
    size_t most = 1;
    for (int i = 0; i < l->tensor_count; i++) {
        const td_tensor_record *r = &l->tensors[i];
        most = r->from != NULL && r->from->bytes > most ? r->from->bytes : most;
    }
    l->data = malloc(most);
    l->failed = l->failed || l->data == NULL;
}

/* Fails unless the file has what is asked for. Nothing is changed. first: the one of several ranks
 * that reads the whole file, to see whether it is as it was saved. */
static td_status compare(td_records *l, bool first)
{
    const char *path = l->options->path;
    td_records_list(l);
    load_match(l);
    load_make_room(l);
    TD_TRY(l->failed ? td_fail(TD_E_NOMEM, "no memory to load '%s'", path) : TD_OK);
    TD_TRY(report_differences(l, path));
    return first ? td_fingerprint_check(l->file, path) : TD_OK;
}

td_status td_checkpoint_load_model(const td_checkpoint_options *options, bool averages, td_site at)
{
    td_records_require(options, "td_checkpoint_load", at);
    const td_params *shared = td_records_shared(options);
    const td_params_peers *peers = shared != NULL ? td_params_peers_of(shared) : NULL;
    const td_slicing *slicing = td_node_of(options->model)->slicing;
    bool first = (peers == NULL || peers->rank == 0) && (slicing == NULL || slicing->rank == 0);
    td_safetensors *file = NULL;
    td_status status = td_checkpoint_open(options->path, &file);
    td_records list = { .options = options, .file = file, .averages = averages };
    status = td_records_agree_all(options->model, peers,
                                  status == TD_OK ? compare(&list, first) : status);
    if (status == TD_OK) {
        status = td_records_agree_all(options->model, peers, take(&list));
    }
    td_records_free(&list);
    td_safetensors_close(file);
    return status;
}

td_status td_checkpoint_load_at(td_checkpoint_options options, td_site at)
{
    return td_checkpoint_load_model(&options, false, at);
}
