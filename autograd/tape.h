/* The tape, seen from inside: what an operation's file needs to write its node and its backward.
 * Users do not include this.
 *
 * An operation's file (autograd/ops/NAME.c) holds its shape rule, its forward and its backward, and
 * one or more lines in ops.def with its check cases. The pattern:
 *
 *   static void exp_backward(td_node *node, const td_tensor *dy)
 *   {
 *       td_grad_slot slot = td_input_grad(node, 0);      (where to write, and whether to add)
 *       if (slot.grad != NULL) {
 *           kernels->unary_grad(..., slot.grad, dy, ..., slot.accumulate);
 *       }
 *   }
 *   td_tensor *td_exp_at(td_tensor *x, td_site at)
 *   {
 *       td_tensor *y = ...; run the kernel
 *       return td_record(&(td_record_args){ .op = "exp", .backward = exp_backward, .out = y,
 *                        .inputs = { x }, .input_count = 1, .saved = { y }, .saved_count = 1 },
 * at);
 *   } */
#ifndef TD_AUTOGRAD_TAPE_H
#define TD_AUTOGRAD_TAPE_H

#include "autograd/autograd.h"
#include "tensor/extern_c.h"
#include "tensor/kernels.h"

TD_BEGIN_C

enum { TD_MAX_SAVED = 6 };

typedef struct td_node td_node;
typedef void (*td_backward_fn)(td_node *node, const td_tensor *dy);

typedef struct td_record_args {
    const char *op; /* the operation's name, static */
    td_backward_fn backward;
    td_tensor *out;               /* the result */
    td_tensor *const *input_list; /* the differentiable inputs (entries may be NULL), or: */
    td_tensor *inputs[4];
    int input_count;
    td_tensor *saved[TD_MAX_SAVED]; /* what backward reads (entries may be NULL); held until it ran,
                                       and checked against in-place writes */
    int saved_count;
    const void *params; /* copied */
    size_t params_size;
} td_record_args;

/* Finishes an operation: checks the result if td_debug_nan, and writes a node if gradients are
 * enabled and an input needs them. Returns out. */
td_tensor *td_record(const td_record_args *args, td_site at);

/* ---- for backward functions ---- */

const td_tensor *td_saved(td_node *node, int i); /* fatal if written in place since; NULL if NULL */
const void *td_params_of(const td_node *node);
td_tensor *td_node_input(td_node *node, int i); /* its shape, dtype and device; data may be gone */
td_site td_node_site(const td_node *node);

typedef struct td_grad_slot {
    td_tensor *grad; /* NULL: input i wants no gradient */
    bool accumulate; /* add to it, otherwise overwrite */
} td_grad_slot;
/* Where the gradient of input i goes: a leaf's buffer, or a step tensor in the input's order. Ask
 * once per input, and write it before returning. */
td_grad_slot td_input_grad(td_node *node, int i);
bool td_input_needs_grad(const td_node *node, int i);
/* The same, for a backward that may write the gradient of input i over dy, its result's, element by
 * element: dy's own memory, if nobody else reads it and nothing has been accumulated yet. */
td_grad_slot td_input_grad_over(td_node *node, int i, const td_tensor *dy);

/* The gradient of input i is g itself (a step tensor, dy or a view of it): shared instead of copied
 * where nothing has been accumulated yet. */
void td_input_grad_is(td_node *node, int i, const td_tensor *g);

/* The same, where the input was broadcast: g is summed to the input's shape. */
void td_input_grad_sum(td_node *node, int i, const td_tensor *g);

/* ---- recomputation ---- */

/* y = fn(x, user) without a node for each operation inside: nothing of it is saved but x, and
 * backward runs fn once more, this time recording. fn must then compute the same again, from x,
 * the leaves given (all that it uses) and what user points to, which must live as long as the step.
 * Where no gradient is wanted, fn simply runs. */
typedef td_tensor *(*td_recompute_fn)(td_tensor *x, void *user);
td_tensor *td_recompute_call(td_recompute_fn fn, void *user, td_tensor *x, td_tensor *const *leaves,
                             int leaf_count, td_site at);

/* ---- checks that operations share ---- */

/* Fails unless t is not NULL and alive; op and what go into the message. */
void td_check_tensor(const td_tensor *t, const char *op, const char *what, td_site at);
/* Fails unless t is also of a float dtype that operations compute in: f32, f64 or bf16. */
void td_check_float(const td_tensor *t, const char *op, const char *what, td_site at);
/* Fails unless both are on one device and have the same dtype, or one is bf16 and the other f32. */
void td_check_mixed(const td_tensor *a, const td_tensor *b, const char *op, td_site at);
/* Fails unless both have the same dtype and device. */
void td_check_match(const td_tensor *a, const td_tensor *b, const char *op, td_site at);

TD_END_C

#endif
