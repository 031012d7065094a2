/* Gradients.
 *
 * Operations (autograd/ops.h) run at once. If an input needs a gradient, the operation is also
 * recorded in a list, the tape (PyTorch: the autograd graph): its inputs, its result, and what
 * backward needs. td_backward walks the tape from the loss back to the parameters.
 *
 * A leaf is a persistent tensor with td_requires_grad, for example a parameter. Its gradient is a
 * persistent tensor of the same shape, dtype and strides; td_backward adds to it until
 * td_zero_grad.
 *
 * For operations of your own: autograd/tape.h. To run a function when a gradient is ready:
 * autograd/hooks.h. To check gradients numerically: autograd/gradcheck.h. */
#pragma once

#include "autograd/attention.h"
#include "autograd/losses.h"
#include "autograd/norms.h"
#include "autograd/ops.h"
#include "autograd/windows.h"

TD_BEGIN_C

/* on = true: a persistent float tensor without gaps in memory becomes a leaf, and gets gradients.
 * on = false: the tensor gets no gradients any more. */
void td_requires_grad_at(td_tensor *t, bool on, td_site at);

/* The gradient of a leaf, or NULL if it has none yet. A step tensor has a gradient only
 * if td_retain_grad was called on it before td_backward; that gradient lasts until the step ends.
 */
td_tensor *td_grad_at(const td_tensor *t, td_site at);
void td_retain_grad_at(td_tensor *t, td_site at);

typedef struct td_rest td_rest; /* what a backward in two halves has left for later */

typedef struct td_backward_options {
    int begin_; /* set by the macro; arguments without a name fill the next fields, in order */
    td_tensor *loss;
    const td_tensor *gradient; /* the gradient to start with, of loss's shape, dtype and device.
                                  NULL: 1, for a loss of one element */
    td_rest **rest; /* not NULL: td_backward leaves the gradients of weights of linear, conv2d and
                       matmul for td_backward_rest (autograd/hooks.h) */
} td_backward_options;
/* td_backward(loss): computes the gradient of loss, a scalar, with respect to every leaf on which
 * it depends, and adds that to the leaf's gradient. Call it once per forward: td_backward uses the
 * tape up, and releases what the tape has saved. td_backward(t, .gradient = g) starts from a tensor
 * of any shape. */
void td_backward_at(td_backward_options options, td_site at);
/* Between begin and end, on this thread, operations are not recorded. Nests. */
void td_no_grad_begin(void);
void td_no_grad_end_at(td_site at);

/* Checks every result, forward and backward, for NaN and infinity. The first bad one stops the
 * program with the operation, its inputs and the module. Slow. For the whole process. */
void td_set_debug_nan(bool on);

TD_END_C

#define td_requires_grad(...) td_requires_grad_at(__VA_ARGS__, TD_HERE)
#define td_grad(...) td_grad_at(__VA_ARGS__, TD_HERE)
#define td_retain_grad(...) td_retain_grad_at(__VA_ARGS__, TD_HERE)
#define td_backward(...) TD_CALL(td_backward, TD_OPT1(loss, __VA_ARGS__))
#define td_no_grad_end() td_no_grad_end_at(TD_HERE)
