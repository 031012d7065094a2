/* Plans kept on disk: what goes in comes out, in this process and the next; damaged and foreign
 * files are refused as a whole. */
#include "tensor/tune/store.h"
#include "tests/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char owner[] = "NVIDIA H200, sm_90, cuDNN 91900";

static td_plan_cache *fresh(void)
{
    td_plan_cache *cache = td_plan_cache_new(owner);
    assert_non_null(cache);
    return cache;
}

static void expect_plan(const td_plan_cache *cache, const char *key, const char *text)
{
    size_t bytes = 0;
    const char *found = td_plan_cache_get(cache, key, &bytes);
    if (text == NULL) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(found, text, bytes);
}

static void put(td_plan_cache *cache, const char *key, const char *text)
{
    assert_int_equal(td_plan_cache_put(cache, key, text, strlen(text)), TD_OK);
}

static void test_put_get_replace_remove(void **state)
{
    (void)state;
    td_plan_cache *cache = fresh();
    char key[32];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "conv %d", i);
        put(cache, key, key);
    }
    put(cache, "conv 7", "other");
    td_plan_cache_remove(cache, "conv 9");
    td_plan_cache_remove(cache, "conv 9");
    assert_int_equal(td_plan_cache_count(cache), 299);
    expect_plan(cache, "conv 7", "other");
    expect_plan(cache, "conv 8", "conv 8");
    expect_plan(cache, "conv 9", NULL);
    expect_plan(cache, "conv 299", "conv 299");
    assert_int_equal(td_plan_cache_put(cache, "", "x", 1), TD_E_ARG);
    assert_int_equal(td_plan_cache_put(cache, "a\nb", "x", 1), TD_E_ARG);
    char longest[TD_PLAN_KEY_MAX + 1];
    memset(longest, 'k', sizeof longest);
    longest[TD_PLAN_KEY_MAX] = '\0';
    assert_int_equal(td_plan_cache_put(cache, longest, "x", 1), TD_E_ARG);
    td_plan_cache_free(cache);
}

/* What one process writes as text, another takes over. */
static void test_as_text(void **state)
{
    (void)state;
    td_plan_cache *cache = fresh(), *other = fresh();
    size_t bytes;
    put(cache, "conv a", "{\"engine\": 3}\n");
    put(cache, "conv b", "");
    put(cache, "conv c", "gone");
    td_plan_cache_remove(cache, "conv c");
    char *text = td_plan_cache_text(cache, &bytes);
    assert_non_null(text);
    assert_int_equal(bytes, strlen(text));
    assert_int_equal(td_plan_cache_parse(other, text, bytes), TD_OK);
    assert_int_equal(td_plan_cache_count(other), 2);
    expect_plan(other, "conv a", "{\"engine\": 3}\n");
    expect_plan(other, "conv b", "");
    char *again = td_plan_cache_text(other, &bytes);
    assert_string_equal(again, text); /* in the same order */
    free(again);
    free(text);
    td_plan_cache_free(other);
    td_plan_cache_free(cache);
}

static void read_whole(const char *path, char *contents, size_t size, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *bytes = fread(contents, 1, size, file);
    fclose(file);
}

static void test_through_a_file(void **state)
{
    (void)state;
    const char *path = temp_path("new/folder/plans.txt");
    td_plan_cache *first = fresh(), *second = fresh(), *third = fresh();
    assert_int_equal(td_plan_cache_load(first, path), TD_E_NOTFOUND);
    put(first, "one", "{\n\"a\": 1\n}");
    put(first, "empty", "");
    assert_int_equal(td_plan_cache_save(first, path), TD_OK);
    put(second, "two", "2"); /* of another process, that knows nothing of the first */
    put(second, "one", "its own");
    assert_int_equal(td_plan_cache_save(second, path), TD_OK);
    assert_int_equal(td_plan_cache_load(third, path), TD_OK);
    assert_int_equal(td_plan_cache_count(third), 3);
    expect_plan(third, "one", "its own");
    expect_plan(third, "two", "2");
    expect_plan(third, "empty", "");
    td_plan_cache_free(first);
    td_plan_cache_free(second);
    td_plan_cache_free(third);
}

/* Every prefix of a file and every changed byte of it: refused as a whole, or (a changed key, a cut
 * between two plans) a cache that can be used. Never half a file. */
/* A plan that failed is gone from the file too, although a save takes over what the file has. */
static void test_a_removed_plan_leaves_the_file(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("removed.txt"));
    td_plan_cache *cache = fresh(), *next = fresh(), *last = fresh();
    put(cache, "good", "one");
    put(cache, "bad", "two");
    assert_int_equal(td_plan_cache_save(cache, path), TD_OK);
    assert_int_equal(td_plan_cache_load(next, path), TD_OK);
    td_plan_cache_remove(next, "bad");
    assert_int_equal(td_plan_cache_save(next, path), TD_OK);
    assert_int_equal(td_plan_cache_count(next), 1);
    expect_plan(next, "bad", NULL);
    assert_int_equal(td_plan_cache_load(last, path), TD_OK);
    expect_plan(last, "good", "one");
    expect_plan(last, "bad", NULL);
    put(next, "bad", "better");
    expect_plan(next, "bad", "better");
    assert_int_equal(td_plan_cache_count(next), 2);
    td_plan_cache_free(cache);
    td_plan_cache_free(next);
    td_plan_cache_free(last);
}

static void test_damage(void **state)
{
    (void)state;
    const char *path = temp_path("plans.txt");
    char contents[4096], damaged[4096];
    size_t bytes;
    td_plan_cache *cache = fresh();
    put(cache, "one", "{\"a\": 1}");
    put(cache, "two", "{\"b\": 2}");
    assert_int_equal(td_plan_cache_save(cache, path), TD_OK);
    td_plan_cache_free(cache);
    read_whole(path, contents, sizeof contents, &bytes);
    int whole = 0;
    for (size_t cut = 0; cut < bytes; cut++) {
        td_plan_cache *c = fresh();
        td_status status = td_plan_cache_parse(c, contents, cut);
        assert_true(status == TD_OK || td_plan_cache_count(c) == 0);
        whole += status == TD_OK;
        td_plan_cache_free(c);
    }
    assert_int_equal(whole, 2); /* after the head, and after the first plan */
    for (size_t at = 0; at < bytes; at++) {
        memcpy(damaged, contents, bytes);
        damaged[at] ^= 0x04;
        td_plan_cache *c = fresh();
        td_status status = td_plan_cache_parse(c, damaged, bytes);
        assert_int_equal(td_plan_cache_count(c), status == TD_OK ? 2 : 0);
        size_t found;
        const char *one = td_plan_cache_get(c, "one", &found);
        assert_true(one == NULL || (found == 8 && memcmp(one, "{\"a\": 1}", 8) == 0));
        td_plan_cache_free(c);
    }
}

static void test_foreign_files(void **state)
{
    (void)state;
    const char *path = temp_path("plans.txt");
    td_plan_cache *other = td_plan_cache_new("NVIDIA A100, sm_80, cuDNN 91900"), *mine = fresh();
    put(other, "one", "1");
    assert_int_equal(td_plan_cache_save(other, path), TD_OK);
    assert_int_equal(td_plan_cache_load(mine, path), TD_E_FORMAT);
    assert_non_null(strstr(td_last_error(), "it is for NVIDIA A100"));
    put(mine, "two", "2");
    assert_int_equal(td_plan_cache_save(mine, path), TD_OK); /* in its place */
    assert_int_equal(td_plan_cache_load(other, path), TD_E_FORMAT);
    assert_int_equal(td_plan_cache_load(mine, temp_folder()), TD_E_FORMAT); /* a folder */
    static const char *const foreign[] = {
        "",
        "\n",
        "\x7f"
        "ELF",
        "tandem-plans 2\nfor me\n",
        "tandem-plans 1\n",
        "tandem-plans 1\nfor NVIDIA H200, sm_90, cuDNN 91900\nplan 99999999999999999999 0 k\n\n",
        "tandem-plans 1\nfor NVIDIA H200, sm_90, cuDNN 91900\nplan 5 00000000 k\nabc\n",
        "tandem-plans 1\nfor NVIDIA H200, sm_90, cuDNN 91900\nplan 0 00000000 k\n\nplan 0 00000000 "
        "k\n\n",
        "tandem-plans 1\nfor NVIDIA H200, sm_90, cuDNN 91900\nplan 0 00000000 \n\n",
        "tandem-plans 1\nfor NVIDIA H200, sm_90, cuDNN 91900\nplan -1 00000000 k\n\n",
    };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        assert_int_equal(td_plan_cache_parse(mine, foreign[i], strlen(foreign[i])), TD_E_FORMAT);
        assert_int_equal(td_plan_cache_count(mine), 1);
    }
    td_plan_cache_free(other);
    td_plan_cache_free(mine);
}

/* A folder that cannot be made: an error, and nothing left behind. */
static void test_a_save_that_fails(void **state)
{
    (void)state;
    const char *path = temp_path("file/plans.txt");
    temp_write("file", "", 0);
    td_plan_cache *cache = fresh();
    put(cache, "one", "1");
    assert_int_equal(td_plan_cache_save(cache, path), TD_E_IO);
    td_plan_cache_free(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get_replace_remove),
        cmocka_unit_test(test_as_text),
        cmocka_unit_test_setup_teardown(test_through_a_file, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_removed_plan_leaves_the_file, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_damage, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_foreign_files, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_save_that_fails, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
