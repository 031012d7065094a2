/* Host lists: what Slurm writes, and what it does not. */
#include "dist/launch/hostlist.h"
#include "dist/watchdog.h"
#include "tests/temp_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

/* The hosts with spaces between them. */
static void assert_expands(const char *text, const char *wanted)
{
    char **hosts, joined[1024] = "";
    int count;
    assert_int_equal(td_hostlist_expand(text, &hosts, &count), TD_OK);
    for (int i = 0; i < count; i++) {
        strcat(strcat(joined, i > 0 ? " " : ""), hosts[i]);
    }
    assert_string_equal(joined, wanted);
    td_hostlist_free(hosts, count);
}

static void expands(void **state)
{
    (void)state;
    assert_expands("n1", "n1");
    assert_expands("a,b,c", "a b c");
    assert_expands("n[01-03,7]", "n01 n02 n03 n7");
    assert_expands("n[1-2]", "n1 n2");
    assert_expands("n[8-11]", "n8 n9 n10 n11");
    assert_expands("n[008-011],login", "n008 n009 n010 n011 login");
    assert_expands("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2");
    assert_expands("a[1]b,c-d.example.org,[5-6]", "a1b c-d.example.org 5 6");
    assert_expands("n[3-3]-ib", "n3-ib");
}

static void assert_refused(const char *text, const char *why)
{
    char **hosts;
    int count;
    assert_int_equal(td_hostlist_expand(text, &hosts, &count), TD_E_ARG);
    assert_error_says(why, NULL);
}

static void refuses(void **state)
{
    (void)state;
    assert_refused("", "missing at character 1");
    assert_refused("a,,b", "missing at character 3");
    assert_refused("a,", "missing");
    assert_refused("n[1-2", "without its");
    assert_refused("n1]", "character 3");
    assert_refused("n[]", "number is missing");
    assert_refused("n[1-]", "number is missing");
    assert_refused("n[1,]", "number is missing");
    assert_refused("n[2-1]", "goes down");
    assert_refused("n[1;2]", "missing");
    assert_refused("n[a-b]", "number is missing");
    assert_refused("n[1234567890]", "too long");
    assert_refused("n[0-99999]", "more than 65536");
    assert_refused("a b", "character 2");
    char name[400];
    memset(name, 'x', sizeof(name));
    name[399] = '\0';
    assert_refused(name, "too long");
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
        cmocka_unit_test(expands),
        cmocka_unit_test(refuses),
        cmocka_unit_test(counts),
        cmocka_unit_test(ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
