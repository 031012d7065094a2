/* Without a GPU: cuDNN has a plan, by the rules of cudnn_plan.h, for every convolution that ResNets
 * and the lessons need, on an H100/H200 (sm_90) that is only described; plans survive being written
 * and read, and are kept if they run. And libraries that are missing, broken or too old are
 * named. */
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if TD_HAVE_CUDA && !TD_EMULATED

#include "tensor/cuda/cuda.h"
#include "tensor/cuda/vendor.h"
static void *no_workspace(void **scratch)
{
    return *scratch = NULL;
}
#define td_vendor_workspace(device, bytes, scratch) no_workspace(scratch)
#define td_cuda_of(device) ((td_cuda *)NULL)
#include "tensor/cuda/cudnn_conv.c" /* for its inside: running needs a GPU, and a stand-in here */
#undef td_vendor_workspace
#undef td_cuda_of
#include "tests/gpu/convs.h"
#include "tests/help/sanitized.h"

#if TD_SANITIZED
/* cuDNN and cuBLASLt keep memory to the end and are unloaded before leaks are looked for, so that
 * theirs cannot be told by name (asked by LeakSanitizer). */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

static td_cudnn_target target;

/* skips where there is no cuDNN: building needs its headers alone. */
static void open_target(void)
{
    if (target.lib != NULL) {
        return;
    }
    target.lib = td_cudnn_open();
    if (target.lib == NULL) {
        print_message("# skipped: %s\n", td_last_error());
        skip();
    }
    char json[4096];
    FILE *file = fopen("tests/gpu/h200.json", "r"); /* tests run in the project's root */
    assert_non_null(file);
    json[fread(json, 1, sizeof json - 1, file)] = '\0';
    fclose(file);
    target.description = td_cudnn_describe(target.lib, json);
    if (target.description == NULL) {
        fail_msg("%s", td_last_error());
    }
}

static const struct {
    td_dtype dtype;
    bool tf32;
} kinds[] = {
    { TD_F32, false }, { TD_F32, true }, { TD_BF16, false }, { TD_F16, false }, { TD_F64, false }
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void expect_plan(const td_cuda_conv *conv)
{
    td_cudnn_plan plan;
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(conv, false, key);
    if (td_cudnn_candidates(&target, conv, 1, &plan) != 1) {
        fail_msg("cuDNN has no plan for: %s", key);
    }
    td_cudnn_plan_end(target.lib, &plan);
}

static void expect_all_passes(td_cuda_conv conv)
{
    for (int k = 0; k < KINDS; k++) {
        for (int pass = 0; pass < 3; pass++) {
            conv.pass = (td_cuda_conv_pass)pass;
            conv.dtype = kinds[k].dtype;
            conv.tf32 = kinds[k].tf32;
            conv.bias = conv.accumulate = false;
            expect_plan(&conv);
            conv.bias = pass == TD_CUDA_CONV_FORWARD;
            conv.accumulate = pass != TD_CUDA_CONV_FORWARD;
            expect_plan(&conv);
        }
    }
}

static void expect_resnet(int depth, bool cifar_stem, int64_t batch, int64_t side, int at_least)
{
    td_cuda_conv convs[GPU_MAX_CONVS];
    int count = gpu_resnet_convs(depth, cifar_stem, batch, side, convs);
    assert_true(count >= at_least);
    for (int i = 0; i < count; i++) {
        expect_all_passes(convs[i]);
    }
}

static void test_resnets_have_plans(void **state)
{
    (void)state;
    open_target();
    expect_resnet(18, false, 256, 32, 11); /* the lessons */
    expect_resnet(18, true, 512, 32, 11);
    expect_resnet(34, false, 80, 32, 11); /* an epoch's last batch */
    expect_resnet(50, false, 256, 224, 20);
}

static void test_odd_shapes_have_plans(void **state)
{
    (void)state;
    open_target();
    td_cuda_conv odd = { .n = 3,
                         .ic = 5,
                         .ih = 9,
                         .iw = 7,
                         .oc = 11,
                         .oh = 5,
                         .ow = 7,
                         .kh = 3,
                         .kw = 1,
                         .stride = { 2, 1 },
                         .pad = { 1, 0 },
                         .dilation = { 1, 1 },
                         .groups = 1 };
    expect_all_passes(odd);
    td_cuda_conv dilated = { .n = 2,
                             .ic = 16,
                             .ih = 12,
                             .iw = 12,
                             .oc = 24,
                             .oh = 12,
                             .ow = 12,
                             .kh = 3,
                             .kw = 3,
                             .stride = { 1, 1 },
                             .pad = { 2, 2 },
                             .dilation = { 2, 2 },
                             .groups = 1 };
    expect_all_passes(dilated);
    td_cuda_conv groups = { .n = 8,
                            .ic = 128,
                            .ih = 14,
                            .iw = 14,
                            .oc = 128,
                            .oh = 14,
                            .ow = 14,
                            .kh = 3,
                            .kw = 3,
                            .stride = { 1, 1 },
                            .pad = { 1, 1 },
                            .dilation = { 1, 1 },
                            .groups = 32 };
    expect_all_passes(groups);
    groups.groups = 128; /* depthwise */
    expect_all_passes(groups);
}

/* Strict f32 gets other engines than TF32; several ones stand for choice by timing. */
static void test_f32_is_strict(void **state)
{
    (void)state;
    open_target();
    td_cuda_conv conv = { .n = 256,
                          .ic = 64,
                          .ih = 32,
                          .iw = 32,
                          .oc = 64,
                          .oh = 32,
                          .ow = 32,
                          .kh = 3,
                          .kw = 3,
                          .stride = { 1, 1 },
                          .pad = { 1, 1 },
                          .dilation = { 1, 1 },
                          .groups = 1 };
    td_cudnn_plan strict[10], loose[10];
    int strict_count = td_cudnn_candidates(&target, &conv, 10, strict);
    conv.tf32 = true;
    int loose_count = td_cudnn_candidates(&target, &conv, 10, loose);
    assert_true(strict_count >= 2 && loose_count == 10);
    assert_true(strict[0].engine != loose[0].engine);
    for (int i = 0; i < strict_count; i++) {
        td_cudnn_plan_end(target.lib, &strict[i]);
    }
    for (int i = 0; i < loose_count; i++) {
        td_cudnn_plan_end(target.lib, &loose[i]);
    }
}

static td_cuda_conv new_conv(void)
{
    return (td_cuda_conv){ .dtype = TD_BF16,
                           .n = 16,
                           .ic = 64,
                           .ih = 8,
                           .iw = 8,
                           .oc = 64,
                           .oh = 8,
                           .ow = 8,
                           .kh = 3,
                           .kw = 3,
                           .stride = { 1, 1 },
                           .pad = { 1, 1 },
                           .dilation = { 1, 1 },
                           .groups = 1 };
}

static void test_plans_are_written_and_read(void **state)
{
    (void)state;
    open_target();
    td_cuda_conv conv = new_conv();
    td_cudnn_plan plan, again;
    assert_int_equal(td_cudnn_candidates(&target, &conv, 1, &plan), 1);
    size_t bytes, bytes_again;
    char *text = td_cudnn_plan_write(target.lib, &plan, &bytes);
    assert_non_null(text);
    assert_true(td_cudnn_plan_read(&target, text, bytes, &again));
    assert_true(again.workspace == plan.workspace);
    char *text_again = td_cudnn_plan_write(target.lib, &again, &bytes_again);
    assert_non_null(text_again);
    assert_int_equal(bytes, bytes_again);
    assert_memory_equal(text, text_again, bytes);
    td_cudnn_plan_end(target.lib, &again);
    assert_false(td_cudnn_plan_read(&target, text, bytes / 2, &again));
    assert_false(td_cudnn_plan_read(&target, "{}", 2, &again));
    td_cudnn_plan_end(target.lib, &plan);
    free(text);
    free(text_again);
}

/* ---- the first run ---- */

static int refusals, executions; /* the stand-in refuses the first plans, then all run */

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t memory)
{
    assert_true(handle == NULL && plan != NULL && memory != NULL);
    return executions++ < refusals ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

/* A new entry, whose plan is cuDNN's first. */
static entry new_entry(bool kept)
{
    entry e = { .conv = new_conv(), .kept = kept };
    assert_int_equal(td_cudnn_candidates(&target, &e.conv, 1, &e.plan), 1);
    return e;
}

/* Runs an entry's plan when the next so many runs are refused. */
static cudnnStatus_t first_run(const struct gpu *g, entry *e, int refused)
{
    static float memory[4];
    const void *const pointers[4] = { &memory[0], &memory[1], &memory[2], NULL };
    refusals = refused;
    executions = 0;
    return execute_plan(g, TD_CUDA, e, pointers);
}

static bool is_kept(const entry *e)
{
    char key[TD_PLAN_KEY_MAX];
    size_t bytes;
    td_cudnn_plan_key(&e->conv, e->tuned, key);
    char *text = td_vendor_plan_get(TD_CUDA, key, &bytes);
    free(text);
    return text != NULL;
}

/* A plan is kept from its first run on. One that does not run is dropped, from the file too, and
 * cuDNN's next one is taken. */
static void test_plans_are_kept_that_run(void **state)
{
    (void)state;
    open_target();
    td_cudnn lib = *target.lib;
    lib.cudnnBackendExecute = execute;
    struct gpu g = { .lib = &lib, .description = target.description };
    setenv("TANDEM_CACHE", temp_folder(), 1);
    td_vendor_plans_open(TD_CUDA, "nobody");
    entry none = new_entry(false), good = new_entry(false), old = new_entry(true);
    assert_int_equal(first_run(&g, &none, 1000), CUDNN_STATUS_NOT_SUPPORTED);
    assert_true(executions > 2 && none.plan.plan == NULL && !is_kept(&none));
    int64_t first = good.plan.engine;
    assert_int_equal(first_run(&g, &good, 0), CUDNN_STATUS_SUCCESS);
    assert_true(executions == 1 && good.proven && is_kept(&good) && good.plan.engine == first);
    assert_int_equal(first_run(&g, &good, 1), CUDNN_STATUS_NOT_SUPPORTED); /* it ran before */
    assert_true(executions == 1 && is_kept(&good));
    /* The same convolution, from the file: the first run, and cuDNN's first plan, are refused. */
    assert_int_equal(first_run(&g, &old, 2), CUDNN_STATUS_SUCCESS);
    assert_true(executions == 3 && old.proven && old.kept && is_kept(&old));
    entry *ended[] = { &good, &old };
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(&old.conv, false, key);
    td_vendor_plan_remove(TD_CUDA, key);
    for (int i = 0; i < 2; i++) {
        drop_packs(&lib, ended[i]);
        td_cudnn_plan_end(&lib, &ended[i]->plan);
    }
    unsetenv("TANDEM_CACHE");
}

/* On disk, too. */
static void end_entries(const td_cudnn *lib, struct gpu *g)
{
    char key[TD_PLAN_KEY_MAX];
    for (int i = 0; i < BUCKETS; i++) {
        for (entry *e = g->entries[i], *next; e != NULL; e = next) {
            next = e->next;
            td_cudnn_plan_key(&e->conv, false, key);
            td_vendor_plan_remove(TD_CUDA, key);
            drop_packs(lib, e);
            td_cudnn_plan_end(lib, &e->plan);
            free(e);
        }
        g->entries[i] = NULL;
    }
}

/* If no plan with the bias in it runs, the caller adds the bias itself: the answer is false, and is
 * remembered. Without a bias it is an error. */
static void test_a_bias_that_no_plan_adds(void **state)
{
    (void)state;
    open_target();
    td_cudnn lib = *target.lib;
    lib.cudnnBackendExecute = execute;
    struct gpu *g = &gpus[TD_CUDA.index];
    g->lib = &lib;
    g->description = target.description;
    static float memory[5];
    td_cuda_conv conv = new_conv();
    conv.bias = true;
#define RUN(bias) td_cuda_vendor_conv(TD_CUDA, &conv, &memory[0], &memory[1], &memory[2], bias)
    executions = 0;
    refusals = 1000;
    assert_false(RUN(&memory[3]));
    assert_true(executions > 1);
    executions = refusals = 0;
    assert_false(RUN(&memory[3]));
    assert_int_equal(executions, 0);
    conv.bias = false;
    assert_true(RUN(NULL));
    assert_int_equal(executions, 1);
    conv.n++;
    refusals = 1000;
    expect_fatal("no deterministic plan that runs", (void)RUN(NULL));
#undef RUN
    end_entries(&lib, g);
    g->lib = NULL;
}

/* ---- choices by timing ---- */

/* The text of choices that hold one plan. The caller frees. */
static char *choices_with(const td_cuda_conv *conv, const char *plan, size_t bytes, size_t *size)
{
    char key[TD_PLAN_KEY_MAX];
    td_cudnn_plan_key(conv, true, key);
    char *text = NULL;
    FILE *file = open_memstream(&text, size);
    fprintf(file, "tandem-choices 1\nchoice %zu %s\n%.*s\nend\n", bytes, key, (int)bytes, plan);
    fclose(file);
    assert_non_null(text);
    return text;
}

/* The first step's plan is cuDNN's; a choice that comes replaces it, whoever has made it; one that
 * cannot be read here does not. */
static void test_choices_replace_plans(void **state)
{
    (void)state;
    open_target();
    struct gpu g = { .lib = target.lib, .description = target.description };
    td_cuda_conv conv = new_conv();
    td_cudnn_plan plans[10];
    int count = td_cudnn_candidates(&target, &conv, 10, plans);
    assert_true(count > 1);
    td_set_autotune(true);
    entry *e = entry_of(&g, TD_CUDA, &conv);
    assert_false(e->tuned);
    assert_int_equal(e->plan.engine, plans[0].engine);
    size_t bytes, size;
    char *plan = td_cudnn_plan_write(target.lib, &plans[count - 1], &bytes);
    assert_non_null(plan);
    char *text = choices_with(&conv, plan, bytes, &size);
    assert_int_equal(td_autotune_take(text, size), TD_OK);
    assert_ptr_equal(entry_of(&g, TD_CUDA, &conv), e);
    assert_true(e->tuned && e->kept && !e->proven);
    size_t now_bytes;
    char *now = td_cudnn_plan_write(target.lib, &e->plan, &now_bytes);
    assert_int_equal(now_bytes, bytes);
    assert_memory_equal(now, plan, bytes);
    free(now);
    free(text);
    text = choices_with(&conv, "{}", 2, &size);
    assert_int_equal(td_autotune_take(text, size), TD_OK);
    assert_false(entry_of(&g, TD_CUDA, &conv)->tuned);
    assert_non_null(e->plan.plan);
    td_set_autotune(false);
    free(text);
    free(plan);
    td_cudnn_plan_end(target.lib, &e->plan);
    free(e);
    for (int i = 0; i < count; i++) {
        td_cudnn_plan_end(target.lib, &plans[i]);
    }
}

/* ---- libraries ---- */

static void test_a_missing_library_is_named(void **state)
{
    (void)state;
    void *library;
    setenv("TANDEM_CUDA_LIBRARIES", "/nowhere:/nowhere/else", 1);
    assert_int_equal(td_cuda_library_open("cuDNN", "libcudnn.so.9", &library), TD_E_DEVICE);
    assert_null(library);
    assert_error_says("cuDNN is missing", "libcudnn.so.9", "/nowhere, /nowhere/else",
                      "TANDEM_CUDA_LIBRARIES", NULL);
    unsetenv("TANDEM_CUDA_LIBRARIES");
    setenv("CUDA_HOME", "/home/of/cuda", 1);
    assert_int_equal(td_cuda_library_open("Nothing", "libtandem-nothing.so.1", &library),
                     TD_E_DEVICE);
    assert_error_says("Nothing is missing", "the dynamic linker's folders", "/home/of/cuda/lib64",
                      "site-packages/nvidia/*/lib", NULL);
    unsetenv("CUDA_HOME");
}

static void test_a_broken_library_is_not_called_missing(void **state)
{
    (void)state;
    void *library;
    temp_write("libcudnn.so.9", "this is no library", 18);
    setenv("TANDEM_CUDA_LIBRARIES", temp_folder(), 1);
    assert_int_equal(td_cuda_library_open("cuDNN", "libcudnn.so.9", &library), TD_E_DEVICE);
    assert_error_says("cuDNN cannot be loaded", temp_path("libcudnn.so.9"), NULL);
    unsetenv("TANDEM_CUDA_LIBRARIES");
}

static void test_a_missing_function_is_named(void **state)
{
    (void)state;
    void *library, *pointers[2] = { NULL, NULL };
    assert_int_equal(td_cuda_library_open("libc", "libc.so.6", &library), TD_OK);
    assert_non_null(strstr(td_cuda_library_path(library), "libc.so.6"));
    static const char *const names[] = { "getpid", "cudnnOfTheFuture" };
    void *const into[] = { &pointers[0], &pointers[1] };
    assert_int_equal(td_cuda_library_bind(library, "libc.so.6", names, into, 2), TD_E_DEVICE);
    assert_error_says("cudnnOfTheFuture", "another version", NULL);
    assert_non_null(pointers[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_library_is_named),
        cmocka_unit_test(test_a_broken_library_is_not_called_missing),
        cmocka_unit_test(test_a_missing_function_is_named),
        cmocka_unit_test(test_f32_is_strict),
        cmocka_unit_test(test_plans_are_written_and_read),
        cmocka_unit_test(test_plans_are_kept_that_run),
        cmocka_unit_test(test_a_bias_that_no_plan_adds),
        cmocka_unit_test(test_choices_replace_plans),
        cmocka_unit_test(test_odd_shapes_have_plans),
        cmocka_unit_test(test_resnets_have_plans),
    };
    return cmocka_run_group_tests(tests, temp_folder_setup, temp_folder_teardown);
}

#else

static void test_this_build_has_no_cudnn(void **state)
{
    (void)state;
    print_message("# skipped: this build has no cuDNN\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_this_build_has_no_cudnn) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
