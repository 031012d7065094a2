/* The models by name: sizes, initial weights and numbers of torchvision's. The largest, and larger
 * pictures, are in long_nn_models.c. */
#include "tests/help/golden.h"
#include "tests/nn/models_check.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"

#include "nn/internal.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *golden; /* tests/golden/models.json */

static const cJSON *row_of(const char *name)
{
    for (const cJSON *row = golden_get(golden, "models")->child; row != NULL; row = row->next) {
        if (strcmp(golden_get(row, "name")->valuestring, name) == 0) {
            return row;
        }
    }
    fail_msg("tests/golden/models.json has no '%s'", name);
    return NULL;
}

static int read_golden(void **state)
{
    (void)state;
    golden = golden_open_path("tests/golden/models.json");
    return 0;
}

static int free_golden(void **state)
{
    (void)state;
    cJSON_Delete(golden);
    return 0;
}

/* ---- all of them ---- */

static void test_parameters(void **state)
{
    (void)state;
    int count = 0;
    for (const char *name; (name = td_model_name(count)) != NULL; count++) {
        if (strncmp(name, "gpt", 3) == 0) {
            break; /* the last ones take tokens: test_nn_gpt */
        }
        double parameters = golden_number(row_of(name), "parameters");
        td_module *net = td_model(name, .blank = true);
        assert_non_null(net);
        if (td_parameter_count(net) != (int64_t)parameters) {
            fail_msg("%s has %lld parameters, and should have %.0f", name,
                     (long long)td_parameter_count(net), parameters);
        }
        td_module_free(net);
    }
    assert_int_equal(count, cJSON_GetArraySize(golden_get(golden, "models")));
    assert_null(td_model_name(-1));
    assert_null(td_model_name(count + 100));
}

/* The golden file itself, against the millions that the article prints. */
static void test_articles_millions(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double thousands;
    } article[] = {
        { "resnet18", 11690 },       { "resnet50", 25557 },      { "efficientnet_b0", 5289 },
        { "botnet50", 20859 },       { "regnet_x_16gf", 54279 }, { "regnet_y_16gf", 83590 },
        { "regnet_y_32gf", 145047 },
    };
    for (size_t i = 0; i < sizeof article / sizeof *article; i++) {
        double parameters = golden_number(row_of(article[i].name), "parameters");
        assert_true(parameters > 1000 * article[i].thousands - 500.001);
        assert_true(parameters < 1000 * article[i].thousands + 500);
    }
}

static void assert_refused(td_model_options options, const char *says)
{
    assert_null(td_model_at(options, TD_HERE));
    if (strstr(td_last_error(), says) == NULL) {
        fail_msg("'%s' does not say '%s'", td_last_error(), says);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    assert_refused((td_model_options){ .name = "resnet81" },
                   "no model 'resnet81'; the nearest name is 'resnet18'");
    assert_refused((td_model_options){ .name = "ResNeXt50-32x4d" }, "'resnext50_32x4d'");
    assert_refused((td_model_options){ .name = "efficientnet-b0" }, "'efficientnet_b0'");
    assert_refused((td_model_options){ .name = "" }, "nearest");
    assert_refused((td_model_options){ .name = "densenet121", .stem = TD_STEM_CIFAR },
                   "small images");
    assert_refused((td_model_options){ .name = "resnet18", .classes = -1 }, "negative");
    assert_refused((td_model_options){ .name = "efficientnet_b0", .dropout = 1.0 }, "[0, 1)");
    assert_refused((td_model_options){ .name = "efficientnet_b0", .stochastic_depth = -1.0 },
                   "[0, 1)");
    assert_refused((td_model_options){ .name = "efficientnet_b0", .dropout = -1.0 }, "TD_ZERO");
    assert_refused((td_model_options){ .name = "efficientnet_b0", .stochastic_depth = 1.5 },
                   "[0, 1)");
}

static void test_articles_names(void **state)
{
    (void)state;
    td_module *net = td_model("regnetx_160", .classes = 3, .blank = true);
    assert_non_null(net);
    assert_non_null(td_module_find(net, "trunk_output.block3.block3-12.f.c.1"));
    assert_int_equal(td_module_find(net, "fc")->tensors[0].tensor->shape[0], 3);
    td_module_free(net);
}

static char *summarise(const char *name, int64_t side)
{
    td_module *net = td_model(name, .image_size = side, .blank = true);
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(td_summary(net, TD_SHAPE(1, 3, side, side), out), TD_OK);
    fclose(out);
    td_module_free(net);
    return text;
}

/* What the table says of grouped, depthwise and attention layers. */
static void test_summary(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says[3];
    } cases[] = {
        { "efficientnet_b0",
          { "parameters: 5,288,548", "multiply-adds of a forward: 385,814,752", "groups 32" } },
        { "botnet50",
          { "parameters: 20,859,176", "SelfAttention(4 heads of 128)",
            "RelativePositions(14x14)" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = summarise(cases[i].name, 224);
        for (int s = 0; s < 3; s++) {
            if (strstr(text, cases[i].says[s]) == NULL) {
                fail_msg("'%s' is not in\n%s", cases[i].says[s], text);
            }
        }
        free(text);
    }
}

/* BoTNet's positions are for the images that the stem gets. */
static void test_botnet_of_small_images(void **state)
{
    (void)state;
    td_module *net =
        td_model("botnet50", .classes = 7, .stem = TD_STEM_CIFAR, .image_size = 30, .blank = true);
    td_tensor *x = td_zeros(TD_SHAPE(2, 3, 30, 30), TD_F32, TD_CPU);
    assert_non_null(net);
    assert_non_null(x);
    td_eval(net);
    td_step_begin();
    td_no_grad_begin();
    assert_true(td_shape_equal(td_shape_of(td_forward(net, x)), TD_SHAPE(2, 7)));
    td_no_grad_end();
    td_step_end();
    td_free(x);
    td_module_free(net);
}

/* ---- one of each family ---- */

static const char *const one_of_each[] = { "efficientnet_b0", "densenet121", "resnext50_32x4d",
                                           "botnet50" };

static int families(void) /* with sanitizers the small ones, but in make test-long */
{
    return TD_SANITIZED && getenv("TANDEM_LONG") == NULL ? 2
                                                         : sizeof one_of_each / sizeof *one_of_each;
}

static void test_initial(void **state)
{
    (void)state;
    for (int i = 0; i < families(); i++) {
        models_check_initial(row_of(one_of_each[i]));
    }
}

static void test_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < families(); i++) {
        models_check_numbers(row_of(one_of_each[i]));
    }
}

/* RegNet is too large to be drawn here in passing, so one is run with few classes. */
static void test_numbers_regnet(void **state)
{
    (void)state;
    if (TD_SANITIZED) {
        skip();
    }
    models_check_numbers(row_of("regnet_x_16gf"));
}

static void test_torch(void **state)
{
    (void)state;
    if (TD_SANITIZED || !models_have_torch()) {
        skip();
    }
    models_check_torch("efficientnet_b0", 75, 2);
    models_check_torch("botnet50", 64, 2);
}

static void run(td_module *net, td_tensor *x, double *y)
{
    td_step_begin();
    td_no_grad_begin();
    td_read(td_forward(net, x), y, TD_F64);
    td_no_grad_end();
    td_step_end();
}

static void test_clones(void **state)
{
    (void)state;
    enum { COUNT = 2 * MODELS_CLASSES };
    for (int i = 0; i < families(); i++) {
        td_module *net = models_make(one_of_each[i], 64), *copy = td_module_clone(net);
        assert_non_null(copy);
        td_tensor *x = td_new(TD_SHAPE(2, 3, 64, 64), TD_F32, TD_CPU);
        td_normal_(x, 0.0, 1.0, td_default_generator());
        double y[COUNT], of_copy[COUNT];
        run(net, x, y);
        td_module_free(net); /* nothing of it is used by the copy */
        run(copy, x, of_copy);
        assert_memory_equal(y, of_copy, sizeof y);
        td_free(x);
        td_module_free(copy);
    }
}

/* ---- StochasticDepth ---- */

static void read_forward(td_module *m, td_tensor *x, double *y)
{
    td_step_begin();
    td_read(td_forward(m, x), y, TD_F64);
    td_step_end();
}

static void test_stochastic_depth(void **state)
{
    (void)state;
    enum { N = 400, C = 3 };
    td_manual_seed(9);
    td_module *net = td_nn_sequential(td_nn_stochastic_depth(0.25));
    td_tensor *x = td_full(TD_SHAPE(N, C), 3.0, TD_F32, TD_CPU);
    double first[N * C], second[N * C];
    read_forward(net, x, first);
    read_forward(net, x, second);
    int kept = 0, changed = 0;
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) { /* a sample goes as a whole */
            assert_true(first[n * C + c] == first[n * C]);
        }
        assert_true(first[n * C] == 0.0 || first[n * C] == 4.0);
        kept += first[n * C] != 0.0;
        changed += first[n * C] != second[n * C];
    }
    assert_in_range(kept, 270, 330); /* 300, standard deviation 8.7 */
    assert_in_range(changed, 110, 190);
    td_dropout_place *place = td_dropout_place_of(td_module_find(net, "0"));
    assert_int_equal(place->calls, 2);
    place->calls = 0; /* the same draws again */
    read_forward(net, x, second);
    assert_memory_equal(first, second, sizeof first);
    td_eval(net);
    read_forward(net, x, second);
    for (int i = 0; i < N * C; i++) {
        assert_true(second[i] == 3.0);
    }
    td_free(x);
    td_module_free(net);
}

/* A blank model draws nothing, and has the structure of any. */
static void test_blank(void **state)
{
    (void)state;
    td_manual_seed(4);
    uint32_t expected = td_random_u32(td_default_generator());
    td_manual_seed(4);
    td_module *net = td_model("densenet121", .classes = 2, .blank = true);
    assert_int_equal(td_random_u32(td_default_generator()), expected);
    td_params *params = td_parameters(net);
    int64_t zero[4] = { 0 };
    assert_true(td_get(td_params_get(params, 0)->tensor, zero) == 0.0);
    td_module_free(net);
    net = td_nn_linear(2, 2); /* and the next one draws again */
    assert_true(td_get(net->tensors[0].tensor, zero) != 0.0);
    td_module_free(net);
}

/* The defaults do drop; TD_ZERO turns it off. */
static void test_drops(void **state)
{
    (void)state;
    td_module *net = td_model("efficientnet_b0", .classes = 4);
    td_module *same =
        td_model("efficientnet_b0", .classes = 4, .dropout = 0.5, .stochastic_depth = TD_ZERO);
    char text[2][64];
    td_module *layers[] = { td_module_find(net, "features.7.0.stochastic_depth"),
                            td_module_find(same, "features.7.0.stochastic_depth") };
    for (int i = 0; i < 2; i++) {
        layers[i]->type->describe(layers[i], text[i], sizeof text[i]);
    }
    assert_string_equal(text[0], "p 0.1875");
    assert_string_equal(text[1], "p 0");
    td_module *dropout = td_module_find(same, "classifier.0");
    dropout->type->describe(dropout, text[0], sizeof text[0]);
    assert_string_equal(text[0], "p 0.5");
    td_module_free(net);
    td_module_free(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_articles_millions),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_articles_names),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_botnet_of_small_images),
        cmocka_unit_test(test_initial),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numbers_regnet),
        cmocka_unit_test_setup_teardown(test_torch, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_clones),
        cmocka_unit_test(test_stochastic_depth),
        cmocka_unit_test(test_blank),
        cmocka_unit_test(test_drops),
    };
    return cmocka_run_group_tests_name("nn: models", tests, read_golden, free_golden);
}
