/* Checkpoints of models: what is in the file, and that a resumed run goes on with the same bits. */
#include "tandem.h"
#include "tests/help/temp_folder.h"
#include "autograd/hooks.h"
#include "nn/io/safetensors.h"
#include "tests/help/entry_data.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "tensor/f16.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

enum { BATCH = 6 };

/* Of everything that has state: weights of both layouts, statistics, dropout. */
static td_module *make_net(void)
{
    return td_nn_sequential(td_nn_conv2d(2, 3, .kernel_hw = { 3, 2 }), td_nn_batch_norm2d(3),
                            td_nn_relu(), td_nn_flatten(), td_nn_dropout(0.4), td_nn_linear(18, 4));
}

typedef struct job {
    td_module *net;
    td_optim *optim;
} job;

static void open_job(job *j, uint64_t seed, bool adam)
{
    td_manual_seed(seed);
    j->net = make_net();
    td_params *params = td_parameters(j->net);
    j->optim = adam ? td_adam(params, .lr = 0.01, .weight_decay = 0.1)
                    : td_sgd(params, .lr = 0.05, .momentum = 0.9, .dampening = 0.1);
}

static void close_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
}

/* One step on a batch from the default generator. The convolution has no gradient in the first. */
static double run_step(job *j, bool all)
{
    td_tensor *x = td_new_layout(TD_SHAPE(BATCH, 2, 4, 4), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    td_random_normal(td_default_generator()); /* leaves a cached second value behind */
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) {
        labels[i] = td_random_int(td_default_generator(), 0, 4);
    }
    td_tensor *y = td_from(labels, TD_SHAPE(BATCH), TD_I64, TD_CPU);
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, x), y);
    td_zero_grad(j->optim);
    td_backward(loss);
    if (!all) {
        td_zero_grad_of(j->net->children[0]->tensors[0].tensor);
    }
    td_optim_step(j->optim);
    double value = td_item(loss);
    td_step_end();
    td_free(x);
    td_free(y);
    return value;
}

static void check_resume(bool adam)
{
    const char *path = temp_path("run.safetensors");
    double losses[4];
    job j;
    open_job(&j, 1, adam);
    run_step(&j, false);
    run_step(&j, false);
    td_optim_set_lr(j.optim, 0.03);
    const td_metadata metadata[] = { { "epoch", "2" } };
    assert_int_equal(td_checkpoint_save(path, j.net, .optim = j.optim, .with_random = true,
                                        .metadata = metadata, .metadata_count = 1),
                     TD_OK);
    for (int i = 0; i < 4; i++) {
        losses[i] = run_step(&j, i > 0);
    }
    close_job(&j);

    open_job(&j, 999, adam); /* everything different, even dropout's streams */
    run_step(&j, true);
    if (td_checkpoint_load(path, j.net, .optim = j.optim, .with_random = true) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_true(td_optim_lr(j.optim) == 0.03);
    for (int i = 0; i < 4; i++) {
        assert_true(run_step(&j, i > 0) == losses[i]);
    }
    close_job(&j);
    char epoch[8];
    assert_int_equal(td_checkpoint_metadata(path, "epoch", epoch, sizeof epoch), TD_OK);
    assert_string_equal(epoch, "2");
}

static void test_resume_sgd(void **state)
{
    (void)state;
    check_resume(false);
}

static void test_resume_adam(void **state)
{
    (void)state;
    check_resume(true);
}

/* The file has PyTorch's names and element order, whatever the device's. */
static void test_file_order(void **state)
{
    (void)state;
    job j;
    open_job(&j, 2, true);
    run_step(&j, true);
    const char *path = temp_path("order.safetensors");
    assert_int_equal(td_checkpoint_save(path, j.net, .optim = j.optim), TD_OK);
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    static const char *const names[] = {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "5.weight",
        "5.bias",
        "optimizer.0.weight.exp_avg",
        "optimizer.0.weight.exp_avg_sq",
        "optimizer.5.bias.exp_avg_sq",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(td_safetensors_find(file, names[i]));
    }
    assert_int_equal(td_safetensors_count(file), 8 + 2 * 6);
    assert_string_equal(td_safetensors_metadata(file, "optimizer.kind"), "adam");
    assert_string_equal(td_safetensors_metadata(file, "optimizer.5.weight.step"), "1");
    assert_null(td_safetensors_metadata(file, "random.default"));

    const td_tensor *weight = j.net->children[0]->tensors[0].tensor;
    const td_safetensors_entry *entry = td_safetensors_find(file, "0.weight");
    assert_false(td_is_contiguous(weight)); /* or this would show nothing */
    assert_true(td_shape_equal(entry->shape, TD_SHAPE(3, 2, 3, 2)));
    float *values = entry_data(file, entry), *at = values;
    for (int64_t o = 0; o < 3; o++) {
        for (int64_t i = 0; i < 2; i++) {
            for (int64_t h = 0; h < 3; h++) {
                for (int64_t w = 0; w < 2; w++) {
                    assert_true(*at++ == td_get(weight, (int64_t[]){ o, i, h, w }));
                }
            }
        }
    }
    free(values);
    td_safetensors_close(file);
    close_job(&j);
}

/* Optimizer state follows its parameter, also into a run with another layout in memory. */
static void test_other_memory_order(void **state)
{
    (void)state;
    const char *path = temp_path("reordered.safetensors");
    job j;
    open_job(&j, 3, false);
    run_step(&j, true);
    assert_int_equal(td_params_reorder(td_parameters(j.net), (int[]){ 5, 3, 1, 0, 2, 4 }), TD_OK);
    run_step(&j, true);
    assert_int_equal(td_checkpoint_save(path, j.net, .optim = j.optim, .with_random = true), TD_OK);
    double loss[2] = { run_step(&j, true), run_step(&j, true) };
    close_job(&j);
    open_job(&j, 4, false);
    assert_int_equal(td_checkpoint_load(path, j.net, .optim = j.optim, .with_random = true), TD_OK);
    assert_true(run_step(&j, true) == loss[0]);
    assert_true(run_step(&j, true) == loss[1]);
    close_job(&j);
}

/* ---- files from elsewhere ---- */

static const float linear_weight[] = { 1, 2, 3, 4, 5, 6 }, linear_bias[] = { 7, 8 };

static void check_linear(td_module *net)
{
    float values[6];
    td_read(net->tensors[0].tensor, values, TD_F32);
    assert_memory_equal(values, linear_weight, sizeof values);
    td_read(net->tensors[1].tensor, values, TD_F32);
    assert_memory_equal(values, linear_bias, 2 * sizeof *values);
}

/* Of models in PyTorch's DistributedDataParallel, torch.compile, and both. */
static void test_foreign_names(void **state)
{
    (void)state;
    const char *path = temp_path("foreign.safetensors");
    const char *wrappers[] = { "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module." };
    const int64_t batches = 5;
    for (int i = 0; i < 4; i++) {
        char names[3][64];
        snprintf(names[0], sizeof names[0], "%sweight", wrappers[i]);
        snprintf(names[1], sizeof names[1], "%sbias", wrappers[i]);
        snprintf(names[2], sizeof names[2], "%sbn1.num_batches_tracked", wrappers[i]);
        const td_safetensors_entry entries[] = {
            { names[0], TD_F32, TD_SHAPE(2, 3), linear_weight, 24 },
            { names[1], TD_F32, TD_SHAPE(2), linear_bias, 8 },
            { names[2], TD_I64, TD_SCALAR, &batches, 8 },
            { "optimizer.weight.momentum_buffer", TD_F32, TD_SHAPE(2), linear_bias, 8 }, /* not
                                                                                asked for */
        };
        assert_int_equal(td_safetensors_write(path, entries, 4, NULL, 0), TD_OK);
        td_module *net = td_nn_linear(3, 2);
        if (td_checkpoint_load(path, net) != TD_OK) {
            fail_msg("%s", td_last_error());
        }
        check_linear(net);
        td_module_free(net);
    }
}

/* Weights of another float type are converted. */
static void test_other_dtypes(void **state)
{
    (void)state;
    const char *path = temp_path("halves.safetensors");
    const double weight[] = { 1, 2, 3, 4, 5, 6 };
    const td_bf16 bias[] = { td_f32_to_bf16(7), td_f32_to_bf16(8) };
    const td_safetensors_entry entries[] = {
        { "weight", TD_F64, TD_SHAPE(2, 3), weight, sizeof weight },
        { "bias", TD_BF16, TD_SHAPE(2), bias, sizeof bias },
    };
    assert_int_equal(td_safetensors_write(path, entries, 2, NULL, 0), TD_OK);
    td_module *net = td_nn_linear(3, 2);
    assert_int_equal(td_checkpoint_load(path, net), TD_OK);
    check_linear(net);
    td_module_free(net);

    net = td_nn_linear(3, 2); /* and an f64 model comes back as it was */
    assert_int_equal(td_module_to(net, TD_CPU, TD_F64), TD_OK);
    td_set(net->tensors[0].tensor, (int64_t[]){ 1, 2 }, 1.0 / 3.0);
    assert_int_equal(td_checkpoint_save(path, net), TD_OK);
    td_set(net->tensors[0].tensor, (int64_t[]){ 1, 2 }, 0.0);
    assert_int_equal(td_checkpoint_load(path, net), TD_OK);
    assert_true(td_get(net->tensors[0].tensor, (int64_t[]){ 1, 2 }) == 1.0 / 3.0);
    td_module_free(net);
}

/* PyTorch's count of batches is loaded where the model counts, too, and otherwise ignored. A file
 * without one does not fit a model that counts: its averages would begin again. */
static void test_counted_batches(void **state)
{
    (void)state;
    const char *path = temp_path("norm.safetensors");
    const float two[] = { 2.0f, 2.0f }, four[] = { 4.0f, 4.0f };
    const int64_t batches = 3;
    const td_safetensors_entry entries[] = {
        { "weight", TD_F32, TD_SHAPE(2), two, 8 },
        { "bias", TD_F32, TD_SHAPE(2), two, 8 },
        { "running_mean", TD_F32, TD_SHAPE(2), four, 8 },
        { "running_var", TD_F32, TD_SHAPE(2), four, 8 },
        { "num_batches_tracked", TD_I64, TD_SCALAR, &batches, 8 },
    };
    td_module *counts = td_nn_batch_norm2d(2, .cumulative = true), *plain = td_nn_batch_norm2d(2);
    assert_int_equal(td_safetensors_write(path, entries, 5, NULL, 0), TD_OK);
    assert_int_equal(td_checkpoint_load(path, plain), TD_OK);
    assert_int_equal(td_checkpoint_load(path, counts), TD_OK);
    td_tensor *x = td_zeros(TD_SHAPE(2, 2, 1, 1), TD_F32, TD_CPU);
    TD_STEP {
        td_forward(counts, x);
    }
    td_free(x);
    assert_int_equal(td_checkpoint_save(path, counts), TD_OK);
    td_fill_(counts->tensors[2].tensor, 0.0);
    td_fill_(counts->tensors[4].tensor, 0.0);
    assert_int_equal(td_checkpoint_load(path, counts), TD_OK);
    assert_true(td_get(counts->tensors[2].tensor, (int64_t[]){ 1 }) == 3.0); /* (3 * 4 + 0) / 4 */
    assert_true(td_item(counts->tensors[4].tensor) == 4.0);
    assert_int_equal(td_safetensors_write(path, entries, 4, NULL, 0), TD_OK);
    assert_int_equal(td_checkpoint_load(path, counts), TD_E_MISMATCH);
    assert_error_says("missing in the file (1): num_batches_tracked", NULL);
    td_module_free(counts);
    td_module_free(plain);
}

/* All of a ResNet's 102 tensors come back. */
static void test_resnet(void **state)
{
    (void)state;
    const char *path = temp_path("resnet.safetensors");
    td_manual_seed(0);
    td_module *net = td_model("resnet18", .classes = 10, .stem = TD_STEM_CIFAR);
    td_tensor *flat = td_params_flat(td_parameters(net));
    td_tensor *variance = td_module_find(net, "layer4.1.bn2")->tensors[3].tensor;
    td_tensor *before = td_clone(flat);
    td_fill_(variance, 0.25);
    assert_int_equal(td_checkpoint_save(path, net), TD_OK);
    td_fill_(flat, 0.0);
    td_fill_(variance, 0.0);
    assert_int_equal(td_checkpoint_load(path, net), TD_OK);
    size_t bytes = (size_t)td_numel(flat) * sizeof(float);
    assert_int_equal(memcmp(td_data(flat), td_data(before), bytes), 0);
    assert_true(td_get(variance, (int64_t[]){ 511 }) == 0.25);
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(path, &file), TD_OK);
    assert_int_equal(td_safetensors_count(file), 102);
    td_safetensors_close(file);
    td_free(before);
    td_module_free(net);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_resume_sgd),      IN_FOLDER(test_resume_adam),
        IN_FOLDER(test_file_order),      IN_FOLDER(test_other_memory_order),
        IN_FOLDER(test_foreign_names),   IN_FOLDER(test_other_dtypes),
        IN_FOLDER(test_counted_batches), IN_FOLDER(test_resnet),
    };
    return cmocka_run_group_tests_name("checkpoints: resume", tests, NULL, NULL);
}
