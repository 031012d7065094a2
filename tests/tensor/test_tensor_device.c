/* Devices: names, pools, threads. */
#include "tests/help/expect_fatal.h"

#include "tensor/backend.h"
#include "tensor/cpu/cpus.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_names_are_read(void **state)
{
    (void)state;
    td_device device = TD_CPU_N(7);
    assert_int_equal(td_device_parse("cpu", &device), TD_OK);
    assert_true(td_same_device(device, TD_CPU));
    assert_int_equal(td_device_parse("cpu:3", &device), TD_OK);
    assert_true(td_same_device(device, TD_CPU_N(3)));
    assert_int_equal(td_device_parse("cpu:15", &device), TD_OK);
    assert_string_equal(td_device_name(device), "cpu:15");
    assert_string_equal(td_device_name(TD_CPU), "cpu:0");
}

static void test_bad_names_are_refused(void **state)
{
    (void)state;
    const char *const bad[] = { "",       "gpu",     "cpu:",  "cpu:16", "cpu:-1", "cpu:1x",
                                "cpu:+1", "cpu:999", "cpux",  "CPU",    "cp",     ":1",
                                "cpu 1",  "cpu::1",  "cuda:", "cuda:16" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        td_device device = TD_CPU_N(9);
        assert_int_equal(td_device_parse(bad[i], &device), TD_E_ARG);
        assert_int_equal(device.index, 9); /* untouched */
        assert_non_null(strstr(td_last_error(), bad[i]));
        assert_non_null(strstr(td_last_error(), "it is cpu"));
        assert_int_equal(strstr(td_last_error(), "cuda or cuda:N") != NULL,
                         td_backend_of(TD_CUDA_N(0)) != NULL);
    }
}

static void test_a_gpu_that_is_not_there_is_refused_with_advice(void **state)
{
    (void)state;
    const td_device last = TD_CUDA_N(15);
    td_device device = TD_CPU_N(9);
    td_status status = td_device_parse("cuda:15", &device);
    assert_true(status == TD_E_UNSUPPORTED || status == TD_E_DEVICE);
    assert_int_equal(device.index, 9); /* untouched */
    assert_non_null(strstr(td_last_error(), "cuda:15 cannot be used: "));
    assert_string_equal(td_device_name(last), "cuda:15");
    expect_fatal("cuda:15 cannot be used: ", td_new(TD_SHAPE(2), TD_F32, last));
    expect_fatal("the last one is cpu:15", td_new(TD_SHAPE(2), TD_F32, TD_CPU_N(16)));
    assert_int_equal(td_set_threads(last, 2), TD_E_ARG);
}

static void test_threads_are_set(void **state)
{
    (void)state;
    td_device before = TD_CPU_N(5), after = TD_CPU_N(6);
    assert_int_equal(td_threads(before), td_default_threads());
    assert_int_equal(td_set_threads(before, 3), TD_OK);
    assert_int_equal(td_threads(before), 3);
    assert_int_equal(td_pool_threads(td_cpu_pool(before)), 3);

    assert_int_equal(td_pool_threads(td_cpu_pool(after)), td_default_threads());
    assert_int_equal(td_set_threads(after, 2), TD_OK);
    assert_int_equal(td_pool_threads(td_cpu_pool(after)), 2);
    assert_int_equal(td_set_threads(after, 0), TD_OK);
    assert_int_equal(td_threads(after), td_default_threads());
}

static void test_absurd_threads_are_refused(void **state)
{
    (void)state;
    assert_int_equal(td_set_threads(TD_CPU_N(4), -1), TD_E_ARG);
    assert_int_equal(td_set_threads(TD_CPU_N(4), 1000000), TD_E_ARG);
    assert_non_null(strstr(td_last_error(), "cpu:4"));
    assert_int_equal(td_threads(TD_CPU_N(4)), td_default_threads());
}

static void test_pinning_more_than_there_are_is_refused(void **state)
{
    (void)state;
    td_device device = TD_CPU_N(7);
    assert_int_equal(td_set_threads(device, 2), TD_OK);
    assert_int_equal(td_pin_threads(device, 2, 2), TD_E_ARG);
    assert_int_equal(td_pin_threads(device, 0, 0), TD_E_ARG);
    assert_int_equal(td_pin_threads(device, 0, 1000000), TD_E_ARG);
    assert_non_null(strstr(td_last_error(), "1000000 processes of 2 threads cannot be bound"));
    if (td_usable_cpus() >= 2) {
        assert_int_equal(td_pin_threads(device, 0, 1), TD_OK);
    }
    assert_int_equal(td_threads(device), 2);
}

static void *get_pool(void *pool)
{
    *(td_pool **)pool = td_cpu_pool(TD_CPU_N(9));
    return NULL;
}

static void test_a_device_has_one_pool(void **state)
{
    (void)state;
    enum { ASKING = 8 };
    pthread_t thread[ASKING];
    td_pool *pool[ASKING];
    for (int i = 0; i < ASKING; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, get_pool, &pool[i]), 0);
    }
    for (int i = 0; i < ASKING; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
    for (int i = 0; i < ASKING; i++) {
        assert_non_null(pool[i]);
        assert_ptr_equal(pool[i], td_cpu_pool(TD_CPU_N(9)));
    }
    assert_ptr_not_equal(td_cpu_pool(TD_CPU_N(9)), td_cpu_pool(TD_CPU_N(10)));
}

/* A device that cannot be used ends the program: tests/apps/test_apps_wine.sh. */
static void test_the_default_device_is_the_environments(void **state)
{
    (void)state;
    unsetenv("TANDEM_DEVICE");
    assert_true(td_same_device(td_default_device(), TD_CPU));
    setenv("TANDEM_DEVICE", "cpu:2", 1);
    assert_true(td_same_device(td_default_device(), TD_CPU_N(2)));
    td_set_local_rank(1); /* matters to "cuda" without a number alone */
    assert_true(td_same_device(td_default_device(), TD_CPU_N(2)));
    td_set_local_rank(0);
    unsetenv("TANDEM_DEVICE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_read),
        cmocka_unit_test(test_bad_names_are_refused),
        cmocka_unit_test(test_a_gpu_that_is_not_there_is_refused_with_advice),
        cmocka_unit_test(test_threads_are_set),
        cmocka_unit_test(test_absurd_threads_are_refused),
        cmocka_unit_test(test_pinning_more_than_there_are_is_refused),
        cmocka_unit_test(test_a_device_has_one_pool),
        cmocka_unit_test(test_the_default_device_is_the_environments),
    };
    return cmocka_run_group_tests_name("tensor devices", tests, NULL, NULL);
}
