/* Copies of models, wrappers that do not show in names, and gradients in given memory. */
#include "tandem.h"
#include "nn/internal.h"
#include "autograd/tape.h"
#include "nn/shared/shared.h"
#include "nn/module.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static td_tensor *picture(void)
{
    td_tensor *x = td_new_layout(TD_SHAPE(2, 3, 8, 8), TD_F32, TD_IMAGE, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 1);
    td_normal_(x, 0.0, 1.0, &g);
    return x;
}

static void run(td_module *m, td_tensor *x, float *y)
{
    td_step_begin();
    td_tensor *out = td_forward(m, x);
    td_read(out, y, TD_F32);
    td_step_end();
}

static void test_a_copy_computes_the_same_and_is_its_own(void **state)
{
    (void)state;
    td_manual_seed(0);
    td_module *net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    td_parameters(net);
    td_module *copy = td_module_clone(net);
    assert_non_null(copy);
    td_tensor *x = picture();
    float a[20], b[20], c[20];
    run(net, x, a);
    run(copy, x, b);
    assert_memory_equal(a, b, sizeof a);

    td_state_list from = td_module_state(net), to = td_module_state(copy);
    assert_int_equal(from.count, to.count);
    for (int i = 0; i < from.count; i++) {
        assert_string_equal(from.items[i].name, to.items[i].name);
        assert_true(td_same_order(from.items[i].tensor, to.items[i].tensor));
        assert_ptr_not_equal(from.items[i].tensor, to.items[i].tensor);
        assert_int_equal(td_is_leaf(from.items[i].tensor), td_is_leaf(to.items[i].tensor));
        td_fill_(from.items[i].tensor, 0.5);
    }
    td_state_list_free(&from);
    td_state_list_free(&to);
    td_module_free(net); /* nothing in the copy may point into it */
    td_eval(copy);
    run(copy, x, c);
    run(copy, x, b);
    assert_memory_equal(b, c, sizeof b);
    td_free(x);
    td_module_free(copy);
}

typedef struct pair_state {
    td_tensor *weight;
    td_module *first;
    int number;
} pair_state;

static td_tensor *pair_forward(td_module *self, td_tensor *x, td_site at)
{
    const pair_state *s = self->state;
    return td_linear_at(td_forward_at(s->first, x, at), s->weight, NULL, at);
}

static const td_module_type pair_type = { .name = "Pair", .forward = pair_forward };

/* Its own weight is that of its child. */
static td_module *shared_pair(void)
{
    td_module *m = td_module_new(&pair_type, sizeof(pair_state));
    pair_state *s = m->state;
    s->first = td_module_add(m, "first", td_nn_linear(3, 3, .no_bias = true));
    s->weight = td_module_parameter(m, "weight", s->first->tensors[0].tensor);
    s->number = 7;
    return td_module_finish(m);
}

static void test_what_is_shared_stays_shared(void **state)
{
    (void)state;
    td_module *net = shared_pair(), *copy = td_module_clone(net);
    assert_non_null(copy);
    pair_state *s = copy->state;
    assert_int_equal(s->number, 7);
    assert_ptr_equal(s->first, copy->children[0]);
    assert_ptr_equal(s->weight, copy->tensors[0].tensor);
    assert_ptr_equal(s->weight, s->first->tensors[0].tensor);
    assert_ptr_not_equal(s->weight, net->tensors[0].tensor);
    assert_int_equal(td_params_count(td_parameters(copy)), 1);
    td_module_free(net);
    td_module_free(copy);
}

static void test_frozen_and_evaluating_stay_so(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_linear(2, 2), td_nn_dropout(0.5));
    td_requires_grad(net->children[0]->tensors[1].tensor, false);
    td_eval(net->children[1]);
    td_module *copy = td_module_clone(net);
    assert_true(td_is_leaf(copy->children[0]->tensors[0].tensor));
    assert_false(td_is_leaf(copy->children[0]->tensors[1].tensor));
    assert_true(copy->training);
    assert_false(copy->children[1]->training);
    td_module_free(net);
    td_module_free(copy);
}

/* ---- types with memory of their own ---- */

static void free_own(td_module *self)
{
    free(*(void **)self->state);
}

static td_status copy_own(td_module *to, const td_module *from)
{
    (void)from;
    *(void **)to->state = malloc(3);
    return *(void **)to->state != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory");
}

static const td_module_type owning = { .name = "Owning", .free = free_own };
static const td_module_type owning_copied = { .name = "Owning",
                                              .free = free_own,
                                              .copy = copy_own };

static td_module *make_owning(const td_module_type *type)
{
    td_module *m = td_module_new(type, sizeof(void *));
    *(void **)m->state = malloc(3);
    return m;
}

static void test_a_type_with_memory_of_its_own_says_how(void **state)
{
    (void)state;
    td_module *bad = td_nn_sequential(td_nn_relu(), make_owning(&owning));
    assert_null(td_module_clone(bad));
    assert_non_null(strstr(td_last_error(), "1 (Owning) cannot be copied"));
    td_module_free(bad);
    td_module *good = td_nn_sequential(td_nn_relu(), make_owning(&owning_copied));
    td_module *copy = td_module_clone(good);
    assert_non_null(copy);
    td_module_free(good);
    td_module_free(copy);
}

/* ---- what surrounds a model ---- */

typedef struct surrounding {
    const td_module *net;
    char order[16]; /* of the runs: each writes its letter */
    int frees;
    double weight; /* as `free` sees it */
} surrounding;

static td_tensor *write_letter(const td_around_rest *rest, td_tensor *x, void *user, char letter)
{
    surrounding *s = user;
    s->order[strlen(s->order)] = letter;
    return td_run_rest(rest, x);
}

static td_tensor *run_a(const td_around_rest *rest, td_tensor *x, void *user)
{
    return write_letter(rest, x, user, 'a');
}

static td_tensor *run_b(const td_around_rest *rest, td_tensor *x, void *user)
{
    return write_letter(rest, x, user, 'b');
}

static td_tensor *run_c(const td_around_rest *rest, td_tensor *x, void *user)
{
    return write_letter(rest, x, user, 'c');
}

static void end_surrounding(void *user)
{
    surrounding *s = user;
    s->frees++;
    s->weight = td_get(td_module_find((td_module *)(uintptr_t)s->net, "0")->tensors[0].tensor,
                       (int64_t[]){ 0, 0 });
}

static void test_functions_around_a_model(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_linear(1, 1), td_nn_linear(1, 1)), *copy;
    surrounding s = { .net = net };
    td_fill_(net->children[0]->tensors[0].tensor, 3.5);
    td_module_surround(net, &(td_around){ .run = run_a, .user = &s, .free = end_surrounding });
    td_around both = { .run = run_b, .user = &s, .free = end_surrounding, .copies = true };
    td_module_surround(net, &both);
    td_module_surround(net, &(td_around){ .run = run_c, .user = &s, .copies = true });
    td_around inside = { .run = run_c, .user = &s, .copies = true, .inside = true };
    td_module_surround(net, &inside);
    inside.run = run_b;
    td_module_surround(net, &inside);
    assert_ptr_equal(td_surrounded_by(net, run_a), &s);
    assert_null(td_surrounded_by(net->children[0], run_a));
    copy = td_module_clone(net);
    td_tensor *x = td_full(TD_SHAPE(1, 1), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_forward(net, x);
    assert_string_equal(s.order, "cbacb");
    td_forward(copy, x);
    assert_string_equal(s.order, "cbacbcbcb");
    td_step_end();
    td_module_free(copy);
    assert_int_equal(s.frees, 0);
    td_parameters(net);
    td_module_free(net); /* when nothing of it has gone yet */
    assert_int_equal(s.frees, 2);
    assert_true(s.weight == 3.5);
    td_free(x);
}

/* ---- gradients in given memory ---- */

static void backward(td_module *net, td_tensor *x)
{
    td_step_begin();
    td_backward(td_sum(td_forward(net, x)));
    td_step_end();
}

static void test_gradients_move_into_given_memory(void **state)
{
    (void)state;
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(3, 4), td_nn_linear(4, 2));
    td_params *params = td_parameters(net);
    td_tensor *x = td_full(TD_SHAPE(5, 3), 0.5, TD_F32, TD_CPU);
    backward(net, x);
    td_zero_grad_of(td_params_get(params, 1)->tensor);
    int64_t count = td_numel(td_params_flat(params));
    float *before = malloc((size_t)count * sizeof *before);
    td_read(td_params_flat_grad(params), before, TD_F32);

    td_tensor *memory = td_zeros(TD_SHAPE(count), TD_F32, TD_CPU);
    assert_int_equal(td_params_set_memory(params, NULL, memory), TD_OK);
    assert_ptr_equal(td_params_flat_grad(params), memory);
    assert_memory_equal(td_data(memory), before, (size_t)count * sizeof *before);
    assert_non_null(td_grad(td_params_get(params, 0)->tensor));
    assert_null(td_grad(td_params_get(params, 1)->tensor));

    int order[] = { 3, 1, 0, 2 };
    assert_int_equal(td_params_reorder(params, order), TD_OK);
    for (int i = 0; i < 4; i++) {
        const td_param *p = td_params_get(params, i);
        const char *expected = (const char *)td_data(memory) + (size_t)p->begin * sizeof(float);
        assert_ptr_equal(td_data(td_grad_buffer(p->tensor)), expected);
    }
    backward(net, x);
    expect_fatal("cannot take the place",
                 td_params_set_memory(params, NULL, td_params_get(params, 0)->tensor));
    free(before);
    td_free(x);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copy_computes_the_same_and_is_its_own),
        cmocka_unit_test(test_what_is_shared_stays_shared),
        cmocka_unit_test(test_frozen_and_evaluating_stay_so),
        cmocka_unit_test(test_a_type_with_memory_of_its_own_says_how),
        cmocka_unit_test(test_functions_around_a_model),
        cmocka_unit_test(test_gradients_move_into_given_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
