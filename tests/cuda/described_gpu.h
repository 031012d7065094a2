/* For tests of cuDNN's plans without a GPU: one that is only described. In other builds, which have
 * no cuDNN, the test program is a skipped test. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if TD_HAVE_CUDA && !TD_EMULATED

#include "tensor/cuda/cudnn_plan.h"
#include "tests/help/sanitized.h"

#if TD_SANITIZED
/* cuDNN and cuBLASLt keep memory to the end and are unloaded before leaks are looked for, so that
 * theirs cannot be told by name (asked by LeakSanitizer). */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

/* An H200, or with another name of four letters. The caller destroys the description. Skips the
 * test where there is no cuDNN: building needs its headers alone. */
static td_cudnn_target described_gpu(const char *name)
{
    char json[4096];
    td_cudnn_target target = { .lib = td_cudnn_open() };
    if (target.lib == NULL) {
        print_message("# skipped: %s\n", td_last_error());
        skip();
    }
    FILE *file = fopen("tests/gpu/h200.json", "r"); /* tests run in the project's root */
    assert_non_null(file);
    json[fread(json, 1, sizeof json - 1, file)] = '\0';
    fclose(file);
    memcpy(strstr(json, "H200"), name, strlen(name));
    target.description = td_cudnn_describe(target.lib, json);
    if (target.description == NULL) {
        fail_msg("%s", td_last_error());
    }
    return target;
}

#else

static void test_this_build_has_no_cudnn(void **state)
{
    (void)state;
    print_message("# skipped: this build has no cuDNN\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_this_build_has_no_cudnn) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
