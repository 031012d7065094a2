/* Recomputation (checkpointing; Chen et al. 2016): a stretch of the forward leaves one node on the
 * tape, which keeps the input alone. In backward the stretch runs again, on a tape of its own, and
 * that tape is walked at once. The gradient of the input goes straight to where it would have gone,
 * contribution by contribution, so sums are formed in the same order and the bits are the same. */
#include "autograd/node.h"

typedef struct recompute_params {
    td_recompute_fn fn;
    void *user;
} recompute_params;

/* The inner tape has counted its uses of leaves. Until now the outer node's uses stood for them, so
 * that no leaf was ready too early; these are done now. So ready hooks run while the inner tape is
 * walked, not after it. */
static void release_leaves(void *outer)
{
    td_node *node = outer;
    for (int i = 0; i < node->edge_count; i++) {
        struct td_grad_state *state = node->edges[i].state;
        if (state != NULL && state->leaf != NULL) {
            node->edges[i].state = NULL;
            td_leaf_use_done(state->leaf);
            td_leaf_unhold(state->leaf);
        }
    }
}

bool td_recomputing(void)
{
    const td_tape *tape = td_step_tape();
    return tape != NULL && tape->outer != NULL && !tape->running;
}

/* Runs the stretch again, recording. Tensors made on the way are released, but for saved ones. */
static td_node *run_again(td_node *node)
{
    const recompute_params *params = td_params_of(node);
    td_tensor x = *td_saved(node, 0);
    int64_t scope = td_scope_begin();
    int depth = td_no_grad_exchange(0);
    td_tensor *y = params->fn(&x, params->user);
    td_no_grad_exchange(depth);
    td_node *last = y->grad != NULL ? y->grad->node : NULL;
    td_scope_end(scope, NULL);
    return last;
}

static void recompute_backward(td_node *node, const td_tensor *dy)
{
    td_tape_push();
    td_node *last = run_again(node);
    if (last != NULL) {
        td_tape_run(last, dy, release_leaves, node, td_node_site(node));
    }
    td_tape_pop();
}

static bool wants_gradient(const td_tensor *x, td_tensor *const *leaves, int leaf_count)
{
    bool wanted = x->grad != NULL;
    for (int i = 0; i < leaf_count; i++) {
        wanted |= leaves[i]->grad != NULL;
    }
    return wanted && td_grad_enabled();
}

td_tensor *td_recompute_call(td_recompute_fn fn, void *user, td_tensor *x, td_tensor *const *leaves,
                             int leaf_count, td_site at)
{
    td_check_alive(x, at);
    if (!wants_gradient(x, leaves, leaf_count)) {
        return fn(x, user);
    }
    td_no_grad_begin();
    td_tensor *y = fn(x, user);
    td_no_grad_end();
    if (y == x || y->step == 0) {
        return y; /* nothing was computed: fn returns its input, or a parameter */
    }
    td_tensor **inputs = td_step_bytes((size_t)(leaf_count + 1) * sizeof(td_tensor *));
    inputs[0] = x;
    for (int i = 0; i < leaf_count; i++) {
        inputs[i + 1] = leaves[i];
    }
    return TD_RECORD(at, .op = "recompute", .backward = recompute_backward, .out = y,
                     .input_list = inputs, .input_count = leaf_count + 1, .saved = { x },
                     TD_PARAMS(&(recompute_params){ fn, user }));
}
