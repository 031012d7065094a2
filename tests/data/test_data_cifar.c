/* CIFAR's binary files: the real ones against known sums, made-up ones good and bad. */
#include "data/data.h"
#include "data/parse.h"
#include "data/inspect.h"
#include "tests/help/golden.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { PICTURE = 3072, RECORD10 = 1 + PICTURE, RECORD100 = 2 + PICTURE };

/* ---- the real set ---- */

static int64_t entry(const cJSON *check, const char *key, int i)
{
    const cJSON *item = golden_get(check, key);
    return (int64_t)(i < 0 ? item : cJSON_GetArrayItem(item, i))->valuedouble;
}

/* One file's pictures against its sums. */
static void check_file(const cJSON *checks, const char *name, const uint8_t *pixels,
                       const uint8_t *labels)
{
    const cJSON *check = golden_get(checks, name);
    int64_t histogram[10] = { 0 }, sum = 0;
    for (int i = 0; i < 10000; i++) {
        histogram[labels[i]]++;
    }
    for (int64_t i = 0; i < 10000 * (int64_t)PICTURE; i++) {
        sum += pixels[i];
    }
    assert_int_equal(sum, entry(check, "pixel_sum", -1));
    for (int i = 0; i < 10; i++) {
        assert_int_equal(histogram[i], entry(check, "label_histogram", i));
        assert_int_equal(labels[i], entry(check, "first10_labels", i));
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pixels[i], entry(check, "first_pixels", i));
        assert_int_equal(pixels[10000 * (int64_t)PICTURE - 8 + i], entry(check, "last_pixels", i));
    }
}

/* The means that the papers normalise with. */
static void check_means(const cJSON *checks, const uint8_t *pixels)
{
    for (int c = 0; c < 3; c++) {
        int64_t sum = 0;
        for (int64_t i = 0; i < 50000; i++) {
            const uint8_t *plane = pixels + i * PICTURE + c * 1024;
            for (int p = 0; p < 1024; p++) {
                sum += plane[p];
            }
        }
        const cJSON *means = golden_get(checks, "train_channel_mean");
        double mean = cJSON_GetArrayItem(means, c)->valuedouble;
        assert_true(fabs((double)sum / (255.0 * 50000 * 1024) - mean) < 1e-10);
    }
}

static void test_real_cifar10(void **state)
{
    (void)state;
    const char *folder = getenv("TANDEM_DATA");
    char whole[4096];
    struct stat info;
    snprintf(whole, sizeof whole, "%s/cifar-10-batches-bin/data_batch_5.bin",
             folder != NULL ? folder : "");
    if (folder == NULL || getenv("TANDEM_GOLDEN") == NULL || stat(whole, &info) != 0 ||
        info.st_size != 10000 * (int64_t)RECORD10) {
        print_message("# skipped: set TANDEM_DATA to a folder with the whole cifar-10-batches-bin/ "
                      "and TANDEM_GOLDEN to the one with cifar10_check.json\n");
        skip();
    }
    cJSON *checks = golden_open("cifar10_check.json");
    td_dataset *train, *test;
    assert_int_equal(td_cifar_open(folder, TD_CIFAR10, true, &train), TD_OK);
    assert_int_equal(train->length, 50000);
    assert_int_equal(train->classes, 10);
    assert_string_equal(train->class_names[9], "truck");
    assert_false(train->synthetic);
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i + 1);
        check_file(checks, name, td_dataset_pixels(train) + i * 10000 * (int64_t)PICTURE,
                   td_dataset_labels(train) + i * 10000);
    }
    check_means(checks, td_dataset_pixels(train));
    td_dataset_free(train);
    assert_int_equal(td_cifar_open(folder, TD_CIFAR10, false, &test), TD_OK);
    assert_int_equal(test->length, 10000);
    check_file(checks, "test_batch.bin", td_dataset_pixels(test), td_dataset_labels(test));
    td_dataset_free(test);
    cJSON_Delete(checks);
}

/* ---- small made-up sets ---- */

/* Record r of a file: labels, then pixels that tell record and place. */
static uint8_t pixel_of(int file, int record, int place)
{
    return (uint8_t)(file * 50 + record * 7 + place);
}

static void make_file(const char *name, td_cifar_kind kind, int file, int records)
{
    size_t record = kind == TD_CIFAR10 ? RECORD10 : RECORD100;
    uint8_t *bytes = calloc((size_t)records + 1, record), *at = bytes;
    assert_non_null(bytes);
    for (int r = 0; r < records; r++) {
        if (kind == TD_CIFAR100) {
            *at++ = (uint8_t)(r % 20);
        }
        *at++ = (uint8_t)((file * 3 + r) % (int)kind);
        for (int p = 0; p < PICTURE; p++) {
            *at++ = pixel_of(file, r, p);
        }
    }
    temp_write(name, bytes, (size_t)records * record);
    free(bytes);
}

static void make_set10(const char *prefix)
{
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "%sdata_batch_%d.bin", prefix, i + 1);
        make_file(name, TD_CIFAR10, i, 2 + i);
    }
    char name[64];
    snprintf(name, sizeof name, "%stest_batch.bin", prefix);
    make_file(name, TD_CIFAR10, 5, 70);
}

static void check_set10(void)
{
    td_dataset *train, *test;
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, true, &train), TD_OK);
    assert_int_equal(train->length, 2 + 3 + 4 + 5 + 6);
    const uint8_t *pixels = td_dataset_pixels(train), *labels = td_dataset_labels(train);
    for (int i = 0, n = 0; i < 5; i++) {
        for (int r = 0; r < 2 + i; r++, n++) {
            assert_int_equal(labels[n], i * 3 + r > 9 ? i * 3 + r - 10 : i * 3 + r);
            for (int p = 0; p < PICTURE; p++) {
                assert_int_equal(pixels[n * PICTURE + p], pixel_of(i, r, p));
            }
        }
    }
    td_dataset_free(train);
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, false, &test), TD_OK);
    assert_int_equal(test->length, 70);
    assert_int_equal(td_dataset_pixels(test)[69 * PICTURE + 9], pixel_of(5, 69, 9));
    td_dataset_free(test);
}

static void test_files_in_the_folder_or_in_the_subfolder(void **state)
{
    (void)state;
    make_set10("");
    check_set10();
    temp_make_folder("cifar-10-batches-bin");
    make_set10("cifar-10-batches-bin/");
    assert_int_equal(unlink(temp_path("data_batch_3.bin")), 0); /* the subfolder comes first */
    check_set10();
}

static void test_cifar100_takes_fine_labels(void **state)
{
    (void)state;
    make_file("train.bin", TD_CIFAR100, 4, 90);
    make_file("test.bin", TD_CIFAR100, 1, 3);
    td_dataset *train;
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR100, true, &train), TD_OK);
    assert_int_equal(train->length, 90);
    assert_int_equal(train->classes, 100);
    assert_string_equal(train->class_names[0], "apple");
    assert_string_equal(train->class_names[99], "worm");
    for (int r = 0; r < 90; r++) {
        assert_int_equal(td_dataset_labels(train)[r], (12 + r) % 100);
        assert_int_equal(td_dataset_pixels(train)[r * PICTURE + 3071], pixel_of(4, r, 3071));
    }
    td_dataset_free(train);
}

static void test_head_is_a_view(void **state)
{
    (void)state;
    make_set10("");
    td_dataset *test;
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, false, &test), TD_OK);
    td_dataset *head = td_dataset_head(test, 10), *more = td_dataset_head(head, 1000);
    assert_int_equal(head->length, 10);
    assert_int_equal(more->length, 10);
    assert_ptr_equal(td_dataset_pixels(more), td_dataset_pixels(test));
    assert_ptr_equal(td_dataset_labels(head), td_dataset_labels(test));
    assert_int_equal(head->classes, 10);
    td_image_transform flip = { .flip = true };
    assert_int_equal(td_dataset_set_transform(head, &flip), TD_E_UNSUPPORTED);
    assert_error_says("the whole dataset", NULL);
    assert_null(td_dataset_head(test, -1));
    assert_error_says("-1", NULL);
    td_dataset_free(more);
    td_dataset_free(head);
    td_dataset_free(test);
    td_dataset_free(NULL);
}

/* ---- bad files ---- */

static void expect_open_fails(td_cifar_kind kind, bool train, td_status status)
{
    td_dataset *dataset;
    assert_int_equal(td_cifar_open(temp_folder(), kind, train, &dataset), status);
    assert_null(dataset);
}

static void test_missing(void **state)
{
    (void)state;
    td_dataset *dataset;
    assert_int_equal(td_cifar_open(temp_path("nowhere"), TD_CIFAR10, true, &dataset),
                     TD_E_NOTFOUND);
    assert_error_says("nowhere", "no such folder", "--download", NULL);
    expect_open_fails(TD_CIFAR10, true, TD_E_NOTFOUND);
    assert_error_says(temp_folder(), "neither", "cifar-10-binary.tar.gz", NULL);
    expect_open_fails(TD_CIFAR100, false, TD_E_NOTFOUND);
    assert_error_says("CIFAR-100", "cifar-100-binary.tar.gz", NULL);
    temp_write("file", "x", 1);
    assert_int_equal(td_cifar_open(temp_path("file"), TD_CIFAR10, true, &dataset), TD_E_NOTFOUND);
    assert_error_says("not a folder", NULL);
    make_set10("");
    td_dataset *train, *test;
    assert_int_equal(unlink(temp_path("test_batch.bin")), 0); /* one of the two sets is good */
    assert_int_equal(td_cifar_or_synthetic(temp_folder(), &train, &test), TD_E_NOTFOUND);
    assert_error_says("no CIFAR-10 in", temp_folder(), NULL);
    assert_true(train == NULL && test == NULL);
    assert_int_equal(unlink(temp_path("data_batch_4.bin")), 0);
    expect_open_fails(TD_CIFAR10, true, TD_E_NOTFOUND);
    assert_error_says("data_batch_4.bin", "--download", NULL);
    temp_make_folder("data_batch_4.bin");
    expect_open_fails(TD_CIFAR10, true, TD_E_IO);
    assert_error_says("data_batch_4.bin", "not a regular file", NULL);
    assert_int_equal(rmdir(temp_path("data_batch_4.bin")), 0);
    assert_int_equal(mkfifo(temp_path("data_batch_4.bin"), 0600), 0); /* opening it does not wait */
    expect_open_fails(TD_CIFAR10, true, TD_E_IO);
    assert_error_says("data_batch_4.bin", "not a regular file", NULL);
    assert_int_equal(td_cifar_open(temp_folder(), (td_cifar_kind)11, true, &dataset), TD_E_ARG);
    assert_error_says("CIFAR-11", NULL);
}

static void test_wrong_sizes(void **state)
{
    (void)state;
    make_set10("");
    assert_int_equal(truncate(temp_path("data_batch_2.bin"), 2 * RECORD10 + 100), 0);
    expect_open_fails(TD_CIFAR10, true, TD_E_FORMAT);
    assert_error_says("data_batch_2.bin", "cut off", "6246 bytes", "expected 30730000", NULL);
    assert_int_equal(truncate(temp_path("data_batch_2.bin"), 0), 0);
    expect_open_fails(TD_CIFAR10, true, TD_E_FORMAT);
    assert_error_says("data_batch_2.bin", "is empty", "--download", NULL);
    assert_int_equal(truncate(temp_path("data_batch_2.bin"), 30730001), 0);
    expect_open_fails(TD_CIFAR10, true, TD_E_FORMAT);
    assert_error_says("too long", "30730001 bytes", "expected 30730000", NULL);
    assert_int_equal(truncate(temp_path("data_batch_2.bin"), 10001 * (off_t)RECORD10), 0);
    expect_open_fails(TD_CIFAR10, true, TD_E_FORMAT);
    assert_error_says("too long", NULL);
}

static void overwrite(const char *name, off_t at, uint8_t byte)
{
    FILE *file = fopen(temp_path(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseeko(file, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    assert_int_equal(fclose(file), 0);
}

static void test_labels_out_of_range(void **state)
{
    (void)state;
    make_set10("");
    overwrite("test_batch.bin", 66 * (off_t)RECORD10, 10);
    expect_open_fails(TD_CIFAR10, false, TD_E_FORMAT);
    assert_error_says("test_batch.bin", "record 66", "label 10", "largest is 9", NULL);
    make_file("train.bin", TD_CIFAR100, 0, 5);
    overwrite("train.bin", 3 * (off_t)RECORD100, 20);
    expect_open_fails(TD_CIFAR100, true, TD_E_FORMAT);
    assert_error_says("train.bin", "record 3", "coarse label 20", "largest is 19", NULL);
    overwrite("train.bin", 3 * (off_t)RECORD100, 19);
    overwrite("train.bin", 4 * (off_t)RECORD100 + 1, 100);
    expect_open_fails(TD_CIFAR100, true, TD_E_FORMAT);
    assert_error_says("record 4", "has label 100", "largest is 99", NULL);
}

#define TEMP_TEST(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_cifar10),
        TEMP_TEST(test_files_in_the_folder_or_in_the_subfolder),
        TEMP_TEST(test_cifar100_takes_fine_labels),
        TEMP_TEST(test_head_is_a_view),
        TEMP_TEST(test_missing),
        TEMP_TEST(test_wrong_sizes),
        TEMP_TEST(test_labels_out_of_range),
    };
    return cmocka_run_group_tests_name("data: CIFAR", tests, NULL, NULL);
}
