/* Host lists: what Slurm writes, and what it does not. */
#include "dist/comm/launch/hostlist.h"
#include "dist/comm/watchdog.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

static void first(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        { "n1", "n1" },
        { "a,b,c", "a" },
        { "n[01-03,7]", "n01" },
        { "n[8-11]", "n8" },
        { "r[1-2]n[1-2]", "r1n1" },
        { "a[1]b,c-d.example.org,[5-6]", "a1b" },
        { "[5-6],a", "5" },
        { "n[3-3]-ib", "n3-ib" },
        { "node-1.example.org", "node-1.example.org" },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char host[TD_HOST_BYTES];
        assert_int_equal(td_hostlist_first(lists[i][0], host), TD_OK);
        assert_string_equal(host, lists[i][1]);
    }
}

static void assert_refused(const char *text, const char *why)
{
    char host[TD_HOST_BYTES];
    assert_int_equal(td_hostlist_first(text, host), TD_E_ARG);
    assert_error_says(why, NULL);
}

static void refuses(void **state)
{
    (void)state;
    assert_refused("", "no name");
    assert_refused(",a", "no name");
    assert_refused("n[1-2", "character 3");
    assert_refused("n1]", "character 3");
    assert_refused("n[]", "character 3");
    assert_refused("n[a-b]", "character 3");
    assert_refused("a b", "character 2");
    char name[400];
    memset(name, 'x', sizeof(name));
    name[399] = '\0';
    assert_refused(name, "character 256");
}

static void counts(void **state)
{
    (void)state;
    assert_int_equal(td_hostlist_count_at("4", 0), 4);
    assert_int_equal(td_hostlist_count_at("4", 1), -1);
    assert_int_equal(td_hostlist_count_at("2(x3),1", 0), 2);
    assert_int_equal(td_hostlist_count_at("2(x3),1", 2), 2);
    assert_int_equal(td_hostlist_count_at("2(x3),1", 3), 1);
    assert_int_equal(td_hostlist_count_at("2(x3),1", 4), -1);
    assert_int_equal(td_hostlist_count_at("2000007(x88", 100),
                     -1); /* a bracket that does not close */
    assert_int_equal(td_hostlist_count_at("2(x-3),1", 0), -1);
    assert_int_equal(td_hostlist_count_at("", 0), -1);
}

static void ranks(void **state)
{
    (void)state;
    const bool present[] = { true, true, true, false, true, false, false };
    char text[64];
    td_ranks_text(present, 7, true, text, sizeof(text));
    assert_string_equal(text, "0-2, 4");
    td_ranks_text(present, 7, false, text, sizeof(text));
    assert_string_equal(text, "3, 5-6");
    td_ranks_text(present, 3, false, text, sizeof(text));
    assert_string_equal(text, "none");
    td_ranks_text(present, 7, true, text, 8);
    assert_string_equal(text, "0-2...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first),
        cmocka_unit_test(refuses),
        cmocka_unit_test(counts),
        cmocka_unit_test(ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
