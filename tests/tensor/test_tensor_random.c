/* Random numbers: known answers, PyTorch's initial weights, properties. */
#include "tests/help/expect_fatal.h"

#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

/* ---- MT19937 ---- */

static void test_mt19937_known_answers(void **state)
{
    (void)state;
    /* The first and the 10,000th output for the default seed, as the C++ standard gives them. */
    const uint32_t first[] = { 3499211612u, 581869302u, 3890346734u, 3586334585u, 545404204u };
    td_generator g;
    td_generator_seed(&g, 5489);
    for (int i = 0; i < 5; i++) {
        assert_true(td_random_u32(&g) == first[i]);
    }
    for (int i = 5; i < 9999; i++) {
        td_random_u32(&g);
    }
    assert_true(td_random_u32(&g) == 4123659995u);
}

static void *first_of_default(void *word)
{
    *(uint32_t *)word = td_random_u32(td_default_generator());
    return NULL;
}

static void test_default_generator_belongs_to_its_thread(void **state)
{
    (void)state;
    td_manual_seed(0);
    assert_int_equal(td_default_generator()->seed, 0);
    assert_true(td_random_u32(td_default_generator()) == 2357136044u);
    uint32_t elsewhere = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, first_of_default, &elsewhere), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(elsewhere == 3499211612u);
    assert_true(td_random_u32(td_default_generator()) == 2546248239u);
}

static void test_wider_draws_are_made_of_words(void **state)
{
    (void)state;
    td_generator words, g;
    td_generator_seed(&words, 42);
    td_generator_seed(&g, 42);
    uint32_t w[10];
    for (int i = 0; i < 10; i++) {
        w[i] = td_random_u32(&words);
    }
    assert_true(td_random_u64(&g) == ((uint64_t)w[0] << 32 | w[1]));
    assert_true(td_random_i63(&g) == (int64_t)(((uint64_t)(w[2] & 0x7fffffff) << 32) | w[3]));
    assert_true(td_random_f32(&g) == ldexpf((float)(w[4] & 0xffffff), -24));
    uint64_t low53 = ((uint64_t)(w[5] & 0x1fffff) << 32) | w[6];
    assert_true(td_random_f64(&g) == ldexp((double)low53, -53));
    assert_true(td_random_int(&g, -3, 7) == -3 + (int64_t)(w[7] % 10));
    /* A range of 2^32 and more takes a wide draw. */
    uint64_t wide = (uint64_t)w[8] << 32 | w[9];
    assert_true(td_random_int(&g, 0, INT64_C(1) << 33) == (int64_t)(wide % (UINT64_C(1) << 33)));
    expect_fatal("[5, 5) contains no number", td_random_int(&g, 5, 5));
}

static void test_scalar_normals_come_in_pairs(void **state)
{
    (void)state;
    td_generator uniform, g;
    td_generator_seed(&uniform, 7);
    td_generator_seed(&g, 7);
    for (int i = 0; i < 100; i++) {
        double u1 = td_random_f64(&uniform), u2 = td_random_f64(&uniform);
        double radius = sqrt(-2.0 * log1p(-u2)), angle = 2.0 * 3.14159265358979323846 * u1;
        assert_true(td_random_normal(&g) == radius * cos(angle));
        assert_true(td_random_normal(&g) == radius * sin(angle));
    }
    /* Seeding forgets the second of a pair. */
    td_random_normal(&g);
    td_generator_seed(&g, 7);
    td_generator_seed(&uniform, 7);
    assert_true(td_random_normal(&g) == td_random_normal(&uniform));
}

static void test_permutations(void **state)
{
    (void)state;
    enum { N = 1000 };
    int64_t order[N];
    bool seen[N] = { false };
    td_generator g;
    td_generator_seed(&g, 3);
    td_random_permutation(&g, order, N);
    for (int i = 0; i < N; i++) {
        assert_in_range(order[i], 0, N - 1);
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
    }
    /* torch.manual_seed(0); torch.randperm(10) */
    const int64_t torch[] = { 4, 1, 7, 5, 3, 9, 0, 8, 6, 2 };
    td_generator_seed(&g, 0);
    td_random_permutation(&g, order, 10);
    assert_memory_equal(order, torch, sizeof torch);
    uint32_t next = td_random_u32(&g);
    td_random_permutation(&g, order, 1); /* draws nothing */
    assert_int_equal(order[0], 0);
    td_random_permutation(&g, order, 0);
    td_generator_seed(&g, 0);
    for (int i = 0; i < 9; i++) {
        td_random_u32(&g);
    }
    assert_true(td_random_u32(&g) == next);
}

/* ---- filling tensors ---- */

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void test_normal_matches_pytorch(void **state)
{
    (void)state;
    /* torch.manual_seed(0); torch.randn(n), as shown with four decimals: the scalar path for fewer
     * than 16 values, the block path from 16 on. */
    const double scalar[] = { 1.5410, -0.2934, -2.1788, 0.5684, -1.0845 };
    const double block[] = { -1.1258, -1.1524, -0.2506, -0.4339, 0.8487, 0.6920, -0.3160, -2.1152 };
    td_generator g;
    td_generator_seed(&g, 0);
    td_tensor *few = td_zeros(TD_SHAPE(5), TD_F32, TD_CPU);
    td_normal_(few, 0.0, 1.0, &g);
    for (int64_t i = 0; i < 5; i++) {
        assert_true(fabs(td_get(few, &i) - scalar[i]) <= 0.5001e-4);
    }
    td_generator_seed(&g, 0);
    td_tensor *many = td_zeros(TD_SHAPE(16), TD_F32, TD_CPU);
    td_normal_(many, 0.0, 1.0, &g);
    for (int64_t i = 0; i < 8; i++) {
        assert_true(fabs(td_get(many, &i) - block[i]) <= 0.5001e-4);
    }
    td_free(few);
    td_free(many);
}

/* The approximations of log, sin and cos are good to float precision: blocks against Box-Muller in
 * double, over many draws. */
static void test_normal_blocks_are_box_muller(void **state)
{
    (void)state;
    enum { N = 16 * 4000 };
    td_tensor *t = td_zeros(TD_SHAPE(N), TD_F32, TD_CPU);
    td_tensor *u = td_zeros(TD_SHAPE(N), TD_F32, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 99);
    td_uniform_(u, 0.0, 1.0, &g);
    td_generator_seed(&g, 99);
    td_normal_(t, 0.5, 2.0, &g);
    const float *uniform = td_data(u), *normal = td_data(t);
    for (int i = 0; i < N; i++) {
        int j = i % 16 % 8, start = i - i % 16;
        double radius = sqrt(-2.0 * log(1.0 - (double)uniform[start + j]));
        double angle = 2.0 * 3.14159265358979323846 * (double)uniform[start + j + 8];
        double z = radius * (i % 16 < 8 ? cos(angle) : sin(angle));
        assert_true(fabs(normal[i] - (0.5 + 2.0 * z)) < 3e-6 * (1.0 + 2.0 * radius));
    }
    td_free(t);
    td_free(u);
}

static void test_normal_redraws_the_tail(void **state)
{
    (void)state;
    td_generator g;
    td_generator_seed(&g, 5);
    td_tensor *whole = td_zeros(TD_SHAPE(32), TD_F32, TD_CPU);
    td_normal_(whole, 0.0, 1.0, &g);
    td_generator_seed(&g, 5);
    td_tensor *t = td_zeros(TD_SHAPE(20), TD_F32, TD_CPU);
    td_normal_(t, 0.0, 1.0, &g);
    /* 4 values of the first block are left; 20 draws, then 16 more make the rest. */
    assert_memory_equal(td_data(t), td_data(whole), 4 * sizeof(float));
    td_generator again;
    td_generator_seed(&again, 5);
    for (int i = 0; i < 20; i++) {
        td_random_u32(&again);
    }
    td_tensor *last = td_zeros(TD_SHAPE(16), TD_F32, TD_CPU);
    td_normal_(last, 0.0, 1.0, &again);
    assert_memory_equal((const float *)td_data(t) + 4, td_data(last), 16 * sizeof(float));
    assert_true(td_random_u32(&g) == td_random_u32(&again));
    td_free(whole);
    td_free(t);
    td_free(last);
}

static void test_fills_are_row_major_for_any_layout_and_dtype(void **state)
{
    (void)state;
    td_shape shape = TD_SHAPE(4, 3, 2, 2);
    float expected[48], values[48];
    td_generator g;
    for (int normal = 0; normal < 2; normal++) {
        void (*fill)(td_tensor *, double, double, td_generator *, td_site) =
            normal ? td_normal_inplace_at : td_uniform_inplace_at;
        td_tensor *plain = td_zeros(shape, TD_F32, TD_CPU);
        td_generator_seed(&g, 8);
        fill(plain, -0.5, 0.5 + normal, &g, TD_HERE);
        td_read(plain, expected, TD_F32);
        uint32_t after = td_random_u32(&g);

        td_tensor *filter = td_new_layout(shape, TD_F32, TD_FILTER, TD_CPU);
        td_generator_seed(&g, 8);
        fill(filter, -0.5, 0.5 + normal, &g, TD_HERE);
        td_read(filter, values, TD_F32);
        assert_memory_equal(values, expected, sizeof values);
        assert_true(td_random_u32(&g) == after);

        td_tensor *wide = td_zeros(shape, TD_F64, TD_CPU);
        td_generator_seed(&g, 8);
        fill(wide, -0.5, 0.5 + normal, &g, TD_HERE);
        td_read(wide, values, TD_F32);
        assert_memory_equal(values, expected, sizeof values);
        for (int64_t i = 0; i < 2; i++) {
            const int64_t at[] = { 0, i, 1, 0 };
            assert_true(td_get(wide, at) == td_get(plain, at));
        }
        td_free(plain);
        td_free(filter);
        td_free(wide);
    }
}

static void test_uniform_stays_in_its_range(void **state)
{
    (void)state;
    td_generator g;
    td_generator_seed(&g, 1);
    td_tensor *t = td_zeros(TD_SHAPE(10000), TD_F32, TD_CPU);
    td_uniform_(t, -0.25, 0.75, &g);
    const float *value = td_data(t);
    double sum = 0.0;
    for (int i = 0; i < 10000; i++) {
        assert_true(value[i] >= -0.25f && value[i] <= 0.75f);
        sum += value[i];
    }
    assert_true(fabs(sum / 10000 - 0.25) < 0.01);
    td_free(t);
}

static void test_skipping_is_drawing(void **state)
{
    (void)state;
    static const int64_t counts[] = { 0, 1, 3, 15, 16, 17, 31, 600, 624, 625, 1248, 5001 };
    td_generator drawn, skipped;
    td_generator_seed(&drawn, 11);
    for (size_t i = 0; i < 2 * sizeof counts / sizeof *counts; i++) {
        int64_t count = counts[i / 2];
        td_tensor *t = td_new(TD_SHAPE(count), TD_F32, TD_CPU);
        skipped = drawn;
        if (i % 2 == 0) {
            td_uniform_(t, -1.0, 1.0, &drawn);
            td_uniform_skip(&skipped, count);
        } else {
            td_normal_(t, 1.0, 2.0, &drawn);
            td_normal_skip(&skipped, count);
        }
        assert_memory_equal(&skipped, &drawn, sizeof drawn);
        td_free(t);
    }
}

static void test_bad_fills_are_mistakes(void **state)
{
    (void)state;
    td_tensor *t = td_zeros(TD_SHAPE(3), TD_I64, TD_CPU);
    td_generator *g = td_default_generator();
    expect_fatal("td_uniform_: a tensor i64[3] cpu:0 is not of a float type",
                 td_uniform_(t, 0, 1, g));
    expect_fatal("td_uniform_: 1 to 0 is not a range", td_uniform_(t, 1, 0, g));
    expect_fatal("a standard deviation of -1 is negative", td_normal_(t, 0, -1, g));
    td_free(t);
}

/* ---- against the golden file ---- */

/* The parsed file, or NULL if TANDEM_GOLDEN is not set. */
static cJSON *golden(const char *name)
{
    const char *folder = getenv("TANDEM_GOLDEN");
    if (folder == NULL) {
        return NULL;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    text[size] = '\0';
    fclose(file);
    cJSON *json = cJSON_Parse(text);
    free(text);
    assert_non_null(json);
    return json;
}

/* PyTorch's default initialisation of a parameter of a linear layer, drawn and compared. */
static void compare_initial(const cJSON *all, const char *name, td_shape shape, double bound)
{
    const cJSON *bits = cJSON_GetObjectItemCaseSensitive(all, name);
    td_tensor *t = td_zeros(shape, TD_F32, TD_CPU);
    td_uniform_(t, -bound, bound, td_default_generator());
    assert_int_equal(cJSON_GetArraySize(bits), td_numel(t));
    const float *value = td_data(t);
    const cJSON *bit;
    cJSON_ArrayForEach(bit, bits)
    {
        assert_true(float_bits(*value++) == strtoul(bit->valuestring, NULL, 16));
    }
    td_free(t);
}

static double linear_weight_bound(double fan_in)
{
    double gain = sqrt(2.0 / (1.0 + sqrt(5.0) * sqrt(5.0)));
    return sqrt(3.0) * (gain / sqrt(fan_in));
}

static void test_initial_weights_of_wine(void **state)
{
    (void)state;
    cJSON *json = golden("golden_wine.json");
    if (json == NULL) {
        skip();
    }
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(json, "initial_bits");
    td_manual_seed(0);
    compare_initial(all, "fc1.weight", TD_SHAPE(64, 13), linear_weight_bound(13));
    compare_initial(all, "fc1.bias", TD_SHAPE(64), 1.0 / sqrt(13));
    compare_initial(all, "fc2.weight", TD_SHAPE(3, 64), linear_weight_bound(64));
    compare_initial(all, "fc2.bias", TD_SHAPE(3), 1.0 / sqrt(64));
    cJSON_Delete(json);
}

static void test_order_of_wine(void **state)
{
    (void)state;
    cJSON *json = golden("golden_wine.json");
    if (json == NULL) {
        skip();
    }
    /* After the initial weights, each epoch draws a base seed and the sampler's seed. */
    enum { ROWS = 142, WEIGHTS = 64 * 13 + 64 + 3 * 64 + 3 };
    td_generator g, sampler;
    td_generator_seed(&g, 0);
    for (int i = 0; i < WEIGHTS; i++) {
        td_random_u32(&g);
    }
    const cJSON *epoch;
    cJSON_ArrayForEach(epoch, cJSON_GetObjectItemCaseSensitive(json, "order_first3epochs"))
    {
        int64_t order[ROWS];
        assert_int_equal(cJSON_GetArraySize(epoch), ROWS);
        td_random_i63(&g);
        td_generator_seed(&sampler, (uint64_t)td_random_i63(&g));
        td_random_permutation(&sampler, order, ROWS);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(order[i], cJSON_GetArrayItem(epoch, i)->valueint);
        }
    }
    cJSON_Delete(json);
}

/* ---- Philox ---- */

static void assert_philox(td_philox_key key, uint64_t a, uint64_t b, const uint32_t expected[4])
{
    uint32_t out[4];
    td_philox(key, a, b, out);
    assert_memory_equal(out, expected, sizeof out);
}

static void test_philox_known_answers(void **state)
{
    (void)state;
    /* From the authors' test vectors; stream 0 leaves the key to the seed. */
    assert_philox((td_philox_key){ 0, 0 }, 0, 0,
                  (const uint32_t[]){ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 });
    assert_philox((td_philox_key){ UINT64_MAX, 0 }, UINT64_MAX, UINT64_MAX,
                  (const uint32_t[]){ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd });
    assert_philox((td_philox_key){ UINT64_C(0x299f31d0a4093822), 0 }, UINT64_C(0x85a308d3243f6a88),
                  UINT64_C(0x0370734413198a2e),
                  (const uint32_t[]){ 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 });
}

static void test_philox_differs_in_every_argument(void **state)
{
    (void)state;
    const struct {
        td_philox_key key;
        uint64_t a, b;
    } draws[] = {
        { { 1, 0 }, 0, 0 }, { { 2, 0 }, 0, 0 }, { { 1, 1 }, 0, 0 },
        { { 1, 2 }, 0, 0 }, { { 1, 0 }, 1, 0 }, { { 1, 0 }, 0, 1 },
        { { 0, 1 }, 0, 0 }, { { 1, 0 }, 1, 1 }, { { UINT64_C(1) << 32, 0 }, 0, 0 },
    };
    enum { DRAWS = sizeof draws / sizeof *draws };
    uint32_t out[DRAWS][4];
    for (int i = 0; i < DRAWS; i++) {
        td_philox(draws[i].key, draws[i].a, draws[i].b, out[i]);
        for (int j = 0; j < i; j++) {
            assert_memory_not_equal(out[i], out[j], sizeof out[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mt19937_known_answers),
        cmocka_unit_test(test_default_generator_belongs_to_its_thread),
        cmocka_unit_test(test_wider_draws_are_made_of_words),
        cmocka_unit_test(test_scalar_normals_come_in_pairs),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_normal_matches_pytorch),
        cmocka_unit_test(test_normal_blocks_are_box_muller),
        cmocka_unit_test(test_normal_redraws_the_tail),
        cmocka_unit_test(test_fills_are_row_major_for_any_layout_and_dtype),
        cmocka_unit_test(test_uniform_stays_in_its_range),
        cmocka_unit_test(test_skipping_is_drawing),
        cmocka_unit_test(test_bad_fills_are_mistakes),
        cmocka_unit_test(test_initial_weights_of_wine),
        cmocka_unit_test(test_order_of_wine),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_philox_differs_in_every_argument),
    };
    return cmocka_run_group_tests_name("random numbers", tests, NULL, NULL);
}
