/* 16-bit copies of parameters. Parameters are f32, and each product wants its own in 16 bits, in
 * the forward and again for dx. All parameters of a model lie in one flat memory: the first product
 * has all of it converted by one kernel, and from then on the optimizer writes the copy next to the
 * parameters (td_cuda_half_to_write). Other writes are counted by the storage's version; a copy of
 * an older version is made again.
 *
 * Replays of a captured step write parameters without counting, and read copies without asking.
 * So the host makes the copies right before each replay. A replay leaves them right if its
 * recording did. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/launch_memory.h"
#include "tensor/hooks.h"

/* A device's copies; a device's work comes from one thread at a time. epoch: copies of an earlier
 * one are stale; it changes when graphs run. */
static struct copies {
    td_cuda_half *first;
    uint64_t epoch;
    uint64_t changes; /* of the list and of dtypes */
    int graphs;       /* recorded, and not freed */
} all[TD_MAX_DEVICES];

static bool is_recording(void)
{
    const td_recorder *recorder = td_recorder_now();
    return recorder != NULL && recorder->recording;
}

static struct copies *copies_of(td_device device)
{
    return &all[device.index];
}

/* Whether the copy is of the storage as it was `writes` writes ago. */
static bool is_right(const td_cuda_half *half, uint32_t writes)
{
    const td_storage *from = half->from;
    return half->version + writes == from->version && !from->exported &&
           half->epoch == copies_of(from->device)->epoch;
}

static void convert(td_cuda_half *half)
{
    const td_storage *from = half->from;
    int64_t count = (int64_t)(from->bytes / sizeof(float));
    td_cuda_walk walk = { .ndim = 1, .count = count, .shape = { count } };
    walk.stride[0][0] = walk.stride[1][0] = 1;
    td_cuda_launch_copy(half->memory, half->dtype, from->data, TD_F32, walk,
                        td_cuda_of(from->device)->stream);
    td_cuda_launched("16-bit parameters");
    half->version = from->version;
    half->epoch = copies_of(from->device)->epoch;
}

/* Makes *half a copy in dtype, if it is none yet. false: no memory, or recorded steps read another
 * dtype there. */
static bool begin_copy(td_cuda_half *half, const td_storage *from, td_dtype dtype)
{
    struct copies *c = copies_of(from->device);
    if (half->memory == NULL) {
        void *memory = is_recording() ? NULL : td_cuda_take(from->device, from->bytes / 2);
        if (memory == NULL) {
            return false;
        }
        *half = (td_cuda_half){ .memory = memory, .from = from, .dtype = dtype, .next = c->first };
        half->version = from->version - 1; /* stale */
        c->first = half;
        c->changes++;
    }
    if (half->dtype != dtype && c->graphs == 0) {
        half->dtype = dtype;
        half->version = from->version - 1;
        c->changes++;
    }
    return half->dtype == dtype;
}

void *td_cuda_half_of(const td_tensor *t, td_dtype dtype)
{
    const td_storage *storage = t->storage;
    bool is_parameter = t->grad != NULL && storage->kind == TD_STORAGE_PERSISTENT;
    if (!is_parameter || t->dtype != TD_F32 || !td_is_half(dtype) || storage->exported) {
        return NULL;
    }
    td_cuda_half *half = td_cuda_half_beside(storage->device, storage->data);
    if (half == NULL || !begin_copy(half, storage, dtype)) {
        return NULL;
    }
    if (!is_right(half, 0)) {
        convert(half);
    }
    return (char *)half->memory + t->offset * (int64_t)td_dtype_size(dtype);
}

td_cuda_half *td_cuda_half_to_write(const td_tensor *t)
{
    const td_storage *storage = t->storage;
    td_cuda_half *half = t->dtype == TD_F32 && storage->kind == TD_STORAGE_PERSISTENT
                             ? td_cuda_half_beside(storage->device, storage->data)
                             : NULL;
    bool usable = half != NULL && half->memory != NULL && half->from == storage;
    return usable && is_right(half, 1) ? half : NULL;
}

void td_cuda_half_drop(td_device device, td_cuda_half *half)
{
    struct copies *c = copies_of(device);
    td_cuda_half **link = &c->first;
    while (*link != half) {
        link = &(*link)->next;
    }
    *link = half->next;
    c->changes++;
    td_cuda_give(device, half->memory);
    half->memory = NULL;
}

/* ---- graphs ---- */

uint64_t td_cuda_halves_record(td_device device)
{
    struct copies *c = copies_of(device);
    uint64_t recorded = c->changes;
    for (const td_cuda_half *half = c->first; half != NULL; half = half->next) {
        recorded = is_right(half, 0) ? recorded : 0;
    }
    c->epoch++; /* what was recorded has not run */
    c->graphs++;
    return recorded;
}

void td_cuda_halves_launch(td_device device)
{
    for (td_cuda_half *half = copies_of(device)->first; half != NULL; half = half->next) {
        if (!is_right(half, 0)) {
            convert(half);
        }
    }
}

void td_cuda_halves_launched(td_device device, uint64_t recorded)
{
    struct copies *c = copies_of(device);
    c->epoch++;
    for (td_cuda_half *half = c->first; half != NULL && c->changes == recorded; half = half->next) {
        half->epoch = c->epoch;
    }
}

void td_cuda_halves_forget(td_device device)
{
    copies_of(device)->graphs--;
}
