/* GPTs in the files of other programs: what is written is read again with the same logits, and
 * damaged files are refused with a message. long_nn_gpt_transformers.sh has the other programs. */
#include "tests/help/temp_folder.h"

#include "nn/models/files/gpt_files.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 65, LENGTH = 20 };

#define SIZES "gpt-nano vocabulary=65 context=24 layers=2 heads=4 width=64"
#define LLAMA " hidden=96 rope rms_norm swiglu no_bias"

static td_module *make(const char *text)
{
    td_manual_seed(3);
    td_module *net = td_model(text);
    if (net == NULL) {
        fail_msg("%s", td_last_error());
    }
    td_state_list list = td_module_state(net); /* biases and norms that are not 0 and 1 */
    for (int i = 0; i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        for (int64_t k = 0; t->ndim == 1 && k < t->shape[0]; k++) {
            td_set(t, &k, td_get(t, &k) + 0.01 * (double)(k % 7));
        }
    }
    td_state_list_free(&list);
    td_eval(net);
    return net;
}

static void run(td_module *net, float logits[LENGTH * WORDS])
{
    int64_t tokens[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        tokens[i] = i * 31 % WORDS;
    }
    td_tensor *x = td_from(tokens, TD_SHAPE(1, LENGTH), TD_I64, TD_CPU);
    TD_STEP {
        td_no_grad_begin();
        td_read(td_forward(net, x), logits, TD_F32);
        td_no_grad_end();
    }
    td_free(x);
}

/* The file at path is the model, bit for bit. Frees the model. */
static void check_same(td_module *net, const char *path)
{
    static float a[LENGTH * WORDS], b[LENGTH * WORDS];
    td_module *other = td_gpt_load(path);
    if (other == NULL) {
        fail_msg("%s", td_last_error());
    }
    assert_string_equal(td_model_record_of(net).arch, td_model_record_of(other).arch);
    run(net, a);
    run(other, b);
    assert_memory_equal(a, b, sizeof a);
    td_module_free(other);
    td_module_free(net);
}

static void test_hugging_face(void **state)
{
    (void)state;
    static const char *const texts[] = {
        SIZES,
        SIZES " untied eps=0.001",
        SIZES LLAMA " kv_heads=2 rope_base=50000",
        SIZES LLAMA " untied",
    };
    char folder[4096], path[4200];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        td_module *net = make(texts[i]);
        snprintf(folder, sizeof folder, "%s", temp_path("hf"));
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        assert_int_equal(td_gpt_save(folder, net), TD_OK);
        check_same(net, i % 2 == 0 ? folder : path);
    }
    td_module *net = make(SIZES " rope");
    assert_int_equal(td_gpt_save(temp_path("hf"), net), TD_E_UNSUPPORTED);
    assert_non_null(strstr(td_last_error(), "no such model"));
    snprintf(path, sizeof path, "%s", temp_path("own.safetensors"));
    assert_int_equal(td_save(path, net), TD_OK);
    check_same(net, path);
}

/* ---- llm.c and llama2.c ---- */

static void put(FILE *f, const char *name, td_module *net, int64_t first, int64_t rows, bool pairs)
{
    td_module *m = td_module_find(net, name);
    const char *dot = strrchr(name, '.');
    char parent[128];
    snprintf(parent, sizeof parent, "%.*s", (int)(dot - name), name);
    m = td_module_find(net, parent);
    assert_non_null(m);
    td_tensor *t = m->tensors[strcmp(dot, ".bias") == 0 ? 1 : 0].tensor;
    int64_t columns = t->ndim > 1 ? t->shape[1] : 1;
    float *values = malloc((size_t)td_numel(t) * sizeof *values);
    td_read(t, values, TD_F32);
    rows = rows > 0 ? rows : t->shape[0];
    for (int64_t r = 0; r < rows; r++) { /* heads are 16 wide: 0, 8, 1, 9, ... */
        int64_t in_head = r % 16, from = pairs ? r - in_head + in_head / 2 + in_head % 2 * 8 : r;
        fwrite(values + (first + from) * columns, sizeof *values, (size_t)columns, f);
    }
    free(values);
}

static void put_layers(FILE *f, const char *end, td_module *net, int64_t first, int64_t rows,
                       bool pairs)
{
    for (int layer = 0; layer < 2; layer++) {
        char name[128];
        snprintf(name, sizeof name, "transformer.h.%d.%s", layer, end);
        put(f, name, net, first, rows, pairs);
    }
}

static void write_llmc(const char *path, td_module *net)
{
    static const char *const layers[] = {
        "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias",
    };
    int32_t header[256] = { 20240326, 3, 24, WORDS, 2, 4, 64, 128 };
    static const float padding[63 * 64];
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header, sizeof header, 1, f);
    put(f, "transformer.wte.weight", net, 0, 0, false);
    fwrite(padding, sizeof padding, 1, f);
    put(f, "transformer.wpe.weight", net, 0, 0, false);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        put_layers(f, layers[i], net, 0, 0, false);
    }
    put(f, "transformer.ln_f.weight", net, 0, 0, false);
    put(f, "transformer.ln_f.bias", net, 0, 0, false);
    assert_int_equal(fclose(f), 0);
}

static void test_llmc(void **state)
{
    (void)state;
    const char *path = temp_path("gpt2.bin");
    td_module *net = make(SIZES);
    write_llmc(path, net);
    check_same(net, path);
    remove(path);
}

static void put_norms(FILE *f, td_module *net, int version)
{
    put_layers(f, "ln_1.weight", net, 0, 0, false);
    if (version == 1) {
        put_layers(f, "ln_2.weight", net, 0, 0, false);
        put(f, "transformer.ln_f.weight", net, 0, 0, false);
        put(f, "transformer.wte.weight", net, 0, 0, false);
    }
}

static void write_llama2c(const char *path, td_module *net, int version, bool untied)
{
    static const float angles[24 * 8 * 2];
    int32_t sizes[] = { 64, 96, 2, 4, 2, untied && version == 0 ? -WORDS : WORDS, 24 };
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (version == 1) {
        int32_t magic[] = { 0x616b3432, 1 };
        char rest[256 - 36] = { !untied };
        fwrite(magic, sizeof magic, 1, f);
        fwrite(sizes, sizeof sizes, 1, f);
        fwrite(rest, sizeof rest, 1, f);
    } else {
        fwrite(sizes, sizeof sizes, 1, f);
        put(f, "transformer.wte.weight", net, 0, 0, false);
    }
    put_norms(f, net, version);
    put_layers(f, "attn.c_attn.weight", net, 0, 64, true);
    put_layers(f, "attn.c_attn.weight", net, 64, 32, true);
    put_layers(f, "attn.c_attn.weight", net, 96, 32, false);
    put_layers(f, "attn.c_proj.weight", net, 0, 0, false);
    if (version == 0) {
        put_layers(f, "ln_2.weight", net, 0, 0, false);
    }
    put_layers(f, "mlp.c_gate.weight", net, 0, 0, false);
    put_layers(f, "mlp.c_proj.weight", net, 0, 0, false);
    put_layers(f, "mlp.c_fc.weight", net, 0, 0, false);
    if (version == 0) {
        put(f, "transformer.ln_f.weight", net, 0, 0, false);
        fwrite(angles, sizeof angles, 1, f);
    }
    if (untied) {
        put(f, "lm_head.weight", net, 0, 0, false);
    }
    assert_int_equal(fclose(f), 0);
}

static void test_llama2c(void **state)
{
    (void)state;
    const char *path = temp_path("stories.bin");
    for (int version = 0; version < 2; version++) {
        for (int untied = 0; untied < 2; untied++) {
            td_module *net =
                make(untied ? SIZES LLAMA " kv_heads=2 untied" : SIZES LLAMA " kv_heads=2");
            write_llama2c(path, net, version, untied);
            check_same(net, path);
        }
    }
    remove(path);
}

/* ---- refusals ---- */

static void refuse(const char *path, const char *says)
{
    td_module *net = td_gpt_load(path);
    if (net != NULL || strstr(td_last_error(), says) == NULL) {
        fail_msg("'%s' does not say '%s'", net != NULL ? "" : td_last_error(), says);
    }
}

static void write_word(const char *path, long at, int32_t word)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    fwrite(&word, sizeof word, 1, f);
    fclose(f);
}

static void test_bad_llmc(void **state)
{
    (void)state;
    static const struct {
        int word;
        int32_t value;
        const char *says;
    } cases[] = {
        { 0, 20240327, "" },
        { 1, 5, "version 3, of f32, is read" },
        { 2, 25, "cut off or damaged" },
        { 2, -1, "each must be from 1" },
        { 3, 200, "cut off or damaged" },
        { 4, 0, "cut off or damaged" },
        { 4, 1 << 30, "each must be from 1" },
        { 5, 3, "heads must divide" },
        { 6, 1 << 20, "cut off or damaged" },
        { 7, 1 << 30, "cut off or damaged" },
        { 7, -1, "cut off or damaged" },
    };
    const char *path = temp_path("gpt2.bin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_module *net = make(SIZES);
        write_llmc(path, net);
        td_module_free(net);
        write_word(path, 4L * cases[i].word, cases[i].value);
        refuse(path, cases[i].says);
    }
    assert_int_equal(truncate(path, 5000), 0);
    write_word(path, 4L * 7, 128);
    refuse(path, "cut off or damaged");
    assert_int_equal(truncate(path, 10), 0);
    refuse(path, "gpt2.bin");
    refuse(temp_path("nothing.bin"), "nothing.bin");
    remove(path);
}

/* Another config.json beside the file of SIZES. */
static void refuse_config(const char *folder, const char *from, const char *to, const char *says)
{
    char path[4200], text[4096] = "", changed[8192];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    f = fopen(path, "w");
    fputs(changed, f);
    fclose(f);
    refuse(folder, says);
    f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void test_bad_hugging_face(void **state)
{
    (void)state;
    char folder[4096], path[4200];
    snprintf(folder, sizeof folder, "%s", temp_path("bad"));
    td_module *net = make(SIZES);
    assert_int_equal(td_gpt_save(folder, net), TD_OK);
    td_module_free(net);
    refuse_config(folder, "{", "[", "no JSON object");
    refuse_config(folder, "\"gpt2\"", "\"bert\"", "neither gpt2 nor llama");
    refuse_config(folder, "\"n_layer\":\t2", "\"n_layer\":\t3", "there is no 'transformer.h.2.");
    refuse_config(folder, "\"n_layer\":\t2", "\"n_layer\":\t1", "has a tensor 'transformer.h.1.");
    refuse_config(folder, "\"n_layer\":\t2", "\"n_layer\":\t1000000", "1000000 layers");
    refuse_config(folder, "\"n_layer\":\t2", "\"n_layer\":\t1.5", "'n_layer' is no whole number");
    refuse_config(folder, "\"n_layer\"", "\"layers\"", "no 'n_layer'");
    refuse_config(folder, "\"vocab_size\":\t65", "\"vocab_size\":\t66",
                  "must be of floats [66,64]");
    refuse_config(folder, "\"n_head\":\t4", "\"n_head\":\t5", "heads must divide");
    refuse_config(folder, "gelu_new", "relu", "activation_function");
    refuse_config(folder, "\"n_inner\":\t256", "\"n_inner\":\t16777216", "[64,16777216]");
    refuse_config(folder, "\"tie_word_embeddings\":\ttrue", "\"tie_word_embeddings\":\tfalse",
                  "there is no 'lm_head.weight'");
    snprintf(path, sizeof path, "%s/config.json", folder);
    remove(path);
    refuse(folder, "config.json");
    net = make(SIZES LLAMA);
    assert_int_equal(td_gpt_save(folder, net), TD_OK);
    td_module_free(net);
    refuse_config(folder, "\"silu\"", "\"gelu\"", "hidden_act");
    refuse_config(folder, "\"rope_theta\":\t10000", "\"rope_scaling\":\t{}", "scaled rotary");
    refuse_config(folder, "\"rope_theta\":\t10000", "\"mlp_bias\":\ttrue", "biases");
    refuse_config(folder, "\"rope_theta\":\t10000", "\"head_dim\":\t32", "head_dim");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hugging_face),     cmocka_unit_test(test_llmc),
        cmocka_unit_test(test_llama2c),          cmocka_unit_test(test_bad_llmc),
        cmocka_unit_test(test_bad_hugging_face),
    };
    return cmocka_run_group_tests(tests, temp_folder_setup, temp_folder_teardown);
}
