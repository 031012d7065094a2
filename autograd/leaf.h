/* The gradient's part of a tensor (td_tensor.grad), as the tape and backward see it. Not for
 * operations' files and not for users. */
#ifndef TD_AUTOGRAD_LEAF_H
#define TD_AUTOGRAD_LEAF_H

#include "autograd/autograd.h"
#include "autograd/hooks.h"

struct td_node;
typedef struct td_leaf td_leaf;

/* What a tensor that takes part in gradients carries. A leaf's lies inside its td_leaf; a step
 * tensor's lies in the step's small memory and goes with it. */
struct td_grad_state {
    td_leaf *leaf;        /* NULL: a step tensor */
    struct td_node *node; /* what computed it; NULL: a leaf */
    /* Step tensors only: the gradient so far. It is a header of the tape's own, so that no scope
     * lets it go, over memory that the tape holds. */
    td_tensor grad;
    bool has_grad;
    bool exclusive; /* nobody else reads that memory, and it lies in the tensor's own order */
    bool retain;    /* keep it after its node has used it */
};

typedef struct td_hook {
    int id;
    td_grad_ready_fn ready; /* one of the two; both NULL: removed while hooks were running */
    td_backward_end_fn end;
    void *user;
} td_hook;

typedef struct td_hook_list {
    td_hook *hooks; /* in the order in which they were added */
    int count, capacity;
    int running; /* depth of calls under way: no hook moves meanwhile */
} td_hook_list;

struct td_leaf {
    struct td_grad_state state;
    td_tensor *tensor; /* NULL: freed while the tape still knew of it */
    int refs;          /* one for the tensor, one for each use on the tape */
    td_tensor *buffer; /* the gradient's memory; NULL: not made yet */
    bool owns_buffer;
    bool has_grad;     /* the buffer holds a gradient */
    uint64_t backward; /* the last backward that counted its uses; what follows belongs to that */
    int pending;       /* uses whose node has not run */
    bool contributed;
    td_hook_list ready;
    /* The list of leaves that have ready hooks. */
    td_leaf *next_watched, *previous_watched;
    uint64_t watcher; /* the thread that added the first hook; 0: not in the list */
};

/* A number that no other backward in this process has. */
uint64_t td_backward_id(void);

void td_leaf_hold(td_leaf *leaf);
void td_leaf_unhold(td_leaf *leaf);

/* The buffer, made if need be; fatal when memory is short. */
td_tensor *td_leaf_buffer(td_leaf *leaf);

/* Counts one use, before backward runs and after the use's node has run. The latter calls the ready
 * hooks when it was the last one and something was contributed. */
void td_leaf_count_use(td_leaf *leaf, uint64_t backward);
void td_leaf_use_done(td_leaf *leaf);

/* Calls this thread's end hooks with the leaves that got nothing in a backward. */
void td_leaf_backward_end(uint64_t backward);

/* Lists of hooks (hooks.c). Adding returns an id, or a negative status when memory is short. A hook
 * may add and remove hooks: added ones run from the next time on, removed ones no more. */
int td_hooks_add(td_hook_list *list, td_hook hook);
void td_hooks_remove(td_hook_list *list, int id);
void td_hooks_run_ready(td_hook_list *list, td_tensor *leaf);
void td_hooks_run_end(td_hook_list *list, td_tensor *const *unused, int count);
bool td_hooks_empty(const td_hook_list *list);
void td_hooks_free(td_hook_list *list);

#endif
