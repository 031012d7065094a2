/* Numbers in a program whose locale writes a comma before decimals: files mean the same as
 * elsewhere, both ways. */
#include "data/data.h"
#include "dist/pipeline/pipeline.h"
#include "dist/trace.h"
#include "nn/extra/scaler.h"
#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "nn/onnx/onnx.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/system/number.h"
#include "tensor/observe/memory_plan.h"
#include "tests/help/temp_folder.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

/* Makes a locale with a comma, which need not be installed. */
static int setup(void **state)
{
    char command[8300], text[16];
    if (temp_folder_setup(state) != 0) {
        return -1;
    }
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s' >/dev/null 2>&1",
             temp_path("de_DE.UTF-8"));
    int code = system(command);
    setenv("LOCPATH", temp_folder(), 1);
    bool made = setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    snprintf(text, sizeof text, "%g", 0.5);
    *state = made && strcmp(text, "0,5") == 0 ? "comma" : NULL;
    if (*state == NULL) {
        print_message("# skipped: localedef (exit code %d) makes no locale with a comma here\n",
                      WIFEXITED(code) ? WEXITSTATUS(code) : -1);
    }
    return 0;
}

static int teardown(void **state)
{
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    return temp_folder_teardown(state);
}

static void needs_comma(void **state)
{
    if (*state == NULL) {
        skip();
    }
}

static void test_functions(void **state)
{
    needs_comma(state);
    char text[32], *end;
    assert_true(td_strtod("1.5,2", &end) == 1.5 && *end == ',');
    assert_true(td_strtod("1,5", &end) == 1.0 && *end == ',');
    td_snprintf(text, sizeof text, "%g %.2f %a", 0.5, 0.25, 1.5);
    assert_string_equal(text, "0.5 0.25 0x1.8p+0");
    snprintf(text, sizeof text, "%g", 0.5); /* the program's own locale has come back */
    assert_string_equal(text, "0,5");
    td_fail(TD_E_IO, "%g", 0.5);
    assert_string_equal(td_last_error(), "0.5");
}

static void test_csv(void **state)
{
    needs_comma(state);
    static const char text[] = "a,b,y\n0.5,1.25,0\n1.5,-2e-1,1\n";
    temp_write("d.csv", text, sizeof text - 1);
    td_dataset *d = td_csv_dataset(temp_path("d.csv"));
    if (d == NULL) {
        fail_msg("%s", td_last_error());
    }
    td_loader *loader = td_loader_open(d, .batch_size = 2);
    td_batch batch;
    assert_true(td_loader_next(loader, &batch));
    assert_true(td_get(batch.x, (int64_t[]){ 0, 0 }) == 0.5);
    assert_true(td_get(batch.x, (int64_t[]){ 1, 1 }) == (double)-0.2f);
    td_loader_close(loader);
    td_dataset_free(d);
}

typedef struct run {
    td_module *net;
    td_optim *optim;
    td_scaler *scaler;
} run;

static run make_run(void)
{
    run r = { .net = td_nn_linear(2, 2), .scaler = td_scaler_new(.scale = 1024.5) };
    r.optim = td_adam(td_parameters(r.net), .lr = 0.1);
    return r;
}

static void free_run(run *r)
{
    td_optim_free(r->optim);
    td_scaler_free(r->scaler);
    td_module_free(r->net);
}

static void save_run(const run *r, const char *name)
{
    assert_int_equal(td_checkpoint_save(temp_path(name), r->net, .optim = r->optim,
                                        .scaler = r->scaler, .with_random = true),
                     TD_OK);
}

static void load_run(const run *r, const char *name)
{
    if (td_checkpoint_load(temp_path(name), r->net, .optim = r->optim, .scaler = r->scaler,
                           .with_random = true) != TD_OK) {
        fail_msg("%s: %s", name, td_last_error());
    }
    assert_true(td_optim_lr(r->optim) == 0.1);
}

/* Byte for byte the same file, and each is loaded in both locales. */
static void test_checkpoints(void **state)
{
    needs_comma(state);
    run r = make_run();
    save_run(&r, "comma");
    setlocale(LC_ALL, "C");
    save_run(&r, "point");
    load_run(&r, "comma");
    setlocale(LC_ALL, "de_DE.UTF-8");
    load_run(&r, "point");
    load_run(&r, "comma");
    size_t sizes[2];
    char *bytes[2] = { temp_read(temp_path("comma"), &sizes[0]),
                       temp_read(temp_path("point"), &sizes[1]) };
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
    free_run(&r);
}

/* JSON's numbers have points, too. */
static void test_json(void **state)
{
    needs_comma(state);
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8e0]}}";
    unsigned char bytes[8 + sizeof header - 1 + 8] = { sizeof header - 1 };
    memcpy(bytes + 8, header, sizeof header - 1);
    td_safetensors *file;
    if (td_safetensors_parse(bytes, sizeof bytes, &file) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(td_safetensors_get(file, 0)->shape.dim[0], 2);
    td_safetensors_close(file);
}

/* Whether a text has a comma between two digits, as "0,5" has. */
static void check_points(const char *name, const char *holds)
{
    size_t size;
    char *text = temp_read(temp_path(name), &size);
    if (strstr(text, holds) == NULL) {
        fail_msg("%s does not hold '%s'", name, holds);
    }
    for (size_t i = 1; i + 1 < size; i++) {
        if (text[i] == ',' && strchr("0123456789", text[i - 1]) && text[i - 1] != '\0' &&
            strchr("0123456789", text[i + 1]) && text[i + 1] != '\0') {
            fail_msg("%s: '%.40s'", name, text + (i > 9 ? i - 9 : 0));
        }
    }
    free(text);
}

static void test_traces_and_drawings(void **state)
{
    needs_comma(state);
    td_module *net = td_nn_linear(300, 300);
    td_tensor *x = td_zeros(TD_SHAPE(7, 300), TD_F32, TD_CPU);
    assert_int_equal(td_trace_open(temp_path("trace.json")), TD_OK);
    td_memory_plan_start();
    TD_STEP {
        td_forward(net, x);
    }
    td_memory_plan_stop();
    assert_int_equal(td_trace_close(), TD_OK);
    assert_int_equal(td_memory_plan_draw(temp_path("plan.svg")), TD_OK);
    check_points("trace.json", ".");
    check_points("plan.svg", "0.3\"");
    td_free(x);
    td_module_free(net);
}

static void test_prints(void **state)
{
    needs_comma(state);
    td_tensor *t = td_full(TD_SHAPE(3), 0.5, TD_F32, TD_CPU);
    FILE *out = fopen(temp_path("printed"), "w");
    assert_non_null(out);
    td_print(t, out);
    td_memory_plan_print(out, 0);
    assert_int_equal(td_schedule_text("gpipe", 4, 8, out), TD_OK);
    assert_int_equal(fclose(out), 0);
    check_points("printed", "0.5");
    check_points("printed", "0.273");
    td_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions),           cmocka_unit_test(test_csv),
        cmocka_unit_test(test_checkpoints),         cmocka_unit_test(test_json),
        cmocka_unit_test(test_traces_and_drawings), cmocka_unit_test(test_prints),
    };
    return cmocka_run_group_tests_name("numbers where decimals have a comma", tests, setup,
                                       teardown);
}
