/* Small memory that a device's kernels share: numbers that they read when they run, one block a
 * device, which goes up again for each launch; and counters of blocks. Work of a device is in
 * order, so a launch has read its numbers, and left its counters at 0, before the next one comes.
 */
#include "tensor/cuda/cuda.h"
#include "tensor/hooks.h"

typedef struct numbers {
    void *memory; /* the device's */
    size_t bytes;
} numbers;

/* Kept until the process ends, as the device is. A device's work comes from one thread at a time.
 */
static numbers blocks[TD_MAX_DEVICES], counters[TD_MAX_DEVICES];

const void *td_cuda_numbers(td_device device, const void *host, size_t bytes)
{
    numbers *block = &blocks[device.index];
    const td_recorder *recorder = td_recorder_now();
    if (recorder != NULL) {
        const void *there = recorder->on_device(recorder, host, bytes);
        if (there == NULL) {
            td_cuda_needs_host("%s of its own", "a kernel gets numbers");
        } else if (recorder->recording) {
            return there;
        }
    }
    if (block->bytes < bytes) {
        void *memory = td_cuda_take(device, 2 * bytes);
        TD_REQUIRE(memory != NULL, TD_NOWHERE, "%s", td_last_error());
        if (block->memory != NULL) {
            td_cuda_give(device, block->memory);
        }
        *block = (numbers){ memory, 2 * bytes };
    }
    td_cuda_upload_on(device, td_cuda_of(device)->stream, block->memory, host, bytes);
    return block->memory;
}

unsigned *td_cuda_counters(td_device device, int64_t count)
{
    enum { LEAST = 4096 };
    numbers *block = &counters[device.index];
    if (block->bytes < (size_t)count * sizeof(unsigned)) {
        size_t bytes = (size_t)(count > LEAST ? 2 * count : LEAST) * sizeof(unsigned);
        void *memory = td_cuda_take(device, bytes);
        TD_REQUIRE(memory != NULL, TD_NOWHERE, "%s", td_last_error());
        td_cuda_must(cudaMemsetAsync(memory, 0, bytes, td_cuda_of(device)->stream), "counters");
        *block = (numbers){ memory, bytes }; /* the old ones stay: recorded steps use them */
    }
    return block->memory;
}
