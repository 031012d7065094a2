/* Sequential: one module after the other. */
#include "nn/internal.h"

/* Whether child i is of a kind, and nothing is around it: then it may be fused. */
static bool is_child(const td_module *self, int i, bool (*of_kind)(const td_module *))
{
    return i < self->child_count && of_kind(self->children[i]) &&
           !td_is_surrounded(self->children[i]);
}

static bool is_max_pool2d(const td_module *m)
{
    return td_max_pool2d_window(m) != NULL;
}

/* Runs child i, fused with those after it if possible. Returns the index of the next child. */
static int run_children(td_module *self, int i, td_tensor **x, td_site at)
{
    td_module **child = self->children;
    bool conv = is_child(self, i, td_is_conv2d) && is_child(self, i + 1, td_is_batch_norm2d);
    int bn = conv ? i + 1 : i;
    if (!is_child(self, bn, td_is_batch_norm2d)) {
        *x = td_forward_at(child[i], *x, at);
        return i + 1;
    }
    td_norm_activation activation =
        bn + 1 < self->child_count ? td_activation_of(child[bn + 1]) : TD_NORM_LINEAR;
    if (!conv) {
        *x = td_nn_batch_norm2d_fused(child[bn], *x, NULL, activation, at);
    } else {
        bool pool = activation == TD_NORM_RELU && is_child(self, bn + 2, is_max_pool2d);
        td_nn_batch_norm_then then = { .activation = activation,
                                       .max_pool = pool ? child[bn + 2] : NULL };
        *x = td_nn_conv2d_batch_norm(child[i], child[bn], *x, &then, at);
        if (pool) {
            return bn + 3;
        }
    }
    return bn + 1 + (activation != TD_NORM_LINEAR);
}

static td_tensor *sequential_forward(td_module *self, td_tensor *x, td_site at)
{
    const td_tensor *input = x;
    int64_t scope = td_scope_begin();
    for (int i = 0; i < self->child_count;) {
        i = run_children(self, i, &x, at);
        td_scope_keep(scope, x);
    }
    td_scope_end(scope, x == input ? NULL : x);
    return x;
}

/* Children that are fused with the next one have the same result alone. */
static int sequential_chain(td_module *self, td_chain_link *links)
{
    int count = 0;
    for (int i = 0; i < self->child_count; i++) {
        count += td_module_chain(self->children[i], links != NULL ? links + count : NULL);
    }
    return count;
}

static const td_module_type sequential_type = { .name = "Sequential",
                                                .forward = sequential_forward,
                                                .chain = sequential_chain };

bool td_takes_indices(const td_module *m)
{
    bool asks_child = m->type == &sequential_type && m->child_count > 0;
    return asks_child ? td_takes_indices(m->children[0]) : m->type->takes_indices;
}

td_module *td_nn_sequential_at(td_module *const *children, int count, td_site at)
{
    td_module *m = td_module_new(&sequential_type, 0);
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        td_module_add_at(m, name, children[i], at);
    }
    return td_module_finish(m);
}
