/* The walk from a loss to the leaves, and where gradients are written on the way. */
#include "autograd/node.h"

/* ---- gradients of a node's inputs ----
 *
 * A tensor that is used k times gets k contributions, whose sum is its gradient. A leaf's
 * contributions are written into its buffer: the first overwrites, the others add. A step tensor's
 * gradient needs memory only while backward runs, and copies are avoided where they can be:
 *   none        no contribution yet
 *   exclusive   memory of its own: later contributions are added to it in place
 *   shared      the first contribution exists already, for example as the gradient of a sum's
 *               result, which is the gradient of each summand. The state points to that memory;
 *               whoever wants to add to it makes a copy first */

/* Makes g, whose memory the tape retains, the gradient of a step tensor. */
static void set_gradient(struct td_grad_state *state, const td_tensor *g, bool exclusive)
{
    td_hold(g->storage);
    state->grad = *g;
    state->grad.let_go = false;
    state->has_grad = true;
    state->exclusive = exclusive;
}

/* Whether a gradient can be added to in place: it is exclusive, or it was shared, all others have
 * released it, and it lies in memory as a fresh one would. */
static bool can_write(const struct td_grad_state *state, const td_tensor *input)
{
    return state->exclusive || (state->grad.storage->refs == 1 && td_is_dense(input) &&
                                td_same_order(&state->grad, input));
}

static td_grad_slot leaf_slot(td_leaf *leaf)
{
    td_grad_slot slot = { td_leaf_buffer(leaf), leaf->has_grad || leaf->contributed };
    td_check_alive(slot.grad, TD_NOWHERE);
    leaf->contributed = true;
    return slot;
}

td_grad_slot td_input_grad(td_node *node, int i)
{
    const td_tensor *input = &td_edge_of(node, i)->tensor;
    struct td_grad_state *state = td_edge_state(node, i);
    if (state == NULL) {
        return (td_grad_slot){ NULL, false };
    }
    if (state->leaf != NULL) {
        return leaf_slot(state->leaf);
    }
    bool accumulate = state->has_grad;
    if (!accumulate) {
        set_gradient(state, td_step_new_like(input, node->site), true);
    } else if (!can_write(state, input)) {
        td_tensor shared = state->grad;
        set_gradient(state, td_step_new_like(input, node->site), true);
        td_kernels_for(input)->copy(&state->grad, &shared);
        td_unhold(shared.storage);
    }
    state->exclusive = true;
    return (td_grad_slot){ &state->grad, accumulate };
}

td_grad_slot td_input_grad_over(td_node *node, int i, const td_tensor *dy)
{
    const td_tensor *input = &td_edge_of(node, i)->tensor;
    struct td_grad_state *state = td_edge_state(node, i);
    bool free_to_take = state != NULL && state->leaf == NULL && !state->has_grad &&
                        dy == &node->out.grad && node->out.exclusive && !node->out.retain;
    if (!free_to_take || dy->dtype != input->dtype || !td_is_dense(input) ||
        !td_same_order(dy, input)) {
        return td_input_grad(node, i);
    }
    set_gradient(state, dy, true);
    return (td_grad_slot){ &state->grad, false };
}

void td_input_grad_is(td_node *node, int i, const td_tensor *g)
{
    struct td_grad_state *state = td_edge_state(node, i);
    if (state == NULL) {
        return;
    }
    if (state->leaf == NULL && !state->has_grad) {
        set_gradient(state, g, false);
        return;
    }
    td_grad_slot slot = td_input_grad(node, i);
    const td_kernels *kernels = td_kernels_for(g);
    if (slot.accumulate) {
        kernels->axpy(slot.grad, 1.0, g);
    } else {
        kernels->copy(slot.grad, g);
    }
}

void td_input_grad_sum(td_node *node, int i, const td_tensor *g)
{
    const td_tensor *input = &td_edge_of(node, i)->tensor;
    if (td_same_shape(input, g)) {
        td_input_grad_is(node, i, g);
        return;
    }
    td_grad_slot slot = td_input_grad(node, i);
    if (slot.grad == NULL) {
        return;
    }
    /* The kernel wants as many dimensions as g has: sizes of 1 in front stand for missing ones. */
    td_tensor sum = *slot.grad;
    int missing = g->ndim - sum.ndim;
    for (int d = g->ndim - 1; d >= 0; d--) {
        sum.shape[d] = d >= missing ? slot.grad->shape[d - missing] : 1;
        sum.stride[d] = d >= missing ? slot.grad->stride[d - missing] : 1;
    }
    sum.ndim = g->ndim;
    td_kernels_for(g)->reduce(TD_REDUCE_SUM, &sum, g, slot.accumulate);
}

/* ---- the walk ---- */

static void mark(td_node *node, td_site at)
{
    TD_REQUIRE(!node->done, at,
               "td_backward: the tape of this tensor was used up by an earlier td_backward "
               "(%s, %s:%d); run the forward again, or add the losses and call td_backward once",
               node->op, node->site.file, node->site.line);
    TD_REQUIRE(node->pass == TD_PASS_ALL, at,
               "td_backward: an earlier td_backward has left a rest of %s, %s:%d: td_backward_rest",
               node->op, node->site.file, node->site.line);
    node->reachable = true;
}

/* Marks the nodes on which the last node depends, and counts their uses of leaves. One pass
 * backwards is enough, because inputs are recorded before what is computed from them. */
static void mark_reachable(td_node *last, uint64_t id, td_site at)
{
    mark(last, at);
    for (td_node *node = last; node != NULL; node = node->previous) {
        for (int i = 0; node->reachable && i < node->edge_count; i++) {
            struct td_grad_state *state = node->edges[i].state;
            if (state != NULL && state->leaf != NULL) {
                td_leaf_count_use(state->leaf, id);
            } else if (state != NULL) {
                mark(state->node, at);
            }
        }
    }
}

/* Whether the node's leaves can wait: it also has an input that was computed. */
static bool splits(const td_node *node)
{
    bool leaf = false, computed = false;
    for (int i = 0; i < node->edge_count; i++) {
        const struct td_grad_state *state = node->edges[i].state;
        leaf = leaf || (state != NULL && state->leaf != NULL);
        computed = computed || (state != NULL && state->leaf == NULL);
    }
    return node->can_split && node->out.has_grad && leaf && computed;
}

/* The node keeps its gradient and what it has saved until its second pass. */
static void leave_for_later(td_rest *rest, td_node *node)
{
    node->pass = TD_PASS_LEAVES;
    node->reachable = false;
    *(rest->first == NULL ? &rest->first : &rest->last->later) = node;
    rest->last = node;
}

static bool is_wanted(const td_node *node)
{
    for (int i = 0; i < node->edge_count; i++) {
        if (td_edge_state(node, i) != NULL) {
            return true;
        }
    }
    return false;
}

/* A reachable node may have no gradient, if the nodes after it passed none on: it counts as zero.
 * Or all its inputs are leaves that were freed. Then its backward function does not run, but its
 * uses of leaves are done all the same. */
static void run_node(td_node *node)
{
    td_rest *rest = ((td_tape *)td_step_tape())->rest;
    node->pass = rest != NULL && splits(node) ? TD_PASS_COMPUTED : node->pass;
    if (node->out.has_grad && is_wanted(node)) {
        int64_t scope = td_scope_begin();
        if (node->module != NULL) {
            td_context_push(node->module);
        }
        td_context_push(node->op);
        td_context_push("backward");
        node->backward(node, &node->out.grad);
        td_check_gradients(node);
        td_context_pop();
        td_context_pop();
        if (node->module != NULL) {
            td_context_pop();
        }
        td_scope_end(scope, NULL);
    }
    if (node->pass == TD_PASS_COMPUTED) {
        leave_for_later(rest, node);
        return;
    }
    if (!node->out.retain) {
        td_drop_gradient(&node->out);
    }
    for (int i = 0; i < node->edge_count; i++) {
        struct td_grad_state *state = node->edges[i].state;
        if (state != NULL && state->leaf != NULL) {
            td_leaf_use_done(state->leaf);
        }
    }
    td_node_end(node);
}

void td_tape_run(td_node *last, const td_tensor *gradient, void (*begun)(void *user), void *user,
                 td_site at)
{
    td_tape *tape = td_step_tape();
    TD_REQUIRE(!tape->running, at,
               "td_backward inside a backward (from a hook); wait until it is over");
    tape->backward = tape->outer != NULL ? tape->outer->backward
                     : tape->rests > 0   ? tape->backward
                                         : td_backward_id();
    mark_reachable(last, tape->backward, at);
    tape->running = true;
    if (begun != NULL) {
        begun(user);
    }
    set_gradient(&last->out, gradient, false);
    for (td_node *node = last; node != NULL; node = node->previous) {
        if (node->reachable) {
            run_node(node);
        }
    }
    tape->running = false;
}

static void run_backward(td_node *last, const td_tensor *gradient, td_rest **rest, td_site at)
{
    td_tape *tape = td_step_tape();
    td_rest *left = rest != NULL ? td_step_bytes(sizeof *left) : NULL;
    tape->rest = left;
    td_tape_run(last, gradient, NULL, NULL, at);
    tape->rest = NULL;
    if (rest != NULL) {
        *rest = left;
        tape->rests++;
    }
    if (tape->rests == 0) { /* backward is over when none waits */
        td_leaf_backward_end();
    }
}

void td_backward_rest_at(td_rest *rest, td_site at)
{
    td_tape *tape = td_in_step() ? td_step_tape() : NULL;
    TD_REQUIRE(rest != NULL && tape != NULL && !tape->running, at,
               "td_backward_rest: there is no rest, its step is over, or a backward runs (from a "
               "hook)");
    TD_REQUIRE(!rest->done, at, "td_backward_rest: this rest has run already");
    rest->done = tape->running = true;
    for (td_node *node = rest->first, *next; node != NULL; node = next) {
        next = node->later;
        run_node(node);
    }
    tape->running = false;
    if (--tape->rests == 0) {
        td_leaf_backward_end();
    }
}

static void check_start(const td_tensor *t, td_site at)
{
    TD_REQUIRE(t != NULL, at, "td_backward: the tensor is NULL: %s", td_last_reason());
    td_check_alive(t, at);
    TD_REQUIRE(t->grad != NULL, at,
               "td_backward: %s was not computed from a leaf (td_requires_grad), or only while "
               "gradients were off (td_no_grad_begin) or through td_detach",
               td_label(t));
    TD_REQUIRE(t->grad->leaf == NULL, at,
               "td_backward: %s is a leaf, so there is nothing to walk back", td_label(t));
}

static void check_gradient(const td_tensor *t, const td_tensor *gradient, td_site at)
{
    td_check_alive(gradient, at);
    TD_REQUIRE(td_same_shape(t, gradient) && t->dtype == gradient->dtype &&
                   td_same_device(td_device_of(t), td_device_of(gradient)),
               at,
               "td_backward: %s cannot be the gradient of %s: shape, dtype and device must be the "
               "same",
               td_label(gradient), td_label(t));
}

void td_backward_at(td_backward_options options, td_site at)
{
    td_tensor *loss = options.loss;
    check_start(loss, at);
    if (options.gradient != NULL) {
        check_gradient(loss, options.gradient, at);
        run_backward(loss->grad->node, options.gradient, options.rest, at);
        return;
    }
    TD_REQUIRE(td_numel(loss) == 1, at,
               "td_backward: %s is not a scalar; reduce it (td_mean, td_sum) or give its gradient "
               "(.gradient)",
               td_label(loss));
    int64_t scope = td_scope_begin();
    td_tensor *one = td_step_new_like(loss, at);
    td_kernels_for(one)->fill(one, 1.0);
    run_backward(loss->grad->node, one, options.rest, at);
    td_scope_end(scope, NULL);
}
