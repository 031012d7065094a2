/* For operations, modules and engines of your own: memory of the running step, checks, layouts,
 * names for messages, random numbers by counter, errors. tandem.h does not include this header. */
#pragma once

#include "tensor/tensor.h"

#include <math.h>

TD_BEGIN_C

/* ---- step tensors ---- */

/* A new step tensor, contents undefined. A fatal error outside of a step, and when memory is short:
 * then the message has the tensor, its bytes, the memory of the step, and what to do. */
td_tensor *td_step_new(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_site at);
td_tensor *td_step_new_like(const td_tensor *t, td_site at); /* t's shape, dtype, dense order */
/* A view: it shares t's storage. */
td_tensor *td_step_view(const td_tensor *t, int64_t offset, td_shape shape, const int64_t *stride,
                        td_site at);

/* Retains (td_hold) and releases (td_unhold) a storage. Step memory is free again when it has been
 * released as often as it was retained. */
void td_hold(td_storage *storage);
void td_unhold(td_storage *storage);

/* Small zeroed memory that lives until the step ends. */
void *td_step_bytes(size_t bytes);

/* Scratch memory for a kernel, 64-byte aligned, from the step's arena; outside of a step from
 * malloc. It is a fatal error if memory is short. td_scratch_free(device, NULL) is fine. */
void *td_scratch(td_device device, size_t bytes);
void td_scratch_free(td_device device, void *scratch);

/* A scope is an inner block of a step; each td_forward is one. At td_scope_end every tensor that
 * was made inside is released, except `keep` (which may be NULL): it then belongs to the scope
 * outside. Tensors that backward needs stay until backward has used them. Scopes nest.
 * td_scope_begin returns a number for td_scope_end. */
int64_t td_scope_begin(void);
void td_scope_end(int64_t scope, td_tensor *keep);
/* Releases in the middle of a scope all tensors that were made in it so far, except `keep`. For a
 * chain of layers, where each layer needs only the result of the layer before it. */
void td_scope_keep(int64_t scope, const td_tensor *keep);

bool td_in_step(void); /* on this thread */
/* The number of the running step, counted from 1 on this thread; 0 outside of a step. */
uint64_t td_step_number(void);

/* Returns this thread's step memory to the system. Call it outside of steps. */
void td_step_release_memory(void);

typedef struct td_memory_stats {
    size_t reserved;  /* bytes that the arena has from the system */
    size_t in_use;    /* bytes in use now */
    uint64_t growths; /* how often the arena has grown since it was made */

    /* Of the running step; outside of steps, of the last one. */
    size_t peak;           /* most bytes in use */
    uint64_t allocations;  /* number of allocations */
    uint64_t address_hash; /* of all addresses and sizes */
} td_memory_stats;
td_memory_stats td_step_memory(td_device device);

/* One pointer per step, for the tape; on_end is called when the step ends or is abandoned. */
void *td_step_tape(void);
void td_step_set_tape(void *tape, void (*on_end)(void *tape));

/* Ends the running step of this thread, if there is one, and all that is open on the thread: names
 * of modules, each td_no_grad_begin, the recorder of a captured step. For a fatal handler that
 * leaves by longjmp. */
void td_step_abandon(void);

/* ---- checks ---- */

/* Fails unless t can be read now; names t and says why not. */
void td_check_alive(const td_tensor *t, td_site at);
/* Turns a possibly negative dimension number into 0..ndim-1, or fails. */
int td_check_dim(const td_tensor *t, int dim, td_site at);

/* ---- memory order ---- */

/* A persistent tensor in a layout; contents undefined. */
td_tensor *td_new_layout_at(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                            td_site at);
/* A persistent tensor over a part of another persistent tensor's storage (offset in elements from
 * the storage's start). The storage lives until both are freed. */
td_tensor *td_slice_of_storage(const td_tensor *base, int64_t offset, td_shape shape,
                               const int64_t *stride);
bool td_is_contiguous(const td_tensor *t); /* row-major and dense */
/* Whether the elements fill one stretch of memory without holes or repeats, in any order. You can
 * go through two dense tensors of equal shape and strides together as through plain arrays. */
bool td_is_dense(const td_tensor *t);
bool td_same_shape(const td_tensor *a, const td_tensor *b);
bool td_same_order(const td_tensor *a, const td_tensor *b); /* equal shape and strides */
bool td_is_layout(const td_tensor *t, td_layout layout);    /* dense, in its device's order */
/* Strides of a dense tensor in a layout on a device. TD_IMAGE needs 4 dimensions, TD_FILTER 4 or 2;
 * otherwise the strides are row-major. */
void td_layout_strides(td_device device, td_layout layout, td_shape shape, int64_t *stride);

int64_t td_shape_numel(td_shape shape);
bool td_shape_equal(td_shape a, td_shape b);
/* The shape of a and b broadcast as in NumPy; false if they do not go together. */
bool td_broadcast_shape(td_shape a, td_shape b, td_shape *out);

/* ---- names for messages ---- */

/* "[32,3,8,8]", as td_describe. */
const char *td_describe_shape(td_shape shape);

/* Pushes the name of what runs on this thread: "layer1.0.conv1 (Conv2d)". The string must live
 * until its pop. Names beyond a depth of 32 are counted, not kept. */
void td_context_push(const char *name);
void td_context_pop(void);
void td_context_clear(void);
const char *td_context_top(void);        /* the innermost name, or NULL */
const char *td_context_at(int outwards); /* the name `outwards` levels further out, or NULL */

/* ---- random numbers ---- */

uint32_t td_random_u32(td_generator *g);
uint64_t td_random_u64(td_generator *g);  /* (first draw << 32) | second */
int64_t td_random_i63(td_generator *g);   /* u64 & 2^63-1: seeds a loader's epoch */
double td_random_f64(td_generator *g);    /* [0,1), 53 bits */
float td_random_f32(td_generator *g);     /* [0,1), 24 bits */
double td_random_normal(td_generator *g); /* Box-Muller, one number a call */
int64_t td_random_int(td_generator *g, int64_t low, int64_t high); /* in [low, high) */
/* Writes a random permutation of 0, ..., n-1 to out[n], like torch.randperm. */
void td_random_permutation(td_generator *g, int64_t *out, int64_t n);

/* Philox4x32-10 (Salmon et al. 2011): four 32-bit words for a key and a 128-bit counter (a, b). */
void td_philox(td_philox_key key, uint64_t a, uint64_t b, uint32_t out[4]);
/* The generator's own key, for tensor/kernels/philox.h. */
uint64_t td_philox_mixed_key(td_philox_key key);

/* ---- dtypes, devices and precision ---- */

/* The 16-bit floats: activations of mixed precision have one of these dtypes. */
static inline bool td_is_half(td_dtype dtype)
{
    return dtype == TD_BF16 || dtype == TD_F16;
}

static inline bool td_same_device(td_device a, td_device b)
{
    return a.type == b.type && a.index == b.index;
}

/* Binds each thread of a CPU device's pool to a CPU of its own, and the calling thread, with all
 * threads that it starts later, to these CPUs. If `ranks` processes of this host call it, each with
 * its own rank from 0, they use different CPUs. Call it outside of steps. TD_E_ARG: the host has
 * fewer CPUs than the processes have threads. Results never depend on the binding. */
td_status td_pin_threads(td_device device, int rank, int ranks);

/* What td_set_math has set. */
td_math td_math_now(void);
/* Parses "fp32", "bf16", "bf16x3", "tf32" or "fp16"; false if the name is another one. */
bool td_precision_parse(const char *name, td_precision *precision);
/* "fp32", "bf16", "bf16x3", "tf32", "fp16". The text is static. */
const char *td_precision_name(td_precision precision);
/* Returns TD_OK if a device can compute in a precision. TD_E_UNSUPPORTED: it cannot;
 * td_last_error() says why, and what to use instead. */
td_status td_precision_check(td_device device, td_precision precision);

/* "cpu:0, 4 threads" or "cuda:0, NVIDIA H200". The library owns the text, which is valid until the
 * calling thread's next call. */
const char *td_device_describe(td_device device);

/* The dtype of activations in products: TD_BF16, TD_F16, or TD_F32 if nothing is cast. */
td_dtype td_precision_dtype(td_precision precision);

/* The number of CPUs that this process may use: those that it may run on, but no more than its
 * containers' quotas of CPU time allow (rounded down). */
int td_count_cpus(void);
/* Sets the number of processes of this host that share its CPUs; thread pools of the default size
 * change. Call it between steps. td_dist_init calls it, and td_dist_destroy calls it with 1. */
void td_share_cpus(int processes);
/* The most step memory, in bytes, of steps that this thread has not begun yet: a thread of many
 * reserves its share of addresses. 0: all of the machine's. */
void td_step_limit(size_t bytes);
/* The local rank, for td_default_device. td_dist_init sets it, td_dist_destroy sets 0. */
void td_set_local_rank(int local_rank);

/* ---- options ---- */

/* An option's value, or `usual` if the option was not given. */
static inline double td_or_usual(double given, double usual)
{
    return given == 0.0 ? (signbit(given) ? 0.0 : usual) : given;
}

/* ---- errors ---- */

/* Puts "context: " in front of td_last_error() and returns status, as td_fail does. */
td_status td_fail_context(td_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
#define td_fail_context(status, ...) TD_FAIL_WITH_(td_fail_context, status, __VA_ARGS__)

/* The meaning of a status in a few words: "out of memory". The text is static, never NULL. */
const char *td_status_text(td_status status);

/* td_last_error(), for messages that end with the reason: never empty. */
const char *td_last_reason(void);

/* For dist: td_die calls this function, unless NULL, before it prints; the function need not
 * return.
 */
extern void (*td_die_hook)(const char *message);

/* What td_die and td_fatal say waits at most so many seconds for a reader (a full pipe, Ctrl-S),
 * and is lost then; otherwise it waits. For ranks, for whose end others wait. */
void td_set_last_words(double seconds);
/* Prints so, and says whether it was read. */
bool td_say_last(const char *before, const char *text);

/* Sets the handler of fatal errors for the whole process; user is passed on to the handler. The
 * handler gets the complete message. It may leave by longjmp or exit; if it returns, abort()
 * follows. NULL sets the default handler, which prints to stderr. */
typedef void (*td_fatal_handler)(const char *message, void *user);
void td_set_fatal_handler(td_fatal_handler handler, void *user);

/* Like td_set_fatal_handler, but only for the calling thread: for a worker thread that passes its
 * mistakes on to the thread for which it works. NULL: none. */
void td_set_thread_fatal_handler(td_fatal_handler handler, void *user);

TD_END_C

#define td_new_layout(...) td_new_layout_at(__VA_ARGS__, TD_HERE)
