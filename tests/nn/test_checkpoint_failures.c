/* Checkpoints when something is wrong: another model, a full disk, a folder that cannot be written,
 * a process that is killed while it saves. */
#include "tandem.h"
#include "tensor/system/temporary.h"
#include "tensor/extend.h"
#include "tests/help/entry_data.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"
#include "nn/extra/compact.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "nn/shared/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <signal.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <string.h>

static td_module *make_net(int64_t classes)
{
    return td_nn_sequential(td_nn_linear(4, 8), td_nn_relu(), td_nn_linear(8, classes));
}

static td_status load(const char *path, td_module *net, td_optim *optim, bool with_random)
{
    return td_checkpoint_load(path, net, .optim = optim, .with_random = with_random);
}

static td_status save(const char *path, td_module *net, td_optim *optim)
{
    return td_checkpoint_save(path, net, .optim = optim);
}

/* The sum of all parameters: changes when anything does. */
static double sum_of(td_module *net)
{
    td_state_list list = td_module_state(net);
    double sum = 0.0, values[64];
    for (int i = 0; i < list.count; i++) {
        td_read(list.items[i].tensor, values, TD_F64);
        for (int64_t k = 0; k < td_numel(list.items[i].tensor); k++) {
            sum += values[k] * (double)(k + 1);
        }
    }
    td_state_list_free(&list);
    return sum;
}

/* ---- another model ---- */

static void test_other_shapes(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    td_module *net = make_net(3), *other = make_net(5);
    assert_int_equal(save(path, net, NULL), TD_OK);
    double before = sum_of(other);
    assert_int_equal(load(path, other, NULL, false), TD_E_MISMATCH);
    assert_error_says("a.safetensors", "nothing was loaded", "unlike (2)",
                      "2.weight is f32[3,8] in the file, f32[5,8] here",
                      "2.bias is f32[3] in the file, f32[5] here", NULL);
    assert_null(strstr(td_last_error(), "missing"));
    assert_true(sum_of(other) == before); /* not even what fits */
    td_module_free(net);
    td_module_free(other);
}

static void test_other_names(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    td_module *net = make_net(3);
    td_module *other = td_nn_sequential(td_nn_linear(4, 8), td_nn_linear(8, 3));
    assert_int_equal(save(path, net, NULL), TD_OK);
    double before = sum_of(other);
    assert_int_equal(load(path, other, NULL, false), TD_E_MISMATCH);
    assert_error_says("missing in the file (2): 1.weight [3,8], 1.bias [3]",
                      "only in the file (2): 2.weight [3,8], 2.bias [3]", NULL);
    assert_true(sum_of(other) == before);
    td_module_free(other);

    other = td_model("resnet18", .classes = 10,
                     .stem = TD_STEM_CIFAR); /* many differences: the first ones and a count */
    assert_int_equal(load(path, other, NULL, false), TD_E_MISMATCH);
    assert_error_says("missing in the file (102): conv1.weight [64,3,3,3]", ", ...", NULL);
    assert_true(strlen(td_last_error()) < 2000);
    td_module_free(other);
    td_module_free(net);
}

static void test_other_dtype(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    const int64_t weight[] = { 1, 2 };
    const float bias[] = { 1 };
    const td_safetensors_entry entries[] = {
        { "weight", TD_I64, TD_SHAPE(1, 2), weight, 16 },
        { "bias", TD_F32, TD_SHAPE(1), bias, 4 },
    };
    assert_int_equal(td_safetensors_write(path, entries, 2, NULL, 0), TD_OK);
    td_module *net = td_nn_linear(2, 1);
    assert_int_equal(load(path, net, NULL, false), TD_E_MISMATCH);
    assert_error_says("weight is i64[1,2] in the file, f32[1,2] here", NULL);
    td_module_free(net);
}

static void train_one(td_module *net, td_optim *optim)
{
    td_tensor *x = td_full(TD_SHAPE(2, 4), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_zero_grad(optim);
    td_backward(td_sum(td_forward(net, x)));
    td_optim_step(optim);
    td_step_end();
    td_free(x);
}

static void test_other_optimizer(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    td_module *net = make_net(3), *other = make_net(3);
    td_optim *sgd = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    td_optim *adam = td_adam(td_parameters(other));
    double before = sum_of(other);

    assert_int_equal(save(path, net, NULL), TD_OK);
    assert_int_equal(load(path, other, adam, false), TD_E_MISMATCH);
    assert_error_says("the state of an optimizer (adam)", NULL);
    assert_int_equal(load(path, other, NULL, true), TD_E_MISMATCH);
    assert_error_says("random.default (metadata)", NULL);

    train_one(net, sgd);
    assert_int_equal(save(path, net, sgd), TD_OK);
    assert_int_equal(load(path, other, adam, false), TD_E_MISMATCH);
    assert_error_says("the optimizer is sgd in the file, adam here", NULL);
    assert_true(sum_of(other) == before);
    assert_int_equal(load(path, other, NULL, false), TD_OK); /* its weights alone are fine */
    assert_true(sum_of(other) == sum_of(net));

    /* Momentum in the file, none here. */
    td_optim *plain = td_sgd(td_parameters(net), .lr = 0.1);
    assert_int_equal(load(path, net, plain, false), TD_E_MISMATCH);
    assert_error_says("only in the file (4): optimizer.0.weight.momentum_buffer", NULL);
    td_optim_free(plain);
    td_optim_free(sgd);
    td_optim_free(adam);
    td_module_free(net);
    td_module_free(other);
}

static void check_bad_random(const char *text)
{
    const char *path = temp_path("random.safetensors");
    const float value = 1.0f;
    const td_safetensors_entry entries[] = { { "weight", TD_F32, TD_SHAPE(1, 1), &value, 4 },
                                             { "bias", TD_F32, TD_SHAPE(1), &value, 4 } };
    const td_metadata metadata[] = { { "random.default", text } };
    assert_int_equal(td_safetensors_write(path, entries, 2, metadata, 1), TD_OK);
    td_module *net = td_nn_linear(1, 1);
    td_generator before = *td_default_generator();
    assert_int_equal(load(path, net, NULL, true), TD_E_MISMATCH);
    assert_error_says("is no state of a generator", NULL);
    assert_memory_equal(&before, td_default_generator(), sizeof before);
    td_module_free(net);
}

static void test_bad_random_state(void **state)
{
    (void)state;
    check_bad_random("");
    check_bad_random("0 624 0 0000000000000000 0123");
    check_bad_random("0 625 0 0000000000000000 01234567");
    check_bad_random("0 -1 0 0000000000000000 01234567");
    check_bad_random("zero");
}

static void test_bad_arguments(void **state)
{
    (void)state;
    td_module *net = make_net(3);
    expect_fatal("no path or no model", td_checkpoint_save(NULL, net));
    expect_fatal("no path or no model", td_checkpoint_load("x", NULL));
    const td_metadata half[] = { { "key", NULL } };
    expect_fatal("NULL key or value",
                 td_checkpoint_save(temp_path("x"), net, .metadata = half, .metadata_count = 1));
    const td_metadata ours[] = { { "random.default", "mine" } };
    assert_int_equal(td_checkpoint_save(temp_path("x"), net, .with_random = true, .metadata = ours,
                                        .metadata_count = 1),
                     TD_E_ARG);
    assert_error_says("two metadata values are called 'random.default'", NULL);
    td_module_free(net);
}

/* ---- disks ---- */

/* Entries of a folder, besides itself and its parent. */
static int count_files(const char *path)
{
    DIR *folder = opendir(path);
    assert_non_null(folder);
    int count = -2;
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* The file at a path still is the checkpoint of a net, and nothing lies beside it. */
static void check_survives(const char *path, const char *folder, td_module *net)
{
    td_module *copy = make_net(3);
    if (load(path, copy, NULL, false) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    assert_true(sum_of(copy) == sum_of(net));
    assert_int_equal(count_files(folder), 1);
    td_module_free(copy);
}

/* A limit on the size of files stands for a full disk: it works without being root. */
static void test_file_too_large(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    td_module *net = make_net(3), *large = td_nn_linear(300, 300);
    assert_int_equal(save(path, net, NULL), TD_OK);
    struct rlimit usual, small = { .rlim_cur = 64 * 1024 };
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    small.rlim_max = usual.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    td_status status = save(path, large, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, TD_E_IO);
    assert_error_says("a.safetensors", strerror(EFBIG), "ulimit -f", "unchanged", NULL);
    check_survives(path, temp_folder(), net);
    td_module_free(net);
    td_module_free(large);
}

/* A disk of 64 KiB that really is full, where mounting one is allowed. */
static void test_full_disk(void **state)
{
    (void)state;
    temp_make_folder("disk");
    char disk[4096];
    snprintf(disk, sizeof disk, "%s", temp_path("disk"));
    if (mount("none", disk, "tmpfs", 0, "size=64k") != 0) {
        print_message("# skipped: a full disk: mounting one is not allowed (%s); the limit on the "
                      "size of files stands for it\n",
                      strerror(errno));
        skip();
    }
    char path[4200];
    snprintf(path, sizeof path, "%s/a.safetensors", disk);
    td_module *net = make_net(3), *large = td_nn_linear(300, 300);
    td_status first = save(path, net, NULL), second = save(path, large, NULL);
    bool says = strstr(td_last_error(), strerror(ENOSPC)) != NULL &&
                strstr(td_last_error(), "make room") != NULL;
    td_module *copy = make_net(3);
    td_status loaded = load(path, copy, NULL, false);
    int files = count_files(disk);
    assert_int_equal(umount(disk), 0); /* before any check can jump out */
    assert_int_equal(first, TD_OK);
    assert_int_equal(second, TD_E_IO);
    assert_true(says);
    assert_int_equal(loaded, TD_OK);
    assert_true(sum_of(copy) == sum_of(net));
    assert_int_equal(files, 1);
    td_module_free(net);
    td_module_free(large);
    td_module_free(copy);
}

/* Saves as a user who may not write; root may write everywhere, so a child gives that up first. */
static void save_unprivileged(const char *path, td_module *net)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
            _exit(2);
        }
        td_status status = save(path, net, NULL);
        bool says = strstr(td_last_error(), strerror(EACCES)) != NULL &&
                    strstr(td_last_error(), "make the folder writable") != NULL;
        _exit(status == TD_E_IO && says ? 0 : 1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

static void test_folder_not_writable(void **state)
{
    (void)state;
    td_module *net = make_net(3), *other = make_net(3);
    assert_int_equal(chmod(temp_folder(), 0755), 0);
    temp_make_folder("closed");
    const char *path = temp_path("closed/a.safetensors");
    assert_int_equal(save(path, net, NULL), TD_OK);
    assert_int_equal(chmod(temp_path("closed"), 0555), 0);
    save_unprivileged(path, other);
    check_survives(path, temp_path("closed"), net);
    assert_int_equal(chmod(temp_path("closed"), 0755), 0);

    assert_int_equal(save(temp_path("closed/a.safetensors/b"), net, NULL), TD_E_IO);
    assert_error_says("create the folder first", NULL);
    assert_int_equal(save(temp_path("none/b"), net, NULL), TD_E_IO);
    assert_error_says("none/b", strerror(ENOENT), "create the folder first", NULL);
    td_module_free(net);
    td_module_free(other);
}

/* A folder in the place of the file. */
static void test_target_is_a_folder(void **state)
{
    (void)state;
    td_module *net = make_net(3);
    temp_make_folder("a.safetensors");
    assert_int_equal(save(temp_path("a.safetensors"), net, NULL), TD_E_IO);
    assert_error_says(strerror(EISDIR), "give the name of a file", NULL);
    assert_int_equal(count_files(temp_folder()), 1);
    td_module_free(net);
}

static bool disk_fails, folder_fails; /* when they are to write what they have taken */

/* In the place of the C library's. */
int fsync(int fd)
{
    struct stat info;
    bool is_folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
    errno = EIO;
    return (is_folder ? folder_fails : disk_fails) ? -1 : (int)syscall(SYS_fsync, fd);
}

/* What fails after everything has been put into the file is told, too, in the background by
 * td_saving_wait. */
static void test_disk_that_fails_late(void **state)
{
    (void)state;
    const char *path = temp_path("a.safetensors");
    td_module *net = make_net(3), *other = make_net(3);
    assert_int_equal(save(path, net, NULL), TD_OK);
    for (int background = 0; background < 2; background++) {
        td_saving *saving = NULL;
        disk_fails = true;
        td_status status =
            td_checkpoint_save(path, other, .background = background ? &saving : NULL);
        assert_int_equal(status, background ? TD_OK : TD_E_IO);
        status = background ? td_saving_wait(&saving) : status;
        disk_fails = false;
        assert_int_equal(status, TD_E_IO);
        assert_error_says("a.safetensors", "syncing", strerror(EIO), "unchanged", NULL);
        check_survives(path, temp_folder(), net);
    }
    td_module_free(net);
    td_module_free(other);
}

/* A power cut may take the new name away, so a folder that cannot be synced is told. */
static void test_folder_that_fails(void **state)
{
    (void)state;
    td_module *net = make_net(3);
    folder_fails = true;
    td_status status = save(temp_path("a.safetensors"), net, NULL);
    folder_fails = false;
    assert_int_equal(status, TD_E_IO);
    assert_error_says("a.safetensors", strerror(EIO), NULL);
    td_module_free(net);
}

/* ---- one of two ranks that share an optimizer, without memory for its part ---- */

typedef struct lone_rank {
    int broadcasts, agreed;
    bool is_poor; /* from the beginning to the end of writing */
    struct rlimit usual;
} lone_rank;

static void gather_nothing(void *user)
{
    (void)user;
}

static td_status count_broadcast(td_tensor *t, int from, void *user)
{
    (void)t;
    (void)from;
    ((lone_rank *)user)->broadcasts++;
    return TD_OK;
}

static td_status agree_alone(td_status mine, void *user)
{
    enum { FILE_IS_MADE = 2, ALL_IS_PUT };
    lone_rank *r = user;
    struct rlimit less = { .rlim_cur = 1 << 20, .rlim_max = r->usual.rlim_max };
    r->agreed++;
    if (r->is_poor && r->agreed == FILE_IS_MADE) {
        (void)setrlimit(RLIMIT_AS, &less); /* what there is stays */
    } else if (r->is_poor && r->agreed == ALL_IS_PUT) {
        (void)setrlimit(RLIMIT_AS, &r->usual);
    }
    return mine;
}

/* It makes the same collectives as with memory: the other rank waits for each. */
static void test_a_rank_without_memory(void **state)
{
    (void)state;
    enum { IN = 1024, OUT = 8192, STATES = 2, RANKS = 2 };
    if (TD_SANITIZED) {
        print_message("# skipped: a sanitizer has addresses of its own, which are not limited\n");
        skip();
    }
    lone_rank r = { .is_poor = true };
    assert_int_equal(getrlimit(RLIMIT_AS, &r.usual), 0);
    td_module *net = td_nn_linear(IN, OUT, .no_bias = true);
    td_params_set_peers(td_parameters(net), &(td_params_peers){ .rank = 1,
                                                                .count = RANKS,
                                                                .gather = gather_nothing,
                                                                .broadcast = count_broadcast,
                                                                .agree = agree_alone,
                                                                .user = &r });
    td_optim *optim = td_adam_compact(td_parameters(net));
    td_tensor *x = td_full(TD_SHAPE(1, IN), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_zero_grad(optim);
    td_backward(td_sum(td_forward(net, x)));
    td_optim_step(optim);
    td_step_end();
    assert_int_equal(save(temp_path("none"), net, optim), TD_E_NOMEM);
    assert_error_says("no memory to copy an optimizer's state", NULL);
    assert_int_equal(r.broadcasts, STATES * RANKS);
    r = (lone_rank){ .usual = r.usual };
    assert_int_equal(save(temp_path("none"), net, optim), TD_OK);
    assert_int_equal(r.broadcasts, STATES * RANKS);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
}

/* ---- killed while saving ---- */

/* Removes the temporary file that a killed process has left next to a path:
 * PATH.tmp.HOST.PID.RANDOM. */
static bool remove_temporary(const char *path, pid_t child)
{
    char pattern[4200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s.tmp.%08" PRIx32 ".%ld.*", path, td_host_number(),
             (long)child);
    bool there = glob(pattern, 0, NULL, &found) == 0;
    if (there) {
        assert_int_equal(found.gl_pathc, 1);
        assert_int_equal(unlink(found.gl_pathv[0]), 0);
        globfree(&found);
    }
    return there;
}

/* Saves without end; both values alternate between two fillings, so that a mixture would show. */
static _Noreturn void save_forever(const char *path, td_module *net)
{
    for (int i = 0;; i++) {
        for (int t = 0; t < net->tensor_count; t++) {
            td_fill_(net->tensors[t].tensor, i % 2 == 0 ? 1.0 : 2.0);
        }
        if (save(path, net, NULL) != TD_OK) {
            _exit(1);
        }
    }
}

/* After the kill: whole, and of one filling throughout. */
static void check_whole(const char *path)
{
    td_safetensors *file;
    if (td_safetensors_open(path, &file) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    const td_safetensors_entry *weight = td_safetensors_find(file, "weight");
    const td_safetensors_entry *bias = td_safetensors_find(file, "bias");
    assert_non_null(weight);
    assert_non_null(bias);
    float *weights = entry_data(file, weight), *biases = entry_data(file, bias);
    float filling = biases[0];
    assert_true(filling == 1.0f || filling == 2.0f);
    for (size_t i = 0; i < weight->bytes / sizeof(float); i++) {
        assert_true(weights[i] == filling);
    }
    free(weights);
    free(biases);
    td_safetensors_close(file);
}

static void test_killed_while_saving(void **state)
{
    (void)state;
    enum { KILLS = 60 };
    char path[4096];
    snprintf(path, sizeof path, "%s", temp_path("a.safetensors"));
    td_manual_seed(7);
    td_module *net = td_nn_linear(200, 300);
    td_fill_(net->tensors[0].tensor, 1.0);
    td_fill_(net->tensors[1].tensor, 1.0);
    assert_int_equal(save(path, net, NULL), TD_OK);
    int temporary_left = 0;
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            save_forever(path, net);
        }
        int64_t wait = td_random_int(td_default_generator(), 100000, 15000000);
        nanosleep(&(struct timespec){ .tv_nsec = (long)wait }, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int result;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
        check_whole(path);
        temporary_left += remove_temporary(path, child);
    }
    print_message("# %d of %d kills came in the middle of a save\n", temporary_left, KILLS);
    assert_true(temporary_left > 0); /* or nothing was interrupted */
    td_module_free(net);
}

/* Cancelled in the background, at once or a moment later: the file is complete, and no temporary
 * file is left. */
static void test_cancelled(void **state)
{
    (void)state;
    enum { TIMES = 20 };
    char path[4096];
    snprintf(path, sizeof path, "%s", temp_path("cancelled"));
    td_module *net = make_net(3);
    double sum = sum_of(net);
    for (int i = 0; i < TIMES; i++) {
        td_saving *saving = NULL;
        (void)unlink(path);
        assert_int_equal(td_checkpoint_save(path, net, .background = &saving), TD_OK);
        assert_int_equal(usleep((useconds_t)(100 * i)), 0);
        td_saving_cancel(&saving);
        assert_null(saving);
        td_saving_cancel(&saving);
        assert_false(remove_temporary(path, getpid()));
        td_fill_(net->children[0]->tensors[0].tensor, 0.0);
        assert_int_equal(load(path, net, NULL, false), TD_OK);
        assert_true(sum_of(net) == sum);
    }
    td_module_free(net);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_other_shapes),
        IN_FOLDER(test_other_names),
        IN_FOLDER(test_other_dtype),
        IN_FOLDER(test_other_optimizer),
        IN_FOLDER(test_bad_random_state),
        IN_FOLDER(test_bad_arguments),
        IN_FOLDER(test_file_too_large),
        IN_FOLDER(test_full_disk),
        IN_FOLDER(test_folder_not_writable),
        IN_FOLDER(test_target_is_a_folder),
        IN_FOLDER(test_disk_that_fails_late),
        IN_FOLDER(test_folder_that_fails),
        IN_FOLDER(test_a_rank_without_memory),
        IN_FOLDER(test_killed_while_saving),
        IN_FOLDER(test_cancelled),
    };
#if defined(__GLIBC__)
    (void)mallopt(M_ARENA_MAX, 1); /* another one would be memory beyond RLIMIT_AS */
#endif
    return cmocka_run_group_tests_name("checkpoints: failures", tests, NULL, NULL);
}
