/* Recording: an operation writes a node onto the tape for backward. The tape is a list of nodes,
 * the latest first: an input is recorded before what is computed from it, so this order is already
 * the order in which backward runs. A node and its arrays lie in the step's small memory, so
 * recording never calls malloc, and the end of the step frees all nodes at once. */
#include "autograd/node.h"
#include "tensor/hooks.h"

#include <string.h>

static _Thread_local int no_grad_depth;

bool td_grad_enabled(void)
{
    return no_grad_depth == 0;
}

static void end_no_grad(void)
{
    no_grad_depth = 0;
}

void td_no_grad_begin(void)
{
    td_on_abandon(end_no_grad);
    no_grad_depth++;
}

void td_no_grad_end_at(td_site at)
{
    TD_REQUIRE(no_grad_depth > 0, at, "td_no_grad_end without a td_no_grad_begin on this thread");
    no_grad_depth--;
}

int td_no_grad_exchange(int depth)
{
    int old = no_grad_depth;
    no_grad_depth = depth;
    return old;
}

/* ---- the tape of a step ---- */

void td_drop_gradient(struct td_grad_state *state)
{
    if (state->has_grad) {
        td_unhold(state->grad.storage);
        state->has_grad = false;
    }
}

void td_node_end(td_node *node)
{
    for (int i = 0; i < node->saved_count; i++) {
        if (node->saved[i].tensor.storage != NULL) {
            td_unhold(node->saved[i].tensor.storage);
        }
    }
    for (int i = 0; i < node->edge_count; i++) {
        struct td_grad_state *state = node->edges[i].state;
        if (state != NULL && state->leaf != NULL) {
            td_leaf_unhold(state->leaf);
        }
    }
    node->done = true;
    node->reachable = false;
}

/* The step is over: releases what no backward has used, and gradients kept by td_retain_grad. */
static void end_nodes(const td_tape *tape)
{
    for (td_node *node = tape->last; node != NULL; node = node->previous) {
        if (!node->done) {
            td_node_end(node);
        }
        td_drop_gradient(&node->out);
    }
}

static void end_tape(void *innermost)
{
    for (const td_tape *tape = innermost; tape != NULL; tape = tape->outer) {
        end_nodes(tape);
    }
}

td_tape *td_tape_push(void)
{
    td_tape *tape = td_step_bytes(sizeof *tape);
    tape->outer = td_step_tape();
    td_step_set_tape(tape, end_tape);
    return tape;
}

void td_tape_pop(void)
{
    const td_tape *tape = td_step_tape();
    end_nodes(tape);
    td_step_set_tape(tape->outer, end_tape);
}

static td_tape *begin_tape(void)
{
    td_tape *tape = td_step_tape();
    if (tape == NULL) {
        tape = td_step_bytes(sizeof *tape);
        td_step_set_tape(tape, end_tape);
    }
    return tape;
}

/* ---- recording ---- */

static _Thread_local struct {
    td_operation_fn observe;
    void *user;
    uint64_t step; /* 0: no observer */
} observer;

void td_observe_operations(td_operation_fn observe, void *user)
{
    observer.observe = observe;
    observer.user = user;
    observer.step = observe != NULL ? td_step_number() : 0;
}

bool td_operations_observed(void)
{
    return observer.step != 0 && observer.step == td_step_number();
}

/* The length of the list without the NULLs at its end. */
static int count_given(td_tensor *const *tensors, int count)
{
    while (count > 0 && tensors[count - 1] == NULL) {
        count--;
    }
    return count;
}

static bool wants_node(const td_record_args *args, td_tensor *const *inputs, int count)
{
    for (int i = 0; i < count && args->backward != NULL; i++) {
        if (inputs[i] != NULL && inputs[i]->grad != NULL) {
            return td_grad_enabled();
        }
    }
    return false;
}

/* A node with room for its edges, saved tensors and parameters, all in one piece. */
static td_node *new_node(const td_record_args *args, int input_count)
{
    enum { ALIGN = 16 };
    size_t edges = (sizeof(td_node) + ALIGN - 1) / ALIGN * ALIGN;
    int saved_count = count_given(args->saved, TD_MAX_SAVED);
    size_t saved = edges + (size_t)input_count * sizeof(td_edge);
    size_t params = saved + (size_t)saved_count * sizeof(td_saved_tensor);
    params = (params + ALIGN - 1) / ALIGN * ALIGN;
    char *memory = td_step_bytes(params + args->params_size);
    td_node *node = (void *)memory;
    node->edges = (void *)(memory + edges);
    node->saved = (void *)(memory + saved);
    node->edge_count = input_count;
    node->saved_count = saved_count;
    if (args->params_size > 0) {
        node->params = memcpy(memory + params, args->params, args->params_size);
    }
    return node;
}

static void add_edge(td_edge *edge, const td_tensor *input)
{
    if (input == NULL) {
        return;
    }
    edge->tensor = *input;
    edge->state = input->grad;
    if (edge->state != NULL && edge->state->leaf != NULL) {
        td_leaf_hold(edge->state->leaf);
    }
}

static void save(td_saved_tensor *saved, const td_tensor *t)
{
    if (t == NULL) {
        return;
    }
    saved->tensor = *t;
    saved->tensor.let_go = false;
    saved->version = t->storage->version;
    td_hold(t->storage);
}

td_tensor *td_record(const td_record_args *args, td_site at)
{
    td_tensor *out = args->out;
    bool listed = args->input_list != NULL;
    td_tensor *const *inputs = listed ? args->input_list : args->inputs;
    int count = listed ? args->input_count : count_given(args->inputs, TD_MAX_INPUTS);
    td_check_result(out, inputs, count, args->op, at);
    if (td_operations_observed()) {
        observer.observe(args, at, observer.user);
    }
    if (!wants_node(args, inputs, count)) {
        return out;
    }
    TD_REQUIRE(out->step != 0, at,
               "%s: the result %s is a persistent tensor; the result of an operation is a step "
               "tensor (td_step_new, td_step_view)",
               args->op, td_label(out));
    td_tape *tape = begin_tape();
    td_node *node = new_node(args, count);
    node->op = args->op;
    node->module = td_context_top();
    node->site = at;
    node->backward = args->backward;
    node->can_split = args->can_split;
    for (int i = 0; i < count; i++) {
        add_edge(&node->edges[i], inputs[i]);
    }
    for (int i = 0; i < node->saved_count; i++) {
        save(&node->saved[i], args->saved[i]);
    }
    node->out.node = node;
    node->previous = tape->last;
    tape->last = node;
    out->grad = &node->out;
    return out;
}

/* ---- what backward functions read ---- */

const td_tensor *td_saved(td_node *node, int i)
{
    if (i >= node->saved_count || node->saved[i].tensor.storage == NULL) {
        return NULL;
    }
    const td_saved_tensor *saved = &node->saved[i];
    TD_REQUIRE(saved->tensor.storage->version == saved->version, node->site,
               "backward: %s, saved by %s, was written in place since; write into a copy, or after "
               "td_backward",
               td_label(&saved->tensor), node->op);
    return &saved->tensor;
}

const void *td_params_of(const td_node *node)
{
    return node->params;
}

td_tensor *td_node_input(td_node *node, int i)
{
    return &td_edge_of(node, i)->tensor;
}

td_site td_node_site(const td_node *node)
{
    return node->site;
}

struct td_grad_state *td_edge_state(const td_node *node, int i)
{
    struct td_grad_state *state = td_edge_of(node, i)->state;
    const td_leaf *leaf = state != NULL ? state->leaf : NULL;
    td_pass pass = leaf != NULL ? TD_PASS_LEAVES : TD_PASS_COMPUTED;
    bool freed = leaf != NULL && leaf->tensor == NULL;
    return !freed && (node->pass == TD_PASS_ALL || node->pass == pass) ? state : NULL;
}

bool td_input_needs_grad(const td_node *node, int i)
{
    return td_edge_state(node, i) != NULL;
}
