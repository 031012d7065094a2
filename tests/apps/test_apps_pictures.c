/* What an app says about pictures that could not be read, alone and with several ranks. */
#include "apps/tools/train_net/classify.h"
#include "data/images/images.h"
#include "dist/dist.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PICTURES = 7 };

static void make_folder(bool with_bad)
{
    char name[64], bytes[1 << 13];
    FILE *in = fopen("tests/pictures/rgb_stored.png", "rb");
    assert_non_null(in);
    size_t size = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    temp_make_folder("set");
    temp_make_folder("set/a");
    for (int i = 0; i < PICTURES; i++) {
        snprintf(name, sizeof name, "set/a/%d.png", i);
        temp_write(name, bytes, with_bad && i % 2 == 0 ? 20 : size); /* 0, 2, 4, 6 */
    }
}

static td_dataset *open_folder(void)
{
    td_dataset *d =
        td_image_folder_open(temp_path("set"), .transform = { .size = 8 }, .skip_bad = true);
    assert_non_null(d);
    return d;
}

static void fetch(const td_dataset *d, int64_t from, int64_t count)
{
    td_tensor *x = td_new_layout(TD_SHAPE(count, 3, 8, 8), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(count), TD_I64, TD_CPU);
    for (int64_t i = 0; i < count; i++) {
        int64_t index = from + i;
        td_tensor *one = td_slice_of_storage(x, 0, TD_SHAPE(1, 3, 8, 8), x->stride);
        td_tensor *label = td_slice_of_storage(y, 0, TD_SHAPE(1), y->stride);
        REQUIRE_OK(d->vtable->fetch(d, &index, 1, 0, one, label));
        td_free(one);
        td_free(label);
    }
    td_free(x);
    td_free(y);
}

/* A rank's output, in a file of its own. */
static void redirect(FILE *stream, const char *name, int rank)
{
    char file[64];
    snprintf(file, sizeof file, "%s%d", name, rank);
    fflush(stream);
    REQUIRE(freopen(temp_path(file), "w", stream) != NULL);
}

static int run_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    redirect(stdout, "out", rank);
    redirect(stderr, "err", rank);
    td_dataset *d = open_folder();
    fetch(d, rank * 2, 2); /* 0 and 1, or 2 and 3 */
    fetch(d, 4, 1);        /* on both */
    REQUIRE_OK(images_report_bad(d));
    td_dataset_free(d);
    td_dist_destroy();
    fflush(stdout);
    fflush(stderr);
    return 0;
}

static void assert_file(const char *name, const char *says, int lines)
{
    char text[4096];
    FILE *in = fopen(temp_path(name), "r");
    assert_non_null(in);
    size_t size = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[size] = '\0';
    int count = 0;
    for (size_t i = 0; i < size; i++) {
        count += text[i] == '\n';
    }
    if (count != lines || (lines > 0 && strstr(text, says) == NULL)) {
        fail_msg("%s: %d lines with '%s' were expected:\n%s", name, lines, says, text);
    }
}

static void test_two_ranks(void **state)
{
    (void)state;
    make_folder(true);
    procs_succeed(2, 60.0, run_rank, NULL);
    assert_file("out0", "3 of 7 images could not be read", 1);
    assert_file("out1", "", 0);
    assert_file("err0", "a/0.png: this PNG cannot be read", 2);
    assert_file("err0", "a/4.png", 2); /* told once, by the first of both */
    assert_file("err1", "a/2.png", 1);
}

static void test_nothing_to_say(void **state)
{
    (void)state;
    make_folder(false);
    procs_succeed(2, 60.0, run_rank, NULL);
    assert_file("out0", "", 0);
    assert_file("err0", "", 0);
}

static int run_alone(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    redirect(stdout, "out", 0);
    redirect(stderr, "err", 0);
    td_dataset *d = open_folder();
    fetch(d, 0, PICTURES);
    REQUIRE_OK(images_report_bad(d));
    td_dataset_free(d);
    fflush(stdout);
    fflush(stderr);
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    make_folder(true);
    procs_succeed(1, 60.0, run_alone, NULL);
    assert_file("out0", "4 of 7 images could not be read", 1);
    assert_file("err0", "a/6.png", 4);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_two_ranks),
        IN_FOLDER(test_nothing_to_say),
        IN_FOLDER(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
