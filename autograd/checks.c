/* Checks that operations share, and td_set_debug_nan: the search for NaN and infinity. */
#include "autograd/node.h"

#include <stdatomic.h>
#include <stdio.h>

void td_check_tensor(const td_tensor *t, const char *op, const char *what, td_site at)
{
    TD_REQUIRE(t != NULL, at, "%s: %s is NULL: %s", op, what, td_last_reason());
    td_check_alive(t, at);
}

void td_check_float(const td_tensor *t, const char *op, const char *what, td_site at)
{
    td_check_tensor(t, op, what, at);
    bool is_cuda = td_device_of(t).type == TD_DEVICE_CUDA;
    TD_REQUIRE(t->dtype == TD_F32 || t->dtype == TD_F64 || t->dtype == TD_BF16 ||
                   (t->dtype == TD_F16 && is_cuda),
               at,
               "%s: %s is %s; operations compute in f32, f64 and bf16 (f16 on GPUs only): convert "
               "it with td_cast",
               op, what, td_describe(t));
}

static void check_device(const td_tensor *a, const td_tensor *b, const char *op, td_site at)
{
    TD_REQUIRE(td_same_device(td_device_of(a), td_device_of(b)), at,
               "%s: %s and %s are on different devices: copy one with td_clone_as", op,
               td_describe(a), td_describe(b));
}

void td_check_mixed(const td_tensor *a, const td_tensor *b, const char *op, td_site at)
{
    bool mixed = (td_is_half(a->dtype) && b->dtype == TD_F32) ||
                 (a->dtype == TD_F32 && td_is_half(b->dtype));
    TD_REQUIRE(
        a->dtype == b->dtype || mixed, at,
        "%s: %s and %s differ in dtype, and only f32 and bf16 (f16) mix: convert one with td_cast",
        op, td_describe(a), td_describe(b));
    check_device(a, b, op, at);
}

void td_check_match(const td_tensor *a, const td_tensor *b, const char *op, td_site at)
{
    TD_REQUIRE(a->dtype == b->dtype, at, "%s: %s and %s differ in dtype: convert one with td_cast",
               op, td_describe(a), td_describe(b));
    check_device(a, b, op, at);
}

/* ---- results: who observes them; NaN and infinity ---- */

static _Thread_local td_result_fn see; /* NULL: none is set */
static _Thread_local void *see_user;

void td_observe_results(td_result_fn fn, void *user)
{
    see = fn;
    see_user = user;
}

static atomic_bool debug_nan;

void td_set_debug_nan(bool on)
{
    atomic_store(&debug_nan, on);
}

bool td_debug_nan(void)
{
    return atomic_load_explicit(&debug_nan, memory_order_relaxed);
}

static bool all_finite(const td_tensor *t)
{
    return !td_is_float(t->dtype) || td_kernels_for(t)->all_finite(t);
}

void td_check_result(const td_tensor *t, td_tensor *const *inputs, int count, const char *op,
                     td_site at)
{
    if (see != NULL) {
        see(t, op, td_context_top(), -1, see_user);
    }
    if (!td_debug_nan() || all_finite(t)) {
        return;
    }
    char list[512] = "";
    size_t length = 0;
    for (int i = 0; i < count && length < sizeof list; i++) {
        if (inputs[i] != NULL) {
            int n =
                snprintf(list + length, sizeof list - length, "%s%s%s", length == 0 ? "" : ", ",
                         td_label(inputs[i]), all_finite(inputs[i]) ? "" : " (not finite itself)");
            length += n > 0 ? (size_t)n : 0;
        }
    }
    td_fatal(at, "%s: the result %s contains NaN or infinity; the inputs were %s", op,
             td_describe(t), list);
}

void td_check_gradients(const td_node *node)
{
    for (int i = 0; (see != NULL || td_debug_nan()) && i < node->edge_count; i++) {
        const struct td_grad_state *state = node->edges[i].state;
        const td_tensor *gradient = NULL;
        if (state != NULL && state->leaf == NULL) {
            gradient = state->has_grad ? &state->grad : NULL;
        } else if (state != NULL && state->leaf->tensor != NULL) {
            gradient = state->leaf->contributed ? state->leaf->buffer : NULL;
        }
        if (gradient != NULL && see != NULL) {
            see(gradient, node->op, node->module, i, see_user);
        }
        if (gradient != NULL && td_debug_nan() && !all_finite(gradient)) {
            td_fatal(node->site,
                     "%s: its backward made NaN or infinity in the gradient %s of input %d (%s); "
                     "the gradient that came in is %s%s",
                     node->op, td_describe(gradient), i, td_label(&node->edges[i].tensor),
                     td_describe(&node->out.grad),
                     all_finite(&node->out.grad) ? "" : " and not finite itself");
        }
    }
}
