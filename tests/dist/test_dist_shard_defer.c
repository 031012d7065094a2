/* Models that are larger than a process's memory: deferred initialisation, and windows in files. */
#include "nn/internal.h"
#include "examples/speedrun/whitening.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/clock.h"
#include "tests/comm/dist_faults.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;

/* ---- deferred models ---- */

/* Draws of all kinds: a model to look at, not to run. */
static td_module *odd_net(uint64_t seed)
{
    td_manual_seed(seed);
    td_module *net = td_nn_sequential(
        td_nn_embedding(5, 3, .has_padding = true, .padding_idx = 2), /* an odd number below 16 */
        td_nn_embedding(3, 3), td_nn_embedding(7, 7), td_nn_linear(7, 300),
        td_nn_conv2d(3, 20, .kernel = 3),
        td_nn_sequential(td_nn_linear(2, 2), td_nn_conv2d(5, 9, .kernel = 3)),
        td_nn_sequential(td_nn_embedding(40, 16), td_nn_layer_norm(16)));
    td_init_kaiming_normal_fan_out_(net->children[4]->tensors[0].tensor); /* a second time */
    return net;
}

/* Each rank has another seed; rank 0's counts. */
static int run_odd_draws(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    td_module *first = odd_net(7), *own = odd_net(7 + (uint64_t)rank);
    td_generator after = *td_default_generator();
    uint64_t hash = job_hash(first);
    REQUIRE(!td_defer_init(true));
    td_module *net = odd_net(7 + (uint64_t)rank);
    REQUIRE(td_defer_init(false));
    REQUIRE(memcmp(&after, td_default_generator(), sizeof after) == 0);
    net = td_ddp(net, .strategy = td_zero(TD_SHARD_PARAMETERS, .gathers = arg != NULL));
    REQUIRE(net != NULL && td_params_length(td_parameters(net)) > 0);
    REQUIRE_OK(td_unshard(net));
    REQUIRE(job_hash(net) == hash && (rank == 0 || job_hash(own) != hash));
    td_reshard(net);
    REQUIRE(memcmp(&after, td_default_generator(), sizeof after) == 0);
    td_module_free(net);
    td_defer_init(rank == 0);
    REQUIRE(td_ddp(odd_net(7), .strategy = td_zero(TD_SHARD_PARAMETERS)) == NULL);
    td_defer_init(false);
    REQUIRE(strstr(td_last_error(), "different models: rank 1: the parameter '0.weight'"));
    REQUIRE(strstr(td_last_error(), "rank 0 has (td_defer_init) the parameter '0.weight'"));
    td_module_free(first);
    td_module_free(own);
    td_dist_destroy();
    return 0;
}

/* A model trains as it would have without td_defer_init. */
static int run_deferred(int rank, int size, void *arg)
{
    shard_case at_once = *(const shard_case *)arg, deferred = at_once;
    deferred.defers = true;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_PARAMETERS; way < SHARD_WAYS; way++) {
        shard_run a, b;
        shard_open(&a, &at_once, TD_SHARD_NONE, rank);
        shard_open(&b, &deferred, way, rank);
        shard_require_same(&a, &at_once, &b, &deferred, 3);
    }
    td_dist_destroy();
    return 0;
}

static void test_deferred_models_begin_and_train_alike(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        procs_succeed(size, limit, run_odd_draws, NULL);
        procs_succeed(size, limit, run_odd_draws, "gathered");
        procs_succeed(size, limit, run_deferred, &(shard_case){ .kind = JOB_BLOCKS, .rule = ADAM });
        procs_succeed(size, limit, run_deferred,
                      &(shard_case){ .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = MOMENTUM });
    }
}

enum { WIDTH = 512, BLOCKS = 6, BLOCK_BYTES = 4 * (8 * WIDTH + 5) * WIDTH }; /* 8 MiB each */

/* The most memory that a process has until td_ddp returns: its window, slots, and less than a unit.
 * The shm engine writes zeros to all ranks' windows and slots, which count in each process. */
static int run_first_peak(int rank, int size, void *arg)
{
    const bool *defers = arg;
    procs_init(rank, size, 20.0);
    double before = shard_process_bytes("status", "VmRSS:");
    td_defer_init(*defers);
    td_module *net = shard_wide_net(WIDTH, BLOCKS);
    td_defer_init(false);
    net = td_ddp(net, .strategy = td_zero(TD_SHARD_PARAMETERS));
    REQUIRE(net != NULL);
    double peak = shard_process_bytes("status", "VmHWM:") - before;
    td_shard_stats stats = td_ddp_shard_stats(net);
    double window = (double)stats.values;
    double share = procs_are_over("gloo") ? window : size * (double)(stats.values + stats.slots);
    REQUIRE(window >= BLOCKS * BLOCK_BYTES / size && window < (BLOCKS + 0.1) * BLOCK_BYTES / size);
    if (*defers != (peak < share + BLOCK_BYTES)) {
        fprintf(stderr, "%s: peak %.1f MiB, share %.1f MiB\n", *defers ? "deferred" : "at once",
                peak / (1 << 20), share / (1 << 20));
    }
    REQUIRE(TD_SANITIZED || *defers == (peak < share + BLOCK_BYTES));
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_no_rank_ever_has_a_whole_deferred_model(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        procs_succeed(size, limit, run_first_peak, &(bool){ true });
        procs_succeed(size, limit, run_first_peak, &(bool){ false });
    }
}

enum { SIDE = 3072, SQUARE_BYTES = 4 * SIDE * SIDE }; /* malloc maps it apart */

static td_module *square_net(void)
{
    td_defer_init(true);
    td_module *net = td_nn_sequential(td_nn_sequential(td_nn_linear(SIDE, SIDE)));
    td_defer_init(false);
    return net;
}

/* From now on a process can have so many bytes more; infinite: as many as before. */
static void limit_memory(double more)
{
    struct rlimit l;
    REQUIRE(getrlimit(RLIMIT_AS, &l) == 0);
    l.rlim_cur =
        isinf(more) ? l.rlim_max : (rlim_t)(shard_process_bytes("status", "VmSize:") + more);
    REQUIRE(setrlimit(RLIMIT_AS, &l) == 0);
}

/* Rank 1 has memory for its windows, but none to draw in; then none for all values: all are told.
 */
static int run_without_memory(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_ddp_options o = { .strategy = td_zero(TD_SHARD_PARAMETERS, .gathers = true) };
    o.model = square_net();
    /* Windows take 1.5 times as many bytes on shm, once as many on gloo. */
    limit_memory(rank == 1 ? 1.75 * SQUARE_BYTES : INFINITY);
    REQUIRE(td_ddp_at(o, TD_HERE) == NULL && strstr(td_last_error(), "rank 1: ") != NULL);
    limit_memory(INFINITY);
    o.model = square_net();
    REQUIRE(td_ddp_at(o, TD_HERE) != NULL);
    limit_memory(rank == 1 ? 0.5 * SQUARE_BYTES : INFINITY);
    REQUIRE(td_unshard(o.model) == TD_E_NOMEM && strstr(td_last_error(), "rank 1: ") != NULL);
    limit_memory(INFINITY);
    REQUIRE_OK(td_unshard(o.model));
    REQUIRE(job_all_same(job_hash(o.model)));
    td_module_free(o.model);
    td_dist_destroy();
    return 0;
}

static void test_no_memory_on_one_rank(void **state)
{
    (void)state;
    if (!TD_SANITIZED) { /* which has its own addresses */
        procs_succeed(2, limit, run_without_memory, NULL);
    }
}

/* A deferred model that is to be loaded draws nothing. */
static int run_deferred_load(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_PARAMETERS; way < SHARD_WAYS; way++) {
        shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
        shard_run saved, loaded;
        shard_open(&saved, &c, TD_SHARD_PARAMETERS, rank);
        shard_step(&saved, &c);
        REQUIRE_OK(
            td_checkpoint_save(arg, saved.job.net, .optim = saved.job.optim, .with_random = true));
        c.defers = c.blank = true;
        shard_open(&loaded, &c, way, rank);
        td_generator fresh;
        td_generator_seed(&fresh, 1);
        REQUIRE(memcmp(&fresh, td_default_generator(), sizeof fresh) == 0);
        REQUIRE_OK(td_checkpoint_load(arg, loaded.job.net, .optim = loaded.job.optim,
                                      .with_random = true));
        shard_require_same(&saved, &c, &loaded, &c, 1);
    }
    td_dist_destroy();
    return 0;
}

static void test_a_deferred_model_is_loaded(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_deferred_load, (void *)(uintptr_t)temp_path("saved"));
    procs_succeed(3, limit, run_deferred_load, (void *)(uintptr_t)temp_path("saved"));
}

static void test_deferred_values_are_not_there(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_defer_init(true);
    td_module *net = job_net(JOB_BLOCKS, 1, TD_F32), *other = job_net(JOB_MLP, 1, TD_F32);
    td_defer_init(false);
    td_tensor *weight = td_module_find(net, "2.3")->tensors[0].tensor;
    td_tensor *x = td_zeros(TD_SHAPE(4, 13), TD_F32, TD_CPU);
    const char *message = "'2.3.weight' f32[16,24] cpu:0 has no values yet: it was made after "
                          "td_defer_init(true)";
    expect_fatal(message, td_clone(weight));
    expect_fatal(message, td_fill_(weight, 1.0));
    td_defer_init(true);
    td_module *whitens = td_nn_conv2d(3, 24, .kernel = 2);
    td_defer_init(false);
    td_tensor *images = td_full(TD_SHAPE(2, 3, 4, 4), 0.5, TD_F32, TD_CPU);
    expect_fatal("has no values yet: it was made after td_defer_init(true)",
                 whitening_init(whitens->tensors[0].tensor, images, 1e-3));
    td_module_free(whitens);
    td_free(images);
    td_step_begin();
    expect_fatal("'0.weight' f32[16,13] cpu:0 has no values yet", td_forward(net, x));
    td_step_abandon();
    td_requires_grad(weight, false);
    expect_fatal("'2.3.weight' takes no gradient", td_parameters(net));
    td_module_free(net);
    td_free(x);
    assert_null(td_ddp(other, .strategy = td_zero(TD_SHARD_GRADIENTS)));
    assert_error_says("td_defer_init(true), which is for a strategy that divides values", NULL);
    td_dist_destroy();
}

/* ---- windows in files ---- */

/* The bits are those of windows in memory. */
static int run_offloaded(int rank, int size, void *arg)
{
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAMW_GROUPS, .averages = true, .clips = true };
    shard_case files = c, deferred;
    files.zero.offload = arg;
    deferred = files;
    deferred.defers = true;
    const shard_case *cases[] = { &c, &files, &deferred };
    procs_init(rank, size, 20.0);
    shard_run runs[3];
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        shard_open(&runs[i], cases[i], i == 0 ? TD_SHARD_NONE : TD_SHARD_PARAMETERS, rank);
        for (int k = 0; k < 5; k++) {
            shard_step(&runs[i], cases[i]);
        }
        uint64_t hash = shard_hash(&runs[i]);
        first = i == 0 ? hash : first;
        REQUIRE(hash == first);
    }
    for (int i = 0; i < 3; i++) {
        shard_close(&runs[i]);
    }
    td_dist_destroy();
    return 0;
}

/* Anonymous memory after a step. */
static double anonymous_bytes(const char *folder, td_shard_stats *stats)
{
    td_manual_seed(1);
    td_module *net =
        td_ddp(shard_wide_net(WIDTH, BLOCKS),
               .strategy = td_zero(TD_SHARD_PARAMETERS, .gathers = true, .offload = folder));
    REQUIRE(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_tensor *x = td_full(TD_SHAPE(2, WIDTH), 0.5, TD_F32, TD_CPU);
    REQUIRE(optim != NULL && x != NULL);
    TD_STEP {
        td_backward(td_mse_loss(td_forward(net, x), x));
        td_optim_step(optim);
    }
    *stats = td_ddp_shard_stats(net);
    malloc_trim(0);
    double bytes = shard_process_bytes("status", "RssAnon:");
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    return bytes;
}

static int run_offloaded_bytes(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    td_shard_stats stats;
    anonymous_bytes(NULL, &stats); /* what a first time leaves is there */
    double less = anonymous_bytes(NULL, &stats) - anonymous_bytes(arg, &stats);
    bool shared = size > 1 && !procs_are_over("gloo"); /* without files values are not anonymous */
    double windows = (double)(stats.gradients + stats.state + (shared ? 0 : stats.values));
    double tolerance = TD_SANITIZED ? INFINITY : 2 << 20;
    if (!(fabs(less - windows) < tolerance)) {
        fprintf(stderr, "%.1f MiB less, windows %.1f\n", less / (1 << 20), windows / (1 << 20));
    }
    REQUIRE(fabs(less - windows) < tolerance && windows >= 3.0 * BLOCKS * BLOCK_BYTES / size);
    td_dist_destroy();
    return 0;
}

static int count_files(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        count += e->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

static void limit_files(bool limited)
{
    struct rlimit l;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &l) == 0);
    l.rlim_cur = limited ? 100 : l.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &l) == 0);
}

static void require_told_of_large_file(void)
{
    REQUIRE(strstr(td_last_error(), "rank 1: td_zero: .offload '") != NULL);
    REQUIRE(strstr(td_last_error(), "File too large") != NULL);
}

/* Rank 1 cannot write: all are told. */
static int run_without_space(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    REQUIRE(td_ddp(job_net(JOB_BLOCKS, 1, TD_F32),
                   .strategy = td_zero(TD_SHARD_PARAMETERS,
                                       .offload = rank == 1 ? "/no/such/folder" : arg)) == NULL);
    REQUIRE(strstr(td_last_error(), "rank 1: td_zero: .offload '/no/such/folder': cannot make a "
                                    "file of") != NULL);
    REQUIRE(strstr(td_last_error(), "create the folder first") != NULL);
    td_ddp_options o = { .strategy = td_zero(TD_SHARD_PARAMETERS, .offload = arg) };
    o.model = job_net(JOB_BLOCKS, 1, TD_F32);
    limit_files(rank == 1);
    REQUIRE(td_ddp_at(o, TD_HERE) == NULL);
    require_told_of_large_file();
    limit_files(false);
    o.model = job_net(JOB_BLOCKS, 1, TD_F32);
    REQUIRE(td_ddp_at(o, TD_HERE) != NULL);
    limit_files(rank == 1);
    REQUIRE(td_adam(td_parameters(o.model), .lr = 0.1) == NULL);
    require_told_of_large_file();
    REQUIRE(td_ema_new(o.model, .decay = 0.9) == NULL);
    require_told_of_large_file();
    td_module_free(o.model);
    td_dist_destroy();
    return 0;
}

static void test_windows_in_files(void **state)
{
    (void)state;
    void *folder = (void *)(uintptr_t)temp_folder();
    for (int size = 1; size <= 3; size++) {
        procs_succeed(size, limit, run_offloaded, folder);
    }
    procs_succeed(1, limit, run_offloaded_bytes, folder);
    procs_succeed(2, limit, run_offloaded_bytes, folder);
    procs_succeed(2, limit, run_without_space, folder);
    assert_int_equal(count_files(folder), 0);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_deferred_models_begin_and_train_alike),
        IN_FOLDER(test_no_rank_ever_has_a_whole_deferred_model),
        cmocka_unit_test(test_no_memory_on_one_rank),
        IN_FOLDER(test_a_deferred_model_is_loaded),
        IN_FOLDER(test_windows_in_files),
        IN_FOLDER(test_deferred_values_are_not_there), /* makes this process a rank */
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
