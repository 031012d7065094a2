/* Step memory.
 *
 * Between td_step_begin and td_step_end, operations take their results from the calling thread's
 * step: a free-list arena per device. It grows while the first step runs, is then laid out once,
 * and from then on neither grows nor calls malloc; the same sequence of allocations gives the same
 * addresses. Memory is given back as soon as nobody needs it: when a scope ends (below) and, in
 * backward, when the tape has used what it saved.
 *
 * A step tensor used after its step, its scope, or its last use in backward is caught and named.
 * Headers are used again three steps later, so that a pointer kept longer than that may show
 * another tensor. In builds with TD_DEBUG new and freed memory is filled with 0xff (NaN for every
 * float type). */
#ifndef TD_TENSOR_STEP_H
#define TD_TENSOR_STEP_H

#include "tensor/tensor.h"

void td_step_begin(void);
void td_step_end(void);
bool td_in_step(void);

/* TD_STEP { ... } is td_step_begin, the block, and td_step_end. `continue` inside ends the step. To
 * leave the block by break, return or goto is a mistake: the step stays open, and the next
 * td_step_begin says so. */
#define TD_STEP                                                                                    \
    for (bool td_step_runs_ = (td_step_begin(), true); td_step_runs_;                              \
         td_step_runs_ = (td_step_end(), false))

/* The number of the running step, counted from 1 on this thread; 0 outside. */
uint64_t td_step_number(void);

/* Ends whatever is open on this thread (after a fatal handler has jumped out): tensors, scopes,
 * tape. Fine when nothing is open. */
void td_step_abandon(void);

/* Gives all step memory of this thread back to the system. Not between begin and end. */
void td_step_release_memory(void);

/* A scope: tensors made inside belong to it and are let go at its end, except the one that is kept
 * (NULL: none), which belongs to the scope around. What the tape has saved stays until backward has
 * used it. Modules are scopes: what their forward makes on the way is not held longer than needed.
 * Returns a token for td_scope_end; scopes nest and end in order. */
int64_t td_scope_begin(void);
void td_scope_end(int64_t scope, td_tensor *keep);
/* In between: lets go of what was made inside so far, except the one that is kept (which stays the
 * scope's). For one layer after the other, each of which needs the last one's result only. */
void td_scope_keep(int64_t scope, const td_tensor *keep);

/* ---- for operations: making step tensors ---- */

/* New step tensors, contents undefined. Outside a step: a programming mistake that says so. Short
 * of memory: fatal, with the tensor, its bytes, what the step holds and what to do. */
td_tensor *td_step_new(td_shape shape, td_dtype dtype, td_layout layout, td_device device,
                       td_site at);
td_tensor *td_step_new_like(const td_tensor *t, td_site at); /* same shape, dtype and dense order */
/* A view: shares t's storage. */
td_tensor *td_step_view(const td_tensor *t, int64_t offset, td_shape shape, const int64_t *stride,
                        td_site at);

/* The tape's holds on a storage: memory is given back when the last hold goes. */
void td_hold(td_storage *storage);
void td_unhold(td_storage *storage);

/* Small zeroed memory for tape nodes and the like: lives until the step ends. */
void *td_step_bytes(size_t bytes);

/* Scratch memory for a kernel, 64-byte aligned, taken from the step's arena (outside a step: from
 * malloc). Short of memory: fatal. td_scratch_free gives it back; NULL is fine. */
void *td_scratch(td_device device, size_t bytes);
void td_scratch_free(td_device device, void *scratch);

/* autograd's tape hangs here, one per step; on_end is called when the step ends or is abandoned. */
void *td_step_tape(void);
void td_step_set_tape(void *tape, void (*on_end)(void *tape));

/* Fails unless t can be read now; names t and says why otherwise. */
void td_check_alive(const td_tensor *t, td_site at);

/* ---- figures ---- */

typedef struct td_memory_stats {
    size_t reserved;       /* bytes that the arena holds from the system */
    size_t in_use;         /* now */
    size_t peak;           /* most in use, in this step or the last one */
    uint64_t allocations;  /* in this step or the last one */
    uint64_t growths;      /* how often the arena has grown since it was made */
    uint64_t address_hash; /* of all addresses and sizes given out in this or the last step */
} td_memory_stats;
td_memory_stats td_step_memory(td_device device);

#endif
