/* Checkpoints whose metadata are damaged or hostile: every number is refused by name before it is
 * used, and a good file still resumes. */
#include "apps/tools/common/train.h"
#include "nn/io/safetensors.h"
#include "tests/help/entry_data.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 40, BATCH = 4, MOST_NOTES = 64 };

static void latest(const train_run *r, char *path)
{
    (void)r;
    snprintf(path, TRAIN_PATH_BYTES, "%s", temp_path("run.safetensors"));
}

static void saved(train_run *r, const char *path, bool at_epoch)
{
    (void)r;
    (void)path;
    (void)at_epoch;
}

static const train_task task = { .name = "job", .latest = latest, .saved = saved };

static td_dataset *make_data(void)
{
    td_tensor *x = td_full(TD_SHAPE(SAMPLES, 2), 1.0, TD_F32, TD_CPU);
    td_tensor *y = td_full(TD_SHAPE(SAMPLES), 1.0, TD_I64, TD_CPU);
    td_dataset *data = td_tensor_dataset(x, y);
    td_free(x);
    td_free(y);
    return data;
}

static void open_run(train_run *r)
{
    *r = (train_run){ .task = &task, .app = "test", .data_name = "zeros" };
    r->args.words.lr = "--lr";
    r->args.lr = 0.1;
    r->train = make_data();
    r->net = td_nn_linear(2, 2);
    r->optim = td_adam(td_parameters(r->net), .lr = 0.1);
    r->loader = td_loader_open(r->train, .batch_size = BATCH);
    assert_true(r->train != NULL && r->optim != NULL && r->loader != NULL);
    train_epoch_begin(&r->state, 0);
}

static void close_run(train_run *r)
{
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free((td_dataset *)(uintptr_t)r->train);
}

static void train_a_step(train_run *r)
{
    td_batch batch;
    assert_true(td_loader_next(r->loader, &batch));
    TD_STEP {
        td_zero_grad(r->optim);
        td_backward(td_cross_entropy(td_forward(r->net, batch.x), batch.y));
        td_optim_step(r->optim);
    }
    r->state.batch++;
    r->state.seen += BATCH;
}

/* The run's file, with another value of one key, or one more key. */
static const char *write_changed(const char *from, const char *key, const char *value)
{
    static const char *const keys[] = {
        "tandem.format",
        "task",
        "world",
        "epoch",
        "batch",
        "loss_sum",
        "correct",
        "correct_k",
        "seen",
        "best",
        "data",
        "optimizer.kind",
        "optimizer.lr",
        "random.default",
        "optimizer.weight.step",
        "optimizer.bias.step",
    };
    const char *path = temp_path("changed.safetensors");
    td_safetensors *file;
    assert_int_equal(td_safetensors_open(from, &file), TD_OK);
    td_metadata texts[MOST_NOTES];
    int count = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = td_safetensors_metadata(file, keys[i]);
        assert_non_null(text);
        if (strcmp(keys[i], key) != 0) {
            texts[count++] = (td_metadata){ keys[i], text };
        }
    }
    texts[count++] = (td_metadata){ key, value };
    td_safetensors_entry entries[MOST_NOTES];
    int tensors = td_safetensors_count(file);
    assert_true(tensors <= MOST_NOTES);
    for (int i = 0; i < tensors; i++) {
        entries[i] = *td_safetensors_get(file, i);
        entries[i].data = entry_data(file, td_safetensors_get(file, i));
    }
    assert_int_equal(td_safetensors_write(path, entries, tensors, texts, count), TD_OK);
    for (int i = 0; i < tensors; i++) {
        free((void *)(uintptr_t)entries[i].data);
    }
    td_safetensors_close(file);
    return path;
}

static td_status resume(const char *path)
{
    train_run r;
    open_run(&r);
    r.args.files.resume = path;
    r.args.compute.autotune = true;
    td_status status = train_resume(&r);
    if (status == TD_OK) {
        (void)train_steps_done(&r);
        train_a_step(&r);
    }
    close_run(&r);
    return status;
}

static void test_hostile_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        { "batch", "9223372036854775807", "'batch' is '9223372036854775807'" },
        { "batch", "99999999999999999999999", "'batch'" },
        { "batch", "-1", "'batch'" },
        { "batch", "4294967296", "'batch'" },
        { "epoch", "9223372036854775807", "'epoch'" },
        { "epoch", "4294967296", "'epoch'" },
        { "world", "9223372036854775807", "'world'" },
        { "world", "0", "'world'" },
        { "correct", "9223372036854775807", "'correct'" },
        { "correct_k", "9223372036854775807", "'correct_k'" },
        { "seen", "9223372036854775807", "'seen'" },
        { "seen", "", "'seen'" },
        { "loss_sum", "nan", "'loss_sum'" },
        { "best", "inf", "'best'" },
        { "optimizer.weight.step", "9223372036854775807", "optimizer.weight.step is" },
        { "optimizer.bias.step", "281474976710657", "optimizer.bias.step is" },
        { "optimizer.lr", "nan", "optimizer.lr is 'nan'" },
        { "optimizer.lr", "-1", "optimizer.lr is" },
        { "optimizer.lr", "0.1x", "optimizer.lr is" },
        { "autotune", "tandem-choices 1\nchoice 5 a\n", "'autotune': the choices are damaged" },
    };
    char path[TRAIN_PATH_BYTES];
    train_run r;
    open_run(&r);
    train_a_step(&r);
    assert_int_equal(train_save_latest(&r), TD_OK);
    latest(&r, path);
    close_run(&r);
    assert_int_equal(resume(path), TD_OK);
    assert_int_equal(resume(write_changed(path, "batch", "5")), TD_OK);
    assert_int_equal(resume(write_changed(path, "world", "2")), TD_OK);
    assert_int_equal(resume(write_changed(path, "autotune", "tandem-choices 1\nend\n")), TD_OK);
    const char *earlier = "tandem-plans 1\nfor autotune\nplan 2 07d5a7ed conv\n{}\n";
    assert_int_equal(resume(write_changed(path, "autotune", earlier)), TD_OK); /* made again */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *changed = write_changed(path, cases[i].key, cases[i].value);
        td_status status = resume(changed);
        if (status == TD_OK) {
            fail_msg("%s = %s is taken", cases[i].key, cases[i].value);
        }
        assert_error_says("changed.safetensors", cases[i].says, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hostile_numbers, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("apps: resuming", tests, NULL, NULL);
}
