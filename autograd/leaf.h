/* Autograd's part of a tensor (td_tensor.grad): for the tape and backward, not for the files of
 * operations and not for users. */
#pragma once

#include "autograd/hooks.h"

struct td_node;
typedef struct td_leaf td_leaf;

/* What a tensor that takes part in gradients carries. A leaf's is inside its td_leaf; a step
 * tensor's is in the step's small memory and goes with it. */
struct td_grad_state {
    td_leaf *leaf;        /* NULL: a step tensor */
    struct td_node *node; /* what computed it; NULL: a leaf */
    /* Step tensors only: the gradient so far. The header is the tape's own, so that no scope
     * releases it, and the tape retains the memory behind it. */
    td_tensor grad;
    bool has_grad;
    bool exclusive; /* nobody else reads that memory, and its order is the tensor's own */
    bool retain;    /* keep it after its node has used it */
};

typedef struct td_hook {
    int id;
    td_grad_ready_fn ready; /* one of the two; both NULL: removed while hooks ran */
    td_backward_end_fn end;
    void *user;
} td_hook;

typedef struct td_hook_list {
    td_hook *hooks; /* in the order in which they were added */
    int count;
    int running; /* calls of td_hooks_run under way: until they end, no hook moves */
} td_hook_list;

struct td_leaf {
    struct td_grad_state state;
    td_tensor *tensor; /* NULL: freed while the tape still had uses of it */
    int refs;          /* one for the tensor, one for each use on the tape */
    td_tensor *buffer; /* the gradient's memory; NULL: not made yet */
    bool owns_buffer;
    bool has_grad; /* the buffer holds a gradient */
    /* Of the last backward that reached the leaf: */
    uint64_t backward; /* its number */
    int pending;       /* uses whose node has not run yet */
    bool contributed;  /* a node has written into the buffer */
    td_hook_list ready;
};

/* A number that no other backward in this process has. */
uint64_t td_backward_id(void);

void td_leaf_hold(td_leaf *leaf);
void td_leaf_unhold(td_leaf *leaf);

/* The buffer, made if need be; fatal when memory is short. */
td_tensor *td_leaf_buffer(td_leaf *leaf);

/* Before the first node runs, backward counts each use of a leaf on its way. When a use's node has
 * run, td_leaf_use_done takes the use off. The last one calls the ready hooks, if anything was
 * contributed. So a weight that three layers share is ready once, after the third contribution. */
void td_leaf_count_use(td_leaf *leaf, uint64_t backward);
void td_leaf_use_done(td_leaf *leaf);

/* Calls this thread's end hooks. */
void td_leaf_backward_end(void);

/* Lists of hooks (hooks.c). Adding returns an id, or a negative status when memory is short. A hook
 * may add and remove hooks while the list runs: a hook that is added runs from the next time on, a
 * hook that is removed does not run again. leaf: for ready hooks. */
int td_hooks_add(td_hook_list *list, td_hook hook);
void td_hooks_remove(td_hook_list *list, int id);
bool td_hooks_have(const td_hook_list *list, int id);
void td_hooks_run(td_hook_list *list, td_tensor *leaf);
void td_hooks_free(td_hook_list *list);
