/* Loading a checkpoint: compares its list of records with the file, and then takes the values. */
#include "nn/extra/ema_internal.h"
#include "nn/internal.h"
#include "nn/io/records.h"
#include "nn/io/saving.h"
#include "nn/module.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <stdlib.h>
#include <string.h>

/* ---- all is compared before anything is changed ---- */

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

/* What PyTorch's DistributedDataParallel and torch.compile, in any order, call a model's tensor. */
static const td_safetensors_entry *find_wrapped(td_records *l, const td_tensor_record *r,
                                                bool *used)
{
    static const char *const wrappers[] = { "module.", "_orig_mod.", "module._orig_mod.",
                                            "_orig_mod.module." };
    const td_safetensors_entry *e = NULL;
    for (int i = 0; r->part == TD_PART_MODEL && e == NULL && i < 4; i++) {
        e = find(l, used, wrappers[i], r->name);
    }
    return e;
}

static void match_tensor(td_records *l, td_tensor_record *r, bool *used, bool averages)
{
    if (r->part == TD_PART_EMPTY) {
        return;
    }
    const td_safetensors_entry *e = find(l, used, "", r->name);
    e = e != NULL ? e : find_wrapped(l, r, used);
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

/* ---- the values ---- */

/* Reading a stretch of a parameter's memory order out of the file, whose order is row-major. */
typedef struct reading {
    td_tensor to, from; /* all of the parameter, though there is memory for the stretch alone */
    int order[TD_MAX_DIMS], dims; /* dimensions by their place in memory, the outermost first */
    int64_t bytes;                /* read of the file */
} reading;

/* The part of t whose index in a dimension is first, ..., first + count - 1. */
static void narrow(td_tensor *t, int dim, int64_t first, int64_t count)
{
    t->offset += first * t->stride[dim];
    t->shape[dim] = count;
}

/* Reads elements [begin, end), counted in memory order inside the slice whose indices in the outer
 * dimensions are fixed: what lies in whole slices of the next dimension at once, the rest of a
 * slice by itself. */
static void read_stretch(reading *r, int depth, int64_t begin, int64_t end)
{
    const td_tensor to = r->to, from = r->from;
    int dim = depth < r->dims ? r->order[depth] : 0;
    int64_t slice = depth < r->dims ? to.stride[dim] : 1, last;
    for (; begin < end; begin = last) {
        int64_t first = begin / slice, whole = (end - begin) / slice;
        bool at_edge = begin % slice == 0 && whole > 0;
        last = at_edge ? begin + whole * slice : (first + 1) * slice;
        last = last < end ? last : end;
        if (depth < r->dims) {
            narrow(&r->to, dim, first, at_edge ? whole : 1);
            narrow(&r->from, dim, first, at_edge ? whole : 1);
        }
        if (at_edge) {
            td_copy_(&r->to, &r->from);
            r->bytes += td_numel(&r->from) * (int64_t)td_dtype_size(r->from.dtype);
        } else {
            read_stretch(r, depth + 1, begin - first * slice, last - first * slice);
        }
        r->to = to;
        r->from = from;
    }
}

/* `part`, 1-d, gets elements [begin, begin + count) of `form`'s memory order from an entry. */
static int64_t read_part(const td_safetensors_entry *entry, const td_tensor *form, int64_t begin,
                         const td_tensor *part)
{
    reading r = { .dims = 0 };
    td_storage storage;
    td_init_borrowed(&r.from, &storage, (void *)(uintptr_t)entry->data, entry->shape, entry->dtype);
    td_init_header(&r.to, part->storage, part->offset - begin, td_shape_of(form), form->stride,
                   form->dtype);
    for (int d = 0; d < form->ndim; d++) {
        int at = form->shape[d] > 1 ? r.dims++ : 0; /* strides of length 1 say nothing */
        for (; at > 0 && form->stride[r.order[at - 1]] < form->stride[d]; at--) {
            r.order[at] = r.order[at - 1];
        }
        if (form->shape[d] > 1) {
            r.order[at] = d;
        }
    }
    read_stretch(&r, 0, begin, begin + td_numel(part));
    return r.bytes;
}

/* This rank's window of a parameter or of its state. */
static td_status take_window(td_records *l, const td_tensor_record *r)
{
    const td_params *params = td_params_laid_out(l->options->model);
    td_window here = td_params_here(params, r->param);
    if (here.count == 0) {
        return TD_OK;
    }
    td_tensor *part = td_zeros(TD_SHAPE(here.count), r->tensor->dtype, td_device_of(r->tensor));
    if (part == NULL) {
        return TD_E_NOMEM;
    }
    if (r->part != TD_PART_EMPTY) {
        int64_t begin = here.begin - td_params_get(params, r->param)->begin;
        l->bytes_read += read_part(r->from, r->tensor, begin, part);
    }
    td_status status = td_params_keep(params, r->window, r->param, part);
    td_free(part);
    return status;
}

static td_status take_tensor(td_records *l, const td_tensor_record *r)
{
    if (r->window != NULL) {
        return take_window(l, r);
    }
    if (r->part == TD_PART_EMPTY) {
        td_fill_(r->tensor, 0.0);
    } else {
        td_write(r->tensor, r->from->data, r->from->dtype);
        l->bytes_read += (int64_t)r->from->bytes;
    }
    return TD_OK;
}

static td_status take(td_records *l)
{
    for (int i = 0; i < l->tensor_count; i++) {
        TD_TRY(take_tensor(l, &l->tensors[i]));
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

td_status td_checkpoint_load_model(const td_checkpoint_options *options, bool averages,
                                   int64_t *bytes_read, td_site at)
{
    td_records_require(options, "td_checkpoint_load", at);
    const td_params *shared = td_records_shared(options);
    const td_params_peers *peers = shared != NULL ? td_params_peers_of(shared) : NULL;
    td_safetensors *file = NULL;
    td_status status = td_checkpoint_open(options->path, &file);
    td_records list = { .options = options, .file = file };
    status = td_peers_agree(peers, status == TD_OK ? compare(&list, averages) : status);
    if (status == TD_OK) {
        status = td_peers_agree(peers, take(&list));
    }
    *bytes_read = list.bytes_read;
    td_records_free(&list);
    td_safetensors_close(file);
    return status;
}

td_status td_checkpoint_load_at(td_checkpoint_options options, td_site at)
{
    return td_checkpoint_load_model(&options, false, &(int64_t){ 0 }, at);
}
