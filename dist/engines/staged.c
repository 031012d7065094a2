/* Collectives on a GPU's memory through the host and the group's CPU engine: if NCCL is missing, if
 * two ranks share a GPU, and for all messages. Launching copies the data to the host, which waits
 * for the GPU. Joining copies the result back. In between the communication thread runs while the
 * GPU works. */
#include "dist/collectives.h"
#include "dist/engines/staged.h"

#include "dist/group.h"

#include <pthread.h>
#include <stdlib.h>

/* One collective, from launch to join. */
typedef struct staged_copy {
    uint64_t ticket; /* 0: free */
    td_work *work;   /* NULL: being launched, or being joined */
    void *in, *out;  /* on the host */
    size_t room;     /* bytes of each */
    void *target;    /* on the device; NULL: nothing comes back */
    size_t target_bytes;
} staged_copy;

typedef struct staged_engine {
    td_device_engine base; /* first */
    td_group *group;
    pthread_mutex_t lock;
    staged_copy **copies; /* a copy's address never changes */
    int count;
    uint64_t launched;
} staged_engine;

/* How many pieces of c->count elements go in and come out on this rank. */
static int pieces_in(const td_group *group, const td_collective *c)
{
    switch (c->kind) {
    case TD_COLLECTIVE_REDUCE_SCATTER:
    case TD_COLLECTIVE_ALL_TO_ALL:
        return group->size;
    case TD_COLLECTIVE_SCATTER:
        return c->peer == group->rank ? group->size : 0;
    case TD_COLLECTIVE_RECV:
    case TD_COLLECTIVE_BARRIER:
        return 0;
    default:
        return 1;
    }
}

static int pieces_out(const td_group *group, const td_collective *c)
{
    switch (c->kind) {
    case TD_COLLECTIVE_ALL_GATHER:
    case TD_COLLECTIVE_ALL_TO_ALL:
        return group->size;
    case TD_COLLECTIVE_GATHER:
        return c->peer == group->rank ? group->size : 0;
    case TD_COLLECTIVE_SEND:
    case TD_COLLECTIVE_BARRIER:
        return 0;
    default: /* the engine may write all ranks' tensors in a reduce: copied back everywhere */
        return 1;
    }
}

/* A free record with room for `bytes` in each direction. With the lock. */
static staged_copy *take_copy(staged_engine *e, size_t bytes)
{
    staged_copy *best = NULL;
    for (int i = 0; i < e->count; i++) {
        staged_copy *copy = e->copies[i];
        if (copy->ticket == 0 && (best == NULL || (copy->room >= bytes && best->room < bytes))) {
            best = copy;
        }
    }
    if (best == NULL) {
        staged_copy **copies = realloc(e->copies, (size_t)(e->count + 1) * sizeof(staged_copy *));
        best = calloc(1, sizeof *best);
        if (copies != NULL) {
            e->copies = copies;
        }
        if (copies == NULL || best == NULL) {
            free(best);
            return NULL;
        }
        copies[e->count++] = best;
    }
    if (best->room < bytes) {
        free(best->in);
        free(best->out);
        best->in = malloc(bytes);
        best->out = malloc(bytes);
        best->room = best->in != NULL && best->out != NULL ? bytes : 0;
    }
    return best->room >= bytes ? best : NULL;
}

static void give_copy(staged_engine *e, staged_copy *copy)
{
    pthread_mutex_lock(&e->lock);
    copy->ticket = 0;
    copy->work = NULL;
    pthread_mutex_unlock(&e->lock);
}

/* The lock protects the table only. No thread waits for the GPU or for other ranks with it. */
static td_status staged_launch(td_device_engine *engine, const td_collective *c, uint64_t *ticket)
{
    staged_engine *e = (staged_engine *)engine;
    size_t piece = (size_t)c->count * td_dtype_size(c->dtype);
    size_t in = piece * (size_t)pieces_in(e->group, c),
           out = piece * (size_t)pieces_out(e->group, c);
    pthread_mutex_lock(&e->lock);
    staged_copy *copy = take_copy(e, (in > out ? in : out) + 1);
    if (copy != NULL) {
        copy->ticket = *ticket = ++e->launched;
    }
    pthread_mutex_unlock(&e->lock);
    if (copy == NULL) {
        return td_fail(TD_E_NOMEM, "no memory on the host for a collective of %zu bytes on %s",
                       in > out ? in : out, td_device_name(engine->device));
    }
    copy->target = out > 0 ? c->out : NULL;
    copy->target_bytes = out;
    if (in > 0) {
        td_memory_download(engine->device, copy->in, c->in, in);
    }
    td_collective host = *c;
    host.in = copy->in;
    host.out = c->in == c->out ? copy->in : copy->out;
    if (host.out == copy->in) { /* in place: the result is in the input's memory */
        void *old = copy->out;
        copy->out = copy->in;
        copy->in = old;
    }
    td_work *work = NULL;
    td_status status = td_submit(e->group, &host, 0, &work);
    if (status != TD_OK) {
        give_copy(e, copy);
        return status;
    }
    pthread_mutex_lock(&e->lock);
    copy->work = work;
    pthread_mutex_unlock(&e->lock);
    return TD_OK;
}

/* NULL: the collective has been joined. With the lock. */
static staged_copy *copy_of(staged_engine *e, uint64_t ticket)
{
    for (int i = 0; i < e->count; i++) {
        if (e->copies[i]->ticket == ticket) {
            return e->copies[i];
        }
    }
    return NULL;
}

static td_status staged_join(td_device_engine *engine, uint64_t ticket)
{
    staged_engine *e = (staged_engine *)engine;
    pthread_mutex_lock(&e->lock);
    staged_copy *copy = copy_of(e, ticket);
    td_work *work = copy != NULL ? copy->work : NULL;
    if (work != NULL) {
        copy->work = NULL; /* so no other thread waits for it */
    }
    pthread_mutex_unlock(&e->lock);
    if (work == NULL) {
        return TD_OK;
    }
    td_status status = td_work_wait(work, 0);
    if (status == TD_OK && copy->target != NULL) {
        td_memory_upload(engine->device, copy->target, copy->out, copy->target_bytes);
    }
    give_copy(e, copy);
    return status;
}

static bool staged_reached(td_device_engine *engine, uint64_t ticket)
{
    staged_engine *e = (staged_engine *)engine;
    pthread_mutex_lock(&e->lock);
    staged_copy *copy = copy_of(e, ticket);
    bool reached = copy == NULL || (copy->work != NULL && td_work_test(copy->work));
    pthread_mutex_unlock(&e->lock);
    return reached;
}

/* The CPU engine has its own watchdog. */
static td_status staged_look(td_device_engine *engine, td_collective *oldest, double *begun)
{
    (void)engine, (void)oldest;
    *begun = 0.0;
    return TD_OK;
}

static void staged_abort(td_device_engine *engine)
{
    (void)engine;
}

static void staged_destroy(td_device_engine *engine)
{
    staged_engine *e = (staged_engine *)engine;
    for (int i = 0; i < e->count; i++) {
        free(e->copies[i]->in);
        free(e->copies[i]->out);
        free(e->copies[i]);
    }
    free(e->copies);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static const td_device_engine_type staged_type = {
    .name = "staged",
    .launch = staged_launch,
    .join = staged_join,
    .reached = staged_reached,
    .look = staged_look,
    .abort = staged_abort,
    .destroy = staged_destroy,
};

td_device_engine *td_staged_engine_new(td_group *group, td_device device)
{
    staged_engine *e = calloc(1, sizeof *e);
    if (e == NULL) {
        td_fail(TD_E_NOMEM, "no memory for an engine");
        return NULL;
    }
    e->base = (td_device_engine){ .type = &staged_type, .device = device };
    e->group = group;
    pthread_mutex_init(&e->lock, NULL);
    return &e->base;
}
