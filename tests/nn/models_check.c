/* Compares models with torchvision's. */
#include "tests/nn/models_check.h"

#include "tests/help/golden.h"
#include "tests/autograd/ops_cases.h"
#include "tests/help/temp_folder.h"
#include "nn/io/safetensors.h"
#include "tests/help/entry_data.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

td_module *models_make(const char *name, int64_t side)
{
    td_module *net = td_model(name, .classes = MODELS_CLASSES, .image_size = side,
                              .dropout = TD_ZERO, .stochastic_depth = TD_ZERO);
    if (net == NULL) {
        fail_msg("%s", td_last_error());
    }
    return net;
}

/* ---- running ---- */

static void run_evaluation(td_module *net, td_tensor *x, double *logits)
{
    td_eval(net);
    td_step_begin();
    td_no_grad_begin();
    td_read(td_forward(net, x), logits, TD_F64);
    td_no_grad_end();
    td_step_end();
}

/* A training step but for the optimizer; the gradients stay in net's parameters. */
static void run_training(td_module *net, td_tensor *x, td_tensor *y, double *logits)
{
    td_train(net);
    td_step_begin();
    td_tensor *out = td_forward(net, x);
    td_read(out, logits, TD_F64);
    td_backward(td_cross_entropy(out, y));
    td_step_end();
}

static void require_near(const char *what, const char *name, const double *got,
                         const double *expected, int64_t count, double tolerance)
{
    double error = relative_l2(got, expected, count);
    print_message("# %s: %s: relative error %.2g\n", name, what, error);
    if (!(error < tolerance)) {
        fail_msg("%s: %s: relative error %g, at most %g", name, what, error, tolerance);
    }
}

/* ---- committed numbers ---- */

/* In [-1, 1): formula() of models_torch.py. */
static double formula(int64_t i, int64_t stream)
{
    uint64_t hashed =
        (((uint64_t)i * 2 + 1 + (uint64_t)stream * 1000003) * 2654435761u) & 0xffffffffu;
    return (double)(hashed >> 8) / 0x1p23 - 1.0;
}

void models_check_initial(const cJSON *row)
{
    const char *name = golden_get(row, "name")->valuestring;
    td_manual_seed(0);
    td_module *net = models_make(name, 64);
    td_state_list list = td_module_state(net);
    uint32_t crc = 0;
    for (int i = 0; i < list.count; i++) {
        size_t bytes = (size_t)td_numel(list.items[i].tensor) * sizeof(float);
        float *values = malloc(bytes);
        assert_non_null(values);
        td_read(list.items[i].tensor, values, TD_F32);
        crc = crc32_more(crc, values, bytes);
        free(values);
    }
    td_state_list_free(&list);
    td_module_free(net);
    char text[16];
    snprintf(text, sizeof text, "%08x", crc);
    if (strcmp(text, golden_get(row, "crc32")->valuestring) != 0) {
        fail_msg("%s: the initial weights of seed 0 are not torchvision's", name);
    }
}

/* Weights that let every branch through: fresh ones are 1 and 0, or 0 at a block's end. */
static void set_norm(const td_module *m, int *count)
{
    if (strcmp(m->type->name, "BatchNorm2d") != 0) {
        return;
    }
    for (int t = 0; t < 2; t++) {
        td_tensor *tensor = m->tensors[t].tensor;
        for (int64_t i = 0; i < tensor->shape[0]; i++) {
            double value = formula(i, 2 * (int64_t)*count + t);
            td_set(tensor, &i, t == 0 ? 1 + 0.25 * value : 0.1 * value);
        }
    }
    ++*count;
}

static td_tensor *formula_pictures(int64_t n, int64_t side)
{
    td_tensor *x = td_new(TD_SHAPE(n, 3, side, side), TD_F64, TD_CPU);
    assert_non_null(x);
    double *values = td_data_rw(x);
    for (int64_t i = 0; i < td_numel(x); i++) {
        values[i] = formula(i, 77);
    }
    return x;
}

void models_check_numbers(const cJSON *row)
{
    enum { BATCH = 4, SIDE = 64, COUNT = BATCH * MODELS_CLASSES };
    const char *name = golden_get(row, "name")->valuestring;
    td_manual_seed(0);
    td_module *net = models_make(name, SIDE);
    assert_int_equal(td_module_to(net, TD_CPU, TD_F64), TD_OK);
    int norms = 0;
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        set_norm(m, &norms);
    }
    td_tensor *x = formula_pictures(BATCH, SIDE);
    td_tensor *y = td_arange(BATCH, TD_I64, TD_CPU);
    td_params *params = td_parameters(net);
    double logits[COUNT], *expected = golden_array(row, "eval", COUNT);
    run_evaluation(net, x, logits);
    require_near("evaluation", name, logits, expected, COUNT, 1e-10);
    free(expected);
    expected = golden_array(row, "train", COUNT);
    run_training(net, x, y, logits);
    require_near("training", name, logits, expected, COUNT, 1e-9);
    free(expected);
    double norm = td_clip_grad_norm(params, INFINITY), other = golden_number(row, "gradient");
    require_near("the gradient's norm", name, &norm, &other, 1, 1e-9);
    td_free(x);
    td_free(y);
    td_module_free(net);
}

/* ---- torch ---- */

static bool run_torch(const char *arguments, const char *path)
{
    const char *python = getenv("TANDEM_PYTHON");
    char command[8192];
    snprintf(command, sizeof command, "%s tests/nn/models_torch.py %s '%s' >'%s' 2>&1",
             python != NULL ? python : "/usr/bin/python3", arguments, path, temp_path("log"));
    return system(command) == 0;
}

bool models_have_torch(void)
{
    bool have = run_torch("have", "");
    if (!have) {
        print_message("# skipped: no Python with torch and torchvision (make deps-bench, or "
                      "TANDEM_PYTHON)\n");
    }
    return have;
}

static td_tensor *entry_tensor(const td_safetensors *file, const char *name)
{
    const td_safetensors_entry *entry = td_safetensors_find(file, name);
    assert_non_null(entry);
    void *data = entry_data(file, entry);
    td_tensor *t = td_from(data, entry->shape, entry->dtype, TD_CPU);
    free(data);
    return t;
}

static double *entry_values(const td_safetensors *file, const char *name, int64_t count)
{
    const td_safetensors_entry *entry = td_safetensors_find(file, name);
    if (entry == NULL || td_shape_numel(entry->shape) != count) {
        fail_msg("the probe has no '%s' of %lld elements", name, (long long)count);
    }
    double *values = malloc(((size_t)count + 1) * sizeof *values);
    assert_non_null(values);
    td_tensor *t = entry_tensor(file, name);
    td_read(t, values, TD_F64);
    td_free(t);
    return values;
}

/* Relative L2 error of all gradients as one long vector. */
static double gradients_error(td_module *net, const td_safetensors *probe)
{
    td_params *params = td_parameters(net);
    double error = 0.0, size = 0.0;
    for (int i = 0; i < td_params_count(params); i++) {
        const td_param *p = td_params_get(params, i);
        char key[256];
        snprintf(key, sizeof key, "grad.%s", p->name);
        double *expected = entry_values(probe, key, p->count);
        double *got = malloc(((size_t)p->count + 1) * sizeof *got);
        assert_non_null(got);
        td_read(td_grad(p->tensor), got, TD_F64);
        for (int64_t e = 0; e < p->count; e++) {
            error += (got[e] - expected[e]) * (got[e] - expected[e]);
            size += expected[e] * expected[e];
        }
        free(got);
        free(expected);
    }
    assert_true(size > 0.0);
    return sqrt(error / size);
}

static double logits_error(const td_safetensors *probe, const char *key, const double *logits,
                           int64_t count)
{
    double *expected = entry_values(probe, key, count);
    double error = relative_l2(logits, expected, count);
    free(expected);
    return error;
}

/* Changes each element by a few units of its last place: what follows is rounded otherwise. */
static void shake(td_tensor *x, int attempt)
{
    float *values = td_data_rw(x);
    for (int64_t i = 0; i < td_numel(x); i++) {
        values[i] *= (float)(1 + 2e-7 * formula(i, attempt));
    }
}

/* How far our results in a dtype are from torch's in f64. */
static void measure(const char *name, int64_t side, td_dtype dtype, int attempt,
                    const char *weights, const td_safetensors *probe, double error[3])
{
    td_module *net = models_make(name, side);
    assert_int_equal(td_module_to(net, TD_CPU, dtype), TD_OK);
    if (td_checkpoint_load(weights, net) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    td_parameters(net);
    td_tensor *x32 = entry_tensor(probe, "x"), *y = entry_tensor(probe, "y");
    if (attempt > 0) {
        shake(x32, attempt);
    }
    td_tensor *x = td_clone_as(x32, dtype, TD_CPU);
    int64_t count = x->shape[0] * MODELS_CLASSES;
    double *logits = malloc((size_t)count * sizeof *logits);
    assert_non_null(logits);
    run_evaluation(net, x, logits);
    error[0] = logits_error(probe, "eval", logits, count);
    run_training(net, x, y, logits);
    error[1] = logits_error(probe, "train", logits, count);
    error[2] = gradients_error(net, probe);
    free(logits);
    td_free(x);
    td_free(x32);
    td_free(y);
    td_module_free(net);
}

/* In f32, logits of evaluation and training and gradients; noise: torch's own f32. */
static bool near(const double *error, const double *noise)
{
    static const double asked[] = { 1e-5, 1e-4, 1e-3 };
    bool all = true;
    for (int i = 0; i < 3; i++) {
        all = all && error[i] < fmax(asked[i], MODELS_NOISE * noise[i]);
    }
    return all;
}

static void print_errors(const char *name, int64_t side, const char *what, const double *error)
{
    print_message("# %s at %lld: %s: evaluation %.2g, training %.2g, gradients %.2g\n", name,
                  (long long)side, what, error[0], error[1], error[2]);
}

/* A ReLU whose input rounds to the other side of 0 changes gradients by more than rounding ever
 * could. That is chance, and another draw of rounding shows it; a mistake would be in every draw.
 */
static void require_single(const char *name, int64_t side, const char *weights,
                           const td_safetensors *probe)
{
    enum { ATTEMPTS = 3 };
    double error[3], *noise = entry_values(probe, "noise", 3);
    print_errors(name, side, "torch's own f32", noise);
    bool good = false;
    for (int attempt = 0; attempt < ATTEMPTS && !good; attempt++) {
        measure(name, side, TD_F32, attempt, weights, probe, error);
        print_errors(name, side, "f32", error);
        good = near(error, noise);
    }
    free(noise);
    if (!good) {
        fail_msg("%s at %lld: f32 is too far from torch's f64 in %d draws", name, (long long)side,
                 ATTEMPTS);
    }
}

static void require_double(const char *name, int64_t side, const char *weights,
                           const td_safetensors *probe)
{
    double error[3];
    measure(name, side, TD_F64, 0, weights, probe, error);
    print_errors(name, side, "f64", error);
    if (!(error[0] < 1e-9 && error[1] < 1e-9 && error[2] < 1e-9)) {
        fail_msg("%s at %lld: f64 is too far from torch's f64", name, (long long)side);
    }
}

void models_check_torch(const char *name, int64_t side, int batch)
{
    char arguments[128], base[4096], weights[4200], path[4200];
    snprintf(arguments, sizeof arguments, "probe %s %lld %d", name, (long long)side, batch);
    snprintf(base, sizeof base, "%s", temp_path(name));
    if (!run_torch(arguments, base)) {
        fail_msg("models_torch.py %s failed; see its own output", arguments);
    }
    td_safetensors *probe;
    snprintf(weights, sizeof weights, "%s.model.safetensors", base);
    snprintf(path, sizeof path, "%s.probe.safetensors", base);
    assert_int_equal(td_safetensors_open(path, &probe), TD_OK);
    require_single(name, side, weights, probe);
    require_double(name, side, weights, probe);
    td_safetensors_close(probe);
    remove(weights);
    remove(path);
}
