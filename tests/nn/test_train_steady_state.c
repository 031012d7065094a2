/* After the third step a training step calls no malloc, grows no memory, and uses the same
 * addresses as the step before. */
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"
#include "tests/dist/shard_run.h"
#include "tests/nn/train_job.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

/* ---- every call of the allocator in this program is counted ---- */

static atomic_long allocations;

#if defined(__GLIBC__) && !TD_SANITIZED
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    *memory = __libc_memalign(alignment, size);
    return *memory == NULL ? 12 : 0;
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

/* Kilobytes of anonymous memory: code that is touched late does not count. */
static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "RssAnon:", 8) == 0) {
            kb = strtol(line + 8, NULL, 10);
        }
    }
    fclose(f);
    assert_true(kb > 0);
    return kb;
}

enum { WARM_UP = 3, STEPS = 10 };

static void check_same_memory(td_memory_stats before, td_memory_stats now)
{
    assert_int_equal(now.reserved, before.reserved);
    assert_int_equal(now.growths, before.growths);
    assert_int_equal(now.peak, before.peak);
    assert_int_equal(now.allocations, before.allocations);
    assert_true(now.address_hash == before.address_hash);
    assert_int_equal(now.in_use, 0);
}

/* What the machine is like must not decide how much memory is resident: two threads, whose stacks
 * are warm after a few steps, and no huge pages, which the system may make at any time. */
static void settle(void)
{
    assert_int_equal(td_set_threads(TD_CPU, 2), TD_OK);
#ifdef PR_SET_THP_DISABLE
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
#endif
}

/* A GPT trains without a call of the allocator, also with its blocks run again. */
static void check_gpt(const char *model, bool again)
{
    int64_t tokens[2 * 33];
    for (int i = 0; i < 2 * 33; i++) {
        tokens[i] = i * 31 % 65;
    }
    settle();
    td_module *net = td_model(model);
    assert_non_null(net);
    assert_int_equal(td_model_recompute(net, again ? TD_PART_BLOCK : TD_PART_NONE), again ? 2 : 0);
    td_optim *optim = td_adamw(td_parameters(net), .lr = 1e-3);
    td_tensor *x = td_from(tokens, TD_SHAPE(2, 33), TD_I64, TD_CPU);
    td_memory_stats memory = { 0 };
    long calls = 0;
    for (int i = 0; i < WARM_UP + STEPS; i++) {
        TD_STEP {
            td_tensor *loss = td_forward2(net, x, x);
            td_zero_grad(optim);
            td_backward(loss);
            td_clip_grad_norm(td_parameters(net), 1.0);
            td_optim_step(optim);
        }
        if (i == WARM_UP - 1) {
            memory = td_step_memory(TD_CPU);
            calls = atomic_load(&allocations);
        }
    }
    assert_int_equal(atomic_load(&allocations), calls);
    check_same_memory(memory, td_step_memory(TD_CPU));
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
}

static void test_gpt(void **state)
{
    (void)state;
    check_gpt("gpt-nano layers=2 vocabulary=65", false);
    check_gpt("gpt-nano layers=2 vocabulary=65 dropout=0.1 rope rms_norm swiglu kv_heads=2", true);
}

static void test_resnet(void **state)
{
    (void)state;
    train_job job;
    settle();
    train_job_open(&job, 8, 32);
    for (int i = 0; i < WARM_UP; i++) {
        train_job_step(&job);
    }
    td_memory_stats memory = td_step_memory(TD_CPU);
    assert_true(memory.peak > 0 && memory.allocations > 0);
    long kb = resident_kb();
    long calls = atomic_load(&allocations);
    for (int i = 0; i < STEPS; i++) {
        train_job_step(&job);
    }
    if (COUNTS_ALLOCATIONS) {
        assert_true(calls > 0); /* the counting works */
        assert_int_equal(atomic_load(&allocations), calls);
    }
    check_same_memory(memory, td_step_memory(TD_CPU));
    if (!TD_SANITIZED) {
        long grown = resident_kb() - kb;
        assert_in_range(grown < 0 ? 0 : grown, 0, 64); /* a thread's stack may touch a page more */
    }
    train_job_close(&job);
}

/* The loader belongs to the steady state, too: whole epochs, with workers. */
static void test_loader_and_mlp(void **state)
{
    (void)state;
    td_dataset *images;
    assert_int_equal(td_synthetic_images(200, 1, &images), TD_OK);
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_flatten(), td_nn_linear(3072, 20), td_nn_relu(),
                                      td_nn_dropout(0.1), td_nn_linear(20, 10));
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader = td_loader_open(images, .batch_size = 64, .shuffle = true, .workers = 2);
    long calls = 0;
    for (int epoch = 0; epoch < 6; epoch++) {
        for (td_batch batch; td_loader_next(loader, &batch);) {
            td_step_begin();
            td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
            td_zero_grad(optim);
            td_backward(loss);
            td_optim_step(optim);
            td_step_end();
        }
        assert_int_equal(td_loader_status(loader), TD_OK);
        if (epoch == 2) {
            calls = atomic_load(&allocations);
        }
    }
    assert_int_equal(atomic_load(&allocations), COUNTS_ALLOCATIONS ? calls : 0);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(images);
}

/* Of ranks that share what they keep, too: units' memory comes and goes without the allocator. */
static int run_sharded(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        shard_case c = { .kind = JOB_CONV_BLOCKS, .rule = ADAM };
        shard_run r;
        shard_open(&r, &c, way, rank);
        for (int i = 0; i < WARM_UP; i++) {
            shard_step(&r, &c);
        }
        long calls = atomic_load(&allocations);
        for (int i = 0; i < STEPS; i++) {
            shard_step(&r, &c);
        }
        REQUIRE(!COUNTS_ALLOCATIONS || (calls > 0 && atomic_load(&allocations) == calls));
        shard_close(&r);
    }
    td_dist_destroy();
    return 0;
}

static void test_sharded(void **state)
{
    (void)state;
    procs_succeed(2, 60.0, run_sharded, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded), /* before this process has threads */
        cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_gpt),
        cmocka_unit_test(test_loader_and_mlp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
