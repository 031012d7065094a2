/* Tests made from the table of cases: apart from ops_cases.c, which knows nothing of cmocka. */
#include "tests/autograd/ops_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int ops_cases_run(const char *group, const struct CMUnitTest *others, size_t extra,
                  void (*test)(void **state))
{
    size_t count = (size_t)ops_case_count + extra;
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (tests == NULL) {
        return 1;
    }
    memcpy(tests, others, extra * sizeof *tests);
    for (int i = 0; i < ops_case_count; i++) {
        tests[extra + (size_t)i] = (struct CMUnitTest){
            .name = ops_cases[i].name,
            .test_func = test,
            .initial_state = (void *)(uintptr_t)&ops_cases[i],
        };
    }
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return failed;
}
