/* Bytes between host and devices.
 *
 * What goes up is first copied into pinned memory, which the GPU then reads by itself while the
 * host goes on: pieces of it go round, and an event says when one has been read. While the oldest
 * is still to be read a new one is made, up to PIECES. */
#include "tensor/hooks.h"
#include "tensor/cuda/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { PIECES = 16, PIECE_BYTES = 4 << 20 };

typedef struct piece {
    void *memory; /* pinned, PIECE_BYTES */
    cudaEvent_t read;
} piece;

/* A device's pieces, in the order of their use from `next` on, the oldest. */
static struct staging {
    piece pieces[PIECES];
    int count, next;
    bool full; /* no more are to be had */
} stagings[TD_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The system limits pinned memory: with less of it, copies only wait sooner. */
static void add_piece(struct staging *s)
{
    piece made;
    cudaError_t error = cudaMallocHost(&made.memory, PIECE_BYTES);
    if (s->count == 0) {
        td_cuda_must(error, "4 MiB of pinned memory for copies to the GPU");
    }
    if (!td_cuda_tried(error)) {
        s->full = true;
        return;
    }
    td_cuda_must(cudaEventCreateWithFlags(&made.read, cudaEventDisableTiming),
                 "copying to the GPU");
    piece *at = &s->pieces[s->next];
    memmove(at + 1, at, (size_t)(s->count - s->next) * sizeof *at);
    *at = made;
    s->count++;
    s->full = s->count == PIECES;
}

static bool is_free(const piece *p)
{
    cudaError_t error = cudaEventQuery(p->read);
    if (error != cudaErrorNotReady) {
        td_cuda_must(error, "copying to the GPU");
    }
    return td_cuda_tried(error);
}

/* One piece; returns when `host` has been read. */
static void upload_piece(struct staging *s, cudaStream_t stream, void *memory, const void *host,
                         size_t bytes)
{
    if (!s->full && (s->count == 0 || !is_free(&s->pieces[s->next]))) {
        add_piece(s);
    }
    const piece *p = &s->pieces[s->next];
    s->next = (s->next + 1) % s->count;
    td_cuda_must(cudaEventSynchronize(p->read), "copying to the GPU");
    memcpy(p->memory, host, bytes);
    td_cuda_must(cudaMemcpyAsync(memory, p->memory, bytes, cudaMemcpyHostToDevice, stream),
                 "copying to the GPU");
    td_cuda_must(cudaEventRecord(p->read, stream), "copying to the GPU");
}

void td_cuda_needs_host(const char *format, const char *what)
{
    char text[200];
    snprintf(text, sizeof text, format, what);
    TD_REQUIRE(td_recorder_now() == NULL || !td_recorder_now()->recording, TD_NOWHERE,
               "a captured step: %s, which it did not do in its warm-up steps: what a step does "
               "may depend on the shapes of its inputs alone",
               text);
    td_not_recordable("%s", text);
}

void td_cuda_upload_on(td_device device, void *stream, void *memory, const void *host, size_t bytes)
{
    (void)td_cuda_of(device);
    struct staging *s = &stagings[device.index];
    pthread_mutex_lock(&lock);
    for (size_t done = 0; done < bytes; done += PIECE_BYTES) {
        size_t left = bytes - done;
        upload_piece(s, stream, (char *)memory + done, (const char *)host + done,
                     left < PIECE_BYTES ? left : PIECE_BYTES);
    }
    pthread_mutex_unlock(&lock);
}

void td_cuda_upload(td_device device, void *memory, const void *host, size_t bytes)
{
    td_cuda_needs_host("%s are sent to the device", "values of the host");
    td_cuda_upload_on(device, td_cuda_of(device)->stream, memory, host, bytes);
}

void td_cuda_download(td_device device, void *host, const void *memory, size_t bytes)
{
    td_cuda_fetch(device, host, memory, bytes, "copying from the GPU");
}

void td_cuda_fetch(td_device device, void *host, const void *memory, size_t bytes,
                   const char *operation)
{
    td_cuda *gpu = td_cuda_of(device);
    td_cuda_needs_host("%s brings a value to the host", operation);
    td_cuda_must(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, gpu->stream),
                 operation);
    double faults[2 * TD_INDEX_CHECKS];
    td_cuda_fetch_checks(gpu, faults);
    td_cuda_wait(gpu, operation);
    td_cuda_report_checks(gpu, faults);
}

/* Puts a wait for all of another GPU's work so far on a stream. */
static void wait_for_other(td_cuda *gpu, td_cuda *other)
{
    cudaEvent_t done;
    (void)td_cuda_of(other->device);
    td_cuda_must(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "copying between GPUs");
    td_cuda_must(cudaEventRecord(done, other->stream), "copying between GPUs");
    (void)td_cuda_of(gpu->device);
    td_cuda_must(cudaStreamWaitEvent(gpu->stream, done, 0), "copying between GPUs");
    td_cuda_must(cudaEventDestroy(done), "copying between GPUs");
}

void td_cuda_move(td_device to, void *memory, td_device from, const void *source, size_t bytes)
{
    td_cuda *target = td_cuda_of(to), *giver = td_cuda_of(from);
    (void)td_cuda_of(to);
    if (target == giver) {
        td_cuda_must(
            cudaMemcpyAsync(memory, source, bytes, cudaMemcpyDeviceToDevice, target->stream),
            "copying on the GPU");
        return;
    }
    td_cuda_needs_host("%s copies between GPUs", "it");
    /* Both streams wait: the source must be there, and must not be written again too early. */
    wait_for_other(target, giver);
    td_cuda_must(cudaMemcpyPeerAsync(memory, to.index, source, from.index, bytes, target->stream),
                 "copying between GPUs");
    wait_for_other(giver, target);
}
