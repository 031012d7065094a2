/* Modules of two inputs: values and gradients, scopes, functions around them, names, mistakes. */
#include "nn/around.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "tests/tensor/reference.h"
#include "autograd/gradcheck.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { QUERIES = 3, KEYS = 5, WIDTH = 4 };

/* Each row of a looks up rows of b: softmax(query(a) b') b. */
static td_tensor *attend(td_module *self, td_tensor *a, td_tensor *b, td_site at)
{
    (void)at;
    td_tensor *q = td_forward(self->children[0], a);
    return td_matmul(td_softmax(td_matmul(q, td_transpose(b, 0, 1)), 1), b);
}

static const td_module_type attention_type = { .name = "Attention", .forward2 = attend };

static td_module *attention(void)
{
    td_module *m = td_module_new(&attention_type, 0);
    td_module_add(m, "query", td_nn_linear(WIDTH, WIDTH));
    return td_module_finish(m);
}

/* A module around it: x attends to relu(x). */
static td_tensor *attend_to_self(td_module *self, td_tensor *x, td_site at)
{
    return td_forward2_at(self->children[0], x, td_relu(x), at);
}

static const td_module_type outer_type = { .name = "Outer", .forward = attend_to_self };

static td_module *outer(void)
{
    td_module *m = td_module_new(&outer_type, 0);
    td_module_add(m, "attention", attention());
    return td_module_finish(m);
}

typedef struct fixture {
    td_module *net; /* an Outer, f64 */
    td_module *inner;
    td_tensor *a, *b;
} fixture;

static int set_up(void **state)
{
    fixture *f = malloc(sizeof *f);
    td_manual_seed(1);
    f->net = outer();
    f->inner = f->net->children[0];
    assert_int_equal(td_module_to(f->net, TD_CPU, TD_F64), TD_OK);
    f->a = ref_tensor(TD_SHAPE(QUERIES, WIDTH), TD_F64, TD_ROW_MAJOR, 1);
    f->b = ref_tensor(TD_SHAPE(KEYS, WIDTH), TD_F64, TD_ROW_MAJOR, 2);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    td_step_abandon();
    td_module_free(f->net);
    td_free(f->a);
    td_free(f->b);
    free(f);
    return 0;
}

static td_tensor *run_attention(td_tensor *const *inputs, void *net)
{
    return td_forward2(net, inputs[0], inputs[1]);
}

static void test_gradients(void **state)
{
    fixture *f = *state;
    char report[512] = "";
    td_requires_grad(f->a, true);
    td_requires_grad(f->b, true);
    const td_module *query = f->inner->children[0];
    td_tensor *inputs[] = { f->a, f->b, query->tensors[0].tensor, query->tensors[1].tensor };
    td_gradcheck_options options = { .report = report, .report_size = sizeof report };
    assert_int_equal(td_gradcheck(run_attention, f->inner, inputs, 4, &options), TD_OK);
    assert_string_equal(report, "");
}

static void test_what_is_made_inside_is_let_go(void **state)
{
    fixture *f = *state;
    td_step_begin();
    td_step_new(TD_SHAPE(QUERIES, WIDTH), TD_F64, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    size_t result_alone = td_step_memory(TD_CPU).in_use;
    td_step_end();
    td_step_begin();
    td_no_grad_begin();
    td_forward2(f->inner, f->a, f->b);
    assert_int_equal(td_step_memory(TD_CPU).in_use, result_alone);
    td_no_grad_end();
    td_step_end();
}

typedef struct around_calls {
    int runs;
    const td_tensor *seen, *second;
} around_calls;

static td_tensor *count_and_negate(const td_around_rest *rest, td_tensor *x, void *user)
{
    around_calls *calls = user;
    calls->runs++;
    calls->seen = x;
    calls->second = rest->second;
    return td_mul_scalar(td_run_rest(rest, x), -1.0);
}

static void test_functions_around(void **state)
{
    fixture *f = *state;
    double plain[QUERIES * WIDTH], around[QUERIES * WIDTH];
    around_calls first = { 0 }, second = { 0 };
    td_step_begin();
    td_read(td_forward2(f->inner, f->a, f->b), plain, TD_F64);
    td_module_surround(f->inner, &(td_around){ .run = count_and_negate, .user = &first });
    td_module_surround(f->inner, &(td_around){ .run = count_and_negate, .user = &second });
    td_read(td_forward2(f->inner, f->a, f->b), around, TD_F64); /* negated twice */
    assert_memory_equal(plain, around, sizeof plain);
    assert_true(first.runs == 1 && second.runs == 1);
    assert_true(first.seen == f->a && first.second == f->b && second.second == f->b);
    td_step_end();
}

static void test_mistakes(void **state)
{
    fixture *f = *state;
    td_module *query = f->inner->children[0];
    expect_fatal("td_forward outside a step", td_forward(f->inner, f->a));
    td_step_begin();
    expect_fatal("Attention takes two inputs: td_forward2", td_forward(f->inner, f->a));
    assert_non_null(strstr(fatal_message(), "in attention (Attention)"));
    expect_fatal("Linear takes one input: td_forward", td_forward2(query, f->a, f->b));
    expect_fatal("input b is NULL", td_forward2(f->inner, f->a, NULL));
    assert_non_null(strstr(fatal_message(), "test_nn_two_inputs.c:"));
    expect_fatal("the module is NULL", td_forward2(NULL, f->a, f->b));
    td_step_abandon();
    td_context_clear();
    td_tensor *narrow = td_zeros(TD_SHAPE(2, WIDTH - 1), TD_F64, TD_CPU);
    td_step_begin();
    expect_fatal("in attention.query (Linear)", td_forward2(f->inner, narrow, f->b));
    assert_non_null(strstr(fatal_message(), "in attention (Attention)"));
    td_step_abandon();
    td_free(narrow);
}

static void net_gradient(td_module *net, td_tensor *x, double *gradient)
{
    td_tensor *weight = td_module_find(net, "attention.query")->tensors[0].tensor;
    TD_STEP {
        td_backward(td_sum(td_mul(td_forward(net, x), x)));
        td_read(td_grad(weight), gradient, TD_F64);
    }
    td_requires_grad(weight, false);
    td_requires_grad(weight, true);
}

static void test_recomputation(void **state)
{
    fixture *f = *state;
    double plain[WIDTH * WIDTH], again[WIDTH * WIDTH];
    td_recompute(f->inner, true);
    td_step_begin();
    expect_fatal("modules of one input", td_forward2(f->inner, f->a, f->b));
    td_step_abandon();
    td_recompute(f->inner, false);
    net_gradient(f->net, f->a, plain);
    td_recompute(f->net, true); /* around a module of two inputs all is well */
    net_gradient(f->net, f->a, again);
    assert_memory_equal(plain, again, sizeof plain);
    assert_true(plain[0] != 0.0);
}

#define NET_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        NET_TEST(test_gradients),        NET_TEST(test_what_is_made_inside_is_let_go),
        NET_TEST(test_functions_around), NET_TEST(test_mistakes),
        NET_TEST(test_recomputation),
    };
    return cmocka_run_group_tests_name("modules of two inputs", tests, NULL, NULL);
}
