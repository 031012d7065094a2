/* Plans kept on disk: what goes in comes out; damaged and foreign files are refused. */
#include "tensor/tune/store.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char owner[] = "NVIDIA H200, sm_90, cuDNN 91900", key[] = "conv forward bf16 3x3";
static const char file[] = "NVIDIA-H200-sm_90-cuDNN-91900/conv-forward-bf16-3x3";

static int setup(void **state)
{
    int failed = temp_folder_setup(state);
    return failed != 0 ? failed : setenv("TANDEM_CACHE", temp_folder(), 1);
}

static void expect_plan(const char *of, const char *named, const char *text)
{
    size_t bytes = 0;
    char *found = td_plan_get(of, named, &bytes);
    if (text == NULL) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(found, text);
    free(found);
}

static void put(const char *of, const char *named, const char *text)
{
    td_plan_put(of, named, text, strlen(text));
}

static void test_put_get_replace_remove(void **state)
{
    (void)state;
    static const char *const texts[] = { "{\n\"a\": 1\n}", "", "\nend\n", "other" };
    expect_plan(owner, key, NULL);
    td_plan_remove(owner, key);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(owner, key, texts[i]);
        expect_plan(owner, key, texts[i]);
    }
    put(owner, "another", "its own");
    expect_plan(owner, key, "other");
    expect_plan("NVIDIA A100", key, NULL);
    td_plan_remove(owner, key);
    expect_plan(owner, key, NULL);
    expect_plan(owner, "another", "its own");
    put(NULL, key, "nobody's");
    expect_plan(NULL, key, NULL);
}

/* Names that differ only in what file names leave out share a file, which is the last one's. */
static void test_names_alike(void **state)
{
    (void)state;
    put(owner, key, "one");
    expect_plan(owner, "conv forward, bf16: 3x3", NULL);
    put(owner, "conv forward, bf16: 3x3", "two");
    expect_plan(owner, "conv forward, bf16: 3x3", "two");
    expect_plan(owner, key, NULL);
}

/* Every prefix of a file, and the file with more behind it: no plan. */
static void test_damage(void **state)
{
    (void)state;
    char contents[512];
    put(owner, key, "{\"a\": 1}");
    FILE *whole = fopen(temp_path(file), "rb");
    assert_non_null(whole);
    size_t bytes = fread(contents, 1, sizeof contents - 1, whole);
    fclose(whole);
    for (size_t cut = 0; cut < bytes; cut++) {
        temp_write(file, contents, cut);
        expect_plan(owner, key, NULL);
    }
    contents[bytes] = 'x';
    temp_write(file, contents, bytes + 1);
    expect_plan(owner, key, NULL);
    temp_write(file, contents, bytes);
    expect_plan(owner, key, "{\"a\": 1}");
    assert_int_equal(truncate(temp_path(file), TD_PLAN_TEXT_MAX + 4096), 0);
    expect_plan(owner, key, NULL);
    put(owner, key, "new");
    expect_plan(owner, key, "new");
}

static void test_no_folder(void **state)
{
    (void)state;
    temp_write("file", "", 0);
    setenv("TANDEM_CACHE", temp_path("file"), 1);
    put(owner, key, "lost"); /* a notice */
    expect_plan(owner, key, NULL);
    setenv("TANDEM_CACHE", "off", 1);
    put(owner, key, "lost");
    expect_plan(owner, key, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_get_replace_remove, setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_names_alike, setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_no_folder, setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
