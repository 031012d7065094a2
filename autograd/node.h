/* Nodes of the tape: for tape.c and backward.c alone. */
#pragma once

#include "autograd/leaf.h"
#include "autograd/tape.h"
#include "tensor/storage.h"

/* An input of a node: a gradient flows back along this edge. The header is a copy, because the
 * input's own header may be gone when backward runs. `state` leads to the node that computed the
 * input, or to the leaf that it is. The node retains a leaf's state (td_leaf_hold). */
typedef struct td_edge {
    td_tensor tensor;
    struct td_grad_state *state; /* NULL: the input wants no gradient */
} td_edge;

/* A tensor that a node has saved for its backward function. The header is a copy that no scope
 * releases. The tape retains the storage until the node has run. */
typedef struct td_saved_tensor {
    td_tensor tensor; /* storage NULL: nothing was saved here */
    uint32_t version; /* of the storage, when it was saved: a write in between raises it */
} td_saved_tensor;

/* Which inputs a node's backward gives gradients. A node that can be split may run in two passes.
 */
typedef enum td_pass {
    TD_PASS_ALL,
    TD_PASS_COMPUTED, /* only inputs that were computed */
    TD_PASS_LEAVES,   /* only leaves */
} td_pass;

/* One operation on the tape. */
struct td_node {
    td_node *previous;  /* the operation recorded before; NULL: this was the first */
    const char *op;     /* its name */
    const char *module; /* that ran the operation; NULL: none */
    td_site site;       /* the caller's file and line */
    td_backward_fn backward;
    const void *params;       /* numbers for `backward` */
    struct td_grad_state out; /* the result's: where the result's gradient is collected */
    td_edge *edges;           /* the inputs */
    td_saved_tensor *saved;
    int edge_count, saved_count;
    bool reachable; /* the loss of the running backward depends on the result */
    bool done;      /* a backward has passed the node; what the node saved is released */
    bool can_split;
    td_pass pass;
    td_node *later; /* the next node in the same td_rest */
};

/* Nodes whose second pass waits, in the order in which backward has come to them. */
struct td_rest {
    td_node *first, *last;
    bool done;
};

/* Where the gradient of input i goes in this pass; NULL: nowhere, as the input wants none or is a
 * leaf that was freed. */
struct td_grad_state *td_edge_state(const td_node *node, int i);

/* Input i. Inputs that are NULL at the end of the list have no edge: an empty one stands for them.
 */
static inline td_edge *td_edge_of(const td_node *node, int i)
{
    static td_edge none;
    return i < node->edge_count ? &node->edges[i] : &none;
}

/* A step's tape: td_step_tape(), which is NULL if nothing was recorded. */
typedef struct td_tape {
    td_node *last;
    bool running;          /* a backward is under way */
    uint64_t backward;     /* the number of that backward */
    td_rest *rest;         /* of the running backward, if it leaves something; otherwise NULL */
    int rests;             /* that have not run yet */
    struct td_tape *outer; /* NULL: this is the step's own tape. Otherwise this tape is recorded,
                              and walked, while a backward walks the outer one (recomputation) */
} td_tape;

/* td_tape_push makes a new tape the step's, with the present one as its outer tape. td_tape_pop
 * releases what is left on the new tape, and makes the outer one the step's again. */
td_tape *td_tape_push(void);
void td_tape_pop(void);

/* Sets the depth of td_no_grad_begin on this thread and returns the depth before. Recomputation
 * sets 0: its second forward is recorded even if td_backward runs under td_no_grad_begin. */
int td_no_grad_exchange(int depth);

/* Walks the step's tape backwards from its node `last`, whose result has this gradient. The walk of
 * a tape with an outer one is a part of the outer one's backward. `begun` (may be NULL) is called
 * when the uses of leaves have been counted, before the first node runs. */
void td_tape_run(td_node *last, const td_tensor *gradient, void (*begun)(void *user), void *user,
                 td_site at);

/* Releases the tensors that the node saved, and the leaves that it uses. */
void td_node_end(td_node *node);

/* Releases a step tensor's gradient. */
void td_drop_gradient(struct td_grad_state *state);

/* Tells who observes results of forward's, and under td_debug_nan fails unless all its elements are
 * finite. */
void td_check_result(const td_tensor *t, td_tensor *const *inputs, int count, const char *op,
                     td_site at);
/* The same for the gradients that a node has just written. */
void td_check_gradients(const td_node *node);
