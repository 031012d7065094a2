/* Optimizers' updates that are put off. In ResNet-18 on 32x32 pictures more than half of the
 * weights are taps that meet only padding. To let them decay in every step would move as many bytes
 * as the rest of the optimizer does; sixteen steps at once move a sixteenth of that. */
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/ops_optim.h"
#include "tensor/storage.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STEPS = 16,     /* then all are made */
    PIECE = 4096,       /* elements that pass through all steps while they are in the cache */
    WORTH_IT = 1 << 16, /* elements; fewer are done at once */
};

typedef struct late {
    td_late base;
    pthread_mutex_t lock; /* for all below */
    td_optim_job job;
    td_storage *storages[TD_OPTIM_TENSORS]; /* NULL: none */
    int64_t first[TD_OPTIM_TENSORS];        /* where flat memory begins in each, in elements */
    td_optim_slice *slices;                 /* [MAX_STEPS][room]: the constants of each step */
    int count, room;                        /* slices of a step */
    int steps;                              /* that are put off */
    int64_t pieces;                         /* of all slices */
} late;

/* ---- making them ---- */

static void make_piece(void *ctx, int64_t task)
{
    const late *l = ctx;
    int i = 0;
    for (int64_t pieces; task >= (pieces = td_divide_up(l->slices[i].count, PIECE)); i++) {
        task -= pieces;
    }
    int64_t begin = task * PIECE, n = td_min64(PIECE, l->slices[i].count - begin);
    for (int k = 0; k < l->steps; k++) {
        const td_optim_slice *slice = &l->slices[(size_t)k * (size_t)l->room + (size_t)i];
        l->job.step(&l->job, slice, slice->begin + begin, n);
    }
}

static void make_all(late *l)
{
    if (l->steps > 0) {
        td_pool_run(td_cpu_pool(l->job.device), l->pieces, make_piece, l);
    }
    l->steps = 0;
}

static void settle(td_late *base, const td_storage *storage, int64_t begin, int64_t end)
{
    late *l = (late *)base;
    pthread_mutex_lock(&l->lock);
    bool wanted = false;
    for (int i = 0; i < TD_OPTIM_TENSORS && l->steps > 0; i++) {
        for (int k = 0; l->storages[i] == storage && k < l->count; k++) {
            int64_t from = l->first[i] + l->slices[k].begin;
            wanted = wanted || (begin < from + l->slices[k].count && from < end);
        }
    }
    if (wanted) {
        make_all(l);
    }
    pthread_mutex_unlock(&l->lock);
}

static void leave(td_late *base)
{
    late *l = (late *)base;
    make_all(l);
    for (int i = 0; i < TD_OPTIM_TENSORS; i++) {
        if (l->storages[i] != NULL) {
            l->storages[i]->late = NULL;
        }
    }
    pthread_mutex_destroy(&l->lock);
    free(l->slices);
    free(l);
}

/* ---- putting off ---- */

/* Memory whose address nobody can have but by td_ptr. */
static bool is_hidden(const td_storage *storage)
{
    return storage->kind == TD_STORAGE_PERSISTENT && !storage->shown;
}

static bool is_same(const late *l, td_tensor *const *tensors)
{
    bool same = l->base.settle == settle;
    for (int i = 0; i < TD_OPTIM_TENSORS && same; i++) {
        same = tensors[i] != NULL
                   ? l->storages[i] == tensors[i]->storage && l->first[i] == tensors[i]->offset
                   : l->storages[i] == NULL;
    }
    return same;
}

/* What these tensors have in common, made if need be; NULL: nothing of them can be put off. */
static late *late_of(td_tensor *const *tensors)
{
    bool hidden = true;
    td_late *before = NULL;
    for (int i = 0; i < TD_OPTIM_TENSORS; i++) {
        if (tensors[i] != NULL) {
            hidden = hidden && is_hidden(tensors[i]->storage);
            before = tensors[i]->storage->late != NULL ? tensors[i]->storage->late : before;
        }
    }
    if (before != NULL) {
        if (hidden && is_same((late *)before, tensors)) {
            return (late *)before;
        }
        before->leave(before);
        return late_of(tensors);
    }
    late *l = hidden ? calloc(1, sizeof *l) : NULL;
    if (l == NULL) {
        return NULL;
    }
    l->base = (td_late){ settle, leave };
    pthread_mutex_init(&l->lock, NULL);
    for (int i = 0; i < TD_OPTIM_TENSORS; i++) {
        if (tensors[i] != NULL) {
            l->storages[i] = tensors[i]->storage;
            l->first[i] = tensors[i]->offset;
            tensors[i]->storage->late = &l->base;
        }
    }
    return l;
}

/* What asks a loss scaler (all slices of a job or none) must do so before the next step. */
static bool is_late(const td_optim_slice *slice)
{
    return slice->zero_grad && !slice->skip && slice->scale == NULL;
}

/* How many slices can be put off; *elements: of them. */
static int count_late(const td_optim_job *job, int64_t *elements)
{
    int count = 0;
    *elements = 0;
    for (int i = 0; i < job->count; i++) {
        if (is_late(&job->slices[i])) {
            count++;
            *elements += job->slices[i].count;
        }
    }
    return count;
}

/* Whether the job's slices are where those of the steps before are. */
static bool goes_on(const late *l, const td_optim_job *job, int count)
{
    bool same = count == l->count && job->step == l->job.step;
    for (int i = 0, k = 0; i < job->count && same; i++) {
        if (is_late(&job->slices[i])) {
            same = job->slices[i].begin == l->slices[k].begin &&
                   job->slices[i].count == l->slices[k].count;
            k++;
        }
    }
    return same;
}

/* Room for the constants of all steps; what is put off is made before it changes. */
static bool make_room(late *l, int count)
{
    make_all(l);
    if (count > l->room) {
        td_optim_slice *slices =
            realloc(l->slices, (size_t)MAX_STEPS * (size_t)count * sizeof *slices);
        if (slices == NULL) {
            return false;
        }
        l->slices = slices;
        l->room = count;
    }
    l->count = count;
    return true;
}

static void add_step(late *l, const td_optim_job *job)
{
    td_optim_slice *to = l->slices + (size_t)l->steps * (size_t)l->room;
    l->job = *job;
    l->pieces = 0;
    for (int i = 0; i < job->count; i++) {
        if (is_late(&job->slices[i])) {
            *to++ = job->slices[i];
            l->pieces += td_divide_up(job->slices[i].count, PIECE);
        }
    }
    if (++l->steps == MAX_STEPS) {
        make_all(l);
    }
}

bool td_optim_put_off(const td_optim_job *job, td_tensor *const *tensors)
{
    int64_t elements;
    int count = count_late(job, &elements);
    late *l = elements >= WORTH_IT ? late_of(tensors) : NULL;
    if (l == NULL) {
        return false;
    }
    pthread_mutex_lock(&l->lock);
    bool off = goes_on(l, job, count) || make_room(l, count);
    if (off) {
        add_step(l, job);
    }
    pthread_mutex_unlock(&l->lock);
    return off;
}
