/* Saving a checkpoint: one process, rank 0, writes its file record by record.
 *
 * Most tensors lie whole on rank 0, which writes them from where they are, a MiB at a time: each
 * piece is brought from the order in memory (or on the GPU) to the file's, and put into the file.
 * Ranks that share a model (nn/params.h, "ranks that train the same parameters") have windows of
 * its state, and perhaps of its values. The ranks that have parts of such a tensor broadcast them,
 * so that it lies whole on rank 0 for as long as it is written, and then comes the next. So the
 * file is that of a model on one process, and no rank needs more memory than for the largest
 * tensor.
 *
 * What is written goes into the operating system's memory first (the page cache), which takes about
 * as long as copying it. What takes long is the disk. In the background a thread waits for it. */
#include "nn/io/fingerprint.h"
#include "nn/io/records.h"
#include "nn/optim/optim_internal.h"
#include "tensor/storage.h"
#include "tensor/system/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* bytes that are converted, then written: they stay in the cache */

/* ---- a file in which all has been put ---- */

struct td_saving {
    td_safetensors_out *out;      /* NULL: another rank writes the file */
    const td_params_peers *peers; /* the ranks that are told the outcome; NULL: this one */
    const td_module *model;
    pthread_t thread;
    bool started;
    atomic_bool written; /* the file has its name, or has failed: */
    td_status status;
    char message[1024]; /* what failed */
};

/* Waits for the disk, and gives the file its name. */
static void *finish(void *arg)
{
    td_saving *w = arg;
    w->status = td_safetensors_finish(w->out, true);
    if (w->status != TD_OK) {
        snprintf(w->message, sizeof w->message, "%s", td_last_error());
    }
    atomic_store(&w->written, true);
    return NULL;
}

/* Where no thread can be started, the program waits. */
static void finish_in_background(td_saving *w)
{
    w->started = td_thread_start(&w->thread, finish, w) == 0;
    if (!w->started) {
        finish(w);
    }
}

bool td_saving_is_written(const td_saving *saving)
{
    return atomic_load(&saving->written);
}

/* This rank's outcome. Frees the saving and sets *saving to NULL. */
static td_status end(td_saving **saving)
{
    td_saving *w = *saving;
    *saving = NULL;
    if (w == NULL) {
        return TD_OK;
    }
    if (w->started) {
        pthread_join(w->thread, NULL);
    }
    td_status status = w->status == TD_OK ? TD_OK : td_fail(w->status, "%s", w->message);
    free(w);
    return status;
}

td_status td_saving_wait(td_saving **saving)
{
    if (*saving == NULL) {
        return TD_OK;
    }
    const td_params_peers *peers = (*saving)->peers;
    const td_module *model = (*saving)->model;
    return td_records_agree_all(model, peers, end(saving));
}

void td_saving_cancel(td_saving **saving)
{
    (void)end(saving);
}

/* ---- a record ---- */

typedef struct saver {
    const td_records *list;
    const td_params *params; /* of which there are windows, or several ranks have state; or NULL */
    const td_params_peers *peers; /* the ranks; NULL: this one */
    td_safetensors_out *out;      /* NULL: another rank writes the file */
    void *buffer;                 /* a piece's elements, row-major */
    uint64_t fingerprint;         /* of what has been put */
    td_tensor *whole;             /* bytes: room for any tensor that must be brought together */
    td_status status;             /* the last failure; after one nothing is written */
} saver;

const td_params *td_records_together(const td_checkpoint_options *c)
{
    const td_params *params = td_records_shared(c);
    bool apart = td_node_of(c->model)->slicing != NULL || td_node_of(c->model)->staging != NULL ||
                 (c->optim != NULL && td_params_training_of(c->optim->params)->apart);
    for (int i = 0; i < TD_CHECKPOINT_PARTS; i++) {
        const td_checkpoint_part *part = td_records_part(c, i);
        apart = apart || (part != NULL && part->apart != NULL && part->apart(part));
    }
    return params == NULL && apart && td_records_ranks(c) != NULL ? td_params_laid_out(c->model)
                                                                  : params;
}

td_status td_records_check_gradients(const td_checkpoint_options *c)
{
    const td_params *params = c->optim != NULL ? c->optim->params : NULL;
    bool waits = false;
    for (int i = 0; params != NULL && i < td_params_count(params); i++) {
        waits = waits || td_params_waiting(params, i) != NULL;
    }
    const td_staging *stages = td_node_of(c->model)->staging;
    const td_checkpoint_part *part = td_records_part(c, TD_CHECKPOINT_PARTS - 1);
    bool apart = part != NULL && part->apart != NULL && part->apart(part);
    TD_CHECK(
        stages == NULL || !apart, TD_E_UNSUPPORTED,
        "td_checkpoint_save: what PowerSGD keeps cannot be saved from a pipeline's stages yet");
    TD_CHECK(!waits || (td_params_peers_of(params) == NULL && stages == NULL), TD_E_UNSUPPORTED,
             "the model is in the middle of a gradient accumulation, and its ranks share the "
             "optimizer's state: save it, or take its fingerprint, after td_optim_step");
    return TD_OK;
}

bool td_saves_together(td_module *net)
{
    td_optim optim = { .params = td_params_laid_out(net) };
    td_checkpoint_options run = { .model = net, .optim = &optim };
    return td_node_of(net)->slicing != NULL || td_node_of(net)->staging != NULL ||
           (optim.params != NULL && td_records_together(&run) != NULL);
}

static int64_t row_bytes(const td_tensor *t)
{
    int64_t bytes = (int64_t)td_tensor_bytes(t);
    return t->ndim > 0 && t->shape[0] > 0 ? bytes / t->shape[0] : bytes;
}

/* Writes record i from t: from the device's order to the file's. */
static void put_rows(saver *s, int i, const td_tensor *t)
{
    int64_t all = t->ndim > 0 ? t->shape[0] : 1, row = row_bytes(t);
    int64_t few = PIECE / (row + 1) + 1, count, size = (int64_t)td_dtype_size(t->dtype);
    uint64_t name = td_fingerprint_name(s->list->tensors[i].name, t->dtype, td_shape_of(t));
    for (int64_t from = 0; from < all && s->out != NULL && s->status == TD_OK; from += count) {
        count = all - from < few ? all - from : few;
        td_tensor rows = *t;
        if (t->ndim > 0) {
            rows.shape[0] = count;
            rows.offset += from * t->stride[0];
        }
        td_read(&rows, s->buffer, t->dtype);
        s->status = td_safetensors_put(s->out, i, from * row, s->buffer, (size_t)(count * row));
        s->fingerprint += td_fingerprint_elements(name, s->buffer, (size_t)size, from * row / size,
                                                  1, count * row / size);
    }
}

/* Puts record i from t, which is whole. t NULL: another stage of a pipeline has it. What the first
 * stage does not have is handed to it. */
static void put_whole(saver *s, int i, const td_tensor *t)
{
    const td_staging *stages = s->list->stages;
    const td_tensor_record *r = &s->list->tensors[i];
    if (stages == NULL || r->stage == 0) {
        if (t != NULL) {
            put_rows(s, i, t);
        }
        return;
    }
    td_tensor *handed =
        td_new(td_records_shape(s->list, r), r->tensor->dtype, td_device_of(r->tensor));
    td_status status = stages->agree(handed != NULL ? TD_OK : TD_E_NOMEM, stages->user);
    if (status == TD_OK && t != NULL) {
        td_copy_(handed, t);
    }
    status = status == TD_OK ? stages->broadcast(handed, r->stage, stages->user) : status;
    s->status = status != TD_OK ? status : s->status;
    if (status == TD_OK) {
        put_rows(s, i, handed);
    }
    td_free(handed);
}

/* Whether this rank takes part in bringing together slices and stages. */
static bool put_here(const saver *s, const td_tensor_record *r)
{
    return r->cut == NULL || s->peers == NULL || (s->peers->rank == 0 && !s->peers->spare);
}

/* Puts record i. If it is cut, t is this rank's slice, and the slices come together here. */
static void put(saver *s, int i, const td_tensor *t)
{
    const td_cut *cut = s->list->tensors[i].cut;
    const td_slicing *slicing = s->list->slicing;
    if (cut == NULL) {
        put_whole(s, i, t);
    } else if (put_here(s, &s->list->tensors[i])) {
        td_tensor *whole = td_new(slicing->type->whole(slicing, cut), t->dtype, td_device_of(t));
        td_status status = slicing->agree(whole != NULL ? TD_OK : TD_E_NOMEM, slicing->user);
        status = status == TD_OK ? slicing->type->gather(slicing, cut, t, whole) : status;
        s->status = status != TD_OK ? status : s->status;
        if (status == TD_OK) {
            put_whole(s, i, whole);
        }
        td_free(whole);
    }
}

/* Puts a record that rank 0 does not have as it is: one of windows, or another rank's. All ranks do
 * this, also those on which something has failed: the others wait for their part. (In a group that
 * is broken every call fails at once.) */
static void put_together(saver *s, int i, int owner)
{
    const td_tensor_record *r = &s->list->tensors[i];
    const td_tensor *t = r->tensor;
    int64_t one = 1, stride[TD_MAX_DIMS];
    td_tensor elements, view; /* of s->whole: one after the other, and in the record's shape */
    td_init_header(&elements, s->whole->storage, 0, TD_SHAPE(td_numel(t)), &one, t->dtype);
    td_layout_strides(td_device_of(s->whole), TD_ROW_MAJOR, td_shape_of(t), stride);
    td_init_header(&view, s->whole->storage, 0, td_shape_of(t),
                   r->window != NULL ? t->stride : stride, t->dtype);
    td_status status = TD_OK;
    if (r->window == NULL) {
        if (owner == s->peers->rank) {
            td_copy_(&view, t);
        }
        status = s->peers->broadcast(&elements, owner, s->peers->user);
    } else if (owner != 0) {
        status = td_params_collect(s->params, r->window, r->param, &elements);
    } else if (s->peers == NULL || s->peers->rank == 0) {
        status = td_params_take(s->params, r->window, r->param, &elements);
    }
    s->status = status != TD_OK ? status : s->status;
    put(s, i, &view);
}

static td_status put_all(saver *s)
{
    for (int i = 0; i < s->list->tensor_count; i++) {
        const td_tensor_record *r = &s->list->tensors[i];
        if (s->list->stages != NULL && r->stage != s->list->stages->rank) {
            if (put_here(s, r)) {
                put_whole(s, i, NULL);
            }
            continue;
        }
        int owner = r->window != NULL ? td_params_owner(s->params, r->param) : r->owner;
        if (r->window != NULL || owner != 0) {
            put_together(s, i, owner);
        } else {
            put(s, i, r->tensor);
        }
    }
    char text[32];
    for (int i = 0; i < s->list->text_count; i++) {
        s->fingerprint += td_fingerprint_text(s->list->texts[i].key, s->list->texts[i].text);
    }
    snprintf(text, sizeof text, "%016" PRIx64, s->fingerprint);
    return s->out != NULL && s->status == TD_OK
               ? td_safetensors_set(s->out, TD_KEY_FINGERPRINT, text)
               : s->status;
}

/* ---- the whole ---- */

static td_status no_memory(const td_checkpoint_options *c)
{
    return td_fail(TD_E_NOMEM, "no memory to save a checkpoint to '%s'", c->path);
}

/* Makes the file, with its header. */
static td_status save_plan(saver *s)
{
    const td_records *l = s->list;
    td_safetensors_entry *entries = calloc((size_t)l->tensor_count + 1, sizeof *entries);
    td_metadata *metadata = calloc((size_t)l->text_count + 1, sizeof *metadata);
    td_status status = entries != NULL && metadata != NULL ? TD_OK : no_memory(l->options);
    if (status == TD_OK) {
        for (int i = 0; i < l->tensor_count; i++) {
            td_dtype dtype = l->tensors[i].tensor->dtype;
            td_shape shape = td_records_shape(l, &l->tensors[i]);
            size_t bytes = (size_t)td_shape_numel(shape) * td_dtype_size(dtype);
            entries[i] = (td_safetensors_entry){
                .name = l->tensors[i].name, .dtype = dtype, .shape = shape, .bytes = bytes
            };
        }
        for (int i = 0; i < l->text_count; i++) {
            metadata[i] = (td_metadata){ l->texts[i].key, l->texts[i].text };
        }
        status = td_safetensors_plan(l->options->path, entries, l->tensor_count, metadata,
                                     l->text_count, &s->out);
    }
    free(entries);
    free(metadata);
    return status;
}

/* Memory for the longest piece, and for the largest tensor that must be brought together. */
static bool save_make_room(saver *s)
{
    int64_t row = 0, whole = 1;
    for (int i = 0; i < s->list->tensor_count; i++) {
        const td_tensor_record *r = &s->list->tensors[i];
        int64_t bytes = r->window != NULL || r->owner > 0 ? (int64_t)td_tensor_bytes(r->tensor) : 0;
        int64_t ranks = r->cut != NULL ? s->list->slicing->ranks : 1; /* a whole row is longer */
        row = row_bytes(r->tensor) * ranks > row ? row_bytes(r->tensor) * ranks : row;
        whole = bytes > whole ? bytes : whole;
    }
    s->buffer = malloc(PIECE + (size_t)row);
    if (s->params != NULL) {
        s->whole = td_zeros(TD_SHAPE(whole), TD_U8, td_device_of(td_params_flat(s->params)));
    }
    return s->buffer != NULL && (s->params == NULL || s->whole != NULL);
}

/* All ranks have the same collectives whether writing fails or not. When all have put what they
 * have, the file is complete. Spare ranks write nothing. */
static td_status save(saver *s)
{
    const td_checkpoint_options *c = s->list->options;
    const td_slicing *slicing = s->list->slicing;
    const td_staging *stages = s->list->stages;
    bool writes = (s->peers == NULL || (s->peers->rank == 0 && !s->peers->spare)) &&
                  (slicing == NULL || slicing->rank == 0) && (stages == NULL || stages->rank == 0);
    td_saving *w = calloc(1, sizeof *w);
    bool room = !s->list->failed && w != NULL && save_make_room(s);
    td_status status = td_records_agree_all(c->model, s->peers, room ? TD_OK : no_memory(c));
    status = status == TD_OK ? td_records_check_gradients(c) : status; /* the same on all ranks */
    if (status == TD_OK) {
        status = td_records_agree_all(c->model, s->peers, writes ? save_plan(s) : TD_OK);
    }
    if (status == TD_OK) {
        status = td_records_agree_all(c->model, s->peers, put_all(s));
    }
    free(s->buffer);
    td_free(s->whole);
    if (status != TD_OK) {
        (void)td_safetensors_finish(s->out, false);
        free(w);
        return status;
    }
    *w = (td_saving){ .out = s->out, .peers = s->peers, .model = c->model };
    if (c->background == NULL || w->out == NULL) {
        finish(w);
    } else {
        finish_in_background(w);
    }
    if (c->background == NULL) {
        return td_saving_wait(&w);
    }
    *c->background = w;
    return TD_OK;
}

static void require_savable(const td_checkpoint_options *c, td_site at)
{
    for (int i = 0; i < c->metadata_count; i++) {
        TD_REQUIRE(c->metadata[i].key != NULL && c->metadata[i].value != NULL, at,
                   "td_checkpoint_save: metadata[%d] has a NULL key or value", i);
    }
}

td_status td_checkpoint_save_at(td_checkpoint_options options, td_site at)
{
    td_records_require(&options, "td_checkpoint_save", at);
    require_savable(&options, at);
    td_records list = { .options = &options };
    saver s = { .list = &list };
    s.params = td_records_together(&options);
    s.peers = s.params != NULL ? td_params_ranks_of(s.params) : NULL;
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
