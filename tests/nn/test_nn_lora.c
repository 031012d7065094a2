/* LoRA: adapters change nothing at first; their gradients are right, and the model's own weights
 * keep their bits; saved apart and merged they compute the same; what is refused. */
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include "autograd/gradcheck.h"
#include "autograd/tape.h"
#include "nn/extra/lora.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 65, LENGTH = 20 };
#define SIZES "gpt-nano vocabulary=65 context=24 layers=2 heads=4 width=32"

static td_module *make(td_dtype dtype)
{
    td_manual_seed(3);
    td_module *net = td_model(SIZES);
    if (net == NULL || td_module_to(net, TD_CPU, dtype) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    return net;
}

static td_tensor *tokens(int from)
{
    int64_t values[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        values[i] = (i + from) * 31 % WORDS;
    }
    return td_from(values, TD_SHAPE(1, LENGTH), TD_I64, TD_CPU);
}

static void run(td_module *net, double logits[LENGTH * WORDS])
{
    td_tensor *x = tokens(0);
    TD_STEP {
        td_no_grad_begin();
        td_read(td_forward(net, x), logits, TD_F64);
        td_no_grad_end();
    }
    td_free(x);
}

/* A few steps; returns the first loss. */
static double train(td_module *net, int steps)
{
    td_optim *optim = td_adamw(td_parameters(net), .lr = 0.02, .weight_decay = 0.1);
    td_tensor *x = tokens(0), *y = tokens(1);
    double first = 0.0;
    for (int i = 0; i < steps; i++) {
        TD_STEP {
            td_tensor *loss = td_forward2(net, x, y);
            first = i == 0 ? td_item(loss) : first;
            td_backward(loss);
            td_optim_step(optim);
            td_zero_grad(optim);
        }
    }
    td_optim_free(optim);
    td_free(x);
    td_free(y);
    return first;
}

/* The numbers of tensors that are the same in both models, and of others; those of adapters, which
 * the second has not, are neither. */
static void compare(const td_module *adapted, const td_module *base, int *same, int *other)
{
    td_state_list a = td_module_state(adapted), b = td_module_state(base);
    *same = *other = 0;
    for (int i = 0, k = 0; i < a.count; i++) {
        if (strstr(a.items[i].name, ".lora.") != NULL) {
            continue;
        }
        const td_tensor *t = a.items[i].tensor, *u = b.items[k++].tensor;
        bool equal = memcmp(td_data(t), td_data(u), (size_t)td_numel(t) * sizeof(float)) == 0;
        *same += equal;
        *other += !equal;
    }
    td_state_list_free(&a);
    td_state_list_free(&b);
}

static void test_training(void **state)
{
    (void)state;
    static double before[LENGTH * WORDS], after[LENGTH * WORDS], other[LENGTH * WORDS];
    td_module *base = make(TD_F32), *net = make(TD_F32);
    int same, different;
    run(base, before);
    assert_int_equal(td_lora(net, .rank = 4, .alpha = 8, .layers = "*.attn.c_attn,*.h.1.*"), 5);
    run(net, after);
    assert_memory_equal(before, after, sizeof before);

    double first = train(net, 20);
    assert_true(train(net, 1) < 0.9 * first);
    compare(net, base, &same, &different);
    assert_int_equal(same, 28);
    assert_int_equal(different, 0);

    /* merged: other bits, the same numbers */
    run(net, after);
    td_module *merged = td_lora_merged(net);
    assert_non_null(merged);
    run(merged, other);
    double largest = 0.0;
    for (int i = 0; i < LENGTH * WORDS; i++) {
        assert_true(fabs(after[i] - other[i]) < 1e-4);
        largest = fmax(largest, fabs(after[i] - before[i]));
    }
    assert_true(largest > 0.1);
    compare(merged, base, &same, &different);
    assert_int_equal(different, 5);
    assert_int_equal(td_parameter_count(merged), td_parameter_count(base));
    train(merged, 1); /* of all parameters */
    compare(merged, base, &same, &different);
    assert_int_equal(same, 0);

    /* saved apart */
    const char *path = temp_path("adapter.safetensors");
    assert_int_equal(td_lora_save(path, net), TD_OK);
    td_module *loaded = make(TD_F32);
    assert_int_equal(td_lora_load(path, loaded), TD_OK);
    run(loaded, other);
    assert_memory_equal(after, other, sizeof after);
    td_module *copy = td_module_clone(loaded);
    td_module_free(loaded);
    run(copy, other);
    assert_memory_equal(after, other, sizeof after);
    td_module_free(copy);
    td_module_free(merged);
    td_module_free(net);
    td_module_free(base);
}

static void test_names(void **state)
{
    (void)state;
    td_module *net = make(TD_F32);
    td_safetensors *file;
    const char *path = temp_path("adapter.safetensors");
    assert_int_equal(td_lora(net, .rank = 2, .layers = "*.attn.c_attn"), 2);
    assert_int_equal(td_lora_save(path, net), TD_OK);
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_int_equal(td_safetensors_count(file), 4);
    const td_safetensors_entry *
        a = td_safetensors_find(file, "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight"),
       *b = td_safetensors_find(file, "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight");
    assert_non_null(a);
    assert_non_null(b);
    assert_true(td_shape_equal(a->shape, TD_SHAPE(2, 32)));
    assert_true(td_shape_equal(b->shape, TD_SHAPE(96, 2)));
    assert_string_equal(td_safetensors_metadata(file, "lora.alpha"), "2");
    td_safetensors_close(file);
    td_module_free(net);
}

static td_tensor *result_of(td_tensor *const *inputs, void *user)
{
    return td_forward(user, inputs[0]);
}

static void test_gradients(void **state)
{
    (void)state;
    td_manual_seed(5);
    td_module *net = td_nn_sequential(td_nn_linear(6, 6), td_nn_tanh(), td_nn_linear(6, 6));
    assert_int_equal(td_module_to(net, TD_CPU, TD_F64), TD_OK);
    assert_int_equal(td_lora(net, .rank = 3, .alpha = 2), 2);
    td_tensor *inputs[5] = { td_new(TD_SHAPE(4, 6), TD_F64, TD_CPU) };
    td_normal_(inputs[0], 0, 1, NULL);
    td_requires_grad(inputs[0], true);
    td_state_list list = td_module_state(net);
    int count = 1;
    for (int i = 0; i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        bool adapter = strstr(list.items[i].name, ".lora.") != NULL;
        assert_int_equal(td_is_leaf(t), adapter);
        if (adapter) { /* B, too, is not 0 */
            td_normal_(t, 0, 1, NULL);
            inputs[count++] = t;
        }
    }
    td_state_list_free(&list);
    assert_int_equal(count, 5);
    assert_int_equal(td_gradcheck(result_of, net, inputs, count, NULL), TD_OK);
    td_free(inputs[0]);
    td_module_free(net);
}

/* ---- refusals ---- */

static void refuse(td_status status, td_status expected, const char *says)
{
    if (status != expected || strstr(td_last_error(), says) == NULL) {
        fail_msg("%d, '%s' does not say '%s'", status, td_last_error(), says);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    td_module *net = make(TD_F32);
    refuse(td_lora(net, .rank = 4, .layers = "*.c_attn,*.q_proj"), TD_E_ARG, "matches '*.q_proj'");
    td_module_free(net);
    static const int64_t ranks[] = { 0, -1, 33 };
    for (int i = 0; i < 3; i++) {
        net = make(TD_F32);
        refuse(td_lora(net, .rank = ranks[i]), TD_E_ARG, "from 1 to the smaller size");
        refuse(td_lora_save(temp_path("none"), net), TD_E_ARG, "no adapters");
        td_module_free(net);
    }
    net = make(TD_F32);
    td_lora(net, .rank = 2, .layers = "*.h.1.*");
    const char *path = temp_path("adapter.safetensors");
    assert_int_equal(td_lora_save(path, net), TD_OK);
    expect_fatal("'transformer.h.1.attn.c_attn' has an adapter already", td_lora(net, .rank = 2));
    td_module_free(net);

    td_manual_seed(3); /* another model */
    net = td_model("gpt-nano layers=1");
    refuse(td_lora_load(path, net), TD_E_MISMATCH, "0 of its 8 tensors are adapters");
    td_module_free(net);
    net = td_model("gpt-nano vocabulary=65 context=24 layers=2 heads=4 width=64");
    refuse(td_lora_load(path, net), TD_E_MISMATCH,
           "c_attn.lora_A.weight' must be of floats [2,64]");
    td_module_free(net);
    net = make(TD_F32);
    assert_int_equal(td_save(path, net), TD_OK);
    refuse(td_lora_load(path, net), TD_E_FORMAT, "have no 'lora.alpha'");
    td_module_free(net);
    net = make(TD_F32);
    refuse(td_lora_load(temp_path("nothing"), net), TD_E_NOTFOUND, "nothing");
    td_parameters(net);
    expect_fatal("td_lora after td_parameters", td_lora(net, .rank = 2));
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_training, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_names, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test_setup_teardown(test_refusals, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
