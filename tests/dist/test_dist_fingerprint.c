/* Fingerprints: the same for every layout, another one for every change, and in every file. */
#include "nn/io/fingerprint.h"
#include "dist/ddp/codec.h"
#include "nn/params.h"
#include "tests/dist/leaf_run.h"
#include "tests/dist/shard_run.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ---- elements ---- */

/* The definition, an element at a time. */
static uint64_t reference_mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15;
    x ^= x >> 32;
    return x * 0xd6e8feb86659fd93;
}

static uint64_t reference(uint64_t name, const void *elements, size_t size, int64_t first,
                          int64_t step, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)elements + (size_t)i * size, size); /* little-endian */
        sum += reference_mix((name + (uint64_t)(first + i * step) * 0xbf58476d1ce4e5b9) ^ bits);
    }
    return sum;
}

static void test_elements_of_each_size(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    uint64_t memory[COUNT];
    for (int i = 0; i < COUNT; i++) {
        memory[i] = reference_mix((uint64_t)i + 3);
    }
    for (size_t size = 1; size <= 8; size *= 2) {
        for (int64_t count = 0; count < COUNT; count++) {
            for (int64_t step = 1; step < 20; step += 9) {
                assert_int_equal(td_fingerprint_elements(77, memory, size, 5, step, count),
                                 reference(77, memory, size, 5, step, count));
            }
            const char *rest = (const char *)memory + (size_t)(count / 3) * size;
            assert_int_equal(
                td_fingerprint_elements(77, memory, size, 0, 1, count / 3) +
                    td_fingerprint_elements(77, rest, size, count / 3, 1, count - count / 3),
                td_fingerprint_elements(77, memory, size, 0, 1, count));
        }
    }
}

static uint64_t fingerprint_of(const char *name, const td_tensor *t)
{
    uint64_t value = 0;
    assert_int_equal(
        td_fingerprint_tensor(td_fingerprint_name(name, t->dtype, td_shape_of(t)), t, &value),
        TD_OK);
    return value;
}

/* Every bit of every element, of numbers, infinities and NaNs. */
static void test_every_bit_counts(void **state)
{
    (void)state;
    static const float values[] = { 0.0f, -0.0f, 1.5f, INFINITY, -INFINITY, NAN, -NAN, 1e-40f };
    enum { COUNT = sizeof values / sizeof *values };
    td_tensor *t = td_from(values, TD_SHAPE(2, COUNT / 2), TD_F32, TD_CPU);
    uint64_t before = fingerprint_of("t", t);
    uint32_t *bits = td_data_rw(t);
    for (int i = 0; i < COUNT * 32; i++) {
        bits[i / 32] ^= UINT32_C(1) << i % 32;
        assert_int_not_equal(fingerprint_of("t", t), before);
        bits[i / 32] ^= UINT32_C(1) << i % 32;
    }
    assert_int_equal(fingerprint_of("t", t), before);
    assert_int_not_equal(fingerprint_of("u", t), before);
    td_tensor *other = td_from(values, TD_SHAPE(COUNT / 2, 2), TD_F32, TD_CPU);
    assert_int_not_equal(fingerprint_of("t", other), before);
    uint32_t first = bits[0];
    bits[0] = bits[1];
    bits[1] = first; /* +0 and -0 */
    assert_int_not_equal(fingerprint_of("t", t), before);
    td_free(t);
    td_free(other);
}

/* ---- layouts ---- */

typedef struct layout_result {
    uint64_t all, gradients;
    char in_file[32];
} layout_result;

typedef struct layout_case {
    int way;
    optim_rule rule;
    bool powersgd; /* whose errors each rank has of its own */
    char path[512];
    layout_result *result; /* shared by the processes */
} layout_case;

/* All ranks have the same data: 1, 2 and 4 of them have the same state after the same steps. */
static int run_layout(int rank, int size, void *arg)
{
    const layout_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_CONV_BLOCKS, .rule = c->rule, .averages = true };
    shard_run r;
    what.options.codec = c->powersgd ? td_powersgd(.rank = 1, .start = 1) : NULL;
    shard_open(&r, &what, c->way, c->powersgd ? rank : 0);
    for (int i = 0; i < 3; i++) {
        shard_step(&r, &what);
    }
    td_fingerprints f, g;
    REQUIRE_OK(
        td_fingerprint(&f, r.job.net, .optim = r.job.optim, .ema = r.ema, .with_random = true));
    td_zero_grad(r.job.optim);
    shard_backward(&r);
    REQUIRE_OK(td_fingerprint_gradients(&g, td_parameters(r.job.net)));
    REQUIRE(c->powersgd || (job_all_same(f.all) && job_all_same(g.all)));
    td_zero_grad(r.job.optim); /* no gradient waits */
    shard_step(&r, &what);
    td_fingerprints_free(&f);
    REQUIRE_OK(
        td_fingerprint(&f, r.job.net, .optim = r.job.optim, .ema = r.ema, .with_random = true));
    if (rank == 0 || td_saves_together(r.job.net)) {
        REQUIRE_OK(td_checkpoint_save(c->path, r.job.net, .optim = r.job.optim, .ema = r.ema,
                                      .with_random = true));
    }
    if (rank == 0) {
        *c->result = (layout_result){ .all = f.all, .gradients = g.all };
        REQUIRE_OK(td_checkpoint_metadata(c->path, TD_KEY_FINGERPRINT, c->result->in_file,
                                          sizeof c->result->in_file));
    }
    td_fingerprints_free(&f);
    td_fingerprints_free(&g);
    shard_close(&r);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void test_layouts_have_one_fingerprint(void **state)
{
    (void)state;
    static const optim_rule rules[] = { MOMENTUM, ADAMW_GROUPS, ADAM_8 };
    layout_result *result =
        mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(result != MAP_FAILED);
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
        layout_result first = { .all = 0 };
        for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
            for (int size = 1; size <= 4; size *= 2) {
                char text[32];
                layout_case c = { .way = way, .rule = rules[k], .result = result };
                snprintf(c.path, sizeof c.path, "%s", temp_path("run.safetensors"));
                procs_succeed(size, 60.0, run_layout, &c);
                first = first.all == 0 ? *result : first;
                snprintf(text, sizeof text, "%016" PRIx64, result->all);
                assert_string_equal(result->in_file, text);
                if (result->all != first.all || result->gradients != first.gradients) {
                    fail_msg("rule %zu, way %d, %d ranks: %016" PRIx64 " and %016" PRIx64
                             ", not %016" PRIx64 " and %016" PRIx64,
                             k, way, size, result->all, result->gradients, first.all,
                             first.gradients);
                }
            }
        }
    }
    char text[32];
    layout_case c = { .rule = MOMENTUM, .powersgd = true, .result = result };
    snprintf(c.path, sizeof c.path, "%s", temp_path("run.safetensors"));
    procs_succeed(3, 60.0, run_layout, &c);
    snprintf(text, sizeof text, "%016" PRIx64, result->all);
    assert_string_equal(result->in_file, text);
    munmap(result, sizeof *result);
}

/* Leaves: of the same run on any number of ranks. */
static void test_leaves_have_one_fingerprint(void **state)
{
    (void)state;
    char path[512], first[32] = "", text[32];
    snprintf(path, sizeof path, "%s", temp_path("run.safetensors"));
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (int way = TD_SHARD_NONE; way < LEAF_WAYS; way++) {
            const leaf_case c = { .leaves = 6, .steps = 3, .way = way, .adam = true, .save = path };
            (void)leaf_hash(&c, ranks);
            assert_int_equal(td_checkpoint_metadata(path, TD_KEY_FINGERPRINT, text, sizeof text),
                             TD_OK);
            if (first[0] == '\0') {
                memcpy(first, text, sizeof first);
            }
            if (strcmp(text, first) != 0) {
                fail_msg("%d ranks, way %d: %s, not %s", ranks, way, text, first);
            }
        }
    }
}

/* ---- files ---- */

/* A file in which one byte is another. */
static void write_damaged(const char *from, const char *to, const char *bytes, size_t from_end)
{
    size_t size;
    char *file = temp_read(temp_path(from), &size);
    char *at = file + size - from_end;
    for (char *p = file; bytes != NULL && p < file + size; p++) {
        if (memcmp(p, bytes, strlen(bytes)) == 0) {
            at = p + strlen(bytes);
            break;
        }
    }
    *at ^= 1;
    temp_write(to, file, size);
    free(file);
}

static void require_refused(td_module *net, td_optim *optim, const char *name, uint64_t before)
{
    td_fingerprints f;
    assert_int_equal(td_checkpoint_load(temp_path(name), net, .optim = optim, .with_random = true),
                     TD_E_FORMAT);
    assert_error_says(name, "has changed since it was saved", "its content has the fingerprint",
                      TD_KEY_FINGERPRINT, NULL);
    assert_int_equal(td_fingerprint(&f, net, .optim = optim, .with_random = true), TD_OK);
    assert_int_equal(f.all, before);
    td_fingerprints_free(&f);
}

/* A bit of a weight, of a step count and of the fingerprint itself: nothing is loaded. */
static void test_damaged_files_are_refused(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(6, 5);
    td_optim *optim = td_adam(td_parameters(net), .lr = 0.1);
    td_fingerprints f, there;
    td_safetensors *file;
    td_tensor *x = td_full(TD_SHAPE(2, 6), 0.5, TD_F32, TD_CPU);
    for (int i = 0; i < 2; i++) {
        TD_STEP {
            td_zero_grad(optim);
            td_backward(td_mean(td_forward(net, x)));
            td_optim_step(optim);
        }
    }
    assert_int_equal(td_checkpoint_save(temp_path("run"), net, .optim = optim, .with_random = true),
                     TD_OK);
    assert_int_equal(td_fingerprint(&f, net, .optim = optim, .with_random = true), TD_OK);
    assert_int_equal(td_safetensors_open(temp_path("run"), &file), TD_OK);
    assert_int_equal(td_fingerprint_file(&there, file), TD_OK);
    assert_int_equal(f.all, there.all);
    assert_int_equal(f.count, there.count);
    assert_int_equal(td_fingerprint_check(file, "run"), TD_OK);
    td_safetensors_close(file);
    write_damaged("run", "weight", NULL, 1);
    write_damaged("run", "steps", "optimizer.weight.step\":\"", 0);
    write_damaged("run", "number", TD_KEY_FINGERPRINT "\":\"", 0);
    require_refused(net, optim, "weight", f.all);
    require_refused(net, optim, "steps", f.all);
    require_refused(net, optim, "number", f.all);
    assert_int_equal(td_checkpoint_load(temp_path("run"), net, .optim = optim), TD_OK);
    assert_int_equal(td_load(temp_path("weight"), net), TD_E_FORMAT);
    td_fingerprints_free(&f);
    td_fingerprints_free(&there);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_of_each_size),
        cmocka_unit_test(test_every_bit_counts),
        cmocka_unit_test_setup_teardown(test_layouts_have_one_fingerprint, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_leaves_have_one_fingerprint, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_files_are_refused, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
