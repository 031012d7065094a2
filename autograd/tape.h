/* The tape: what an operation needs for its backward. docs/your-own.md explains an operation of
 * your own program; docs/adding-an-op.md adds one to the library. tandem.h does not include this
 * header.
 *
 * An operation computes its result at once, into a step tensor, and calls td_record. td_record
 * writes a node onto the tape if gradients are enabled and an input needs one. td_backward calls
 * the node's backward function with the gradient of the result. The cube of x, by kernels:
 *
 *     static void cube_backward(td_node *node, const td_tensor *dy)
 *     {
 *         td_grad_slot dx = td_input_grad(node, 0);
 *         if (dx.grad != NULL) {
 *             td_kernels_of(td_device_of(dy))->unary_grad(TD_UNARY_pow, dx.grad, dy,
 *                 td_saved(node, 0), dy, 3.0, 0.0, dx.accumulate);
 *         }
 *     }
 *     td_tensor *cube_at(td_tensor *x, td_site at)
 *     {
 *         td_check_float(x, "cube", "x", at);
 *         td_tensor *y = td_step_new_like(x, at);                         (tensor/extend.h)
 *         td_kernels_of(td_device_of(x))->unary(TD_UNARY_pow, y, x, 3.0, 0.0);
 *         return TD_RECORD(at, .op = "cube", .backward = cube_backward, .out = y, .inputs = { x },
 *                          .saved = { x });
 *     }
 *     #define cube(...) cube_at(__VA_ARGS__, TD_HERE)
 *
 * Kernels take tensors of any strides and dtypes. Code that reads memory by td_data must follow the
 * strides: an input may be a view, and dy may be expanded (strides of 0). */
#pragma once

#include "autograd/autograd.h"
#include "tensor/kernels/kernels.h"

TD_BEGIN_C

enum { TD_MAX_INPUTS = 4, TD_MAX_SAVED = 6, TD_MAX_READS = 2 };

typedef struct td_node td_node;
/* Writes the gradients of the node's inputs; dy is the gradient of its result, of the same shape
 * and dtype. Compute by kernels, or by operations between td_no_grad_begin and td_no_grad_end:
 * saved tensors still need gradients. Tensors that the function makes are released when it returns,
 * except the gradients. */
typedef void (*td_backward_fn)(td_node *node, const td_tensor *dy);

typedef struct td_record_args {
    const char *op;          /* the operation's name; must be static, as messages use it later */
    td_backward_fn backward; /* NULL: the result has no gradient; only observers are called */
    td_tensor *out;          /* the result */
    td_tensor *inputs[TD_MAX_INPUTS]; /* the differentiable inputs (entries may be NULL) */
    td_tensor *const *input_list;     /* instead of inputs, if there are more: an array of them */
    int input_count;                  /* the length of input_list */
    td_tensor *saved[TD_MAX_SAVED];   /* what backward reads (entries may be NULL). The tape retains
                                         them until backward has run. Writing into one in place
                                         before that is an error that names the operation */
    td_tensor *reads[TD_MAX_READS];   /* inputs that only observers need: running statistics */
    const void *params;               /* numbers that backward needs; copied */
    size_t params_size;
    bool can_split; /* backward may run twice, and each time gives some inputs their gradients:
                       those for which td_input_needs_grad, or a slot that is not NULL, says so */
} td_record_args;

/* Ends an operation: records a node if gradients are enabled and an input needs one, and returns
 * out. Under td_set_debug_nan the result is checked first. Inputs that are not floats take no part
 * in gradients: do not list them. */
td_tensor *td_record(const td_record_args *args, td_site at);
#define TD_RECORD(at, ...) td_record(&(td_record_args){ __VA_ARGS__ }, at)
/* Among the arguments of TD_RECORD: params and params_size, of a pointer to the numbers. */
#define TD_PARAMS(...) .params = (__VA_ARGS__), .params_size = sizeof *(__VA_ARGS__)

/* For the rest of the step, on this thread: observe is called for every td_record, with or without
 * gradients; td_context_top() is the module. NULL: ends that. */
typedef void (*td_operation_fn)(const td_record_args *args, td_site at, void *user);
void td_observe_operations(td_operation_fn observe, void *user);
/* Whether operations are observed. Then fused operations run as the single operations in them. */
bool td_operations_observed(void);

/* On this thread, until it is called with fn NULL: fn gets the result of each operation (input:
 * -1), and in backward each gradient of an input that an operation has written. module NULL:
 * outside of modules. Operations run as they do otherwise. */
typedef void (*td_result_fn)(const td_tensor *t, const char *op, const char *module, int input,
                             void *user);
void td_observe_results(td_result_fn fn, void *user);

/* ---- for backward functions; i counts from 0 as in td_record_args ---- */

/* The saved tensor i, or NULL if that entry was NULL. It is a fatal error if the tensor was written
 * in place after forward. */
const td_tensor *td_saved(td_node *node, int i);
const void *td_params_of(const td_node *node);
/* Input i, for its shape, dtype and device; the data may be released already. */
td_tensor *td_node_input(td_node *node, int i);
/* Where the operation was called: pass it on as `at`. */
td_site td_node_site(const td_node *node);

/* A backward function gives input i its gradient in one of the ways below, once, and not at all if
 * the input needs none. */
bool td_input_needs_grad(const td_node *node, int i);

/* 1. The function writes the gradient into grad, which is the leaf's own gradient or a step tensor,
 * with the input's shape, dtype and strides. With accumulate, add to grad; otherwise overwrite all
 * of it. */
typedef struct td_grad_slot {
    td_tensor *grad; /* NULL: the input needs no gradient */
    bool accumulate;
} td_grad_slot;
td_grad_slot td_input_grad(td_node *node, int i);
/* The same for a function that reads each element of dy before it writes the same element of the
 * gradient: then grad may be dy's own memory, if nothing else reads dy. */
td_grad_slot td_input_grad_over(td_node *node, int i, const td_tensor *dy);

/* 2. The gradient is g: a step tensor, dy, or a view of dy, of the input's shape. g is shared, not
 * copied, if nothing has been accumulated yet, so do not write into g afterwards. */
void td_input_grad_is(td_node *node, int i, const td_tensor *g);

/* 3. The input was broadcast: g, of the result's shape, is summed to the input's shape. */
void td_input_grad_sum(td_node *node, int i, const td_tensor *g);

/* ---- leaves, and the search for NaN ---- */

bool td_grad_enabled(void); /* not between td_no_grad_begin and _end, on this thread */
bool td_is_leaf(const td_tensor *t);
bool td_needs_grad(const td_tensor *t); /* a leaf, or computed from one */
bool td_debug_nan(void);                /* what td_set_debug_nan has set */
/* Exchanges where the gradients of two tensors go, until it is called again: an operation of either
 * that is recorded in between gives its gradient to the other one. b is a view of a: so what uses a
 * leaf can be recorded as what uses a step tensor that was computed from the leaf. */
void td_exchange_gradients(td_tensor *a, td_tensor *b);

/* ---- recomputation ---- */

/* Computes y = fn(x, user) and saves only x: backward runs fn a second time, and records it then.
 * Both times fn must compute the same, only from x, from `leaves` (all leaves that it uses) and
 * from *user, which must live as long as the step. Without gradients fn simply runs. */
typedef td_tensor *(*td_recompute_fn)(td_tensor *x, void *user);
td_tensor *td_recompute_call(td_recompute_fn fn, void *user, td_tensor *x, td_tensor *const *leaves,
                             int leaf_count, td_site at);
/* Whether fn runs the second time on this thread. Then do not repeat what must happen once, for
 * example counting batches. */
bool td_recomputing(void);

/* ---- checks: op and what ("conv2d", "x") go into the message; a failure is fatal ---- */

/* t is not NULL, and its memory has not been released. */
void td_check_tensor(const td_tensor *t, const char *op, const char *what, td_site at);
/* Also, t has a float dtype that its device computes in: f32, f64, bf16; on GPUs f16. */
void td_check_float(const td_tensor *t, const char *op, const char *what, td_site at);
/* Both have the same dtype and device. */
void td_check_match(const td_tensor *a, const td_tensor *b, const char *op, td_site at);
/* Both are on one device, and have the same dtype, or one is bf16 and the other f32. */
void td_check_mixed(const td_tensor *a, const td_tensor *b, const char *op, td_site at);

TD_END_C
