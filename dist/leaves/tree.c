/* The tree in which leaves are added: a range of leaves is split at its middle. */
#include "dist/leaves/tree.h"

#include "tensor/kernels/kernels.h"

/* Whether [a, b) and [b, c) are the halves of a node. */
static bool are_halves(int leaves, int a, int b, int c)
{
    int low = 0, high = leaves;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (a == low && b == middle && c == high) {
            return true;
        }
        if (c <= middle) {
            high = middle;
        } else if (a >= middle) {
            low = middle;
        } else {
            return false;
        }
    }
    return false;
}

static bool is_leaf(const td_leaf_node *n)
{
    return n->end - n->begin == 1;
}

/* td_all_reduce rounds the product of each term with 1 / ranks, and then the sum; so does this, in
 * two passes over elements that fit into a processor's cache together. */
static void leaf_add(td_tensor *x, const td_leaf_node *nx, td_tensor *y, const td_leaf_node *ny,
                     int leaves)
{
    enum { CHUNK = 1 << 16 };
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    double scale = 1.0 / leaves;
    int64_t count = td_numel(x), chunk = td_device_of(x).type == TD_DEVICE_CPU ? CHUNK : count;
    for (int64_t begin = 0; begin < count; begin += chunk) {
        int64_t here = count - begin < chunk ? count - begin : chunk;
        td_tensor to = td_ddp_stretch(x, begin, here), from = td_ddp_stretch(y, begin, here);
        if (is_leaf(nx)) {
            kernels->unary(TD_UNARY_mul_scalar, &to, &to, scale, 0.0);
        }
        if (is_leaf(ny)) {
            kernels->unary(TD_UNARY_mul_scalar, &from, &from, scale, 0.0);
        }
        kernels->axpy(&to, 1.0, &from);
    }
}

void td_leaf_push(td_leaf_stack *s, int leaves, td_leaf_node n, td_leaf_at_fn at, const void *user)
{
    TD_REQUIRE(s->count < TD_LEAF_DEPTH, TD_HERE, "leaves: no room for another node");
    s->list[s->count++] = n;
    while (s->count > 1) {
        td_leaf_node *x = &s->list[s->count - 2], *y = &s->list[s->count - 1];
        if (x->end != y->begin || !are_halves(leaves, x->begin, x->end, y->end)) {
            return;
        }
        if (at != NULL) {
            td_tensor to = at(user, x->place), from = at(user, y->place);
            leaf_add(&to, x, &from, y, leaves);
        }
        x->end = y->end;
        s->count--;
    }
}

int td_leaf_free_place(const td_leaf_stack *s)
{
    int place = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->list[i].place == place) {
            place++;
            i = -1; /* look at all again */
        }
    }
    return place;
}
