/* What a kind of device offers beside its kernels (tensor/kernels.h): being found, and memory that
 * the host cannot touch. The CPU needs none of this. Not for users. */
#ifndef TD_TENSOR_BACKEND_H
#define TD_TENSOR_BACKEND_H

#include "tensor/kernels.h"

#include <stddef.h>

/* Streams and events of a device whose work goes on after a call has returned: what communication
 * needs so that it neither waits on the host nor makes the host wait. Handles are the device's own
 * (cudaStream_t, cudaEvent_t). Any thread. */
typedef struct td_streams {
    /* The stream on which all kernels of the device run. */
    void *(*compute)(td_device device);
    td_status (*stream_new)(td_device device, void **stream);
    void (*stream_free)(td_device device, void *stream);
    td_status (*event_new)(td_device device, void **event);
    void (*event_free)(td_device device, void *event);
    /* The event stands for what the stream has been asked for so far. */
    td_status (*record)(td_device device, void *event, void *stream);
    /* What the stream is asked for from now on waits for what the event stands for now. */
    td_status (*wait)(td_device device, void *stream, void *event);
    td_status (*reached)(td_device device, void *event, bool *reached);
    /* An event that knows when the stream came to it; the seconds from one to another, both
     * reached. For the rest it is as the others. */
    td_status (*clock_new)(td_device device, void **event);
    td_status (*between)(td_device device, void *begin, void *end, double *seconds);
    /* Bytes to the device, in the order of the stream; the host's may change at once. */
    void (*upload)(td_device device, void *stream, void *memory, const void *host, size_t bytes);
    /* Which device of this host it is: equal texts, the same device. */
    void (*place)(td_device device, char *text, size_t size);
} td_streams;

/* Recording the work of a device and doing it again, and what that needs beside. */
typedef struct td_graphs {
    /* What this thread asks of the device's compute stream from now on is noted, and not done.
     * Memory, events and the host must be left alone. TD_E_DEVICE. */
    td_status (*begin)(td_device device);
    /* Ends the recording, in any case. TD_E_DEVICE: it cannot be replayed. */
    td_status (*end)(td_device device, void **graph);
    /* All of it once more, in the order of the device's work. */
    td_status (*launch)(td_device device, void *graph);
    void (*free)(td_device device, void *graph);

    /* Host memory that the device writes by itself; fetch does not wait. */
    void *(*host_take)(td_device device, size_t bytes);
    void (*host_give)(td_device device, void *memory);
    void (*fetch)(td_device device, void *host, const void *memory, size_t bytes);
    td_status (*wait_event)(td_device device, void *event); /* the host waits */

    /* Does not wait: if fault[0] is 0 and an element of index (i64) is outside of [0, limit),
     * fault[0] becomes 1 + its place (row-major), and fault[1] the element. fault: on the device.
     */
    void (*note_outside)(const td_tensor *index, int64_t limit, double *fault);
} td_graphs;

typedef struct td_backend {
    /* Makes a device ready; otherwise td_last_error() says what is missing. Often called. */
    td_status (*open)(td_device device);
    const char *(*title)(td_device device); /* "NVIDIA H200" */
    const td_kernels *(*kernels)(void);

    /* Persistent memory, 256-byte aligned, contents undefined; NULL with td_last_error() when there
     * is not enough. Work that still uses it may be under way when it is given back. */
    void *(*take)(td_device device, size_t bytes);
    void (*give)(td_device device, void *memory);

    /* All of these keep the order of the device's work; those that read into host memory wait. */
    void (*zero)(td_device device, void *memory, size_t bytes);
    void (*upload)(td_device device, void *memory, const void *host, size_t bytes);
    void (*download)(td_device device, void *host, const void *memory, size_t bytes);
    void (*move)(td_device to, void *memory, td_device from, const void *source, size_t bytes);

    /* A stretch of addresses for step memory, *bytes long (0: what the device has in all; it is set
     * to what there is). NULL with td_last_error(). */
    void *(*reserve)(td_device device, size_t *bytes);
    /* Gives the stretch memory up to at least `bytes` from its start; returns how far it reaches
     * now, which is less than that when memory is short. */
    size_t (*commit)(td_device device, void *stretch, size_t bytes);
    void (*release)(td_device device, void *stretch);

    /* Waits until all work of the device is done. */
    void (*wait)(td_device device);

    /* Opens a library of the device's vendor, as dlopen does: "NCCL", "libnccl.so.2". TD_E_DEVICE:
     * what is missing and where it was looked for. */
    td_status (*library)(const char *title, const char *file, void **library);

    /* Checks, without waiting, that the elements of an index (i64) lie in [0, limit); if one does
     * not, the next download is fatal, at `at`. op, what: literals. false: ask the kernels. */
    bool (*check_later)(const td_tensor *index, int64_t limit, const char *op, const char *what,
                        td_site at);

    const td_streams *streams;
    const td_graphs *graphs; /* NULL: its work cannot be recorded */
} td_backend;

/* NULL for the CPU, and for devices that this build has no kernels for. */
const td_backend *td_backend_of(td_device device);

/* NULL: the device's calls return when their work is done, as the CPU's do. */
const td_streams *td_streams_of(td_device device);

/* Plain bytes in a device's memory, in the order of its work; a download waits. */
void td_memory_move(td_device device, void *to, const void *from, size_t bytes);
void td_memory_download(td_device device, void *host, const void *memory, size_t bytes);
void td_memory_upload(td_device device, void *memory, const void *host, size_t bytes);

/* ---- the CPU's threads and arithmetic (tensor/cpu/) ---- */

enum { TD_MAX_CPU_THREADS = 1024 };

/* As td_set_threads, td_share_cpus, td_pin_threads and td_threads say, for valid arguments. */
td_status td_cpu_set_threads(td_device device, int threads);
void td_cpu_share(int processes);
td_status td_cpu_pin(td_device device, int rank, int ranks);
int td_cpu_threads(td_device device);

/* Whether loops for AVX2 and FMA may run: the processor has both, and TANDEM_CPU_ISA allows it. */
bool td_cpu_has_avx2(void);

/* Flush-to-zero: arithmetic on denormal numbers is up to 80 times slower, so wherever training
 * computes they count as zero (flush-to-zero and denormals-are-zero, on x86). The mode belongs to a
 * thread: the pool's tasks and the collectives of dist/ set it, so that a sum is the same bits
 * whichever of them took it. td_flush_denormals returns the old mode, for td_restore_denormals. */
unsigned td_flush_denormals(void);
void td_restore_denormals(unsigned old);

#endif
