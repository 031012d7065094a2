/* The synthetic pictures: the same for a seed, as many of each class. */
#include "data/data.h"
#include "data/inspect.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { PICTURE = 3072, PLANE = 1024, CLASSES = 10 };

static td_dataset *make(int64_t length, uint64_t seed)
{
    td_dataset *dataset;
    assert_int_equal(td_synthetic_images(length, seed, &dataset), TD_OK);
    return dataset;
}

static void test_says_what_it_is(void **state)
{
    (void)state;
    td_dataset *dataset = make(100, 0);
    assert_true(dataset->synthetic);
    assert_int_equal(dataset->length, 100);
    assert_int_equal(dataset->classes, CLASSES);
    assert_string_equal(dataset->class_names[0], "disc");
    int count[CLASSES] = { 0 };
    for (int i = 0; i < 100; i++) {
        count[td_dataset_labels(dataset)[i]]++;
    }
    for (int c = 0; c < CLASSES; c++) {
        assert_int_equal(count[c], 10);
    }
    td_dataset_free(dataset);
}

static void test_seed_decides(void **state)
{
    (void)state;
    td_dataset *a = make(50, 1), *b = make(50, 1), *c = make(50, 2), *longer = make(60, 1);
    assert_memory_equal(td_dataset_pixels(a), td_dataset_pixels(b), 50 * PICTURE);
    assert_memory_equal(td_dataset_pixels(a), td_dataset_pixels(longer), 50 * PICTURE);
    for (int i = 0; i < 50; i++) {
        assert_memory_not_equal(td_dataset_pixels(a) + i * PICTURE,
                                td_dataset_pixels(c) + i * PICTURE, PICTURE);
    }
    td_dataset_free(a);
    td_dataset_free(b);
    td_dataset_free(c);
    td_dataset_free(longer);
}

/* In place of CIFAR-10, where there is none and no folder is named. */
static void test_in_place_of_cifar(void **state)
{
    (void)state;
    char here[4096];
    td_dataset *train, *test;
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(temp_folder()), 0);
    setenv("TANDEM_DATA", "", 1);
    assert_int_equal(td_cifar_or_synthetic(NULL, &train, &test, .limit = 1), TD_OK);
    td_dataset_free(train);
    td_dataset_free(test);
    unsetenv("TANDEM_DATA");
    assert_int_equal(td_cifar_or_synthetic(NULL, &train, &test, .limit = 20, .seed = 3), TD_OK);
    td_dataset *drawn[] = { train, test, make(20, 6), make(20, 7) };
    for (int i = 0; i < 2; i++) {
        assert_true(drawn[i]->synthetic && drawn[i]->length == 20);
        assert_memory_equal(td_dataset_pixels(drawn[i]), td_dataset_pixels(drawn[2 + i]),
                            20 * PICTURE);
    }
    for (int i = 0; i < 4; i++) {
        td_dataset_free(drawn[i]);
    }
    assert_int_equal(td_cifar_or_synthetic(".", &train, &test), TD_E_NOTFOUND);
    expect_fatal("limit is negative", td_cifar_or_synthetic(NULL, &train, &test, .limit = -1));
    assert_int_equal(chdir(here), 0);
}

/* The bytes of seed 0, wherever this runs: FNV-1a over the pictures. */
static void test_same_bytes_everywhere(void **state)
{
    (void)state;
    td_dataset *dataset = make(200, 0);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < 200 * PICTURE; i++) {
        hash = (hash ^ td_dataset_pixels(dataset)[i]) * 0x100000001b3u;
    }
    td_dataset_free(dataset);
    assert_true(hash == 0x6c3139c4889d4d54u);
}

/* A picture's shape stands out from its ground, and colours vary. */
static void test_pictures_vary(void **state)
{
    (void)state;
    td_dataset *dataset = make(1000, 5);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < 1000 * (int64_t)PICTURE; i++) {
        double value = td_dataset_pixels(dataset)[i];
        sum += value;
        square += value * value;
    }
    double mean = sum / (1000.0 * PICTURE), variance = square / (1000.0 * PICTURE) - mean * mean;
    assert_true(mean > 100 && mean < 155);
    assert_true(variance > 40 * 40);
    td_dataset_free(dataset);
}

static void test_bad_lengths(void **state)
{
    (void)state;
    td_dataset *dataset;
    const int64_t lengths[] = { 0, -1, INT64_MAX };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(td_synthetic_images(lengths[i], 0, &dataset), TD_E_ARG);
        assert_error_says("synthetic", NULL);
        assert_null(dataset);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_says_what_it_is),
        cmocka_unit_test(test_seed_decides),
        cmocka_unit_test(test_same_bytes_everywhere),
        cmocka_unit_test(test_pictures_vary),
        cmocka_unit_test(test_bad_lengths),
        cmocka_unit_test_setup_teardown(test_in_place_of_cifar, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: synthetic pictures", tests, NULL, NULL);
}
