/* Saving a checkpoint: walks over its list of records, and writes what this rank has of each. */
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

enum { PIECE = 1 << 20 }; /* bytes that are converted, then written: they stay in the cache */

typedef struct saver {
    const td_records *list;
    const td_params *params; /* of which there are windows, or several ranks have state; or NULL */
    const td_params_peers *peers;  /* the ranks; NULL: this one */
    td_safetensors_entry *entries; /* of each tensor */
    td_metadata *metadata;
    td_saving *saving; /* the file; its `out` is NULL if this rank does not write */
    bool later;        /* a thread writes; what it will write is copied */
    bool all_write;    /* every rank writes what it alone has */
    void *buffer;      /* a piece's elements, row-major */
    td_tensor *whole;  /* the elements of one parameter or its state, in memory order */
    td_status status;  /* the first failure of writing */
} saver;

/* The parameters of which several ranks have state, so that all of them save. */
static const td_params *saved_together(const td_checkpoint_options *c)
{
    const td_params *params = td_records_shared(c);
    for (int i = 0; i < c->extra_count && params == NULL; i++) {
        params = c->extra[i].owner > 0 ? td_params_laid_out(c->model) : NULL;
    }
    return params;
}

/* ---- the records ---- */

/* A header of t's form over the elements in `memory`, for the time of a call. */
static td_tensor over(const td_tensor *memory, const td_tensor *t)
{
    td_tensor view;
    td_init_header(&view, memory->storage, memory->offset, td_shape_of(t), t->stride, t->dtype);
    return view;
}

/* Writes rows [from, to) of record i: from the device's order to the file's. */
static void put(saver *s, int i, const td_tensor *t, int64_t from, int64_t to)
{
    int64_t all = t->ndim > 0 ? t->shape[0] : 1;
    int64_t row = all > 0 ? (int64_t)s->entries[i].bytes / all : 0;
    int64_t few = PIECE / (row + 1) + 1, count;
    for (; from < to && s->saving->out != NULL && s->status == TD_OK; from += count) {
        count = to - from < few ? to - from : few;
        td_tensor rows = *t;
        if (t->ndim > 0) {
            rows.shape[0] = count;
            rows.offset += from * t->stride[0];
        }
        size_t size = (size_t)(count * row);
        void *bytes = s->later ? td_saving_room(s->saving, i, from * row, size) : s->buffer;
        if (bytes == NULL) {
            s->status = TD_E_NOMEM;
            return;
        }
        td_read(&rows, bytes, s->entries[i].dtype);
        if (!s->later) {
            s->status = td_safetensors_put(s->saving->out, i, from * row, bytes, size);
        }
    }
}

/* Brings record i together on all ranks: what lies in several windows, or what its owner cannot
 * write. */
static td_status bring_together(saver *s, const td_tensor_record *r)
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

/* All ranks do this, also those on which writing has failed. What one rank has, this rank writes;
 * of what has to be brought together each writes its rows, or the first rank all. */
static td_status put_record(saver *s, int i)
{
    const td_tensor_record *r = &s->list->tensors[i];
    int rank = s->peers != NULL ? s->peers->rank : 0;
    int owner = r->window != NULL ? td_params_owner(s->params, r->param) : r->owner;
    int64_t rows = r->tensor->ndim > 0 ? r->tensor->shape[0] : 1;
    bool in_whole = r->window != NULL;
    if (owner != 0 && (owner < 0 || !s->all_write)) {
        TD_TRY(bring_together(s, r));
        in_whole = true;
        owner = 0;
        if (s->all_write) {
            td_tensor whole = over(s->whole, r->tensor);
            put(s, i, &whole, rows * rank / s->peers->count, rows * (rank + 1) / s->peers->count);
            return TD_OK;
        }
    } else if (r->window != NULL && owner == rank && s->status == TD_OK) {
        td_tensor part = td_params_part(s->whole, 0, td_numel(r->tensor));
        s->status = td_params_take(s->params, r->window, r->param, &part);
    }
    if (owner == rank) {
        td_tensor whole = in_whole ? over(s->whole, r->tensor) : *r->tensor;
        put(s, i, &whole, 0, rows);
    }
    return TD_OK;
}

static td_status put_all(saver *s)
{
    for (int i = 0; i < s->list->tensor_count; i++) {
        TD_TRY(put_record(s, i));
    }
    return s->status;
}

/* ---- the file ---- */

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

static bool describe_file(saver *s)
{
    const td_records *l = s->list;
    size_t largest = 0;
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
        size_t row = bytes / (size_t)(t->ndim > 0 && t->shape[0] > 0 ? t->shape[0] : 1);
        largest = row > largest ? row : largest;
    }
    for (int i = 0; i < l->text_count; i++) {
        s->metadata[i] = (td_metadata){ l->texts[i].key, l->texts[i].text };
    }
    s->buffer = malloc(PIECE + largest);
    s->whole = s->params != NULL ? new_whole(l, s->params) : NULL;
    return s->buffer != NULL && (s->params == NULL || s->whole != NULL);
}

/* Opens the first rank's file on the others. Where one of them does not see it, the first rank
 * writes all of it. */
static td_status join(saver *s)
{
    const td_params_peers *peers = s->peers;
    td_safetensors_place place = { .data = 0 };
    if (s->saving->out != NULL) {
        place = *td_safetensors_place_of(s->saving->out);
    }
    td_tensor *bytes = td_borrow(&place, TD_SHAPE(sizeof place), TD_U8, TD_CPU);
    td_status status = bytes != NULL ? peers->broadcast(bytes, 0, peers->user) : TD_E_NOMEM;
    td_free(bytes);
    TD_TRY(peers->agree(status, peers->user));
    place.file[sizeof place.file - 1] = '\0';
    if (peers->rank > 0 && !peers->spare) {
        status = td_safetensors_join(&place, s->entries, s->list->tensor_count, &s->saving->out);
    }
    TD_TRY(peers->agree(status == TD_E_MISMATCH ? status : TD_OK, peers->user));
    s->all_write = peers->agree(status, peers->user) == TD_OK;
    if (peers->rank > 0 && !s->all_write) {
        (void)td_safetensors_finish(s->saving->out, false);
        s->saving->out = NULL;
    }
    return TD_OK;
}

/* All ranks return the same outcome. Spare ranks write nothing. */
static td_status begin_file(saver *s)
{
    const td_records *l = s->list;
    td_status status = TD_OK;
    if (s->peers == NULL || (s->peers->rank == 0 && !s->peers->spare)) {
        status = td_safetensors_plan(l->options->path, s->entries, l->tensor_count, s->metadata,
                                     l->text_count, &s->saving->out);
    }
    TD_TRY(td_peers_agree(s->peers, status));
    return s->peers != NULL ? join(s) : TD_OK;
}

/* All ranks have the same collectives whether writing fails or not. */
static td_status write_file(saver *s, td_saving **background)
{
    td_status status = begin_file(s);
    if (status != TD_OK) {
        td_saving_drop(s->saving);
        return status;
    }
    status = put_all(s);
    if (background == NULL) {
        return td_saving_end(s->saving, status);
    }
    status = td_peers_agree(s->peers, status);
    if (status != TD_OK) {
        td_saving_drop(s->saving);
        return status;
    }
    *background = s->saving;
    td_saving_start(s->saving);
    return TD_OK;
}

static td_status save(saver *s)
{
    const td_checkpoint_options *c = s->list->options;
    bool described = !s->list->failed && describe_file(s);
    s->saving = described ? td_saving_new(s->peers) : NULL;
    td_status status = s->saving != NULL
                           ? TD_OK
                           : td_fail(TD_E_NOMEM, "no memory to save a checkpoint to '%s'", c->path);
    status = td_peers_agree(s->peers, status);
    if (status == TD_OK) {
        status = write_file(s, c->background);
    } else {
        td_saving_drop(s->saving);
    }
    free(s->entries);
    free(s->metadata);
    free(s->buffer);
    td_free(s->whole);
    return status;
}

static void require_savable(const td_checkpoint_options *c, int ranks, td_site at)
{
    for (int i = 0; i < c->metadata_count; i++) {
        TD_REQUIRE(c->metadata[i].key != NULL && c->metadata[i].value != NULL, at,
                   "td_checkpoint_save: metadata[%d] has a NULL key or value", i);
    }
    for (int i = 0; i < c->extra_count; i++) {
        int owner = c->extra[i].owner;
        TD_REQUIRE(owner >= 0 && owner < ranks, at,
                   "td_checkpoint_save: extra[%d] belongs to rank %d, and %d %s this model; take "
                   "the list from td_ddp_state_to_save",
                   i, owner, ranks, ranks == 1 ? "rank trains" : "ranks train");
    }
}

td_status td_checkpoint_save_at(td_checkpoint_options options, td_site at)
{
    td_records_require(&options, "td_checkpoint_save", at);
    td_records list = { .options = &options };
    saver s = { .list = &list, .later = options.background != NULL };
    s.params = saved_together(&options);
    s.peers = s.params != NULL ? td_params_ranks_of(s.params) : NULL;
    require_savable(&options, s.peers != NULL ? s.peers->count : 1, at);
    if (options.background != NULL) {
        TD_TRY(td_saving_wait(options.background));
    }
    if (s.params == NULL && options.optim != NULL && options.optim->kind->packed != TD_F32) {
        s.params = options.optim->params;
    }
    td_records_list(&list);
    td_status status = save(&s);
    td_records_free(&list);
    return status;
}
