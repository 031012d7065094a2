/* autograd: gradients by the tape. The second module header.
 *
 * Operations (autograd/ops.h) run at once. When one of their inputs takes part in gradients they
 * also write a node on the tape of the running step: what they computed, from what, and what they
 * saved. td_backward walks the tape from the loss to the leaves.
 *
 * A leaf is a persistent tensor with td_requires_grad: a parameter. Its gradient is a persistent
 * tensor of the same shape, dtype and strides, and accumulates until td_zero_grad_of. */
#ifndef TD_AUTOGRAD_AUTOGRAD_H
#define TD_AUTOGRAD_AUTOGRAD_H

#include "tensor/tensor.h"

/* Makes a dense persistent float tensor a leaf, or an ordinary tensor again (its gradient and hooks
 * end; td_free does that too). */
void td_requires_grad(td_tensor *leaf, bool on);
bool td_is_leaf(const td_tensor *t);
/* Whether gradients flow to t: a leaf, or computed from one. */
bool td_needs_grad(const td_tensor *t);

/* A leaf's gradient: NULL if it has none since the last td_zero_grad_of. Of a step tensor: NULL
 * unless td_retain_grad was called on it before backward; valid until the step ends. */
td_tensor *td_grad(const td_tensor *t);
void td_retain_grad(td_tensor *t);

/* The memory behind a leaf's gradient, whether or not it holds one now; made on first use.
 * td_set_grad_storage makes it a given persistent tensor of equal shape, dtype and strides (a slice
 * of flat memory); the leaf does not own it, and its contents count as no gradient. */
td_tensor *td_grad_buffer(td_tensor *leaf);
void td_set_grad_storage(td_tensor *leaf, td_tensor *grad);

/* Says that the leaf has no gradient: the next contribution overwrites the buffer. td_mark_grad
 * says that the buffer now holds one (dist does so after a reduction into an unused leaf). */
void td_zero_grad_of(td_tensor *leaf);
void td_mark_grad(td_tensor *leaf);

/* Gradients of a scalar with respect to every leaf it was computed from, added to theirs. The tape
 * is used up: saved memory is given back on the way. td_backward_from starts with a given gradient
 * of t's shape. */
void td_backward(td_tensor *loss, td_site at);
void td_backward_from(td_tensor *t, const td_tensor *gradient, td_site at);

/* Without gradients: nothing is written on the tape. Nests; per thread. */
bool td_grad_enabled(void);
void td_no_grad_begin(void);
void td_no_grad_end(void);

/* Arithmetic in place, on persistent or step tensors: t += u (u broadcasts to t), t *= s. Nothing
 * of it is written on the tape, so t must be no part of gradients: neither computed from a leaf,
 * nor, unless gradients are off (td_no_grad_begin), a leaf itself. Same dtype and device. Inside or
 * outside a step. */
void td_add_(td_tensor *t, const td_tensor *u, td_site at);
void td_mul_scalar_(td_tensor *t, double s, td_site at);

/* Readiness. A leaf counts its uses on the part of the tape that the loss depends on; when the last
 * contribution of a backward is in, its hooks are called, on the thread that runs backward, in the
 * order in which they were added. When backward ends, end hooks are called with all leaves that
 * got ready hooks on this thread but no contribution in this backward. dist builds on these two and
 * nothing else. Hooks may add and remove hooks, and write into the gradient; they must not run
 * backward. Returns an id > 0 for removal, or a negative status when memory is short. */
typedef void (*td_grad_ready_fn)(td_tensor *leaf, void *user);
typedef void (*td_backward_end_fn)(td_tensor *const *unused, int count, void *user);
/* How many operations on the tapes of running steps still hold the leaf: 0 when no backward is to
 * come through it. Its memory may be exchanged or moved then. */
int td_leaf_uses(const td_tensor *leaf);
int td_on_grad_ready(td_tensor *leaf, td_grad_ready_fn fn, void *user);
void td_remove_grad_hook(td_tensor *leaf, int id);
int td_on_backward_end(td_backward_end_fn fn, void *user); /* per thread */
void td_remove_backward_end_hook(int id);

/* Every operation's result, forward and backward, is checked for NaN and infinity; the first bad
 * one is a fatal error that names the operation, its inputs and the module. Slow. Process-wide. */
void td_set_debug_nan(bool on);
bool td_debug_nan(void);

/* ---- gradient check ---- */

typedef td_tensor *(*td_grad_check_fn)(td_tensor *const *inputs, void *user);
typedef struct td_gradcheck_options {
    double eps;       /* 0: 1e-6: half the central difference's width */
    double tolerance; /* 0: 1e-6: |analytic - numeric| <= tolerance * (1 + |numeric|) */
    char *report;     /* where the first differences are described; may be NULL */
    size_t report_size;
} td_gradcheck_options;

/* Compares the gradients of sum(fn(inputs) * R), R fixed pseudo-random weights, with central
 * differences, element by element, for all f64 leaves among the inputs (others are constants). fn
 * is called inside a step of its own, many times, and must be deterministic. Not inside a step; the
 * leaves' gradients are gone afterwards. TD_E_MISMATCH: they differ; TD_E_ARG: no f64 leaf among
 * the inputs, or fn returns NULL or results of changing size. */
td_status td_gradcheck(td_grad_check_fn fn, void *user, td_tensor *const *inputs, int count,
                       const td_gradcheck_options *options);

/* The caller's place, supplied, as for operations. */
#define td_backward(...) td_backward(__VA_ARGS__, TD_HERE)
#define td_backward_from(...) td_backward_from(__VA_ARGS__, TD_HERE)
#define td_add_(...) td_add_(__VA_ARGS__, TD_HERE)
#define td_mul_scalar_(...) td_mul_scalar_(__VA_ARGS__, TD_HERE)

#include "autograd/ops.h"

#endif
