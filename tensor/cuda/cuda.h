/* What the C files of tensor/cuda/ share: GPUs, their streams and errors. A kernel of the table
 * (tensor/kernels/kernels.def) is a function td_cuda_NAME in a kernels_*.c file. It brings tensors
 * into the order that the GPU's kernel is written for, and calls td_cuda_launch_NAME (launch_*.h),
 * which a .cu file defines and which starts that kernel.
 *
 * Each device has one compute stream, which runs all of the device's work in order. A function
 * returns before its work is done, unless it returns a value to the host. Memory that is given back
 * can be used again at once: on the stream, its next user comes after its last one. */
#pragma once

#include "tensor/backend.h"
#include "tensor/cuda/launch.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* A GPU that the process uses. There is one td_cuda for each GPU, and it is never freed. */
typedef struct td_cuda {
    td_device device;
    char name[256]; /* "NVIDIA H200" */
    int sm;         /* compute capability, 90 for 9.0 */
    int multiprocessors;
    size_t memory;              /* bytes, all of it */
    cudaStream_t stream;        /* the compute stream */
    pthread_rwlock_t recording; /* read-locked by a thread that records a graph */
} td_cuda;

/* Opens a device: the first call finds the GPU and makes its context. TD_E_DEVICE: td_last_error()
 * says what is missing. */
td_status td_cuda_open(td_device device);

/* The GPU of a device, which becomes the calling thread's current one. A device that cannot be used
 * is a fatal error: td_device_parse has refused it before. */
td_cuda *td_cuda_of(td_device device);

/* The same for the device of a tensor, whose compute stream is returned. Every kernel begins so. */
cudaStream_t td_cuda_stream(const td_tensor *t);

/* Every kernel ends so: if CUDA has refused the launch, that is a fatal error that names the
 * operation. Errors of a running kernel are found by the next call that waits. */
void td_cuda_launched(const char *operation);

/* Fatal, with CUDA's name for the error, unless it is cudaSuccess. */
void td_cuda_must(cudaError_t error, const char *operation);

/* Whether a call succeeded; for callers that handle a failure themselves. Clears CUDA's last error,
 * which the thread's next td_cuda_launched would otherwise report. */
bool td_cuda_tried(cudaError_t error);

/* Waits for all that is on the compute stream. */
void td_cuda_wait(td_cuda *gpu, const char *operation);

/* Copies bytes from the device to the host, and waits for them. */
void td_cuda_fetch(td_device device, void *host, const void *memory, size_t bytes,
                   const char *operation);

/* checks.c: checks without waiting that the elements of an index (i64) lie in [0, limit). If one
 * does not, the next td_cuda_fetch is a fatal error that blames `at`. op and what are literals.
 * false: too many checks are under way. */
bool td_cuda_check_later(const td_tensor *index, int64_t limit, const char *op, const char *what,
                         td_site at);
/* For td_cuda_fetch. The first, before the host waits, starts to copy the results of the checks to
 * faults[2 * TD_INDEX_CHECKS]; the second, afterwards, is fatal if an index was out of range. */
void td_cuda_fetch_checks(td_cuda *gpu, double *faults);
void td_cuda_report_checks(td_cuda *gpu, const double *faults);

/* memory.c: persistent memory, as tensor/backend.h says. */
void *td_cuda_take(td_device device, size_t bytes);
void td_cuda_give(td_device device, void *memory);

/* td_cuda_give keeps blocks for the next td_cuda_take; this gives them back to CUDA. */
void td_cuda_release_kept(td_device device);

/* A 16-bit copy of a block's f32 numbers, which is given back with the block. */
typedef struct td_cuda_half {
    void *memory; /* NULL: there is none */
    const td_storage *from;
    td_dtype dtype;
    uint32_t version; /* from's, of which it is the copy */
    uint64_t epoch;   /* halves.c */
    struct td_cuda_half *next;
} td_cuda_half;
td_cuda_half *td_cuda_half_beside(td_device device, const void *block);

/* halves.c: t's elements, f32, as they are now, in 16 bits: with t's strides, until t's storage is
 * written. NULL: there is no such copy (t needs no gradient, memory is short). */
void *td_cuda_half_of(const td_tensor *t, td_dtype dtype);

/* For a kernel that is to write some of t's storage, as the only one since td_begin_write: the copy
 * to be written, too, whose version then becomes the storage's; NULL: there is none. */
td_cuda_half *td_cuda_half_to_write(const td_tensor *t);

void td_cuda_half_drop(td_device device, td_cuda_half *half);

/* For graphs.c. At the end of a recording, whatever comes of it; the result is for
 * td_cuda_halves_launched. Before and after a launch; when a graph is freed. */
uint64_t td_cuda_halves_record(td_device device);
void td_cuda_halves_launch(td_device device);
void td_cuda_halves_launched(td_device device, uint64_t recorded);
void td_cuda_halves_forget(td_device device);

/* stretch.c: step memory, as tensor/backend.h says. */
void *td_cuda_reserve(td_device device, size_t *bytes);
size_t td_cuda_commit(td_device device, void *stretch, size_t bytes);
void td_cuda_release(td_device device, void *stretch);

/* transfer.c: bytes between host and devices, in the order of the compute streams. */
void td_cuda_upload(td_device device, void *memory, const void *host, size_t bytes);
void td_cuda_upload_on(td_device device, void *stream, void *memory, const void *host,
                       size_t bytes); /* in the order of another stream */
void td_cuda_download(td_device device, void *host, const void *memory, size_t bytes);
void td_cuda_move(td_device to, void *memory, td_device from, const void *source, size_t bytes);

/* walk.c: how a kernel goes over several tensors of one shape: dimensions sorted by the strides of
 * the first tensor (fastest last), neighbours joined where all tensors allow it. */
td_cuda_walk td_cuda_walk_of(int operands, const td_tensor *const *tensors);

/* Fatal while a step is recorded; in a warm-up the reason is noted ("sum_of_squares brings a
 * value to the host"): what a replay could not do. */
void td_cuda_needs_host(const char *format, const char *what);

/* numbers.c: host numbers that the next launch of this device reads (optimizer slices): a copy in
 * its memory, good until the next call. The host's may change at once; but if the launch is
 * recorded, they must be td_step_numbers'. */
const void *td_cuda_numbers(td_device device, const void *host, size_t bytes);

/* numbers.c: so many counters, all 0, which each launch leaves at 0 again. */
unsigned *td_cuda_counters(td_device device, int64_t count);

/* streams.c */
extern const td_streams td_cuda_streams;

/* graphs.c */
extern const td_graphs td_cuda_graphs;

/* kernels_cuda.c */
const td_kernels *td_cuda_kernels(void);
