/* The instructions that make EMULATE=1 does by software, against their description in Intel's
 * manual, element by element; and that what would fault is refused. In other builds there is
 * nothing to test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/cpu/isa.h"

#if defined(TD_EMULATED) && TD_X86

#include "tensor/dtype.h"
#include "tensor/f16.h"
#include "tests/emulate/instructions.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t seed = 1;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float widen(uint16_t bf16)
{
    return float_of((uint32_t)bf16 << 16);
}

static float flush(float v)
{
    return fpclassify(v) == FP_SUBNORMAL ? copysignf(0.0F, v) : v;
}

static float multiply_add(float a, float b, float sum)
{
    return flush(fmaf(flush(a), flush(b), flush(sum)));
}

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : bits_of(a) == bits_of(b);
}

/* bf16 of all kinds: about a quarter are denormals, and most products stay finite. */
static uint16_t some_bf16(void)
{
    uint32_t bits = random_bits();
    uint32_t exponent = bits & 0x10000 ? (bits >> 8 & 1) : 56 + (bits >> 8) % 136;
    return (uint16_t)((bits & 0x8000) | exponent << 7 | (bits & 0x7f));
}

static bool can_run(void)
{
    return td_isa_detect() == TD_ISA_AMX;
}

/* ---- rounding ---- */

static TD_TARGET_AVX512 void round_all(const float *from, uint16_t *both, uint16_t *half)
{
    __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
    _mm512_storeu_si512(both, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    _mm256_storeu_si256((__m256i *)half, (__m256i)_mm512_cvtneps_pbh(low));
}

static void test_rounding(void **state)
{
    (void)state;
    static const uint32_t corners[32] = {
        0,          0x80000000, 1,          0x807fffff, 0x00800000, 0x007f8001,
        0x3f808000, 0x3f808001, 0x3f818000, 0x3f817fff, 0x7f800000, 0xff800000,
        0x7f7fffff, 0xff7f8000, 0x7f800001, 0xffc00000, 0x7fffffff, 0x3f800000,
    };
    if (!can_run()) {
        skip();
    }
    for (int round = 0; round < 2000; round++) {
        float from[32];
        uint16_t both[32], half[16];
        for (int i = 0; i < 32; i++) {
            from[i] = float_of(round == 0 ? corners[i] : random_bits());
        }
        round_all(from, both, half);
        for (int i = 0; i < 32; i++) {
            float want = td_bf16_to_f32(td_f32_to_bf16(flush(from[i])));
            assert_true(same(widen(both[i]), want));
            assert_true(i >= 16 || same(widen(half[i]), want));
        }
    }
}

/* ---- products of pairs ---- */

static TD_TARGET_AVX512 void dot_all(float *sum, const uint16_t *a, const uint16_t *b)
{
    __m512bh left = (__m512bh)_mm512_loadu_si512(a), right = (__m512bh)_mm512_loadu_si512(b);
    _mm512_storeu_ps(sum, _mm512_dpbf16_ps(_mm512_loadu_ps(sum), left, right));
}

static void test_pairs(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    for (int round = 0; round < 2000; round++) {
        float sum[16], want[16];
        uint16_t a[32], b[32];
        for (int i = 0; i < 32; i++) {
            a[i] = some_bf16();
            b[i] = some_bf16();
        }
        for (int i = 0; i < 16; i++) {
            sum[i] = widen(some_bf16()) * 0x1.000002p0F;
            want[i] = multiply_add(widen(a[2 * i + 1]), widen(b[2 * i + 1]), sum[i]);
            want[i] = multiply_add(widen(a[2 * i]), widen(b[2 * i]), want[i]);
        }
        dot_all(sum, a, b);
        for (int i = 0; i < 16; i++) {
            assert_true(same(sum[i], want[i]));
        }
    }
}

/* ---- tiles ---- */

typedef struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tile 0: m x n sums; 1: m x k pairs; 2: k x n pairs. */
static tile_config three_tiles(int m, int n, int k)
{
    tile_config c = { .palette = 1 };
    c.rows[0] = c.rows[1] = (uint8_t)m;
    c.rows[2] = (uint8_t)k;
    c.row_bytes[0] = c.row_bytes[2] = (uint16_t)(n * 4);
    c.row_bytes[1] = (uint16_t)(k * 4);
    return c;
}

static float want_of(const uint16_t *a, const uint16_t *b, float before, int i, int j, int k)
{
    float even = 0, odd = 0;
    for (int p = 0; p < k; p++) {
        even = multiply_add(widen(a[i * 40 + 2 * p]), widen(b[p * 40 + 2 * j]), even);
        odd = multiply_add(widen(a[i * 40 + 2 * p + 1]), widen(b[p * 40 + 2 * j + 1]), odd);
    }
    return flush(flush(before) + flush(even + odd));
}

static void check_tiles(int m, int n, int k)
{
    uint16_t a[16 * 40], b[16 * 40];
    float c[16 * 20], before[16 * 20];
    for (int i = 0; i < 16 * 40; i++) {
        a[i] = some_bf16();
        b[i] = some_bf16();
        before[i / 2] = c[i / 2] = widen(some_bf16()) * 0x1.000002p0F;
    }
    tile_config config = three_tiles(m, n, k);
    _tile_loadconfig(&config);
    _tile_loadd(0, c, 80);
    _tile_loadd(1, a, 80);
    _tile_stream_loadd(2, b, 80);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, c, 80);
    _tile_release();
    for (int i = 0; i < 16 * 20; i++) {
        bool inside = i / 20 < m && i % 20 < n;
        float want = inside ? want_of(a, b, before[i], i / 20, i % 20, k) : before[i];
        assert_true(same(c[i], want));
    }
}

static void test_tiles(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    check_tiles(16, 16, 16);
    for (int round = 0; round < 200; round++) {
        check_tiles(1 + (int)(random_bits() % 16), 1 + (int)(random_bits() % 16),
                    1 + (int)(random_bits() % 16));
    }
}

/* ---- misuse ---- */

static void not_configured(void)
{
    _tile_zero(0);
}

static void released(void)
{
    tile_config config = three_tiles(4, 4, 4);
    _tile_loadconfig(&config);
    _tile_release();
    _tile_zero(0);
}

static void not_written(void)
{
    tile_config config = three_tiles(4, 4, 4);
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_dpbf16ps(0, 1, 2);
}

static void not_in_the_palette(void)
{
    tile_config config = three_tiles(4, 4, 4);
    _tile_loadconfig(&config);
    _tile_zero(3);
}

static void does_not_fit(void)
{
    tile_config config = three_tiles(4, 4, 4);
    config.rows[1] = 5;
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_dpbf16ps(0, 1, 2);
}

static void too_wide(void)
{
    tile_config config = three_tiles(4, 4, 4);
    config.row_bytes[0] = 68;
    _tile_loadconfig(&config);
}

static void no_rows(void)
{
    tile_config config = three_tiles(4, 4, 4);
    config.rows[0] = 0;
    _tile_loadconfig(&config);
}

/* A process of its own breaks a rule; it must abort and say why. */
static void check_refused(void (*misuse)(void), const char *why)
{
    int ends[2], status;
    char said[256] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        misuse();
        _exit(0);
    }
    close(ends[1]);
    for (size_t at = 0; at + 1 < sizeof said;) {
        ssize_t got = read(ends[0], said + at, sizeof said - 1 - at);
        if (got <= 0) {
            break;
        }
        at += (size_t)got;
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(said, why));
}

static void test_misuse(void **state)
{
    (void)state;
    check_refused(not_configured, "TILEZERO before a configuration");
    check_refused(released, "TILEZERO before a configuration, or after the release");
    check_refused(not_written, "TDPBF16PS reads tile 2, which nobody has written");
    check_refused(not_in_the_palette, "TILEZERO of tile 3, which is not configured");
    check_refused(does_not_fit, "TDPBF16PS: 4 rows of 16 bytes += 5 of 16 times 4 of 16");
    check_refused(too_wide, "LDTILECFG: tile 0 of 4 rows of 68 bytes");
    check_refused(no_rows, "LDTILECFG: tile 0 of 0 rows");
}

/* A configuration is its thread's alone. */
static void *other_thread(void *result)
{
    tile_config config = three_tiles(1, 1, 1);
    float sum = 1;
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_stored(0, &sum, 4);
    _tile_release();
    *(float *)result = sum;
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    if (!can_run()) {
        skip();
    }
    tile_config config = three_tiles(1, 1, 1);
    float sum = 3, theirs = 1;
    pthread_t thread;
    _tile_loadconfig(&config);
    _tile_loadd(0, &sum, 4);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &theirs), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    sum = 0;
    _tile_stored(0, &sum, 4);
    _tile_release();
    assert_true(sum == 3 && theirs == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_tiles),    cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("emulated instructions", tests, NULL, NULL);
}

#else

static void test_nothing(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_nothing) };
    return cmocka_run_group_tests_name("emulated instructions", tests, NULL, NULL);
}

#endif
