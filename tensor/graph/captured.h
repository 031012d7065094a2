/* Captured steps: a training step that is recorded once as a CUDA graph, and then replayed as a
 * whole.
 *
 * For a small network the host needs longer to launch the kernels of a step than the GPU needs to
 * run them. A captured step is one launch. td_captured_run first runs a step eagerly a few times
 * (warm-up) and checks the rules: the step must allocate the same step memory each time, and the
 * host must read nothing of it. Then td_captured_run records the step, and later calls only send
 * the numbers that change (learning rates, counters of random draws) and launch the graph. A batch
 * of another shape has a warm-up and a graph of its own. On a CPU steps always run eagerly, but the
 * rules are checked there, too.
 *
 * The results of a step, such as its loss, are read later, in the order of the steps; only reading
 * waits for the GPU. One thread uses a td_captured and runs the steps. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

enum {
    TD_CAPTURED_INPUTS = 4,
    TD_CAPTURED_RESULTS = 8,
    TD_CAPTURED_FORMS = 12, /* different shapes of inputs and kinds; further ones run eagerly */
};

typedef struct td_captured td_captured;

/* The step, without td_step_begin and td_step_end. inputs are the inputs of td_captured_run, or
 * copies of them (never copies with inputs_stay). The function sets results[0..options.results-1]
 * to scalars of this step. It may decide by the inputs' shapes and by the kind of the step
 * (td_captured_run_kind), and by nothing else. All micro-batches of a step have the same shape. */
typedef td_status (*td_captured_step)(void *user, td_tensor *const *inputs, td_tensor **results);

/* For steps of several processes: all processes must replay, record or run a step eagerly together,
 * so they agree before each step. td_group_captured (dist/graph/captured.h) returns the
 * td_captured_peers of a process group. */
typedef enum td_captured_event {
    TD_CAPTURED_BEGINS,   /* a graph is about to be recorded, or launched */
    TD_CAPTURED_RECORDS,  /* recording has begun */
    TD_CAPTURED_RECORDED, /* everything is recorded, except for streams that must be joined */
    TD_CAPTURED_ENDS,     /* the recording has ended, in success or failure */
    TD_CAPTURED_LAUNCHED,
    TD_CAPTURED_READ, /* results have arrived; a failure means that they are not valid */
} td_captured_event;

typedef struct td_captured_peers {
    /* The smallest of all processes' numbers (each at least 0), and the rank that has it. */
    td_status (*least)(void *user, int mine, int *least, int *whose);
    td_status (*event)(void *user, td_captured_event event);
    void *user;
} td_captured_peers;

typedef struct td_captured_options {
    td_device device;
    td_captured_step step;
    void *user;
    const td_captured_peers *peers; /* NULL: the step uses no other process */
    bool inputs_stay;               /* inputs of one shape are the same tensors in every step, and
                                       graphs read them in place; otherwise inputs are copied */
    int results;                    /* results per step, at most TD_CAPTURED_RESULTS */
    int warmups; /* eager steps of each shape before recording; 0: 3, the smallest value */
    int depth;   /* the number of steps whose results may be unread; 0: 8 */
} td_captured_options;

/* options are copied. Free the result by td_captured_free, before the model and the optimizer that
 * the step uses, and before td_dist_destroy: NCCL keeps a communicator until the graphs with its
 * collectives are freed. An option that is out of range is a fatal error. NULL with
 * td_last_error(): memory is short. */
td_captured *td_captured_new(const td_captured_options *options);
void td_captured_free(td_captured *captured); /* NULL is fine */

/* Runs one step; with peers, all processes call it. Afterwards the results of one more step are
 * unread. inputs are on the device; you may write to them again when the call returns. Returns the
 * status of the step or of a peer. TD_E_DEVICE: recording failed. Then the device has not run the
 * step, but the host has counted it (optimizers, random draws): end the run without saving. */
td_status td_captured_run(td_captured *captured, td_tensor *const *inputs, int count);

/* Runs a step of a kind, for example one that accumulates gradients (kind 1) and one that ends with
 * td_optim_step (kind 0, which is td_captured_run's). Each kind has a warm-up and a graph of its
 * own, and the step may decide by its kind. Batches whose gradients are accumulated must have the
 * same shape. */
td_status td_captured_run_kind(td_captured *captured, int kind, td_tensor *const *inputs,
                               int count);

/* The number of steps whose results are unread. td_captured_full: that number is `depth`, so call
 * td_captured_next before the next step. */
int td_captured_waiting(const td_captured *captured);
bool td_captured_full(const td_captured *captured);

/* Waits for the oldest step whose results are unread, and writes them to results[options.results].
 * If the device found a mistake in that step (a label out of range), the fatal error comes here. */
td_status td_captured_next(td_captured *captured, double *results);

/* Drops all graphs, so that steps have a warm-up again. Call td_captured_forget when the step
 * changes (other parameters are trained, other options), and after you loaded weights or seeds.
 * Call td_zero_grad inside the step. */
void td_captured_forget(td_captured *captured);

typedef struct td_captured_stats {
    int64_t eager, recorded, replayed; /* numbers of steps; eager includes warm-up steps */
    const char *why; /* the latest reason why a step could not be captured; "": none */
} td_captured_stats;
td_captured_stats td_captured_now(const td_captured *captured);

TD_END_C
