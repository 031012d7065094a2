/* Recomputation by module: what a module does besides computing (dropout's counting, running
 * statistics) must happen once, and the second forward must draw what the first one drew. */
#include "nn/internal.h"

#include "autograd/tape.h"

#include <string.h>

static td_tensor *run_again(const td_around_rest *rest, td_tensor *x, void *user);

void td_recompute(td_module *m, bool on)
{
    TD_REQUIRE(m != NULL, TD_HERE, "td_recompute: the module is NULL: its constructor failed (%s)",
               td_last_reason());
    bool was = td_node_of(m)->recompute;
    td_node_of(m)->recompute = on;
    if (on && !was && m->child_count > 0) { /* others have nothing to save */
        td_around around = { .run = run_again, .copies = true, .inside = true };
        TD_REQUIRE(td_module_surround(m, &around) == TD_OK, TD_HERE, "%s", td_last_error());
    } else if (!on) {
        td_module_unsurround(m, run_again, NULL);
    }
}

/* One stretch of a forward; lives as long as the step. */
typedef struct stretch {
    td_around_rest rest;
    td_tensor *(*forward)(td_module *self, td_tensor *x, td_site at); /* NULL: the rest */
    td_module *const *parts;
    int part_count;
    td_math math;
    int runs;
    uint64_t *calls; /* of each Dropout in the parts, before the first run */
    int dropout_count;
    td_tensor **leaves;
    int leaf_count;
} stretch;

/* Counts a module's Dropout and leaves and, where there is room for them, lists them. */
static void list_module(stretch *s, td_module *m)
{
    const td_dropout_place *place = td_dropout_place_of(m);
    if (place != NULL && s->calls != NULL) {
        s->calls[s->dropout_count] = place->calls;
    }
    s->dropout_count += place != NULL;
    for (int i = 0; i < m->tensor_count; i++) {
        td_tensor *t = m->tensors[i].tensor;
        if (td_is_leaf(t) && s->leaves != NULL) {
            s->leaves[s->leaf_count] = t;
        }
        s->leaf_count += td_is_leaf(t);
    }
}

static void list_modules(stretch *s)
{
    s->dropout_count = s->leaf_count = 0;
    for (int i = 0; i < s->part_count; i++) {
        for (td_module *m = s->parts[i]; m != NULL; m = td_module_next(s->parts[i], m)) {
            list_module(s, m);
        }
    }
}

/* Exchanges the counts of the parts' Dropouts with those in s->calls. */
static void exchange_places(const stretch *s)
{
    uint64_t *calls = s->calls;
    for (int i = 0; i < s->part_count; i++) {
        for (td_module *m = s->parts[i]; m != NULL; m = td_module_next(s->parts[i], m)) {
            td_dropout_place *place = td_dropout_place_of(m);
            if (place != NULL) {
                uint64_t now = place->calls;
                place->calls = *calls;
                *calls++ = now;
            }
        }
    }
}

static td_tensor *forward_of(const stretch *s, td_tensor *x)
{
    return s->forward != NULL ? s->forward(s->rest.m, x, s->rest.at) : td_run_rest(&s->rest, x);
}

static td_tensor *recompute_run(td_tensor *x, void *user)
{
    stretch *s = user;
    if (s->runs++ == 0) {
        int64_t scope = td_scope_begin();
        td_tensor *y = forward_of(s, x);
        td_scope_end(scope, y == x ? NULL : y);
        return y;
    }
    td_math math = td_math_now();
    td_set_math(s->math);
    exchange_places(s);
    td_tensor *y = forward_of(s, x);
    exchange_places(s);
    td_set_math(math);
    return y;
}

static td_tensor *begin(const stretch *what, td_module *const *parts, int part_count, td_tensor *x)
{
    if (!td_grad_enabled()) {
        return forward_of(what, x);
    }
    stretch *s = td_step_bytes(sizeof *s);
    td_module **own_parts = td_step_bytes((size_t)part_count * sizeof(td_module *));
    memcpy(own_parts, parts, (size_t)part_count * sizeof(td_module *));
    *s = *what;
    s->math = td_math_now();
    s->parts = own_parts;
    s->part_count = part_count;
    list_modules(s);
    s->calls = td_step_bytes((size_t)s->dropout_count * sizeof *s->calls);
    s->leaves = td_step_bytes((size_t)s->leaf_count * sizeof(td_tensor *));
    list_modules(s);
    return td_recompute_call(recompute_run, s, x, s->leaves, s->leaf_count, s->rest.at);
}

td_tensor *td_module_recompute(td_module *self,
                               td_tensor *(*forward)(td_module *self, td_tensor *x, td_site at),
                               td_module *const *parts, int part_count, td_tensor *x, td_site at)
{
    stretch what = { .rest = { self, NULL, at, NULL }, .forward = forward };
    return begin(&what, parts, part_count, x);
}

static td_tensor *run_again(const td_around_rest *rest, td_tensor *x, void *user)
{
    (void)user;
    TD_REQUIRE(rest->second == NULL, rest->at,
               "td_recompute is for modules of one input, and this one takes two: recompute the "
               "module around it, or modules inside");
    return begin(&(stretch){ .rest = *rest }, &rest->m, 1, x);
}
