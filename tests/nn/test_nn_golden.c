/* Against PyTorch, number by number: initial weights, and three steps of training a ResNet-18. */
#include "tests/help/golden.h"
#include "tests/help/sanitized.h"
#include "tests/nn/golden_resnet.h"
#include "data/data.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

/* ---- initial weights: the same bits ---- */

static float *read_f32(const td_tensor *t)
{
    float *values = malloc((size_t)td_numel(t) * sizeof *values);
    assert_non_null(values);
    td_read(t, values, TD_F32);
    return values;
}

static void check_initial(const td_param *p, const cJSON *expected)
{
    assert_string_equal(p->name, golden_get(expected, "name")->valuestring);
    const cJSON *shape = golden_get(expected, "shape");
    assert_int_equal(p->tensor->ndim, cJSON_GetArraySize(shape));
    for (int i = 0; i < p->tensor->ndim; i++) {
        assert_int_equal(p->tensor->shape[i], (int)cJSON_GetArrayItem(shape, i)->valuedouble);
    }
    float *values = read_f32(p->tensor);
    char crc[16];
    snprintf(crc, sizeof crc, "%08x", crc32_of(values, (size_t)p->count * sizeof *values));
    free(values);
    assert_string_equal(crc, golden_get(expected, "crc32")->valuestring);
}

static void test_resnet18_initial(void **state)
{
    (void)state;
    cJSON *golden = golden_open("golden_resnet18.json");
    if (golden == NULL) {
        skip();
    }
    td_manual_seed(0);
    td_module *net = td_model("resnet18", .classes = 10);
    td_params *params = td_parameters(net);
    const cJSON *initial = golden_get(golden, "initial");
    assert_int_equal(td_params_count(params), 62);
    assert_int_equal(cJSON_GetArraySize(initial), 62);
    for (int i = 0; i < 62; i++) {
        check_initial(td_params_get(params, i), cJSON_GetArrayItem(initial, i));
    }
    td_module_free(net);
    cJSON_Delete(golden);
}

static void check_bits(td_module *net, const char *path, const cJSON *bits, const char *name)
{
    td_module *layer = td_module_find(net, path);
    assert_non_null(layer);
    for (int t = 0; t < 2; t++) {
        char key[32];
        snprintf(key, sizeof key, "%s.%s", name, layer->tensors[t].name);
        const cJSON *expected = golden_get(bits, key);
        int count = cJSON_GetArraySize(expected);
        assert_int_equal(td_numel(layer->tensors[t].tensor), count);
        float *values = read_f32(layer->tensors[t].tensor);
        for (int i = 0; i < count; i++) {
            uint32_t word;
            char text[16];
            memcpy(&word, &values[i], sizeof word);
            snprintf(text, sizeof text, "%08x", word);
            assert_string_equal(text, cJSON_GetArrayItem(expected, i)->valuestring);
        }
        free(values);
    }
}

static void test_wine_initial(void **state)
{
    (void)state;
    cJSON *golden = golden_open("golden_wine.json");
    if (golden == NULL) {
        skip();
    }
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    check_bits(net, "0", golden_get(golden, "initial_bits"), "fc1");
    check_bits(net, "2", golden_get(golden, "initial_bits"), "fc2");
    td_module_free(net);
    cJSON_Delete(golden);
}

/* The mean losses of 100 epochs, as apps/wine_single.c prints them to four digits. */
static void test_wine_training(void **state)
{
    (void)state;
    td_dataset *train, *test;
    assert_int_equal(td_wine_split("data/wine.csv", 0.2, 42, &train, &test, NULL), TD_OK);
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader = td_loader_open(train, .batch_size = 32, .shuffle = true);
    FILE *golden = fopen("tests/golden/wine_losses.txt", "r");
    assert_non_null(golden);
    char line[256];
    int epochs = 0;
    while (fgets(line, sizeof line, golden) != NULL) {
        if (line[0] == '#') {
            continue;
        }
        double sum = 0, expected = atof(line);
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss);
            }
        }
        assert_true(fabs(sum / (double)td_loader_batches(loader) - expected) <= 5e-5 * expected);
        epochs++;
    }
    assert_int_equal(epochs, 100);
    fclose(golden);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train);
    td_dataset_free(test);
}

/*
 * Training; larger rows are in long_nn_golden.c. Sanitizers see the same in the first two rows.
 *
 * The third loss of f32_64 is hardly more than a check that training goes on: the pictures are sine
 * waves, and inputs of ReLU and of max pooling come so close to each other that some change sides
 * in the last bits. In double precision, weights that are changed by 6e-7 of themselves, no more
 * than rounding does in f32, move that loss by 0.13 to 3 % (20 trials), the second by up to 0.078
 * %.
 */

static const golden_row rows[] = {
    { "f32_32", TD_F32, 32, 16, false, 0.0, 0.0 },
    { "f64_32", TD_F64, 32, 16, false, 1e-9, 1e-9 },
    { "f32_64", TD_F32, 64, 16, false, 1e-3, 4e-2 },
    { "hash_f32_32_b16", TD_F32, 32, 16, true, 0.0, 0.0 },
    { "hash_f64_32_b16", TD_F64, 32, 16, true, 1e-9, 1e-9 },
    { "hash_f32_32_b64", TD_F32, 32, 64, true, 1e-3, 1e-3 },
    { "hash_f32_64_b16", TD_F32, 64, 16, true, 0.0, 0.0 },
};

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resnet18_initial),
        cmocka_unit_test(test_wine_initial),
        cmocka_unit_test(test_wine_training),
    };
    int failed = cmocka_run_group_tests_name("initial weights", tests, NULL, NULL);
    return failed +
           golden_run_rows("training", rows, checks_part() ? 2 : sizeof rows / sizeof *rows);
}
