/* A GPT against plain PyTorch (gpt_torch.py wrote tests/golden/gpt.json): initial weights bit for
 * bit, logits, loss, gradients, ten losses of AdamW; and what the other models can do: records,
 * copies, recomputation, any number of threads. */
#include "tests/help/golden.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"
#include "tests/nn/train_job.h"

#include "nn/module.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, LENGTH = 32, WORDS = 65, STEPS = TD_SANITIZED ? 3 : 10 };

static const struct variant {
    const char *name;
    td_gpt_options options;
} variants[] = {
    { "gpt2", { .preset = NULL } },
    { "no_bias", { .no_bias = true } },
    { "llama",
      { .no_bias = true,
        .rope = true,
        .rms_norm = true,
        .swiglu = true,
        .untied = true,
        .kv_heads = 2 } },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static td_module *make(const struct variant *v, td_dtype dtype)
{
    td_gpt_options o = v->options;
    o.vocabulary = WORDS;
    o.context = LENGTH;
    o.layers = 2;
    o.heads = 4;
    o.width = 64;
    td_manual_seed(0);
    td_module *net = td_gpt_at(o, TD_HERE);
    if (net == NULL || td_module_to(net, TD_CPU, dtype) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    return net;
}

/* ---- what gpt_torch.py computes, too ---- */

/* In [-1, 1). */
static double formula(int64_t i)
{
    uint64_t hashed = (((uint64_t)i * 2 + 1) * 2654435761u) & 0xffffffffu;
    return (double)(hashed >> 8) / 0x1p23 - 1.0;
}

/* Tokens and the tokens behind them, of a step. */
static void tokens_of(int step, td_tensor **tokens, td_tensor **labels)
{
    int64_t values[2][BATCH * LENGTH];
    for (int64_t i = 0; i < BATCH * LENGTH; i++) {
        for (int64_t next = 0; next < 2; next++) {
            uint64_t at = (uint64_t)(i / LENGTH * (LENGTH + 1) + i % LENGTH + next + 1000 * step);
            values[next][i] = (int64_t)((at * 2654435761u & 0xffffffffu) >> 16) % WORDS;
        }
    }
    *tokens = td_from(values[0], TD_SHAPE(BATCH, LENGTH), TD_I64, TD_CPU);
    *labels = td_from(values[1], TD_SHAPE(BATCH, LENGTH), TD_I64, TD_CPU);
}

/* Compares the norm and two projections of all elements, relative to what they could be. */
static void check_measures(const char *what, const td_tensor *t, const cJSON *golden,
                           double tolerance)
{
    int64_t n = td_numel(t);
    double *values = malloc((size_t)n * sizeof *values), found[3] = { 0 };
    assert_non_null(values);
    td_read(t, values, TD_F64);
    for (int64_t i = 0; i < n; i++) {
        found[0] += values[i] * values[i];
        found[1] += values[i] * formula(i);
        found[2] += values[i] * formula(n - 1 - i);
    }
    free(values);
    found[0] = sqrt(found[0]);
    double norm = cJSON_GetArrayItem(golden, 0)->valuedouble;
    for (int k = 0; k < 3; k++) {
        double other = cJSON_GetArrayItem(golden, k)->valuedouble;
        double scale = k == 0 ? norm : norm * sqrt((double)n / 3.0);
        if (!(fabs(found[k] - other) <= tolerance * scale)) {
            fail_msg("%s: measure %d is %.17g, PyTorch has %.17g", what, k, found[k], other);
        }
    }
}

static void check_initial(td_params *params, const cJSON *golden)
{
    assert_int_equal(td_params_count(params), cJSON_GetArraySize(golden));
    for (int i = 0; i < td_params_count(params); i++) {
        const td_param *p = td_params_get(params, i);
        const cJSON *item = cJSON_GetArrayItem(golden, i);
        assert_string_equal(p->name, item->string);
        float *values = malloc((size_t)p->count * sizeof *values);
        assert_non_null(values);
        td_read(p->tensor, values, TD_F32);
        char crc[16];
        snprintf(crc, sizeof crc, "%08x", crc32_of(values, (size_t)p->count * sizeof *values));
        free(values);
        if (strcmp(crc, item->valuestring) != 0) {
            fail_msg("%s: its initial values are not PyTorch's", p->name);
        }
    }
}

static void check_first_step(td_module *net, const cJSON *golden, double tolerance)
{
    td_tensor *tokens, *labels;
    tokens_of(0, &tokens, &labels);
    td_params *params = td_parameters(net);
    const cJSON *expected = golden_get(golden, "logits");
    TD_STEP {
        td_tensor *logits = td_forward(net, tokens);
        check_measures("logits", logits, expected, tolerance);
        double norm = cJSON_GetArrayItem(expected, 0)->valuedouble;
        for (int64_t k = 0; k < 8; k++) { /* the last but one position's first eight */
            double other = cJSON_GetArrayItem(expected, 3 + (int)k)->valuedouble;
            double got = td_get(logits, (int64_t[]){ 1, 30, k });
            assert_true(fabs(got - other) <= tolerance * norm);
        }
        td_backward(td_forward2(net, tokens, labels));
    }
    const cJSON *gradients = golden_get(golden, "gradients");
    for (int i = 0; i < td_params_count(params); i++) {
        const td_param *p = td_params_get(params, i);
        check_measures(p->name, td_grad(p->tensor), golden_get(gradients, p->name), tolerance);
    }
    td_free(tokens);
    td_free(labels);
}

static void check_losses(td_module *net, const cJSON *golden, double tolerance)
{
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1);
    for (int step = 0; step < STEPS; step++) {
        td_tensor *tokens, *labels;
        tokens_of(step, &tokens, &labels);
        double loss = 0;
        TD_STEP {
            td_tensor *mean = td_forward2(net, tokens, labels);
            td_zero_grad(optim);
            td_backward(mean);
            td_optim_step(optim);
            loss = td_item(mean);
        }
        double other = cJSON_GetArrayItem(golden_get(golden, "losses"), step)->valuedouble;
        if (!(fabs(loss - other) <= tolerance * other)) {
            fail_msg("step %d: loss %.17g, PyTorch has %.17g", step, loss, other);
        }
        td_free(tokens);
        td_free(labels);
    }
    td_optim_free(optim);
}

static void test_golden(void **state)
{
    (void)state;
    cJSON *all = golden_open_path("tests/golden/gpt.json");
    assert_int_equal(cJSON_GetArraySize(all), VARIANTS);
    for (int i = 0; i < VARIANTS; i++) {
        const cJSON *golden = golden_get(all, variants[i].name);
        for (int wide = 0; wide < 2; wide++) {
            td_module *net = make(&variants[i], wide ? TD_F64 : TD_F32);
            double tolerance = wide ? 1e-11 : 1e-5;
            check_initial(td_parameters(net), golden_get(golden, "parameters"));
            check_first_step(net, golden, tolerance);
            check_losses(net, golden, tolerance);
            td_module_free(net);
        }
    }
    cJSON_Delete(all);
}

/* ---- the same bits ---- */

/* Three steps; the hash of all values and gradients. */
static uint64_t train(td_module *net)
{
    train_job job = { .net = net, .optim = td_adamw(td_parameters(net), .lr = 1e-3) };
    for (int step = 0; step < 3; step++) {
        td_tensor *tokens, *labels;
        tokens_of(step, &tokens, &labels);
        TD_STEP {
            td_tensor *loss = td_forward2(net, tokens, labels);
            td_zero_grad(job.optim);
            td_backward(loss);
            td_optim_step(job.optim);
        }
        td_free(tokens);
        td_free(labels);
    }
    uint64_t hash = train_job_hash(&job);
    td_optim_free(job.optim);
    td_module_free(net);
    return hash;
}

static void test_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        struct variant v = variants[i];
        v.options.dropout = 0.2;
        assert_int_equal(td_set_threads(TD_CPU, 1), TD_OK);
        uint64_t one = train(make(&v, TD_F32));
        for (int threads = 2; threads <= (checks_part() ? 2 : 8); threads += threads == 3 ? 5 : 1) {
            assert_int_equal(td_set_threads(TD_CPU, threads), TD_OK);
            assert_true(train(make(&v, TD_F32)) == one);
        }
        td_module *net = make(&v, TD_F32);
        assert_int_equal(td_model_recompute(net, TD_PART_BLOCK), 2);
        assert_true(train(net) == one);
        td_module *original = make(&v, TD_F32), *copy = td_module_clone(original);
        assert_non_null(copy);
        td_module_free(original);
        assert_int_equal(td_gpt_options_of(copy).layers, 2);
        assert_non_null(strstr(td_model_record_of(copy).arch, "layers=2"));
        td_module_free(copy);
    }
}

/* With and without the whole logits: td_cross_entropy of them, and a label that does not count. */
static void test_loss_is_cross_entropy(void **state)
{
    (void)state;
    td_module *net = make(&variants[2], TD_F64);
    td_tensor *tokens, *labels;
    tokens_of(0, &tokens, &labels);
    for (int64_t t = 0; t < 5; t++) {
        td_set(labels, (int64_t[]){ 1, t }, -100);
    }
    TD_STEP {
        td_tensor *logits = td_reshape(td_forward(net, tokens), TD_SHAPE(-1, WORDS));
        td_tensor *other =
            td_cross_entropy(logits, td_reshape(labels, TD_SHAPE(-1)), .ignore_index = -100);
        assert_true(fabs(td_item(td_forward2(net, tokens, labels)) - td_item(other)) < 1e-12);
    }
    td_free(tokens);
    td_free(labels);
    td_module_free(net);
}

/* ---- by name ---- */

static void check_size(const char *text, int64_t parameters)
{
    bool before = td_defer_init(true); /* without memory for values */
    td_module *net = td_model(text);
    td_defer_init(before);
    if (net == NULL) {
        fail_msg("%s", td_last_error());
    }
    if (td_parameter_count(net) != parameters) {
        fail_msg("%s has %lld parameters", text, (long long)td_parameter_count(net));
    }
    td_module_free(net);
}

static void test_sizes(void **state)
{
    (void)state;
    check_size("gpt-nano", 834304);
    check_size("gpt-mini", 10844160);
    check_size("gpt2", 124439808); /* as Hugging Face counts them */
    check_size("gpt2-medium", 354823168);
    check_size("gpt2-large", 774030080);
    check_size("gpt2-xl", 1557611200);
    check_size("gpt-nano vocabulary=32000 context=256 layers=6 heads=6 width=288 hidden=768 rope "
               "rms_norm swiglu no_bias",
               15191712); /* llama2.c's stories15M */
}

static void refuse(const char *text, const char *says)
{
    assert_null(td_model(text));
    if (strstr(td_last_error(), says) == NULL) {
        fail_msg("'%s': '%s' does not say '%s'", text, td_last_error(), says);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("gpt-nano layrs=3", "no option 'layrs'; the nearest name is 'layers'");
    refuse("gpt-nano layers", "must be layers=NUMBER");
    refuse("gpt-nano layers=x", "must be layers=NUMBER");
    refuse("gpt-nano layers=-1", "must be layers=NUMBER");
    refuse("gpt-nano rope=1", "must be rope alone");
    refuse("gpt-nano eps=small", "must be eps=NUMBER");
    refuse("gpt-nano eps=nan", "eps nan");
    refuse("gpt-nano heads=3", "heads must divide");
    refuse("gpt-nano kv_heads=3", "kv_heads the heads");
    refuse("gpt-nano width=36 heads=4 rope", "even");
    refuse("gpt-nano layers=100000000", "each must be from 1");
    refuse("gpt-nano dropout=1", "dropout must be in [0, 1)");
    refuse("gpt3", "the nearest name is 'gpt2'");
    assert_null(td_gpt(.preset = "gpt-mino"));
    assert_non_null(strstr(td_last_error(), "'gpt-mini'"));
    assert_null(td_gpt(.layers = -1));
    assert_null(td_model("gpt2", .stem = TD_STEM_CIFAR));
}

/* A file has what the model was made with. */
static void test_files(void **state)
{
    const char *path = temp_path("gpt.safetensors");
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        struct variant v = variants[i];
        v.options.eps = 1e-6;
        td_module *net = make(&v, TD_F32);
        assert_int_equal(td_save(path, net), TD_OK);
        td_module *other = td_load_model(path);
        if (other == NULL) {
            fail_msg("%s", td_last_error());
        }
        td_gpt_options a = td_gpt_options_of(net), b = td_gpt_options_of(other);
        assert_true(a.vocabulary == b.vocabulary && a.context == b.context && a.width == b.width);
        assert_true(a.kv_heads == b.kv_heads && a.hidden == b.hidden && a.eps == b.eps);
        assert_true(a.rope == b.rope && a.swiglu == b.swiglu && a.untied == b.untied);
        assert_string_equal(td_model_record_of(net).arch, td_model_record_of(other).arch);
        assert_true(train(net) == train(other));
    }
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_loss_is_cross_entropy),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test_setup_teardown(test_files, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
