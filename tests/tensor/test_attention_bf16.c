/* Attention on a processor that multiplies bf16, on any machine: this program has kernels of its
 * own, in plain C, in the place of the library's (tensor/cpu/bf16_kernels.h says what they do).
 * They multiply pairs, as AVX512-BF16, or whole steps of 32, as AMX. */
#include "tests/tensor/attention_case.h"
#include "tests/tensor/reference.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/f16.h"

static bool whole_steps;
static int64_t blocks; /* computed */

static td_bf16 rounded(const td_bf16_source *source, int64_t row, int64_t column)
{
    int64_t at = row * source->stride + column;
    return source->dtype == TD_BF16 ? ((const td_bf16 *)source->data)[at]
                                    : td_f32_to_bf16(((const float *)source->data)[at]);
}

/* Element (i, j) of a term; beyond what was asked for nothing is read. */
static float term_sum(const td_gemm_block *g, const td_gemm_term *term, int64_t i, int j)
{
    const td_bf16 *a = (const td_bf16 *)((const char *)term->a + g->a_row[i]), *b = term->b;
    float sum = 0.0f;
    assert_true(term->k % (whole_steps ? TD_BF16_BLOCK : 2) == 0);
    for (int64_t p = 0; p < term->k; p++) {
        sum += td_bf16_to_f32(a[p / 2 * 2 * g->a_col + p % 2]) *
               td_bf16_to_f32(b[p / 2 * 2 * g->b_row + j * 2 + p % 2]);
    }
    return sum;
}

static void plain_block(const td_gemm_block *g)
{
    assert_true(g->n > 0 && g->n <= TD_BF16_BLOCK && g->dtype == TD_F32 && g->bias == NULL);
    for (int64_t at = 0; at < g->m * g->n; at++) {
        int64_t i = at / g->n;
        int j = (int)(at % g->n);
        float *c = (float *)((char *)g->c + g->c_row[i]) + j, sum = g->accumulate ? *c : 0.0f;
        for (int t = 0; t < g->count; t++) {
            sum += term_sum(g, &g->terms[t], i, j);
        }
        *c = sum;
    }
    blocks++;
}

/* ---- what the library's files have ---- */

const td_gemm_kernels *td_bf16_kernels_now(void)
{
    static const td_gemm_kernels kernels = {
        .panel = 32, .lanes = 16, .rows = 8, .size = 2, .pairs = 2, .block = plain_block
    };
    return &kernels;
}

bool td_bf16_full_steps(void)
{
    return whole_steps;
}

int td_bf16_depth(int64_t elements)
{
    return elements % TD_BF16_BLOCK == 0 ? TD_BF16_BLOCK : 0;
}

void td_bf16_pack_a(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source, int m,
                    int k)
{
    assert_true(low == 0);
    for (int at = 0; at < TD_BF16_STEP; at++) {
        int i = at / 32, p = at % 32;
        to[i * row + p] = i < m && p < k ? rounded(source, i, p) : 0;
    }
}

void td_bf16_pack_a_turned(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source,
                           int m, int k)
{
    assert_true(low == 0);
    for (int at = 0; at < TD_BF16_STEP; at++) {
        int i = at / 32, p = at % 32;
        to[i * row + p] = i < m && p < k ? rounded(source, p, i) : 0;
    }
}

void td_bf16_pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n, int depth)
{
    assert_true(low == 0);
    for (int at = 0; at < depth * 32; at++) {
        int p = at / 32, j = at % 32;
        to[p / 2 * 64 + j * 2 + p % 2] = p < k && j < n ? rounded(source, p, j) : 0;
    }
}

void td_bf16_pack_b_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                           int depth)
{
    assert_true(low == 0);
    for (int at = 0; at < depth * 32; at++) {
        int p = at / 32, j = at % 32;
        to[p / 2 * 64 + j * 2 + p % 2] = p < k && j < n ? rounded(source, j, p) : 0;
    }
}

void td_bf16_pack_row(td_bf16 *to, int64_t low, const void *from, td_dtype dtype, int64_t count,
                      int64_t padded)
{
    td_bf16_source source = { from, dtype, 0 };
    assert_true(low == 0);
    for (int64_t i = 0; i < padded; i++) {
        to[i] = i < count ? rounded(&source, 0, i) : 0;
    }
}

/* ---- */

static void test_pairs_and_steps(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        whole_steps = i == 1;
        blocks = 0;
        attention_cases(TD_BF16);
        assert_true(blocks > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_and_steps),
    };
    return cmocka_run_group_tests_name("attention in bf16", tests, NULL, NULL);
}
