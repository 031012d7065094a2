/* Saving a checkpoint: walks over its list of records, and writes what this rank has of each, at
 * once or by a thread while the program goes on.
 *
 * For the thread, what this rank writes is copied while the program waits. (A forked child would
 * have the copy for nothing, but not safely: it has none of the threads that convert tensors, locks
 * that other threads hold stay locked in it, memory that ranks share goes on changing under it, and
 * a GPU's memory cannot be used in it.) The thread calls no collective, because the ranks' order of
 * collectives must not depend on the speed of disks: with several ranks the file gets its name in
 * td_saving_wait. */
#include "nn/internal.h"
#include "nn/io/records.h"
#include "nn/module.h"
#include "nn/optim/optim_internal.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* bytes that are converted, then written: they stay in the cache */

/* ---- the file, perhaps written by a thread ---- */

/* A copy of bytes of a tensor, which the thread will write. */
typedef struct piece {
    struct piece *next;
    int tensor;
    int64_t offset;
    size_t size;
    char bytes[];
} piece;

struct td_saving {
    td_safetensors_out *out;      /* NULL: this rank does not write */
    const td_params_peers *peers; /* the ranks that write the file; NULL: this one */
    piece **last;                 /* where the next piece goes */
    pthread_t thread;
    bool started;
    atomic_bool written;  /* the thread is done: */
    pthread_mutex_t lock; /* of what follows, while the thread writes */
    piece *pieces;        /* that are left */
    td_status status;
    char message[1024]; /* what failed */
};

static td_saving *new_saving(const td_params_peers *peers)
{
    td_saving *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->peers = peers;
        w->last = &w->pieces;
        pthread_mutex_init(&w->lock, NULL);
        atomic_init(&w->written, false);
    }
    return w;
}

/* Memory for bytes of tensor i, which the thread will write. NULL with td_last_error(). */
static void *room_for(td_saving *w, int i, int64_t offset, size_t size)
{
    piece *p = malloc(sizeof *p + size);
    if (p == NULL) {
        td_fail(TD_E_NOMEM,
                "no memory for a copy of the checkpoint that is written in the background; save "
                "it in the foreground");
        return NULL;
    }
    *p = (piece){ .tensor = i, .offset = offset, .size = size };
    *w->last = p;
    w->last = &p->next;
    return p->bytes;
}

/* Ends this rank's part of the file. */
static td_status finish(td_saving *w, td_status status)
{
    td_status finished = td_safetensors_finish(w->out, status == TD_OK);
    w->out = NULL;
    return status == TD_OK ? finished : status;
}

static void free_saving(td_saving *w)
{
    for (piece *p = w->pieces, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Puts the file in its place if the status is TD_OK on all ranks, and otherwise removes it. All
 * ranks return the same outcome. peers: the ranks, or NULL if they have agreed on a failure.
 * Frees w; NULL is fine after a failure. */
static td_status end(td_saving *w, const td_params_peers *peers, td_status status)
{
    if (w == NULL) {
        return status;
    }
    bool first = peers == NULL || peers->rank == 0; /* its file gets the name, after the others */
    status = first ? status : finish(w, status);
    status = td_peers_agree(peers, status);
    bool written = status == TD_OK;
    status = first ? finish(w, status) : status;
    free_saving(w);
    return written ? td_peers_agree(peers, status) : status;
}

/* Keeps the first failure. */
static void note(td_saving *w, td_status status)
{
    if (status != TD_OK && w->status == TD_OK) {
        w->status = status;
        snprintf(w->message, sizeof w->message, "%s", td_last_error());
    }
}

/* Writes the next piece; false: none is left. */
static bool write_piece(td_saving *w)
{
    pthread_mutex_lock(&w->lock);
    piece *p = w->pieces;
    bool left = p != NULL;
    if (left) {
        w->pieces = p->next;
        if (w->status == TD_OK) {
            note(w, td_safetensors_put(w->out, p->tensor, p->offset, p->bytes, p->size));
        }
        free(p);
    }
    pthread_mutex_unlock(&w->lock);
    return left;
}

static void *write_pieces(void *arg)
{
    td_saving *w = arg;
    /* What training leaves of the CPUs is enough; a share of them would make steps longer. */
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){ 0 });
    while (write_piece(w)) {
    }
    pthread_mutex_lock(&w->lock);
    if (w->peers == NULL) {
        note(w, finish(w, w->status));
    } else if (w->status == TD_OK && w->out != NULL) {
        note(w, td_safetensors_sync(w->out));
    }
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->written, true);
    return NULL;
}

/* Starts the thread; td_saving_wait tells of a failure. Signals are for the program's own threads.
 */
static void start(td_saving *w)
{
    sigset_t all, usual;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    int error = pthread_create(&w->thread, NULL, write_pieces, w);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    w->started = error == 0;
    if (error != 0) {
        note(w, td_fail(TD_E_IO, "cannot start a thread that writes a checkpoint: %s",
                        strerror(error)));
        atomic_store(&w->written, true);
    }
}

bool td_saving_is_written(const td_saving *saving)
{
    return atomic_load(&saving->written);
}

/* Takes over what the caller has, and ends its thread. */
static td_saving *take(td_saving **saving)
{
    td_saving *w = *saving;
    *saving = NULL;
    if (w != NULL && w->started) {
        while (write_piece(w)) { /* the thread waits for idle CPUs, which others may keep busy */
        }
        (void)pthread_setschedparam(w->thread, SCHED_OTHER, &(struct sched_param){ 0 });
        pthread_join(w->thread, NULL);
    }
    return w;
}

td_status td_saving_wait(td_saving **saving)
{
    td_saving *w = take(saving);
    if (w == NULL) {
        return TD_OK;
    }
    td_status status = w->status == TD_OK ? TD_OK : td_fail(w->status, "%s", w->message);
    return end(w, w->peers, status);
}

void td_saving_cancel(td_saving **saving)
{
    if (*saving != NULL) {
        pthread_mutex_lock(&(*saving)->lock);
        (*saving)->status = TD_E_INTERRUPTED; /* pieces that are left are not written */
        pthread_mutex_unlock(&(*saving)->lock);
    }
    (void)end(take(saving), NULL, TD_E_INTERRUPTED);
}

/* ---- what this rank writes of each record ---- */

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
        void *bytes = s->later ? room_for(s->saving, i, from * row, size) : s->buffer;
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
    int64_t rows = r->tensor->ndim > 0 ? r->tensor->shape[0] : 1, from = 0, to = rows;
    bool together = owner != 0 && (owner < 0 || !s->all_write);
    if (together) {
        TD_TRY(bring_together(s, r));
        if (s->all_write) {
            from = rows * rank / s->peers->count;
            to = rows * (rank + 1) / s->peers->count;
        }
    } else if (owner != rank || s->status != TD_OK) {
        return TD_OK;
    } else if (r->window != NULL) {
        td_tensor part = td_params_part(s->whole, 0, td_numel(r->tensor));
        s->status = td_params_take(s->params, r->window, r->param, &part);
    }
    td_tensor t = together || r->window != NULL ? over(s->whole, r->tensor) : *r->tensor;
    put(s, i, &t, from, to);
    return TD_OK;
}

static td_status put_all(saver *s)
{
    for (int i = 0; i < s->list->tensor_count; i++) {
        TD_TRY(put_record(s, i));
    }
    return s->status;
}

/* ---- the whole ---- */

/* What all of writing needs; false: memory is short. */
static bool describe_file(saver *s)
{
    const td_records *l = s->list;
    s->saving = new_saving(s->peers);
    s->entries = calloc((size_t)l->tensor_count + 1, sizeof *s->entries);
    s->metadata = calloc((size_t)l->text_count + 1, sizeof *s->metadata);
    if (s->saving == NULL || s->entries == NULL || s->metadata == NULL) {
        return false;
    }
    int64_t row = 0, whole = 1; /* the longest of each */
    for (int i = 0; i < l->tensor_count; i++) {
        const td_tensor_record *r = &l->tensors[i];
        const td_tensor *t = r->tensor;
        int64_t count = td_numel(t), bytes = count * (int64_t)td_dtype_size(t->dtype);
        int64_t of_row = bytes / (t->ndim > 0 && t->shape[0] > 0 ? t->shape[0] : 1);
        s->entries[i] = (td_safetensors_entry){
            .name = r->name, .dtype = t->dtype, .shape = td_shape_of(t), .bytes = (size_t)bytes
        };
        row = of_row > row ? of_row : row;
        whole = (r->window != NULL || r->owner > 0) && count > whole ? count : whole;
    }
    for (int i = 0; i < l->text_count; i++) {
        s->metadata[i] = (td_metadata){ l->texts[i].key, l->texts[i].text };
    }
    s->buffer = malloc(PIECE + (size_t)row);
    if (s->params != NULL) {
        const td_tensor *flat = td_params_flat(s->params);
        s->whole = td_zeros(TD_SHAPE(whole), flat->dtype, td_device_of(flat));
    }
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
static td_status save(saver *s)
{
    const td_checkpoint_options *c = s->list->options;
    td_status status = !s->list->failed && describe_file(s)
                           ? TD_OK
                           : td_fail(TD_E_NOMEM, "no memory to save a checkpoint to '%s'", c->path);
    status = td_peers_agree(s->peers, status);
    status = status == TD_OK ? begin_file(s) : status;
    const td_params_peers *others = status == TD_OK ? s->peers : NULL; /* may not agree any more */
    status = status == TD_OK ? put_all(s) : status;
    if (c->background != NULL) {
        status = td_peers_agree(others, status);
        others = NULL;
    }
    if (c->background != NULL && s->saving != NULL && status == TD_OK) {
        *c->background = s->saving;
        start(s->saving);
    } else {
        status = end(s->saving, others, status);
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
