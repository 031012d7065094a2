/* Nodes of the tape: for tape.c and backward.c alone. */
#ifndef TD_AUTOGRAD_NODE_H
#define TD_AUTOGRAD_NODE_H

#include "autograd/leaf.h"
#include "autograd/tape.h"
#include "tensor/storage.h"

/* An input of a node. The header is a copy: the tensor's own may be gone when backward runs. */
typedef struct td_edge {
    td_tensor tensor;
    struct td_grad_state *state; /* NULL: wants no gradient. A leaf's is held by td_leaf_hold. */
} td_edge;

/* What a node saved. The header is a copy that no scope lets go; its storage is held by the tape
 * until the node has run. */
typedef struct td_saved_tensor {
    td_tensor tensor; /* storage NULL: nothing was saved here */
    uint32_t version; /* the storage's, when it was saved */
} td_saved_tensor;

struct td_node {
    td_node *previous; /* in the order of recording */
    const char *op;
    const char *module; /* what was running then; NULL: nothing */
    td_site site;
    td_backward_fn backward;
    const void *params;
    struct td_grad_state out; /* hangs on the result */
    td_edge *edges;
    td_saved_tensor *saved;
    int edge_count, saved_count;
    bool reachable; /* the loss under way depends on it */
    bool done;      /* it has run, or nothing came to it; what it saved is given back */
};

/* Input i; without a tensor behind the last input that was given. */
static inline td_edge *td_edge_of(const td_node *node, int i)
{
    static td_edge none;
    return i < node->edge_count ? &node->edges[i] : &none;
}

/* A step's tape; hangs on the step. */
typedef struct td_tape {
    td_node *last;
    bool running;          /* a backward is under way */
    uint64_t backward;     /* its number */
    struct td_tape *outer; /* NULL: the step's own. Another: this one is recorded, and used up,
                              while that one's backward runs (extra/) */
} td_tape;

/* The running step's tape, NULL if nothing was recorded. */
td_tape *td_tape_of_step(void);

/* Makes a new tape the step's, inside of the one that is; and ends it: what is left on it is given
 * back, and the one outside is the step's again. */
td_tape *td_tape_push(void);
void td_tape_pop(void);

/* Whether gradients are enabled on this thread, for the time of a rerun: the depth of
 * td_no_grad_begin is exchanged. */
int td_no_grad_exchange(int depth);

/* Walks the step's tape backwards from its node `last`, whose result has this gradient. For a tape
 * inside another: as part of that one's backward. `begun` (may be NULL) is called when the uses of
 * leaves have been counted, before the first node runs. */
void td_tape_run(td_node *last, const td_tensor *gradient, void (*begun)(void *user), void *user,
                 td_site at);

/* Gives back what the node saved, and its uses of leaves. */
void td_node_end(td_node *node);

/* Lets go of a step tensor's gradient. */
void td_drop_gradient(struct td_grad_state *state);

/* td_debug_nan: fails unless all elements of a result are finite. */
void td_check_result(const td_tensor *t, td_tensor *const *inputs, int count, const char *op,
                     td_site at);
/* The same for the gradients that a node has just written. */
void td_check_gradients(const td_node *node);

#endif
