/* What a type of device offers in addition to its kernels (tensor/kernels/kernels.h), if the host
 * cannot touch the device's memory: how to open the device, its memory, copies, streams and graphs.
 * GPUs have a backend (tensor/cuda/backend.c); CPUs need none. Not for users. */
#pragma once

#include "tensor/kernels/kernels.h"
#include "tensor/storage.h"

#include <stddef.h>

/* Streams and events of a device whose work goes on after a call has returned. With them a
 * collective can run after the kernels that write its tensors, and before those that read them,
 * and the host waits for neither. Handles are the device's own (cudaStream_t, cudaEvent_t). Any
 * thread may call these functions. */
typedef struct td_streams {
    /* The stream on which all kernels of the device run. */
    void *(*compute)(td_device device);
    td_status (*stream_new)(td_device device, void **stream);
    void (*stream_free)(td_device device, void *stream);
    td_status (*event_new)(td_device device, void **event);
    void (*event_free)(td_device device, void *event);
    /* The event marks the end of all work that has been put on the stream so far. */
    td_status (*record)(td_device device, void *event, void *stream);
    /* Work that is put on the stream from now on runs after the work that the event marks. */
    td_status (*wait)(td_device device, void *stream, void *event);
    /* Whether the work that the event marks is done. Does not wait. */
    td_status (*reached)(td_device device, void *event, bool *reached);
    /* An event that also keeps the time at which the stream reached it. between: the seconds from
     * one such event to another, both of them reached. */
    td_status (*clock_new)(td_device device, void **event);
    td_status (*between)(td_device device, void *begin, void *end, double *seconds);
    /* Copies bytes to the device, in the order of the stream. The host's bytes may change as soon
     * as the call returns. */
    void (*upload)(td_device device, void *stream, void *memory, const void *host, size_t bytes);
    /* A text that tells the devices of this host apart: equal texts mean the same device. */
    void (*place)(td_device device, char *text, size_t size);
} td_streams;

/* Recording a device's work as a graph, and running the graph again and again (tensor/graph/). */
typedef struct td_graphs {
    /* From now on, work that this thread puts on the compute stream is recorded and does not run.
     * Nobody may allocate the device's memory, wait for an event, or copy to the host. TD_E_DEVICE.
     */
    td_status (*begin)(td_device device);
    /* Ends the recording, also after an error. TD_E_DEVICE: there is no graph. */
    td_status (*end)(td_device device, void **graph);
    /* Puts the graph's work on the compute stream. */
    td_status (*launch)(td_device device, void *graph);
    void (*free)(td_device device, void *graph);

    /* Pinned host memory, which the device can write while the host goes on. fetch copies to such
     * memory and does not wait. */
    void *(*host_take)(td_device device, size_t bytes);
    void (*host_give)(td_device device, void *memory);
    void (*fetch)(td_device device, void *host, const void *memory, size_t bytes);
    td_status (*wait_event)(td_device device, void *event); /* the host waits */

    /* Checks index (i64) on the device; the host does not wait. If an element lies outside of
     * [0, limit) and fault[0] is still 0, fault[0] becomes 1 + the element's place (row-major), and
     * fault[1] the element. fault lies on the device. */
    void (*note_outside)(const td_tensor *index, int64_t limit, double *fault);
} td_graphs;

/* A check of indices that a device makes while nobody waits (note_outside). */
typedef struct td_index_check {
    const char *op, *what; /* literals: "cross_entropy", "label" */
    int64_t limit;
    td_site at;
} td_index_check;

/* The place of a check in a list of *count, which has room for TD_INDEX_CHECKS: `wanted` is added
 * unless a check of the same line of the program is there. -1: there is no room. */
enum { TD_INDEX_CHECKS = 16 };
int td_index_check_place(td_index_check *list, int *count, td_index_check wanted);

/* A fatal error, which blames check->at, if `fault`, as note_outside has written it, tells of an
 * element that is out of range. */
void td_report_index(const td_index_check *check, const double fault[2]);

typedef struct td_backend {
    /* Makes a device ready for use, unless it is ready already. On failure td_last_error() says
     * what is missing. */
    td_status (*open)(td_device device);
    const char *(*title)(td_device device); /* "NVIDIA H200" */
    const td_kernels *(*kernels)(void);

    /* Persistent memory, 256-byte aligned, contents undefined; NULL with td_last_error() when
     * memory is short. Memory may be given back while work that uses it still runs. */
    void *(*take)(td_device device, size_t bytes);
    void (*give)(td_device device, void *memory);

    /* All of these run in the order of the device's work. download also waits for it. */
    void (*zero)(td_device device, void *memory, size_t bytes);
    void (*upload)(td_device device, void *memory, const void *host, size_t bytes);
    void (*download)(td_device device, void *host, const void *memory, size_t bytes);
    void (*move)(td_device to, void *memory, td_device from, const void *source, size_t bytes);

    /* A range of addresses for step memory, *bytes long. *bytes 0 stands for all memory of the
     * device; *bytes becomes the length that was reserved. NULL with td_last_error(). */
    void *(*reserve)(td_device device, size_t *bytes);
    /* Maps memory to the first `bytes` of the range, at least. Returns how many bytes have memory
     * now: fewer than `bytes` when memory is short. */
    size_t (*commit)(td_device device, void *stretch, size_t bytes);
    void (*release)(td_device device, void *stretch);

    /* Waits until all work of the device is done. */
    void (*wait)(td_device device);

    /* Opens a library of the device's vendor, as dlopen does: "NCCL", "libnccl.so.2". TD_E_DEVICE:
     * td_last_error() says what is missing, and which folders were searched. */
    td_status (*library)(const char *title, const char *file, void **library);

    /* Checks, without waiting, that the elements of an index (i64) lie in [0, limit). If one does
     * not, the next download is a fatal error that blames `at`. op and what are literals. false:
     * nothing was checked; use kernels->indices_in_range. */
    bool (*check_later)(const td_tensor *index, int64_t limit, const char *op, const char *what,
                        td_site at);

    const td_streams *streams;
    const td_graphs *graphs; /* NULL: the device's work cannot be recorded */
} td_backend;

/* NULL for the CPU, and for devices that this build has no kernels for. */
const td_backend *td_backend_of(td_device device);

/* NULL for devices whose calls return when their work is done, such as CPUs. */
const td_streams *td_streams_of(td_device device);

/* Copies of bytes in the memory of any device, in the order of its work; td_memory_download waits
 * for the copy. */
void td_memory_move(td_device device, void *to, const void *from, size_t bytes);
void td_memory_download(td_device device, void *host, const void *memory, size_t bytes);
void td_memory_upload(td_device device, void *memory, const void *host, size_t bytes);

/* ---- the CPU's threads and arithmetic (tensor/cpu/) ---- */

enum { TD_MAX_CPU_THREADS = 1024 };

/* As td_set_threads, td_share_cpus, td_pin_threads and td_threads say, for valid arguments. */
td_status td_cpu_set_threads(td_device device, int threads);
void td_cpu_share(int processes);
int td_cpu_count(void); /* td_count_cpus */
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
