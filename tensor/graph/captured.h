/* A training step that is done by the device alone: recorded once, then replayed as a whole.
 *
 * The host needs longer to ask for the kernels of a small net's step than a GPU to run them. So a
 * step is done a few times as ever (rehearsed) and watched: it must take the same step memory each
 * time, and the host may read nothing of it. Then it is recorded as a CUDA graph, and from there on
 * each step is one call: the numbers that change (learning rates, counts of draws) are sent, the
 * graph is launched. A batch of another shape is rehearsed, and recorded, for itself. Where there
 * is nothing to record (a CPU), the rules are checked all the same.
 *
 * What the step gives, its loss say, comes later: results are read in the order of the steps, and
 * only reading waits. Used by one thread, on which the steps run. */
#ifndef TD_TENSOR_CAPTURED_H
#define TD_TENSOR_CAPTURED_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

enum {
    TD_CAPTURED_INPUTS = 4,
    TD_CAPTURED_RESULTS = 8,
    TD_CAPTURED_FORMS = 12, /* shapes of inputs, and kinds; steps of further ones are as ever */
};

typedef struct td_captured td_captured;

/* The step, without td_step_begin and td_step_end. inputs are those of td_captured_run, or copies
 * of them (inputs_stay: never copies). results: of options.results, scalars of this step, to be
 * set. Its decisions may depend on the inputs' shapes alone, and on its kind
 * (td_captured_run_kind). */
typedef td_status (*td_captured_step)(void *user, td_tensor *const *inputs, td_tensor **results);

/* What a step does together with other processes must be done by all of them in the same way: they
 * agree before each step whether it is replayed, recorded or done as ever. dist has one for its
 * groups (td_group_captured). */
typedef enum td_captured_event {
    TD_CAPTURED_BEGINS,   /* a graph is about to be recorded, or launched */
    TD_CAPTURED_RECORDS,  /* from now on */
    TD_CAPTURED_RECORDED, /* but for what must be joined */
    TD_CAPTURED_ENDS,     /* the recording is over, well or not */
    TD_CAPTURED_LAUNCHED,
    TD_CAPTURED_READ, /* results have come; a failure says that they are none */
} td_captured_event;

typedef struct td_captured_peers {
    /* The least of all processes' numbers (at least 0), and whose it is. */
    td_status (*least)(void *user, int mine, int *least, int *whose);
    td_status (*event)(void *user, td_captured_event event);
    void *user;
} td_captured_peers;

typedef struct td_captured_options {
    td_device device;
    td_captured_step step;
    void *user;
    const td_captured_peers *peers; /* NULL: the step is this process's alone */
    bool inputs_stay;               /* inputs of a shape are the same tensors in every step, and
                                       graphs read them there; otherwise they are copied first */
    int results;
    int rehearsals; /* of each shape; 0: 3, which is also the least */
    int depth;      /* so many steps' results may be waiting; 0: 8 */
} td_captured_options;

/* NULL with td_last_error(). What the step uses (model, optimizer) must live until it is freed. */
td_captured *td_captured_new(const td_captured_options *options);
void td_captured_free(td_captured *captured); /* NULL is fine */

/* One step (with peers: in all processes); as many results are waiting afterwards as before and one
 * more. inputs lie on the device, and may be written again when it returns. TD_E_DEVICE: recording
 * failed, and the device has not done the step, while the host has counted it (optimizers, draws):
 * end the run, and save nothing of it; or what the step itself, or a peer, has returned. */
td_status td_captured_run(td_captured *captured, td_tensor *const *inputs, int count);

/* The same where steps of several kinds (0: td_captured_run's) take turns, some that add to the
 * gradients, say, and one that ends with the optimizer's. Each kind is rehearsed and recorded for
 * itself, and what the step decides may depend on it. Where gradients are added up they are those
 * of batches of one shape, but for their number. */
td_status td_captured_run_kind(td_captured *captured, int kind, td_tensor *const *inputs,
                               int count);

/* Steps whose results have not been read; when there are `depth`, the next step needs a reading
 * first. */
int td_captured_waiting(const td_captured *captured);
bool td_captured_full(const td_captured *captured);

/* The results of the oldest such step; waits for it. What the device has found wrong in it (a label
 * that is out of range) is a programming mistake told here. */
td_status td_captured_next(td_captured *captured, double *results);

/* Recordings are thrown away, and steps are rehearsed again: call it when the step itself changes
 * (other parameters are trained, other options), and after weights and seeds were loaded.
 * td_zero_grad belongs inside the step. */
void td_captured_forget(td_captured *captured);

typedef struct td_captured_figures {
    int64_t rehearsed, recorded,
        replayed;    /* steps; "rehearsed" includes all that were done as ever */
    const char *why; /* "" or what has kept a step from being captured, the latest */
} td_captured_figures;
td_captured_figures td_captured_now(const td_captured *captured);

TD_END_C

#endif
