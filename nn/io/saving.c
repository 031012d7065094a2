/* Saving while the program goes on.
 *
 * What this rank writes is copied while the program waits; a thread writes the copy. (A forked
 * child would have the copy for nothing, but not safely: it has none of the threads that convert
 * tensors, locks that other threads hold stay locked in it, memory that ranks share goes on
 * changing under it, and a GPU's memory cannot be used in it.) The thread calls no collective,
 * because the ranks' order of collectives must not depend on the speed of disks: with several ranks
 * the file gets its name in td_saving_wait. */
#include "nn/io/saving.h"
#include "tensor/extend.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

td_status td_peers_agree(const td_params_peers *peers, td_status status)
{
    return peers != NULL ? peers->agree(status, peers->user) : status;
}

td_saving *td_saving_new(const td_params_peers *peers)
{
    td_saving *w = calloc(1, sizeof *w);
    if (w == NULL) {
        td_fail(TD_E_NOMEM, "no memory to save a checkpoint");
        return NULL;
    }
    w->peers = peers;
    pthread_mutex_init(&w->lock, NULL);
    atomic_init(&w->written, false);
    return w;
}

void *td_saving_room(td_saving *w, int i, int64_t offset, size_t size)
{
    bool full = (w->count & (w->count - 1)) == 0; /* the list doubles */
    size_t room = w->count > 0 ? 2 * (size_t)w->count : 1;
    td_saving_piece *more = full ? realloc(w->pieces, room * sizeof *more) : w->pieces;
    w->pieces = more != NULL ? more : w->pieces;
    void *bytes = more != NULL ? malloc(size) : NULL;
    if (bytes == NULL) {
        td_fail(TD_E_NOMEM,
                "no memory for a copy of the checkpoint that is written in the background; save "
                "it in the foreground");
        return NULL;
    }
    w->pieces[w->count++] = (td_saving_piece){ i, offset, size, bytes };
    return bytes;
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
    for (int k = 0; k < w->count; k++) {
        free(w->pieces[k].bytes);
    }
    free(w->pieces);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void td_saving_drop(td_saving *w)
{
    if (w != NULL) {
        (void)finish(w, TD_E_IO);
        free_saving(w);
    }
}

td_status td_saving_end(td_saving *w, td_status status)
{
    const td_params_peers *peers = w->peers;
    if (peers != NULL && peers->rank > 0) {
        status = finish(w, status);
    }
    status = td_peers_agree(peers, status);
    bool written = status == TD_OK;
    if (peers == NULL || peers->rank == 0) {
        status = finish(w, status);
    }
    free_saving(w);
    return written ? td_peers_agree(peers, status) : status;
}

/* ---- the thread ---- */

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
    bool left = w->next < w->count;
    if (left) {
        td_saving_piece *p = &w->pieces[w->next++];
        if (w->status == TD_OK) {
            note(w, td_safetensors_put(w->out, p->tensor, p->offset, p->bytes, p->size));
        }
        free(p->bytes);
        p->bytes = NULL;
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
    if (w->peers == NULL) {
        note(w, finish(w, w->status));
    } else if (w->status == TD_OK && w->out != NULL) {
        note(w, td_safetensors_sync(w->out));
    }
    atomic_store(&w->written, true);
    return NULL;
}

/* Signals are for the program's own threads. */
void td_saving_start(td_saving *w)
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

td_status td_saving_wait(td_saving **saving)
{
    td_saving *w = *saving;
    *saving = NULL;
    if (w == NULL) {
        return TD_OK;
    }
    if (w->started) { /* now nothing should wait for idle CPUs: others may keep them all busy */
        while (write_piece(w)) {
        }
        (void)pthread_setschedparam(w->thread, SCHED_OTHER, &(struct sched_param){ 0 });
        pthread_join(w->thread, NULL);
    }
    td_status status = w->status == TD_OK ? TD_OK : td_fail(w->status, "%s", w->message);
    return td_saving_end(w, status);
}
