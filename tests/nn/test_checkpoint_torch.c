/* Checkpoints from and for PyTorch: torchvision's ResNet-18 through a safetensors file, both ways.
 * Needs a Python with torch and torchvision (TANDEM_PYTHON; otherwise python3). */
#include "tandem.h"
#include "tests/help/temp_folder.h"
#include "nn/io/safetensors.h"
#include "tests/help/entry_data.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

/* Runs the other side; true if it ends well. */
static bool run_torch(const char *action, const char *model, const char *probe)
{
    const char *python = getenv("TANDEM_PYTHON");
    char command[8192];
    snprintf(command, sizeof command, "%s tests/nn/interop_torch.py %s '%s' '%s' >'%s' 2>&1",
             python != NULL ? python : "/usr/bin/python3", action, model, probe, temp_path("log"));
    return system(command) == 0;
}

/* Says what is missing, once a test. */
static bool have_torch(void)
{
    bool have = run_torch("have", "", "");
    if (!have) {
        print_message("# skipped: no Python with torch and torchvision (make deps-bench, or "
                      "TANDEM_PYTHON)\n");
    }
    return have;
}

static void require_torch(const char *action, const char *model, const char *probe)
{
    if (!run_torch(action, model, probe)) {
        char log[4096] = "";
        FILE *file = fopen(temp_path("log"), "r");
        if (file != NULL) {
            log[fread(log, 1, sizeof log - 1, file)] = '\0';
            fclose(file);
        }
        fail_msg("interop_torch.py %s failed:\n%s", action, log);
    }
}

enum { BATCH = 2, CLASSES = 10 };

static void run_model(td_module *net, const float *x, float logits[BATCH * CLASSES])
{
    td_tensor *input = td_from(x, TD_SHAPE(BATCH, 3, 64, 64), TD_F32, TD_CPU);
    td_eval(net);
    td_step_begin();
    td_no_grad_begin();
    td_read(td_forward(net, input), logits, TD_F32);
    td_no_grad_end();
    td_step_end();
    td_free(input);
}

static void test_from_torch(void **state)
{
    (void)state;
    if (!have_torch()) {
        skip();
    }
    const char *model = temp_path("model.safetensors"), *probe = temp_path("probe.safetensors");
    require_torch("write", model, probe);
    td_module *net = td_load_model(model, .arch = "resnet18");
    if (net == NULL) {
        fail_msg("%s", td_last_error());
    }
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(probe, &file), TD_OK);
    float *expected = entry_data(file, td_safetensors_find(file, "logits"));
    float *x = entry_data(file, td_safetensors_find(file, "x")), logits[BATCH * CLASSES];
    run_model(net, x, logits);
    double error = 0.0, size = 0.0;
    for (int i = 0; i < BATCH * CLASSES; i++) {
        error += (logits[i] - expected[i]) * (double)(logits[i] - expected[i]);
        size += expected[i] * (double)expected[i];
    }
    assert_true(size > 0.0);
    assert_true(sqrt(error / size) < 1e-5);
    free(expected);
    free(x);
    td_safetensors_close(file);
    td_module_free(net);
}

static void test_to_torch(void **state)
{
    (void)state;
    if (!have_torch()) {
        skip();
    }
    const char *model = temp_path("model.safetensors"), *probe = temp_path("probe.safetensors");
    td_manual_seed(11);
    td_module *net = td_model("resnet18", .classes = CLASSES);
    td_fill_(td_module_find(net, "layer3.0.bn2")->tensors[3].tensor, 0.75); /* a running_var */
    td_shape shape = TD_SHAPE(BATCH, 3, 64, 64);
    td_tensor *x = td_new(shape, TD_F32, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    float logits[BATCH * CLASSES];
    run_model(net, td_data(x), logits);
    const td_safetensors_entry entries[] = {
        { "x", TD_F32, shape, td_data(x), (size_t)td_numel(x) * sizeof(float) },
        { "logits", TD_F32, TD_SHAPE(BATCH, CLASSES), logits, sizeof logits },
    };
    assert_int_equal(td_safetensors_write(probe, entries, 2, NULL, 0), TD_OK);
    assert_int_equal(td_save(model, net), TD_OK);
    require_torch("check", model, probe);
    td_free(x);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_from_torch, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_to_torch, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("checkpoints: PyTorch", tests, NULL, NULL);
}
