/* What control groups leave of memory and CPUs: version 1 and 2, nested groups, paths of another
 * namespace. */
#include "tensor/system/container.h"
#include "tests/help/temp_folder.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void put(const char *name, const char *text)
{
    temp_write(name, text, strlen(text));
}

static td_container_memory look(const char *groups)
{
    put("groups", groups);
    char root[4096];
    snprintf(root, sizeof root, "%s", temp_path("root"));
    return td_container_memory_of(temp_path("groups"), root);
}

static void test_version2(void **state)
{
    (void)state;
    temp_make_folder("root");
    td_container_memory none = look("0::/\n");
    assert_true(none.limit == SIZE_MAX && none.left == SIZE_MAX);
    temp_make_folder("root/jobs");
    temp_make_folder("root/jobs/one");
    put("root/jobs/memory.max", "1000\n");
    put("root/jobs/memory.current", "600\n");
    put("root/jobs/memory.stat", "anon 1\ninactive_file 100\nactive_file 50\n");
    put("root/jobs/one/memory.max", "max\n");
    put("root/jobs/one/memory.current", "10\n");
    td_container_memory nested = look("0::/jobs/one\n"); /* the group above has the limit */
    assert_int_equal(nested.limit, 1000);
    assert_int_equal(nested.left, 550);
    put("root/jobs/one/memory.max", "300\n");
    nested = look("0::/jobs/one\n");
    assert_int_equal(nested.limit, 300);
    assert_int_equal(nested.left, 290);
    put("root/memory.max", "200\n");
    put("root/memory.current", "250\n");
    td_container_memory foreign = look("0::/of/the/host\n"); /* a container's own root */
    assert_int_equal(foreign.limit, 200);
    assert_int_equal(foreign.left, 0);
}

static void test_version1(void **state)
{
    (void)state;
    temp_make_folder("root");
    temp_make_folder("root/memory");
    temp_make_folder("root/memory/job");
    put("root/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("root/memory/memory.usage_in_bytes", "5000\n");
    static const char groups[] = "9:cpu,cpuacct:/other\n4:memory:/job\n0::/\n";
    td_container_memory none = look(groups);
    assert_true(none.limit == SIZE_MAX && none.left == SIZE_MAX);
    put("root/memory/job/memory.limit_in_bytes", "4096\n");
    put("root/memory/job/memory.usage_in_bytes", "3000\n");
    put("root/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
    td_container_memory job = look(groups);
    assert_int_equal(job.limit, 4096);
    assert_int_equal(job.left, 2096);
    assert_true(look("nonsense\n").limit == SIZE_MAX);
}

static int cpus(const char *groups)
{
    (void)look(groups);
    char root[4096];
    snprintf(root, sizeof root, "%s", temp_path("root"));
    return td_container_cpus_of(temp_path("groups"), root);
}

static void test_cpus_of_version2(void **state)
{
    (void)state;
    temp_make_folder("root");
    assert_int_equal(cpus("0::/\n"), INT_MAX);
    temp_make_folder("root/jobs");
    temp_make_folder("root/jobs/one");
    put("root/jobs/one/cpu.max", "max 100000\n");
    assert_int_equal(cpus("0::/jobs/one\n"), INT_MAX);
    put("root/jobs/cpu.max", "250000 100000\n"); /* the group above pays two and a half */
    assert_int_equal(cpus("0::/jobs/one\n"), 2);
    put("root/jobs/one/cpu.max", "20000 100000\n");
    assert_int_equal(cpus("0::/jobs/one\n"), 1);
    put("root/cpu.max", "200000 50000\n");
    assert_int_equal(cpus("0::/of/the/host\n"), 4); /* a container's own root */
    put("root/cpu.max", "nonsense\n");
    assert_int_equal(cpus("0::/of/the/host\n"), INT_MAX);
}

static void test_cpus_of_version1(void **state)
{
    (void)state;
    static const char groups[] = "9:cpuset:/set\n8:cpu,cpuacct:/job/step\n4:memory:/\n0::/else\n";
    temp_make_folder("root");
    temp_make_folder("root/cpu");
    temp_make_folder("root/cpu/job");
    temp_make_folder("root/cpu/job/step");
    temp_make_folder("root/cpuset");
    put("root/cpu/cpu.cfs_quota_us", "-1\n");
    put("root/cpu/cpu.cfs_period_us", "100000\n");
    put("root/cpuset/cpu.cfs_quota_us", "1\n"); /* not there in truth */
    assert_int_equal(cpus(groups), INT_MAX);
    put("root/cpu/job/cpu.cfs_quota_us", "150000\n");
    put("root/cpu/job/cpu.cfs_period_us", "50000\n");
    put("root/cpu/job/step/cpu.cfs_quota_us", "-1\n");
    put("root/cpu/job/step/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 3);
    put("root/cpu/job/step/cpu.cfs_quota_us", "299999\n"); /* at most as many as are paid */
    assert_int_equal(cpus(groups), 2);
    temp_make_folder("root/cpu,cpuacct"); /* where no link has the short name */
    put("root/cpu,cpuacct/cpu.cfs_quota_us", "1000\n");
    put("root/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 1);
    temp_make_folder("root/unified"); /* both versions beside each other */
    put("root/unified/cpu.max", "700000 100000\n");
    assert_int_equal(cpus("0::/\n"), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version2, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_version1, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_cpus_of_version2, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_cpus_of_version1, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("tensor: memory and CPUs of a container", tests, NULL, NULL);
}
