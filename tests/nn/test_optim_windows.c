/* Windows: several "ranks" in one process, each with an optimizer of its own that changes a part of
 * the parameters. Together they make the step of one whole optimizer, bit for bit. */
#include "tandem.h"
#include "autograd/hooks.h"
#include "nn/extra/inspect.h"
#include "nn/extra/compact.h"
#include "nn/extra/muon.h"
#include "nn/extra/optimizers.h"
#include "nn/module.h"
#include "nn/shared/shared.h"
#include "tensor/extend.h"
#include "tests/help/expect_fatal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PARAMS = 4, STEPS = 7, MOST_RANKS = 5, GRAIN = 16 };
static const int64_t sizes[PARAMS] = { 37, 5, 1000, 130 };

static td_tensor *no_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    (void)at;
    return x;
}

static const td_module_type bare_type = { .name = "Bare", .forward = no_forward };

static td_module *bare(td_dtype dtype)
{
    static const char *const names[PARAMS] = { "a", "b", "c", "d" };
    td_manual_seed(3);
    td_module *m = td_module_new(&bare_type, 0);
    m->dtype = dtype;
    for (int i = 0; i < PARAMS; i++) {
        td_tensor *t = td_new(TD_SHAPE(sizes[i]), dtype, TD_CPU);
        td_normal_(td_module_parameter(m, names[i], t), 0.0, 1.0, td_default_generator());
    }
    return td_module_finish(m);
}

/* One rank, or (ranks 0) the whole. */
typedef struct member {
    td_module *net;
    td_params *params;
    td_optim *optim;
    int gathers;
} member;

static void count_gather(void *user)
{
    ((member *)user)->gathers++;
}

typedef td_optim *(*make_optim)(td_params *params);

static td_optim *plain(td_params *params)
{
    return td_sgd(params, .lr = 0.1, .weight_decay = 0.01);
}

static td_optim *momentum(td_params *params)
{
    return td_sgd(params, .lr = 0.1, .momentum = 0.9, .nesterov = true);
}

static td_optim *adam(td_params *params)
{
    return td_adam(params, .lr = 0.01, .weight_decay = 0.02);
}

static td_optim *amsgrad(td_params *params)
{
    return td_adam(params, .lr = 0.01, .amsgrad = true);
}

static td_optim *rmsprop(td_params *params)
{
    return td_rmsprop(params, .lr = 0.01, .momentum = 0.9, .centered = true);
}

static td_optim *adagrad(td_params *params)
{
    return td_adagrad(params, .lr = 0.01, .initial_value = 0.5);
}

static td_optim *lion(td_params *params)
{
    return td_lion(params, .lr = 0.01, .weight_decay = 0.1);
}

static td_optim *compact8(td_params *params)
{
    return td_adam_compact(params, .lr = 0.01, .weight_decay = 0.1);
}

static td_optim *compact16(td_params *params)
{
    return td_adam_compact(params, .bits = 16, .lr = 0.01, .weight_decay = 0.1, .decoupled = true);
}

static bool is_short(const td_param *param, void *user)
{
    (void)user;
    return param->count < 100;
}

static td_optim *adamw_of_two_groups(td_params *params)
{
    td_optim *o = td_adamw(params, .lr = 0.01, .weight_decay = 0.1);
    td_optim_group(o, is_short, NULL, 0.5, 0.0);
    return o;
}

static void open_member(member *m, td_dtype dtype, make_optim make, int rank, int ranks)
{
    *m = (member){ .net = bare(dtype) };
    m->params = td_parameters(m->net);
    assert_int_equal(td_params_reorder(m->params, (int[]){ 2, 3, 0, 1 }), TD_OK);
    if (ranks > 0) {
        int64_t unit = (int64_t)ranks * GRAIN;
        int64_t length = (td_numel(td_params_flat(m->params)) + unit - 1) / unit * unit;
        td_tensor *values = td_zeros(TD_SHAPE(length), dtype, TD_CPU);
        td_tensor *grads = td_zeros(TD_SHAPE(length), dtype, TD_CPU);
        assert_int_equal(td_params_set_memory(m->params, values, grads), TD_OK);
        td_params_set_peers(
            m->params,
            &(td_params_peers){ .rank = rank, .count = ranks, .gather = count_gather, .user = m });
    }
    m->optim = make(m->params);
}

static void close_member(member *m)
{
    td_optim_free(m->optim);
    td_module_free(m->net);
}

/* The second parameter has no gradient in the third step. */
static void set_gradients(member *m, int step)
{
    td_zero_grad(m->optim);
    for (int i = 0; i < PARAMS; i++) {
        td_tensor *leaf = td_params_get(m->params, i)->tensor;
        td_generator g;
        td_generator_seed(&g, (uint64_t)(100 * step + i));
        if (i != 1 || step != 2) {
            td_normal_(td_grad_buffer(leaf), 0.0, 1.0, &g);
            td_mark_grad(leaf);
        }
    }
}

/* What gathering does: every rank's window becomes that of the rank that has stepped it. */
static void gather(member *ranks, int count)
{
    int64_t length = td_numel(td_params_flat(ranks[0].params)) / count;
    for (int from = 0; from < count; from++) {
        for (int to = 0; to < count; to++) {
            td_tensor source =
                td_params_part(td_params_flat(ranks[from].params), from * length, length);
            td_tensor target =
                td_params_part(td_params_flat(ranks[to].params), from * length, length);
            if (to != from) {
                td_copy_(&target, &source);
            }
        }
    }
}

static void check_equal(const member *whole, const member *rank)
{
    for (int i = 0; i < PARAMS; i++) {
        const td_tensor *a = td_params_get(whole->params, i)->tensor;
        const td_tensor *b = td_params_get(rank->params, i)->tensor;
        assert_memory_equal(td_data(a), td_data(b), (size_t)sizes[i] * td_dtype_size(a->dtype));
    }
}

static void check_windows(td_dtype dtype, make_optim make, int count)
{
    member whole, ranks[MOST_RANKS];
    open_member(&whole, dtype, make, 0, 0);
    for (int r = 0; r < count; r++) {
        open_member(&ranks[r], dtype, make, r, count);
    }
    for (int step = 0; step < STEPS; step++) {
        set_gradients(&whole, step);
        td_optim_step(whole.optim);
        for (int r = 0; r < count; r++) {
            set_gradients(&ranks[r], step);
            td_optim_step(ranks[r].optim);
        }
        gather(ranks, count);
        for (int r = 0; r < count; r++) {
            check_equal(&whole, &ranks[r]);
        }
    }
    size_t length = (size_t)td_numel(td_params_flat(ranks[0].params));
    size_t whole_length = (size_t)td_numel(td_params_flat(whole.params));
    for (int r = 0; r < count; r++) {
        assert_int_equal(ranks[r].gathers, STEPS); /* also of ranks whose window has no gradient */
        assert_int_equal(td_optim_state_bytes(ranks[r].optim) * (size_t)count,
                         td_optim_state_bytes(whole.optim) * length / whole_length);
        close_member(&ranks[r]);
    }
    close_member(&whole);
}

static void test_steps_of_windows_are_the_whole_step(void **unused)
{
    (void)unused;
    static const make_optim makes[] = { plain,    momentum, adam,    adamw_of_two_groups,
                                        amsgrad,  rmsprop,  adagrad, lion,
                                        compact8, compact16 };
    for (size_t k = 0; k < sizeof makes / sizeof *makes; k++) {
        for (int count = 1; count <= MOST_RANKS; count++) {
            check_windows(TD_F32, makes[k], count);
            if (makes[k] != compact8 && makes[k] != compact16) {
                check_windows(TD_F64, makes[k], count);
            }
        }
    }
}

/* The parts of all ranks are the parameter, each element once. */
static void test_windows_cover_the_parameters(void **unused)
{
    (void)unused;
    for (int count = 1; count <= MOST_RANKS; count++) {
        int64_t covered[PARAMS] = { 0 };
        for (int r = 0; r < count; r++) {
            member m;
            open_member(&m, TD_F32, plain, r, count);
            for (int i = 0; i < PARAMS; i++) {
                td_window w = td_params_here(m.params, i);
                if (w.count > 0) {
                    assert_int_equal(w.begin, td_params_get(m.params, i)->begin + covered[i]);
                }
                covered[i] += w.count;
            }
            close_member(&m);
        }
        for (int i = 0; i < PARAMS; i++) {
            assert_int_equal(covered[i], sizes[i]);
        }
    }
}

static void test_what_windows_refuse(void **unused)
{
    (void)unused;
    member m;
    open_member(&m, TD_F32, momentum, 0, 2);
    expect_fatal("the order stays", td_params_reorder(m.params, (int[]){ 0, 1, 2, 3 }));
    expect_fatal("Muon needs whole filters", td_muon(m.params, .lr = 0.1));
    expect_fatal(
        "there is state of f32[1216] cpu:0 already",
        td_params_set_peers(m.params,
                            &(td_params_peers){ .rank = 0, .count = 2, .gather = count_gather }));
    close_member(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_of_windows_are_the_whole_step),
        cmocka_unit_test(test_windows_cover_the_parameters),
        cmocka_unit_test(test_what_windows_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
