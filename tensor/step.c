/* The step of a thread: its tensors, scopes and memory. */
#include "tensor/step.h"
#include "tensor/clock.h"

#include "tensor/alive.h"
#include "tensor/arena.h"
#include "tensor/backend.h"
#include "tensor/bump.h"
#include "tensor/hooks.h"
#include "tensor/system/list.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    MAX_SCOPES = 256,
    ARENAS = (TD_DEVICE_CUDA + 1) * TD_MAX_DEVICES, /* of all types of devices */
};

/* A step tensor and the storage it may have of its own. Equal slots in a pool of their own, so that
 * a stale pointer always finds a header. */
typedef struct header_slot {
    td_tensor tensor;
    td_storage storage;
} header_slot;

typedef struct step {
    double began; /* seconds; 0: no observer then */
    int pins;     /* td_step_pin */

    td_arena *arena[ARENAS];           /* of the devices (arena_index), NULL until used */
    td_bump headers[TD_STEP_ROTATION]; /* header_slot */
    td_bump bytes[TD_STEP_ROTATION];   /* td_step_bytes */

    td_tensor **held; /* headers that hold their storage, in the order of their making */
    size_t held_count, held_capacity;
    size_t scope_start[MAX_SCOPES]; /* held_count when it began */
    int scope_depth;

    void *tape;
    void (*end_tape)(void *tape);
} step;

static _Thread_local step *thread_step; /* NULL: no step yet */
static _Thread_local void (*on_abandon)(void);
static _Thread_local size_t most_memory; /* td_step_limit */

/* ---- a thread's step ---- */

static void release_memory(step *s)
{
    for (int i = 0; i < ARENAS; i++) {
        td_arena_free(s->arena[i]);
        s->arena[i] = NULL;
    }
    for (int i = 0; i < TD_STEP_ROTATION; i++) {
        td_bump_free(&s->headers[i]);
        td_bump_free(&s->bytes[i]);
    }
    free(s->held);
    s->held = NULL;
    s->held_capacity = 0;
}

static void at_thread_exit(void *exiting)
{
    thread_step = exiting;
    td_step_abandon();
    release_memory(thread_step);
    free(thread_step);
    thread_step = NULL;
}

static pthread_key_t exit_key;

static void make_exit_key(void)
{
    int error = pthread_key_create(&exit_key, at_thread_exit);
    TD_REQUIRE(error == 0, TD_NOWHERE, "step memory: no more thread-specific keys (error %d)",
               error);
}

static step *make_thread_step(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_exit_key);
    thread_step = calloc(1, sizeof *thread_step);
    TD_REQUIRE(thread_step != NULL && pthread_setspecific(exit_key, thread_step) == 0, TD_NOWHERE,
               "out of memory for a thread's first step");
    return thread_step;
}

static step *open_step(const char *what, td_site at)
{
    TD_REQUIRE(td_in_step(), at,
               "%s outside a step: operations make their results in step memory, so they belong "
               "into TD_STEP { } (or between td_step_begin and td_step_end)",
               what);
    return thread_step;
}

void td_step_begin_at(td_site at)
{
    step *s = thread_step != NULL ? thread_step : make_thread_step();
    TD_REQUIRE(!td_in_step(), at,
               "td_step_begin inside step %llu: the td_step_end before it is missing (leave "
               "TD_STEP by continue, not by break, return or goto; after a fatal handler's jump "
               "out of a step, call td_step_abandon)",
               (unsigned long long)td_step_number());
    uint64_t turn = td_step_enter() % TD_STEP_ROTATION;
    s->began = td_steps_observed() ? td_clock() : 0.0;
    td_bump_reset(&s->headers[turn]);
    td_bump_reset(&s->bytes[turn]);
    for (int i = 0; i < ARENAS; i++) {
        if (s->arena[i] != NULL) {
            td_arena_begin_step(s->arena[i]);
        }
    }
}

void td_step_limit(size_t bytes)
{
    most_memory = bytes;
}

/* ---- retaining and releasing ---- */

static void hold_header(step *s, td_tensor *t)
{
    td_tensor **held = td_list_room(s->held, s->held_count, &s->held_capacity, sizeof *held);
    TD_REQUIRE(held != NULL, TD_NOWHERE, "out of memory for the list of a step's %zu tensors",
               s->held_count);
    s->held = held;
    s->held[s->held_count++] = t;
}

/* Releases all tensors made since held_count was start, except keep, which stays held. */
static void let_go_since(step *s, size_t start, const td_tensor *keep)
{
    size_t kept = start;
    for (size_t i = start; i < s->held_count; i++) {
        td_tensor *t = s->held[i];
        if (t == keep) {
            s->held[kept++] = t;
        } else {
            t->let_go = true;
            td_unhold(t->storage);
        }
    }
    s->held_count = kept;
}

/* Ends tape, scopes and tensors. Returns the bytes that somebody still holds. */
static size_t end_step(step *s)
{
    void (*end_tape)(void *tape) = s->end_tape;
    void *tape = s->tape;
    s->tape = NULL;
    s->end_tape = NULL;
    if (end_tape != NULL) {
        end_tape(tape);
    }
    s->scope_depth = 0;
    let_go_since(s, 0, NULL);
    size_t left = 0;
    for (int i = 0; i < ARENAS; i++) {
        left += s->arena[i] != NULL ? td_arena_reset(s->arena[i]) : 0;
    }
    td_step_leave();
    if (s->began > 0.0) {
        td_tell_ended(s->began, td_clock());
    }
    return left;
}

void td_step_end_at(td_site at)
{
    step *s = open_step("td_step_end", at);
    TD_REQUIRE(s->scope_depth == 0, at,
               "td_step_end: %d scopes are still open; each td_scope_begin needs its td_scope_end",
               s->scope_depth);
    size_t left = end_step(s);
    TD_REQUIRE(left == 0, at,
               "td_step_end: %s of step memory are still taken: a td_hold without its td_unhold, "
               "or a td_scratch without its td_scratch_free",
               td_describe_bytes(left));
}

void td_step_abandon(void)
{
    if (td_in_step()) {
        end_step(thread_step);
    }
    td_context_clear();
    td_recorder_abandon();
    if (on_abandon != NULL) {
        on_abandon();
    }
}

void td_on_abandon(void (*fn)(void))
{
    on_abandon = fn;
}

void td_step_release_memory(void)
{
    TD_REQUIRE(!td_in_step(), TD_NOWHERE,
               "td_step_release_memory inside step %llu: call it after td_step_end",
               (unsigned long long)td_step_number());
    int pins = thread_step != NULL ? thread_step->pins : 0;
    TD_REQUIRE(pins == 0, TD_NOWHERE,
               "td_step_release_memory: %d captured steps use this memory: td_captured_free them "
               "first, or td_captured_forget what they have recorded",
               pins);
    if (thread_step != NULL) {
        release_memory(thread_step);
    }
}

void td_step_pin(int by)
{
    (thread_step != NULL ? thread_step : make_thread_step())->pins += by;
}

int64_t td_scope_begin(void)
{
    step *s = open_step("td_scope_begin", TD_NOWHERE);
    TD_REQUIRE(s->scope_depth < MAX_SCOPES, TD_NOWHERE,
               "more than %d scopes are open: a td_scope_end is missing, or modules contain each "
               "other without end",
               MAX_SCOPES);
    s->scope_start[s->scope_depth] = s->held_count;
    return s->scope_depth++;
}

/* The running step, in which this scope is the innermost one. */
static step *innermost(int64_t scope, const char *what)
{
    step *s = open_step(what, TD_NOWHERE);
    TD_REQUIRE(
        scope == s->scope_depth - 1, TD_NOWHERE,
        "%s of scope %lld, but the innermost open one is %d: scopes end in the reverse order "
        "of their beginnings",
        what, (long long)scope, s->scope_depth - 1);
    return s;
}

void td_scope_keep(int64_t scope, const td_tensor *keep)
{
    step *s = innermost(scope, "td_scope_keep");
    let_go_since(s, s->scope_start[scope], keep);
}

void td_scope_end(int64_t scope, td_tensor *keep)
{
    step *s = innermost(scope, "td_scope_end");
    s->scope_depth--;
    let_go_since(s, s->scope_start[scope], keep);
}

/* ---- step tensors ---- */

static int arena_index(td_device device)
{
    return device.type * TD_MAX_DEVICES + device.index;
}

static td_arena *arena_of(step *s, td_device device)
{
    td_arena **arena = &s->arena[arena_index(device)];
    if (*arena == NULL) {
        *arena = td_arena_new(device, most_memory);
        TD_REQUIRE(*arena != NULL, TD_NOWHERE, "%s", td_last_error());
    }
    return *arena;
}

/* what: "a step tensor f32[256,64] cpu:0"; batch: its first size, if that may be a batch, or 0. */
static _Noreturn void out_of_memory(const td_arena *arena, const char *what, size_t bytes,
                                    int64_t batch, td_site at)
{
    td_memory_stats stats = td_arena_stats(arena);
    size_t limit = td_arena_limit(arena);
    bool over_limit = bytes > limit || stats.in_use > limit - bytes;
    size_t can_hold = over_limit ? limit : stats.reserved;
    /* Step memory grows in proportion to the batch. */
    double fits = (double)batch * (double)can_hold / ((double)stats.in_use + (double)bytes);
    char advice[128] = "use a smaller batch or model";
    if (fits >= 1.0 && fits < (double)batch) {
        snprintf(advice, sizeof advice, "if %lld is the batch, one of at most about %lld would fit",
                 (long long)batch, (long long)fits);
    }
    td_fail(TD_E_NOMEM,
            "out of step memory for %s (%s): the step holds %s, and all that can be had is %s; %s",
            what, td_describe_bytes(bytes), td_describe_bytes(stats.in_use),
            td_describe_bytes(can_hold), advice);
    td_fatal(at, "%s", td_last_error());
}

static header_slot *new_slot(step *s, td_site at)
{
    header_slot *slot =
        td_bump_take(&s->headers[td_step_number() % TD_STEP_ROTATION], sizeof *slot);
    TD_REQUIRE(slot != NULL, at, "out of memory for the header of a step tensor");
    return slot;
}

static td_tensor *new_step_tensor(td_shape shape, const int64_t *stride, td_dtype dtype,
                                  td_device device, td_site at)
{
    step *s = open_step("a tensor operation", at);
    size_t bytes;
    TD_REQUIRE(td_shape_bytes(shape, dtype, &bytes), at,
               "a tensor %s%s has more bytes than can be counted", td_dtype_name(dtype),
               td_describe_shape(shape));
    td_arena *arena = arena_of(s, device);
    header_slot *slot = new_slot(s, at);
    td_init_header(&slot->tensor, &slot->storage, 0, shape, stride, dtype);
    slot->tensor.step = td_step_number();
    slot->storage = (td_storage){ .data = td_arena_take(arena, bytes),
                                  .bytes = bytes,
                                  .refs = 1,
                                  .device = device,
                                  .kind = TD_STORAGE_STEP,
                                  .owner = arena };
    if (slot->storage.data == NULL) {
        out_of_memory(arena, td_label(&slot->tensor), bytes, shape.ndim > 0 ? shape.dim[0] : 0, at);
    }
    hold_header(s, &slot->tensor);
    return &slot->tensor;
}

td_tensor *td_step_new(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_site at)
{
    td_require_shape(shape, at);
    td_require_device(device, at);
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(device, layout, shape, stride);
    return new_step_tensor(shape, stride, dtype, device, at);
}

td_tensor *td_step_new_like(const td_tensor *t, td_site at)
{
    int64_t stride[TD_MAX_DIMS];
    td_strides_like(t, stride);
    return new_step_tensor(td_shape_of(t), stride, t->dtype, td_device_of(t), at);
}

td_tensor *td_step_view(const td_tensor *t, int64_t offset, td_shape shape, const int64_t *stride,
                        td_site at)
{
    step *s = open_step("a view", at);
    td_check_memory(t, at);
    td_require_shape(shape, at);
    td_require_inside(t->storage, offset, shape, stride, t->dtype, at);
    header_slot *slot = new_slot(s, at);
    td_init_header(&slot->tensor, t->storage, offset, shape, stride, t->dtype);
    slot->tensor.step = td_step_number();
    td_hold(t->storage);
    hold_header(s, &slot->tensor);
    return &slot->tensor;
}

/* ---- memory that is no tensor ---- */

void *td_step_bytes(size_t bytes)
{
    step *s = open_step("td_step_bytes", TD_NOWHERE);
    void *memory = td_bump_take(&s->bytes[td_step_number() % TD_STEP_ROTATION], bytes);
    TD_REQUIRE(memory != NULL, TD_NOWHERE, "out of memory for %zu bytes of a step's tape", bytes);
    return memory;
}

void *td_scratch(td_device device, size_t bytes)
{
    td_require_device(device, TD_NOWHERE);
    void *scratch;
    if (td_in_step()) {
        td_arena *arena = arena_of(thread_step, device);
        scratch = td_arena_take(arena, bytes);
        if (scratch == NULL) {
            out_of_memory(arena, "a kernel's scratch memory", bytes, 0, TD_NOWHERE);
        }
    } else {
        const td_backend *backend = td_backend_of(device);
        size_t rounded = (bytes / TD_ALIGNMENT + 1) * TD_ALIGNMENT;
        scratch =
            backend != NULL ? backend->take(device, rounded) : aligned_alloc(TD_ALIGNMENT, rounded);
        TD_REQUIRE(scratch != NULL, TD_NOWHERE, "out of memory for a kernel's scratch memory (%s)",
                   td_describe_bytes(bytes));
    }
    return scratch;
}

void td_scratch_free(td_device device, void *scratch)
{
    td_arena *arena = thread_step != NULL ? thread_step->arena[arena_index(device)] : NULL;
    const td_backend *backend = td_backend_of(device);
    if (arena != NULL && td_arena_owns(arena, scratch)) {
        td_arena_give(arena, scratch);
    } else if (backend == NULL) {
        free(scratch);
    } else if (scratch != NULL) {
        backend->give(device, scratch);
    }
}

void *td_step_tape(void)
{
    return td_in_step() ? thread_step->tape : NULL;
}

void td_step_set_tape(void *tape, void (*on_end)(void *tape))
{
    step *s = open_step("td_step_set_tape", TD_NOWHERE);
    s->tape = tape;
    s->end_tape = on_end;
}

td_memory_stats td_step_memory(td_device device)
{
    td_require_device(device, TD_NOWHERE);
    td_arena *arena = thread_step != NULL ? thread_step->arena[arena_index(device)] : NULL;
    return arena != NULL ? td_arena_stats(arena) : (td_memory_stats){ .reserved = 0 };
}
