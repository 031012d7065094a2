/* train_net's configuration: its keys and defaults are the article's, files and command lines set
 * them, what does not fit is told with file, line and the nearest key, and what is written reads
 * back equal. */
#include "apps/tools/train_net/settings.h"
#include "tests/help/temp_folder.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What keys fill, and the keys. */
typedef struct filled {
    settings s;
    train_run r;
} filled;

static train_args *defaults(filled *f)
{
    memset(f, 0, sizeof *f);
    settings_keys(&f->s, &f->r);
    return &f->r.args;
}

static td_status parse(filled *f, const char *yaml)
{
    return config_parse(defaults(f), "net.yaml", yaml, strlen(yaml));
}

/* ---- the table ---- */

/* The article's table, key by key; its 1000 classes are ImageNet's, here they come from the folder.
 */
static const char *const article[][2] = {
    { "MODEL.ARCH", "resnet18" },
    { "MODEL.NUM_CLASSES", "None" },
    { "MODEL.PRETRAINED", "False" },
    { "MODEL.SYNCBN", "False" },
    { "MODEL.WEIGHTS", "None" },
    { "MODEL.DUMMY_INPUT", "False" },
    { "TRAIN.BATCH_SIZE", "32" },
    { "TRAIN.IM_SIZE", "224" },
    { "TRAIN.DATASET", "./data/ILSVRC/" },
    { "TRAIN.SPLIT", "train" },
    { "TRAIN.AUTO_RESUME", "True" },
    { "TRAIN.LOAD_OPT", "True" },
    { "TRAIN.WORKERS", "4" },
    { "TRAIN.PIN_MEMORY", "True" },
    { "TRAIN.PRINT_FREQ", "30" },
    { "TRAIN.TOPK", "5" },
    { "TEST.DATASET", "./data/ILSVRC/" },
    { "TEST.SPLIT", "val" },
    { "TEST.BATCH_SIZE", "200" },
    { "TEST.IM_SIZE", "256" },
    { "TEST.PRINT_FREQ", "10" },
    { "CUDNN.BENCHMARK", "True" },
    { "CUDNN.DETERMINISTIC", "False" },
    { "OPTIM.MAX_EPOCH", "100" },
    { "OPTIM.LR_POLICY", "cos" },
    { "OPTIM.BASE_LR", "0.2" },
    { "OPTIM.MIN_LR", "0" },
    { "OPTIM.STEPS", "[]" },
    { "OPTIM.LR_MULT", "0.1" },
    { "OPTIM.MOMENTUM", "0.9" },
    { "OPTIM.DAMPENING", "0" },
    { "OPTIM.NESTEROV", "True" },
    { "OPTIM.WARMUP_FACTOR", "0.1" },
    { "OPTIM.WARMUP_EPOCHS", "5" },
    { "OPTIM.WEIGHT_DECAY", "5e-05" },
    { "OUT_DIR", "./exp" },
    { "CFG_DEST", "config.yaml" },
    { "RNG_SEED", "None" },
};

static void test_defaults_are_the_articles(void **state)
{
    (void)state;
    filled f;
    train_args *keys = defaults(&f);
    for (size_t i = 0; i < sizeof article / sizeof *article; i++) {
        char text[CLI_TEXT_BYTES];
        int key = config_find(keys, article[i][0]);
        if (key < 0) {
            fail_msg("there is no %s", article[i][0]);
        }
        config_get(&keys->options[key], text, sizeof text);
        assert_string_equal(text, article[i][1]);
    }
    assert_int_equal(settings_check(&f.s, keys), TD_OK);
}

/* Another value that the key takes. */
static void other_value(const cli_option *key, const char *now, char *text, size_t size)
{
    switch (key->kind) {
    case CLI_FLAG:
        snprintf(text, size, "%s", strcmp(now, "True") == 0 ? "False" : "True");
        break;
    case CLI_INT:
        snprintf(text, size, "%lld", (long long)(key->low + 17));
        break;
    case CLI_REAL:
        snprintf(text, size, "%.17g", key->low + 0.3 * (fmin(key->high, 2) - key->low));
        break;
    case CLI_REALS:
        snprintf(text, size, "[3, 4.25, 60]");
        break;
    case CLI_TEXT:
        snprintf(text, size, "%s", "other");
        if (key->choices != NULL) {
            snprintf(text, size, "%s", strrchr(key->choices, '|') + 1);
        }
        break;
    }
}

/* Each key sets one value, and no other key's. */
static void test_every_key_is_set_by_its_name(void **state)
{
    (void)state;
    static filled f, before;
    const train_args *untouched = defaults(&before);
    for (int i = 0; i < untouched->option_count; i++) {
        train_args *keys = defaults(&f);
        char old[CLI_TEXT_BYTES], wanted[CLI_TEXT_BYTES], now[CLI_TEXT_BYTES];
        config_get(&keys->options[i], old, sizeof old);
        other_value(&keys->options[i], old, wanted, sizeof wanted);
        assert_int_equal(config_set(keys, "here", keys->options[i].name, wanted), TD_OK);
        config_get(&keys->options[i], now, sizeof now);
        assert_string_not_equal(now, old);
        for (int k = 0; k < keys->option_count; k++) {
            if (k != i) {
                config_get(&untouched->options[k], old, sizeof old);
                config_get(&keys->options[k], now, sizeof now);
                assert_string_equal(now, old);
            }
        }
    }
}

/* ---- files ---- */

static void test_a_file(void **state)
{
    (void)state;
    filled f;
    assert_int_equal(parse(&f, "# a comment\n"
                               "MODEL:\n"
                               "  ARCH: resnet50   # another\n"
                               "  WEIGHTS: 'it''s here'\n"
                               "TRAIN: {BATCH_SIZE: 8, PIN_MEMORY: false}\n"
                               "TEST:\n"
                               "OPTIM:\n"
                               "  STEPS: [30, 60, 90]\n"
                               "  BASE_LR: 1\n"
                               "  WEIGHT_DECAY: 5e-5\n"
                               "OPTIM.MOMENTUM: .8\n"
                               "RNG_SEED:\n"
                               "OUT_DIR: \"\\u00e4 b\"\n"),
                     TD_OK);
    assert_string_equal(f.s.model.arch, "resnet50");
    assert_string_equal(f.s.model.weights, "it's here");
    assert_int_equal(f.r.args.batch_size, 8);
    assert_false(f.s.train.pin_memory);
    assert_int_equal(f.s.optim.steps.count, 3);
    assert_true(f.s.optim.steps.value[2] == 90);
    assert_true(f.r.args.lr == 1.0 && f.s.optim.weight_decay == 5e-5 && f.s.optim.momentum == 0.8);
    assert_int_equal(f.r.args.seed, CONFIG_NONE);
    assert_string_equal(f.s.out_dir, "\xc3\xa4 b");
    assert_int_equal(parse(&f, ""), TD_OK);
    assert_int_equal(parse(&f, "# nothing\n---\n...\n"), TD_E_FORMAT);
    assert_error_says("net.yaml:3", "KEY: VALUE", NULL);
}

typedef struct bad {
    const char *yaml, *says[3];
} bad;

static const bad bad_files[] = {
    { "TRAIN:\n  BATCHSIZE: 3\n", { "net.yaml:2: ", "'TRAIN.BATCHSIZE'", "TRAIN.BATCH_SIZE" } },
    { "TRAIN: {BATCH: 3}\n",
      { "net.yaml:1: ", "unknown key 'TRAIN.BATCH'", "nearest is TRAIN.BATCH_SIZE" } },
    { "OUTDIR: x\n", { "net.yaml:1: ", "unknown key 'OUTDIR'", "nearest is OUT_DIR" } },
    { "TRIAN:\n  WORKERS: 1\n", { "net.yaml:1: ", "unknown key 'TRIAN'" } },
    { "\n\nTRAIN:\n  WORKERS: many\n", { "net.yaml:4: TRAIN.WORKERS", "'many'", "whole number" } },
    { "TRAIN: {WORKERS: 1.5}\n", { "'1.5'", "whole number" } },
    { "TRAIN: {WORKERS: \"2\"}\n", { "is a text", "without quotes" } },
    { "TRAIN: {WORKERS: -1}\n", { "-1 is out of range", "0 to 256" } },
    { "TRAIN: {WORKERS: 99999999999999999999}\n", { "out of range" } },
    { "TRAIN: {WORKERS: None}\n", { "None does not fit" } },
    { "TRAIN: {WORKERS: [1]}\n", { "one value, not a list" } },
    { "TRAIN: {WORKERS: {a: 1}}\n", { "no keys below it" } },
    { "OPTIM: {NESTEROV: 1}\n", { "'1' is not True or False" } },
    { "OPTIM: {BASE_LR: fast}\n", { "'fast' is not a number" } },
    { "OPTIM: {BASE_LR: .nan}\n", { "'.nan' is not a number" } },
    { "OPTIM: {BASE_LR: inf}\n", { "'inf' is not a number" } },
    { "OPTIM: {BASE_LR: 0x10}\n", { "'0x10' is not a number" } },
    { "OPTIM: {BASE_LR: 1e400}\n", { "'1e400' is not a number" } },
    { "OPTIM: {LR_POLICY: cosine}\n", { "'cosine' is not one of cos|steps", "nearest is cos" } },
    { "OPTIM: {STEPS: 30}\nOPTIM: {STEPS: 40}\n", { "net.yaml:2: OPTIM.STEPS", "second time" } },
    { "OPTIM: {STEPS: [[1]]}\n", { "holds numbers only" } },
    { "OPTIM: {STEPS: ['', 30]}\n", { "holds numbers only" } },
    { "OPTIM:\n  STEPS:\n    - 10,20\n    - 30\n", { "net.yaml:3: ", "holds numbers only" } },
    { "OPTIM: {STEPS: [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}\n", { "room for 16" } },
    { "OUT_DIR: a\nOUT_DIR: b\n", { "net.yaml:2: OUT_DIR", "second time", "line 1" } },
    { "OPTIM.STEPS: []\nOPTIM: {STEPS: []}\n", { "net.yaml:2: OPTIM.STEPS", "line 1" } },
    { "TRAIN: 3\n", { "TRAIN is a node" } },
    { "TRAIN: {TRAIN: {WORKERS: 1}}\n", { "unknown key 'TRAIN.TRAIN'" } },
    { "OUT_DIR: *a\n", { "net.yaml:1: ", "alias" } },
    { "TRAIN: &t {WORKERS: 1}\nTEST: *t\n", { "unknown key 'TEST.WORKERS'" } },
    { "<<: {OUT_DIR: a}\n", { "unknown key '<<'" } },
    { "OUT_DIR: ''\n", { "OUT_DIR: the value is empty" } },
    { "OUT_DIR: \"a\\0b\"\n", { "zero byte" } },
    { "OUT_DIR: \"a\\nb\"\n", { "a line of text" } },
    { "OUT_DIR: a\n---\nOUT_DIR: b\n", { "net.yaml:2: ", "second document" } },
    { "- a\n- b\n", { "KEY: VALUE" } },
    { "words\n", { "KEY: VALUE" } },
    { "OPTIM: {STEPS: [1\n", { "net.yaml:", "not YAML" } },
    { "? [a]\n: b\n", { "a key must be a word" } },
    { "OUT_DIR: \xff\xfe\n", { "not YAML" } },
};

static void test_bad_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        filled f;
        if (parse(&f, bad_files[i].yaml) != TD_E_FORMAT) {
            fail_msg("accepted: %s", bad_files[i].yaml);
        }
        assert_error_says("net.yaml:", NULL);
        for (int k = 0; k < 3 && bad_files[i].says[k] != NULL; k++) {
            assert_error_says(bad_files[i].says[k], NULL);
        }
    }
}

/* Bytes without end, nodes in nodes, a file that is none. */
static void test_hostile_files(void **state)
{
    (void)state;
    filled f;
    train_args *keys = defaults(&f);
    char *many = malloc(1 << 20);
    assert_non_null(many);
    memset(many, '[', 1 << 20);
    assert_int_equal(config_parse(keys, "x", many, 1 << 20), TD_E_FORMAT);
    assert_error_says("at most 65536", NULL);
    assert_int_equal(config_parse(keys, "x", many, 65536), TD_E_FORMAT);
    temp_write("large.yaml", many, 1 << 20);
    assert_int_equal(config_read(keys, temp_path("large.yaml")), TD_E_FORMAT);
    memset(many, 'A', 65536);
    memcpy(many + 60000, ": 1\n", 4);
    assert_int_equal(config_parse(keys, "x", many, 60004), TD_E_FORMAT);
    assert_true(strlen(td_last_error()) < 500);
    free(many);
    assert_int_equal(config_read(keys, temp_path("none.yaml")), TD_E_NOTFOUND);
    assert_error_says("none.yaml", NULL);
    assert_true(config_read(keys, temp_folder()) != TD_OK);
    assert_int_equal(parse(&f, "OUT_DIR: \x1b[31m\n"), TD_E_FORMAT);
    assert_int_equal(config_set(keys, "here", "OUT_DIR", "na\xefve"), TD_E_FORMAT);
    assert_error_says("a line of text in UTF-8", NULL);
    assert_int_equal(config_set(keys, "here", "\x1b[31mX", "1"), TD_E_FORMAT);
    assert_null(strchr(td_last_error(), '\x1b'));
}

/* ---- the command line ---- */

static td_status override(filled *f, char *a, char *b, char *c, char *d)
{
    char *words[] = { a, b, c, d };
    return config_override(defaults(f), words, d != NULL ? 4 : c != NULL ? 3 : b != NULL ? 2 : 1);
}

static void test_command_line(void **state)
{
    (void)state;
    filled f;
    char batch[] = "TRAIN.BATCH_SIZE", eight[] = "8", nine[] = "9", steps[] = "OPTIM.STEPS",
         list[] = "[30, 60]", train[] = "TRAIN", size[] = "TRAIN.IMSIZE", out[] = "OUT_DIR",
         empty[] = "", bare[] = "1,2";
    assert_int_equal(override(&f, batch, eight, steps, list), TD_OK);
    assert_int_equal(f.r.args.batch_size, 8);
    assert_true(f.s.optim.steps.count == 2 && f.s.optim.steps.value[1] == 60);
    assert_int_equal(override(&f, batch, eight, batch, nine), TD_OK);
    assert_int_equal(f.r.args.batch_size, 9);
    assert_int_equal(override(&f, steps, bare, NULL, NULL), TD_OK);
    assert_true(f.s.optim.steps.count == 2 && f.s.optim.steps.value[0] == 1);
    assert_int_equal(override(&f, batch, eight, out, NULL), TD_E_FORMAT);
    assert_error_says("command line: OUT_DIR has no value", NULL);
    assert_int_equal(override(&f, size, eight, NULL, NULL), TD_E_FORMAT);
    assert_error_says("command line: unknown key 'TRAIN.IMSIZE'", "TRAIN.IM_SIZE", NULL);
    assert_int_equal(override(&f, train, eight, NULL, NULL), TD_E_FORMAT);
    assert_error_says("TRAIN is a node", NULL);
    assert_int_equal(override(&f, steps, empty, NULL, NULL), TD_E_FORMAT);
    assert_int_equal(override(&f, out, empty, NULL, NULL), TD_E_FORMAT);
}

/* ---- writing ---- */

static void must_read_back(const train_args *keys)
{
    filled f;
    train_args *again = defaults(&f);
    char a[CLI_TEXT_BYTES], b[CLI_TEXT_BYTES];
    assert_int_equal(config_write(keys, temp_path("written.yaml")), TD_OK);
    if (config_read(again, temp_path("written.yaml")) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    for (int i = 0; i < keys->option_count; i++) {
        config_get(&keys->options[i], a, sizeof a);
        config_get(&again->options[i], b, sizeof b);
        assert_string_equal(a, b);
    }
}

static void test_what_is_written_reads_back(void **state)
{
    (void)state;
    static const char *const texts[] = { "true",     "1e3",        "~",      "null x", "a: b",
                                         "# x",      "\"quoted\"", "back\\", "'",      "\xc3\xa4",
                                         " spaced ", "-",          "[1]",    "&a",     "none" };
    filled f;
    train_args *keys = defaults(&f);
    must_read_back(keys);
    for (int i = 0; i < keys->option_count; i++) { /* all keys at another value */
        char old[CLI_TEXT_BYTES], wanted[CLI_TEXT_BYTES];
        config_get(&keys->options[i], old, sizeof old);
        other_value(&keys->options[i], old, wanted, sizeof wanted);
        assert_int_equal(config_set(keys, "here", keys->options[i].name, wanted), TD_OK);
    }
    must_read_back(keys);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        f.s.out_dir = texts[i];
        must_read_back(keys);
    }
    f.r.args.lr = 0.1 + 0.2;
    f.s.optim.weight_decay = 1.0 / 3.0;
    must_read_back(keys);
    assert_int_equal(config_write(keys, "/nowhere/config.yaml"), TD_E_IO);
}

/* The folder's files are the models of images that td_model knows, one each. */
static void test_the_models_files(void **state)
{
    (void)state;
    for (int i = 0; td_model_name(i) != NULL && strncmp(td_model_name(i), "gpt", 3) != 0; i++) {
        filled f;
        char path[256];
        snprintf(path, sizeof path, "apps/tools/config/%s.yaml", td_model_name(i));
        if (config_read(defaults(&f), path) != TD_OK) {
            fail_msg("%s", td_last_error());
        }
        assert_string_equal(f.s.model.arch, td_model_name(i));
        assert_int_equal(settings_check(&f.s, &f.r.args), TD_OK);
    }
}

/* ---- keys together ---- */

static void test_keys_that_do_not_go_together(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        { "PRECISION: tf32", "arithmetic of GPUs" },
        { "PRECISION: fp16", "fp32, bf16 and bf16x3" },
        { "MODEL: {PRETRAINED: True, WEIGHTS: x}", "one of them" },
        { "TEST: {CROP_SIZE: 300}", "TEST.CROP_SIZE 300" },
        { "CFG_DEST: a/b", "without folders" },
        { "OPTIM: {MOMENTUM: 0}", "OPTIM.NESTEROV" },
        { "OPTIM: {DAMPENING: .1}", "OPTIM.NESTEROV" },
        { "OPTIM: {AFTER_WARMUP: True, MAX_EPOCH: 5}", "OPTIM.AFTER_WARMUP" },
        { "OPTIM: {STEPS: [60, 30]}", "ascending" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        filled f;
        assert_int_equal(parse(&f, cases[i][0]), TD_OK);
        assert_int_equal(settings_check(&f.s, &f.r.args), TD_E_ARG);
        assert_error_says(cases[i][1], NULL);
    }
}

static void check_lr(const filled *f, int64_t epoch, double expected)
{
    double lr = settings_lr(&f->s, &f->r.args, epoch);
    if (fabs(lr - expected) > 5e-7) {
        fail_msg("epoch %d: %.9f, expected %.6f", (int)epoch, lr, expected);
    }
}

static void test_learning_rates(void **state)
{
    (void)state;
    static const double table[] = { .02, .055986, .091909, .127716, .163353, .198769 };
    filled f;
    defaults(&f);
    for (int e = 0; e < 6; e++) {
        check_lr(&f, e, table[e]);
    }
    check_lr(&f, 50, 0.1);
    check_lr(&f, 100, 0);
    assert_int_equal(parse(&f, "OPTIM: {MIN_LR: 0.5, WARMUP_EPOCHS: 0, BASE_LR: 2}"), TD_OK);
    check_lr(&f, 0, 2);
    check_lr(&f, 50, 1.5);
    check_lr(&f, 100, 1);
    assert_int_equal(parse(&f, "OPTIM: {LR_POLICY: steps, STEPS: [0, 10, 20], LR_MULT: 0.5, "
                               "WARMUP_EPOCHS: 2, WARMUP_FACTOR: 0.2}"),
                     TD_OK);
    check_lr(&f, 0, 0.04);
    check_lr(&f, 1, 0.2 * 0.6);
    check_lr(&f, 9, 0.2);
    check_lr(&f, 10, 0.1);
    check_lr(&f, 19, 0.1);
    check_lr(&f, 20, 0.05);
    assert_int_equal(parse(&f, "OPTIM: {LR_POLICY: cos, AFTER_WARMUP: True, WARMUP_EPOCHS: 4, "
                               "MAX_EPOCH: 12, MIN_LR: 0, WARMUP_FACTOR: 0.2}"),
                     TD_OK);
    check_lr(&f, 0, 0.2 * f.r.args.lr);
    check_lr(&f, 2, 0.6 * f.r.args.lr);
    check_lr(&f, 4, f.r.args.lr);
    check_lr(&f, 8, 0.5 * f.r.args.lr);
    check_lr(&f, 12, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, temp_folder_setup, temp_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_defaults_are_the_articles),
        TEST(test_every_key_is_set_by_its_name),
        TEST(test_a_file),
        TEST(test_bad_files),
        TEST(test_hostile_files),
        TEST(test_command_line),
        TEST(test_what_is_written_reads_back),
        TEST(test_the_models_files),
        TEST(test_keys_that_do_not_go_together),
        TEST(test_learning_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
