/* What dist/comm/engines/nccl/nccl_api.h repeats of NCCL's interface, beside nccl.h itself where
 * that is. */
#include "dist/comm/engines/nccl/nccl_api.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if defined(__has_include)
#if TD_HAVE_CUDA && !TD_EMULATED && __has_include(<nccl.h>)
#include <nccl.h>
#endif
#endif

#ifdef NCCL_VERSION_CODE

#define EXPECT(ours, theirs) assert_int_equal((long long)(ours), (long long)(theirs))
#define EXPECT_FIELD(ours, theirs)                                                                 \
    do {                                                                                           \
        td_nccl_config a;                                                                          \
        ncclConfig_t b;                                                                            \
        EXPECT(offsetof(td_nccl_config, ours), offsetof(ncclConfig_t, theirs));                    \
        EXPECT(sizeof a.ours, sizeof b.theirs);                                                    \
    } while (0)

static void test_numbers(void **state)
{
    (void)state;
    EXPECT(TD_NCCL_SUCCESS, ncclSuccess);
    EXPECT(TD_NCCL_IN_PROGRESS, ncclInProgress);
    EXPECT(TD_NCCL_SUM, ncclSum);
    EXPECT(TD_NCCL_PROD, ncclProd);
    EXPECT(TD_NCCL_MAX, ncclMax);
    EXPECT(TD_NCCL_MIN, ncclMin);
    EXPECT(TD_NCCL_AVG, ncclAvg);
    EXPECT(TD_NCCL_U8, ncclUint8);
    EXPECT(TD_NCCL_I32, ncclInt32);
    EXPECT(TD_NCCL_I64, ncclInt64);
    EXPECT(TD_NCCL_F16, ncclFloat16);
    EXPECT(TD_NCCL_F32, ncclFloat32);
    EXPECT(TD_NCCL_F64, ncclFloat64);
    EXPECT(TD_NCCL_BF16, ncclBfloat16);
    EXPECT(sizeof(td_nccl_id), sizeof(ncclUniqueId));
}

static void test_configuration(void **state)
{
    (void)state;
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    EXPECT(TD_NCCL_CONFIG_MAGIC, theirs.magic);
    EXPECT(TD_NCCL_UNDEFINED, theirs.blocking);
    assert_true(TD_NCCL_CONFIG_VERSION <= theirs.version);
    assert_true(sizeof(td_nccl_config) <= theirs.size);
    EXPECT_FIELD(size, size);
    EXPECT_FIELD(magic, magic);
    EXPECT_FIELD(version, version);
    EXPECT_FIELD(blocking, blocking);
    EXPECT_FIELD(cga_cluster_size, cgaClusterSize);
    EXPECT_FIELD(min_ctas, minCTAs);
    EXPECT_FIELD(max_ctas, maxCTAs);
    EXPECT_FIELD(net_name, netName);
    EXPECT_FIELD(split_share, splitShare);
}

#else

static void test_numbers(void **state)
{
    (void)state;
    skip(); /* nccl.h is not here, or this build has no CUDA */
}

static void test_configuration(void **state)
{
    (void)state;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_configuration),
    };
    return cmocka_run_group_tests_name("NCCL's interface", tests, NULL, NULL);
}
