/* Files of a model alone, models made from files, and the version of the file format. */
#include "dist/dist.h"
#include "nn/extra/ema.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "nn/module.h"
#include "nn/io/safetensors.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_ok(td_status status)
{
    if (status != TD_OK) {
        fail_msg("%s", td_last_error());
    }
}

/* Writes the value of a file's metadata into a static buffer; "none" if the key is missing. */
static const char *note_of(const char *path, const char *key)
{
    static char text[64];
    td_status status = td_checkpoint_metadata(path, key, text, sizeof text);
    assert_true(status == TD_OK || status == TD_E_NOTFOUND);
    return status == TD_OK ? text : "none";
}

static void expect_equal_state(const td_module *a, const td_module *b)
{
    td_state_list mine = td_module_state(a), other = td_module_state(b);
    assert_int_equal(mine.count, other.count);
    for (int i = 0; i < mine.count; i++) {
        td_tensor *x = mine.items[i].tensor, *y = other.items[i].tensor;
        assert_string_equal(mine.items[i].name, other.items[i].name);
        assert_true(td_shape_equal(td_shape_of(x), td_shape_of(y)));
        size_t bytes = (size_t)td_numel(x) * sizeof(float);
        void *values = malloc(2 * bytes);
        td_read(x, values, TD_F32);
        td_read(y, (char *)values + bytes, TD_F32);
        assert_memory_equal(values, (char *)values + bytes, bytes);
        free(values);
    }
    td_state_list_free(&mine);
    td_state_list_free(&other);
}

/* ---- a model alone ---- */

/* The tensors are the state_dict's (PyTorch's num_batches_tracked is optional there), in a file
 * that has nothing of a run. */
static void test_saves_the_state_dict(void **state)
{
    (void)state;
    const char *names[] = { "0.weight",       "0.bias",        "1.weight", "1.bias",
                            "1.running_mean", "1.running_var", "4.weight", "4.bias" };
    enum { NAMES = sizeof names / sizeof *names };
    const char *path = temp_path("model.safetensors");
    td_module *net = td_nn_sequential(td_nn_conv2d(2, 3, .kernel = 3), td_nn_batch_norm2d(3),
                                      td_nn_relu(), td_nn_flatten(), td_nn_linear(12, 4));
    expect_ok(td_save(path, net));
    td_safetensors *file;
    expect_ok(td_safetensors_open(path, &file));
    assert_int_equal(td_safetensors_count(file), NAMES);
    for (int i = 0; i < NAMES; i++) {
        assert_non_null(td_safetensors_find(file, names[i]));
    }
    td_safetensors_close(file);
    assert_string_equal(note_of(path, "tandem.format"), "1");
    assert_string_equal(note_of(path, "model.arch"), "none");
    assert_string_equal(note_of(path, "random.default"), "none");

    td_module *other = td_module_clone(net);
    td_fill_(other->children[0]->tensors[0].tensor, 0.0);
    expect_ok(td_load(path, other));
    expect_equal_state(net, other);
    td_module_free(other);
    other = td_nn_linear(12, 4);
    assert_int_equal(td_load(path, other), TD_E_MISMATCH);
    td_module_free(other);
    td_module_free(net);
}

/* td_load takes a run's file, without its optimizer; with averages, since those were tested. */
static void test_loads_a_runs_file(void **state)
{
    (void)state;
    const char *path = temp_path("run.safetensors");
    td_module *net = td_nn_linear(3, 2), *other = td_nn_linear(3, 2);
    td_optim *optim = td_sgd(td_parameters(net), .lr = 1, .momentum = 0.9);
    td_ema *ema = td_ema_new(net, .decay = 0.5);
    td_fill_(td_params_flat(td_parameters(net)), 3.0);
    td_fill_(td_params_flat_grad(td_parameters(net)), 0.0);
    td_optim_step(optim);

    expect_ok(td_checkpoint_save(path, net, .optim = optim));
    expect_ok(td_load(path, other));
    assert_true(td_get(other->tensors[0].tensor, (int64_t[]){ 1, 2 }) == 3.0);

    td_ema_swap(ema);
    td_fill_(td_params_flat(td_parameters(net)), 5.0);
    td_ema_swap(ema);
    expect_ok(td_checkpoint_save(path, net, .ema = ema));
    expect_ok(td_load(path, other));
    assert_true(td_get(other->tensors[0].tensor, (int64_t[]){ 1, 2 }) == 5.0);
    assert_true(td_get(other->tensors[1].tensor, (int64_t[]){ 1 }) == 5.0);
    expect_ok(td_checkpoint_load(path, other));
    assert_true(td_get(other->tensors[0].tensor, (int64_t[]){ 1, 2 }) == 3.0);
    td_ema_free(ema);
    td_optim_free(optim);
    td_module_free(net);
    td_module_free(other);
}

static void test_mistakes(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(3, 2);
    expect_fatal("no path or no model", td_save(NULL, net));
    assert_non_null(strstr(fatal_message(), "test_checkpoint_model.c"));
    expect_fatal("no path or no model", td_load("x", NULL));
    expect_fatal("no path", td_load_model(NULL));
    assert_null(td_load_model(temp_path("nothing")));
    assert_error_says("nothing", "No such file", NULL);
    const char *path = temp_path("nameless");
    expect_ok(td_save(path, net));
    assert_null(td_load_model(path));
    assert_error_says("nameless", "does not say which model", "arch", "a model of your own", NULL);
    assert_null(td_load_model(path, .arch = "resnet81"));
    assert_error_says("resnet18", NULL);
    td_module_free(net);
}

/* ---- models from their files ---- */

/* Saves a model, makes another from the file, compares, and ends both. */
static void come_back(td_module *net, const char *arch, const char *classes, const char *stem)
{
    const char *path = temp_path("model.safetensors");
    assert_non_null(net);
    td_state_list list = td_module_state(net);
    td_fill_(list.items[0].tensor, 0.5);
    td_state_list_free(&list);
    expect_ok(td_save(path, net));
    assert_string_equal(note_of(path, "model.arch"), arch);
    assert_string_equal(note_of(path, "model.classes"), classes);
    assert_string_equal(note_of(path, "model.stem"), stem);
    td_module *made = td_load_model(path);
    if (made == NULL) {
        fail_msg("%s", td_last_error());
    }
    assert_false(made->training);
    expect_equal_state(net, made);
    td_model_record a = td_model_record_of(net), b = td_model_record_of(made);
    assert_string_equal(a.arch, b.arch);
    assert_int_equal(a.classes, b.classes);
    assert_int_equal(a.stem, b.stem);
    assert_int_equal(a.image_size, b.image_size);
    td_module_free(made);
    td_module_free(net);
}

static void test_models_come_back(void **state)
{
    (void)state;
    come_back(td_model("resnet18", .classes = 7, .stem = TD_STEM_CIFAR), "resnet18", "7", "cifar");
    come_back(td_model("resnet18", .classes = 3), "resnet18", "3", "imagenet");
    come_back(td_model("efficientnet_b0", .classes = 2, .blank = true), "efficientnet_b0", "2",
              "imagenet");
    come_back(td_model("botnet50", .classes = 5, .image_size = 64, .blank = true), "botnet50", "5",
              "imagenet");
}

/* The side of the images that BoTNet's positions are for, where the metadata do not have it. */
static void test_sides_of_botnet(void **state)
{
    (void)state;
    const char *path = temp_path("botnet.safetensors");
    const td_stem stems[] = { TD_STEM_IMAGENET, TD_STEM_CIFAR };
    for (int i = 0; i < 2; i++) {
        td_module *net = td_model("botnet50", .classes = 3, .stem = stems[i], .blank = true);
        expect_ok(td_save(path, net));
        td_module *made = td_load_model(path);
        if (made == NULL) {
            fail_msg("%s", td_last_error());
        }
        assert_int_equal(td_model_record_of(made).image_size, 224);
        td_module_free(made);
        td_module_free(net);
    }
    const td_safetensors_entry entries[] = {
        { "pos_emb.rel_height", TD_F32, TD_SHAPE((int64_t)1 << 50, 0), NULL, 0 },
        { "fc.weight", TD_F32, TD_SHAPE(3, 0), NULL, 0 },
    };
    expect_ok(
        td_safetensors_write(path, entries, 2, &(td_metadata){ "model.arch", "botnet50" }, 1));
    assert_null(td_load_model(path));
    assert_error_says("botnet.safetensors", "images of side", NULL);
}

/* Wrappers and copies are of the same model. */
static void test_wrapped_models(void **state)
{
    (void)state;
    td_device devices[] = { { TD_DEVICE_CPU, 0 }, { TD_DEVICE_CPU, 1 } };
    come_back(
        td_data_parallel(td_model("resnet18", .classes = 4, .stem = TD_STEM_CIFAR), devices, 2),
        "resnet18", "4", "cifar");
    td_module *net = td_model("resnet18", .classes = 4, .stem = TD_STEM_CIFAR);
    come_back(td_module_clone(net), "resnet18", "4", "cifar");
    td_module_free(net);
    net = td_nn_sequential(td_model("resnet18", .classes = 4, .stem = TD_STEM_CIFAR), td_nn_relu());
    assert_null(td_model_record_of(net).arch); /* a part of another model is not the model */
    td_module_free(net);
}

/* Files without the keys: the arch comes from the caller. */
static void test_files_without_keys(void **state)
{
    (void)state;
    const char *path = temp_path("old.safetensors");
    td_module *net = td_model("resnet18", .classes = 6, .blank = true);
    td_state_list list = td_module_state(net);
    td_safetensors_entry *entries = calloc((size_t)list.count, sizeof *entries);
    for (int i = 0; i < list.count; i++) { /* all zeros: the order of elements does not matter */
        td_tensor *t = list.items[i].tensor;
        entries[i] = (td_safetensors_entry){ list.items[i].name, t->dtype, td_shape_of(t),
                                             td_data(t), (size_t)td_numel(t) * sizeof(float) };
    }
    expect_ok(td_safetensors_write(path, entries, list.count, NULL, 0));
    assert_null(td_load_model(path));
    assert_error_says("does not say which model it is", NULL);
    td_module *made = td_load_model(path, .arch = "resnet18");
    assert_non_null(made);
    assert_int_equal(td_model_record_of(made).classes, 6);
    td_module_free(made);
    free(entries);
    td_state_list_free(&list);
    td_module_free(net);
}

/* ---- the version of the format ---- */

static void test_formats(void **state)
{
    (void)state;
    static const struct {
        const char *format, *message; /* NULL: no such key; it is read */
    } cases[] = {
        { NULL, NULL },
        { "0", NULL },
        { "1", NULL },
        { "3", "was written by a newer tandem (format 3); this one reads up to 1" },
        { "1.5", "tandem.format is '1.5', not a number" },
        { "-1", "tandem.format is '-1', not a number" },
        { "", "tandem.format is '', not a number" },
    };
    const float weight[] = { 1, 2 };
    const td_safetensors_entry entry = { "weight", TD_F32, TD_SHAPE(1, 2), weight, sizeof weight };
    const char *path = temp_path("file.safetensors");
    td_module *net = td_nn_linear(2, 1, .no_bias = true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const td_metadata notes[] = { { "epoch", "2" }, { "tandem.format", cases[i].format } };
        char epoch[8];
        expect_ok(td_safetensors_write(path, &entry, 1, notes, cases[i].format != NULL ? 2 : 1));
        td_status wanted = cases[i].message == NULL ? TD_OK : TD_E_FORMAT;
        assert_int_equal(td_load(path, net), wanted);
        assert_int_equal(td_checkpoint_load(path, net), wanted);
        assert_int_equal(td_checkpoint_metadata(path, "epoch", epoch, sizeof epoch), wanted);
        assert_null(td_load_model(path));
        if (wanted != TD_OK) {
            assert_error_says("file.safetensors", cases[i].message, NULL);
        }
    }
    td_module_free(net);
}

/* Metadata of a model that cannot be right, in a file that is. */
static void test_bad_records(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key, *value, *message;
    } cases[] = {
        { "resnet18", "model.classes", "ten", "model.classes is 'ten'" },
        { "resnet18", "model.classes", "0", "no weights of a classifier" },
        { "resnet18", "model.classes", "100000000000", "not a number from 0 to" },
        { "botnet50", "model.image_size", "-7", "model.image_size is '-7'" },
    };
    const float weight[] = { 1, 2 };
    const td_safetensors_entry entry = { "weight", TD_F32, TD_SHAPE(1, 2), weight, sizeof weight };
    const char *path = temp_path("file.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const td_metadata notes[] = { { "model.arch", cases[i].arch },
                                      { cases[i].key, cases[i].value } };
        expect_ok(td_safetensors_write(path, &entry, 1, notes, 2));
        assert_null(td_load_model(path));
        assert_error_says("file.safetensors", cases[i].message, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_saves_the_state_dict, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_loads_a_runs_file, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_mistakes, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_models_come_back, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_sides_of_botnet, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_wrapped_models, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_files_without_keys, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_formats, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bad_records, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("checkpoints: models", tests, NULL, NULL);
}
