/* Leaves, seen from inside:
 *   leaves.h  the public header
 *   leaves.c  td_leaves, and a step: one leaf after another
 *   tree.c    the tree in which leaves are added
 *   whole.c   every rank has whole gradients: ranks add nodes of the tree
 *   dealt.c   each rank has its window of the gradients, and adds its pieces of all leaves
 *   batch.c   which samples are a leaf's
 *
 * The tree of 8 leaves; a range of leaves is split at its middle, as td_all_reduce splits a range
 * of ranks. Of three ranks the first has the leaves 0 and 1, the next 2 to 4, the last 5 to 7:
 *
 *                 [0,8)
 *              /         \
 *         [0,4)           [4,8)          each rank adds the nodes in its own range:
 *         /   \           /   \              rank 0: [0,2)
 *     [0,2)  [2,4)    [4,6)  [6,8)           rank 1: [2,4) 4
 *      / \    / \      / \    / \            rank 2: 5 [6,8)
 *     0   1  2   3    4   5  6   7       which the ranks add together */
#pragma once

#include "dist/ddp/ddp.h"
#include "dist/leaves/leaves.h"
#include "nn/params.h"

/* ---- the tree ---- */

/* A sum of the leaves [begin, end). */
typedef struct td_leaf_node {
    int begin, end;
    int place; /* which of the memories of a stack has it */
} td_leaf_node;

/* The largest nodes of which all leaves are there, in the order of leaves. A range of 2^16 leaves
 * can be cut into 2 * 16 nodes. */
enum { TD_LEAF_DEPTH = 34 };
typedef struct td_leaf_stack {
    td_leaf_node list[TD_LEAF_DEPTH];
    int count;
} td_leaf_stack;

/* The gradients at a place, by value. */
typedef td_tensor (*td_leaf_at_fn)(const void *user, int place);

/* Pushes a node; while the two on top are the halves of a node, adds the second to the first. A
 * leaf's gradients are first multiplied by 1 / leaves. at NULL: only says which nodes there will
 * be. */
void td_leaf_push(td_leaf_stack *s, int leaves, td_leaf_node n, td_leaf_at_fn at, const void *user);

/* The first place that no node of a stack has. */
int td_leaf_free_place(const td_leaf_stack *s);

/* ---- a model's leaves ---- */

/* Of a Dropout: its forwards before the step, and in a leaf. */
typedef struct td_leaf_draw {
    uint64_t before, calls;
} td_leaf_draw;

typedef struct td_leaves {
    td_ddp_part part; /* first */
    td_ddp_state *ddp;
    const struct td_leaf_way *way;
    void *gradients; /* the way's state */
    int count, ranks, rank;
    int turn;            /* of this rank's leaves in a step: the running one; -1: none runs */
    bool reduced;        /* backward of the running leaf has reduced the gradients */
    int parts, *part_of; /* parts of the model, and which one has a parameter */
    bool *seen;          /* of each parameter: a leaf of this step has given it a gradient */
    td_leaf_draw *draws; /* of each Dropout */
} td_leaves;

/* Where leaves are, and how ranks add their gradients. */
typedef struct td_leaf_way {
    /* Leaves that a rank runs in a step, and the turn-th of them; may be `count` or more. */
    int (*turns)(const td_leaves *v, int rank);
    int (*leaf)(const td_leaves *v, int rank, int turn);
    bool dealt; /* each leaf's backward reduces; otherwise the last one of a step */
    td_status (*open)(td_leaves *v);
    void (*close)(td_leaves *v);
    td_status (*average)(td_leaves *v, td_ddp_unit *u); /* td_reducer.average */
    /* Gets DDP's events. */
    td_status (*on)(td_leaves *v, td_ddp_event event, td_ddp_unit *unit);
    /* Before and after a backward; NULL if dealt. */
    td_status (*begin_step)(td_leaves *v, int open);
    void (*begin)(td_leaves *v, td_ddp_pass pass);
    void (*end)(td_leaves *v, td_ddp_pass pass);
} td_leaf_way;

extern const td_leaf_way td_leaf_whole, td_leaf_dealt;

td_leaves *td_leaves_of(const td_ddp_state *s);
td_leaves *td_leaves_required(const td_module *net, const char *what); /* fatal without leaves */
/* The running leaf. */
int td_leaf_number(const td_leaves *v);
bool td_leaf_is_last(const td_leaves *v); /* of this rank's in a step */
