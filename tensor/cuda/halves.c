/* 16-bit copies of parameters. Parameters are f32, and each product wants its own in 16 bits, in
 * the forward and again for dx. All parameters of a model lie in one flat memory: the first product
 * of a step has all of it converted by one kernel, and the others read what that has made.
 *
 * Parameters are what needs gradients: writes of those are counted, writes of gradients are not.
 *
 * A copy is right for the step that made it, as long as nothing is written: replays of a captured
 * step change parameters without counting a write, but each replay repeats the conversion that the
 * step's recording began with. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/launch_memory.h"
#include "tensor/hooks.h"
#include "tensor/extend.h"

static bool is_recording(void)
{
    const td_recorder *recorder = td_recorder_now();
    return recorder != NULL && recorder->recording;
}

static bool make_copy(td_cuda_half *half, const td_storage *from, td_dtype dtype)
{
    if (half->memory == NULL && !is_recording()) {
        half->memory = td_cuda_take(from->device, from->bytes / 2);
    }
    if (half->memory == NULL) {
        return false;
    }
    int64_t count = (int64_t)(from->bytes / sizeof(float));
    td_cuda_walk walk = { .ndim = 1, .count = count, .shape = { count } };
    walk.stride[0][0] = walk.stride[1][0] = 1;
    td_cuda_launch_copy(half->memory, dtype, from->data, TD_F32, walk,
                        td_cuda_of(from->device)->stream);
    td_cuda_launched("16-bit parameters");
    return true;
}

void *td_cuda_half_of(const td_tensor *t, td_dtype dtype)
{
    static _Thread_local char thread; /* whose steps are numbered */
    const td_storage *storage = t->storage;
    td_cuda_half *half = NULL;
    bool is_parameter = t->grad != NULL && storage->kind == TD_STORAGE_PERSISTENT;
    if (is_parameter && t->dtype == TD_F32 && td_is_half(dtype) && td_in_step()) {
        half = td_cuda_half_beside(storage->device, storage->data);
    }
    if (half == NULL) {
        return NULL;
    }
    td_cuda_half now = { .memory = half->memory,
                         .thread = &thread,
                         .step = td_step_number(),
                         .version = storage->version,
                         .dtype = dtype,
                         .recorded = is_recording() };
    bool right = half->thread == now.thread && half->step == now.step &&
                 half->version == now.version && half->dtype == now.dtype &&
                 half->recorded == now.recorded;
    if (!right) {
        if (!make_copy(half, storage, dtype)) {
            return NULL;
        }
        now.memory = half->memory;
        *half = now;
    }
    return (char *)half->memory + t->offset * (int64_t)td_dtype_size(dtype);
}
