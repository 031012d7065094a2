/* Attention and its gradient: lengths and widths that fill no tile, grouped heads, views. */
#include "tests/tensor/attention_case.h"
#include "tests/tensor/reference.h"

static void test_attention(void **state)
{
    (void)state;
    if (ref_kernels()->attention == NULL) {
        skip();
    }
    ref_run(attention_cases);
    ref_run_half(attention_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests_name("kernels of attention", tests, NULL, NULL);
}
