/* Leaves: their gradient buffers, the count of pending uses, and the hooks. */
#include "autograd/leaf.h"

#include "autograd/tape.h"
#include "tensor/storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Thread_local td_hook_list end_hooks;

static _Atomic uint64_t backwards;

uint64_t td_backward_id(void)
{
    return atomic_fetch_add(&backwards, 1) + 1;
}

/* ---- beginning and end ---- */

void td_leaf_hold(td_leaf *leaf)
{
    leaf->refs++;
}

void td_leaf_unhold(td_leaf *leaf)
{
    if (--leaf->refs == 0) {
        if (leaf->owns_buffer) {
            td_free(leaf->buffer);
        }
        td_hooks_free(&leaf->ready);
        free(leaf);
    }
}

/* The tensor is no leaf any more. The tape may still have uses of it; their gradients go nowhere.
 */
static void end_leaf(td_tensor *t)
{
    td_leaf *leaf = t->grad->leaf;
    t->grad = NULL;
    leaf->tensor = NULL;
    td_leaf_unhold(leaf);
}

static void set_end_of_leaves(void)
{
    td_free_grad_state_hook = end_leaf;
}

static void begin_leaf(td_tensor *t)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_end_of_leaves);
    td_leaf *leaf = calloc(1, sizeof *leaf);
    TD_REQUIRE(leaf != NULL, TD_NOWHERE, "td_requires_grad: no memory for the state of %s",
               td_label(t));
    leaf->state.leaf = leaf;
    leaf->tensor = t;
    leaf->refs = 1;
    t->grad = &leaf->state;
}

void td_requires_grad_at(td_tensor *leaf, bool on, td_site at)
{
    TD_REQUIRE(leaf != NULL, at, "td_requires_grad: the tensor is NULL: %s", td_last_reason());
    TD_REQUIRE(leaf->step == 0, at,
               "td_requires_grad: %s belongs to a step; only persistent tensors (td_new, td_clone) "
               "can be leaves",
               td_label(leaf));
    if (!on) {
        if (leaf->grad != NULL) {
            end_leaf(leaf);
        }
        return;
    }
    TD_REQUIRE(td_is_float(leaf->dtype), at,
               "td_requires_grad: %s has no float dtype, so it cannot have a gradient",
               td_label(leaf));
    TD_REQUIRE(td_is_dense(leaf), at,
               "td_requires_grad: %s is a view with holes or repeats; make a copy with td_clone, "
               "or let the tensor that it shows be the leaf",
               td_label(leaf));
    if (leaf->grad == NULL) {
        begin_leaf(leaf);
    }
}

static td_leaf *leaf_of(const td_tensor *t, const char *function)
{
    TD_REQUIRE(t != NULL, TD_NOWHERE, "%s: the tensor is NULL: %s", function, td_last_reason());
    TD_REQUIRE(td_is_leaf(t), TD_NOWHERE, "%s: %s is not a leaf; call td_requires_grad on it first",
               function, td_label(t));
    return t->grad->leaf;
}

bool td_is_leaf(const td_tensor *t)
{
    return t->grad != NULL && t->grad->leaf != NULL;
}

bool td_needs_grad(const td_tensor *t)
{
    return t->grad != NULL;
}

void td_exchange_gradients(td_tensor *a, td_tensor *b)
{
    struct td_grad_state *state = a->grad;
    a->grad = b->grad;
    b->grad = state;
}

/* ---- gradients ---- */

td_tensor *td_leaf_buffer(td_leaf *leaf)
{
    if (leaf->buffer == NULL) {
        const td_tensor *t = leaf->tensor;
        /* Dense, as leaves are: memory of the same size, seen with the same strides. */
        td_tensor *memory = td_new(TD_SHAPE(td_numel(t)), t->dtype, td_device_of(t));
        if (memory != NULL) {
            leaf->buffer = td_slice_of_storage(memory, 0, td_shape_of(t), t->stride);
        }
        td_free(memory);
        TD_REQUIRE(leaf->buffer != NULL, TD_NOWHERE, "no memory for the gradient of %s: %s",
                   td_label(t), td_last_error());
        leaf->owns_buffer = true;
        leaf->buffer->name = t->name;
    }
    return leaf->buffer;
}

td_tensor *td_grad_buffer(td_tensor *leaf)
{
    td_leaf *state = leaf_of(leaf, "td_grad_buffer");
    return td_leaf_buffer(state);
}

void td_set_grad_storage(td_tensor *leaf, td_tensor *grad)
{
    td_leaf *state = leaf_of(leaf, "td_set_grad_storage");
    TD_REQUIRE(grad != NULL && grad->step == 0 && grad->dtype == leaf->dtype &&
                   td_same_device(td_device_of(grad), td_device_of(leaf)) &&
                   td_same_order(grad, leaf),
               TD_NOWHERE,
               "td_set_grad_storage: %s cannot hold the gradient of %s: it must be a persistent "
               "tensor of the same shape, strides, dtype and device",
               grad != NULL ? td_label(grad) : "NULL", td_label(leaf));
    if (state->owns_buffer) {
        td_free(state->buffer);
    }
    state->buffer = grad;
    state->owns_buffer = false;
    state->has_grad = false;
}

bool td_has_grad_storage(const td_tensor *leaf, const td_tensor *grad)
{
    return leaf_of(leaf, "td_has_grad_storage")->buffer == grad;
}

void td_zero_grad_of(td_tensor *leaf)
{
    td_leaf *state = leaf_of(leaf, "td_zero_grad_of");
    state->has_grad = state->contributed = false; /* also while rests of a backward wait */
}

void td_mark_grad(td_tensor *leaf)
{
    td_leaf *state = leaf_of(leaf, "td_mark_grad");
    td_leaf_buffer(state);
    state->has_grad = true;
}

bool td_grad_begun(const td_tensor *leaf)
{
    const td_leaf *state = leaf_of(leaf, "td_grad_begun");
    return state->has_grad || state->contributed;
}

td_tensor *td_grad_at(const td_tensor *t, td_site at)
{
    TD_REQUIRE(t != NULL, at, "td_grad: the tensor is NULL: %s", td_last_reason());
    struct td_grad_state *state = t->grad;
    if (state == NULL) {
        return NULL;
    }
    if (state->leaf != NULL) {
        return state->leaf->has_grad ? state->leaf->buffer : NULL;
    }
    td_check_alive(t, at);
    return state->retain && state->has_grad ? &state->grad : NULL;
}

void td_retain_grad_at(td_tensor *t, td_site at)
{
    TD_REQUIRE(t != NULL, at, "td_retain_grad: the tensor is NULL: %s", td_last_reason());
    TD_REQUIRE(t->grad != NULL, at,
               "td_retain_grad: no gradient flows to %s: it was not computed from a leaf, or under "
               "td_no_grad_begin",
               td_label(t));
    t->grad->retain = true; /* a leaf's is kept anyway */
}

/* ---- readiness ---- */

void td_leaf_count_use(td_leaf *leaf, uint64_t backward)
{
    if (leaf->backward != backward) {
        leaf->backward = backward;
        leaf->pending = 0;
        leaf->contributed = false;
    }
    leaf->pending++;
}

void td_leaf_use_done(td_leaf *leaf)
{
    if (--leaf->pending == 0 && leaf->contributed && leaf->tensor != NULL) {
        leaf->has_grad = true;
        td_hooks_run(&leaf->ready, leaf->tensor);
    }
}

void td_leaf_backward_end(void)
{
    td_hooks_run(&end_hooks, NULL);
}

uint64_t td_latest_backward(void)
{
    return atomic_load(&backwards);
}

uint64_t td_last_backward_of(const td_tensor *leaf)
{
    return leaf_of(leaf, "td_last_backward_of")->backward;
}

int td_leaf_uses(const td_tensor *t)
{
    return td_is_leaf(t) ? t->grad->leaf->refs - 1 : 0;
}

int td_on_grad_ready(td_tensor *leaf, td_grad_ready_fn fn, void *user)
{
    td_leaf *state = leaf_of(leaf, "td_on_grad_ready");
    TD_REQUIRE(fn != NULL, TD_NOWHERE, "td_on_grad_ready: the function is NULL");
    return td_hooks_add(&state->ready, (td_hook){ .ready = fn, .user = user });
}

void td_remove_grad_hook(td_tensor *leaf, int id)
{
    td_hooks_remove(&leaf_of(leaf, "td_remove_grad_hook")->ready, id);
}

bool td_has_grad_hook(const td_tensor *t, int id)
{
    return td_is_leaf(t) && td_hooks_have(&t->grad->leaf->ready, id);
}

int td_on_backward_end(td_backward_end_fn fn, void *user)
{
    TD_REQUIRE(fn != NULL, TD_NOWHERE, "td_on_backward_end: the function is NULL");
    return td_hooks_add(&end_hooks, (td_hook){ .end = fn, .user = user });
}

void td_remove_backward_end_hook(int id)
{
    td_hooks_remove(&end_hooks, id);
}
