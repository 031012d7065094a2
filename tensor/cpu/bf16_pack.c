/* Factors in the order in which the kernels of bf16 read them. */
#include "tensor/cpu/bf16_kernels.h"

#include "tensor/f16.h"

static inline __attribute__((always_inline)) const char *row_of(const td_bf16_source *source,
                                                                td_dtype dtype, int64_t row)
{
    return (const char *)source->data + row * source->stride * (dtype == TD_BF16 ? 2 : 4);
}

#if TD_X86

#include "tensor/cpu/bf16_vectors.h"

#define OP TD_BF16_OP

/* Two rows of 32 as 32 pairs: dword j is (even[j], odd[j]). */
OP void interleave(__m512i even, __m512i odd, __m512i *first, __m512i *last)
{
    __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(even));
    __m512i high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd));
    *first = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    low = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(even, 1));
    high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(odd, 1));
    *last = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* Transposes 16 x 16 dwords. */
OP void turn(__m512i *r)
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Rows p and p + 1 of `rows`, n elements of each, as pairs. */
OP void load_pairs(const td_bf16_source *source, td_dtype dtype, int p, int rows, int n,
                   __m512i *high, __m512i *low)
{
    __m512i zero = _mm512_setzero_si512(), even = zero, odd = zero, even_low = zero, odd_low = zero;
    if (p < rows) {
        even = td_load32(row_of(source, dtype, p), dtype, n, &even_low);
    }
    if (p + 1 < rows) {
        odd = td_load32(row_of(source, dtype, p + 1), dtype, n, &odd_low);
    }
    interleave(even, odd, &high[0], &high[1]);
    interleave(even_low, odd_low, &low[0], &low[1]);
}

OP void pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, td_dtype dtype, int k, int n,
               int depth)
{
    for (int p = 0; p < depth; p += 2) {
        __m512i high_pairs[2], low_pairs[2];
        load_pairs(source, dtype, p, k, n, high_pairs, low_pairs);
        td_bf16 *pairs = to + p * 32;
        _mm512_storeu_si512(pairs, high_pairs[0]);
        _mm512_storeu_si512(pairs + 32, high_pairs[1]);
        if (low) {
            _mm512_storeu_si512(pairs + low, low_pairs[0]);
            _mm512_storeu_si512(pairs + low + 32, low_pairs[1]);
        }
    }
}

/* Begins to load what follows 32 elements of a row: the next step, as weights lie. So many rows at
 * a time, a page apart, are more than the processor foresees. */
OP void fetch_ahead(const char *row, td_dtype dtype)
{
    enum { LINE = 64 };
    uintptr_t next = (uintptr_t)row + (dtype == TD_BF16 ? 1 : 2) * LINE;
    __builtin_prefetch((const void *)next);
    if (dtype == TD_F32) {
        __builtin_prefetch((const void *)(next + LINE));
    }
}

/* 16 of the columns, from j0 on. */
OP void pack_b_turned_half(td_bf16 *to, int64_t low, const td_bf16_source *source, td_dtype dtype,
                           int k, int n, int depth, int j0)
{
    __m512i high_rows[16], low_rows[16];
    for (int j = 0; j < 16; j++) {
        high_rows[j] = low_rows[j] = _mm512_setzero_si512();
        if (j0 + j < n) {
            fetch_ahead(row_of(source, dtype, j0 + j), dtype);
            high_rows[j] = td_load32(row_of(source, dtype, j0 + j), dtype, k, &low_rows[j]);
        }
    }
    turn(high_rows);
    for (int p = 0; p < depth / 2; p++) {
        _mm512_storeu_si512(to + p * 64 + j0 * 2, high_rows[p]);
    }
    if (low) {
        turn(low_rows);
        for (int p = 0; p < depth / 2; p++) {
            _mm512_storeu_si512(to + low + p * 64 + j0 * 2, low_rows[p]);
        }
    }
}

/* 32 columns of A, of which one row of `source` holds one, become 32 rows. */
OP void pack_a_turned(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source,
                      td_dtype dtype, int m, int k)
{
    __m512i high[2][16], low_part[2][16];
    for (int p = 0; p < 16; p++) {
        __m512i pairs[2], low_pairs[2];
        load_pairs(source, dtype, 2 * p, k, m, pairs, low_pairs);
        high[0][p] = pairs[0];
        high[1][p] = pairs[1];
        low_part[0][p] = low_pairs[0];
        low_part[1][p] = low_pairs[1];
    }
    for (int half = 0; half < 2; half++) {
        turn(high[half]);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512(to + (half * 16 + i) * row, high[half][i]);
        }
        if (low) {
            turn(low_part[half]);
            for (int i = 0; i < 16; i++) {
                _mm512_storeu_si512(to + low + (half * 16 + i) * row, low_part[half][i]);
            }
        }
    }
}

/* Each for the three cases that occur, so that the compiler leaves out what is not needed. */
#define BY_DTYPE(call_bf16, call_f32, call_split)                                                  \
    if (source->dtype == TD_BF16) {                                                                \
        call_bf16;                                                                                 \
    } else if (low == 0) {                                                                         \
        call_f32;                                                                                  \
    } else {                                                                                       \
        call_split;                                                                                \
    }

TD_TARGET_AVX512_BF16 void
td_bf16_pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
               int depth){ BY_DTYPE(pack_b(to, 0, source, TD_BF16, k, n, depth),
                                    pack_b(to, 0, source, TD_F32, k, n, depth),
                                    pack_b(to, low, source, TD_F32, k, n, depth)) }

TD_TARGET_AVX512_BF16
    void td_bf16_pack_b_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                               int depth)
{
    for (int j = 0; j < 32; j += 16) {
        BY_DTYPE(pack_b_turned_half(to, 0, source, TD_BF16, k, n, depth, j),
                 pack_b_turned_half(to, 0, source, TD_F32, k, n, depth, j),
                 pack_b_turned_half(to, low, source, TD_F32, k, n, depth, j))
    }
}

TD_TARGET_AVX512_BF16 void
td_bf16_pack_a_turned(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source, int m,
                      int k){ BY_DTYPE(pack_a_turned(to, row, 0, source, TD_BF16, m, k),
                                       pack_a_turned(to, row, 0, source, TD_F32, m, k),
                                       pack_a_turned(to, row, low, source, TD_F32, m, k)) }

TD_TARGET_AVX512_BF16 void td_bf16_pack_row(td_bf16 *to, int64_t low, const void *from,
                                            td_dtype dtype, int64_t count, int64_t padded)
{
    for (int64_t i = 0; i < padded; i += 32) {
        __m512i low_part;
        const void *at = (const char *)from + i * (dtype == TD_BF16 ? 2 : 4);
        __m512i high = td_load32(i < count ? at : from, dtype, count - i, &low_part);
        _mm512_mask_storeu_epi16(to + i, td_mask32(padded - i), high);
        if (low) {
            _mm512_mask_storeu_epi16(to + low + i, td_mask32(padded - i), low_part);
        }
    }
}

TD_TARGET_AVX512_BF16 void td_bf16_pack_a(td_bf16 *to, int64_t row, int64_t low,
                                          const td_bf16_source *source, int m, int k)
{
    for (int i = 0; i < TD_BF16_BLOCK; i++) {
        const void *from = i < m ? row_of(source, source->dtype, i) : source->data;
        td_bf16_pack_row(to + i * row, low, from, source->dtype, i < m ? k : 0, 32);
    }
}

#else /* plain C, of which compilers make vectors */

/* `count` elements of a row, of which each from_step-th is read, to `to`, `step` apart, and zeros
 * up to `all`. */
static void pack_run(td_bf16 *to, int64_t step, int64_t low, const void *from, int64_t from_step,
                     td_dtype dtype, int64_t count, int64_t all)
{
    const td_bf16 *bf16 = from;
    const float *f32 = from;
    for (int64_t i = 0; i < count && dtype == TD_BF16; i++) {
        to[i * step] = bf16[i * from_step];
    }
    for (int64_t i = 0; i < count && dtype == TD_F32; i++) {
        to[i * step] = td_f32_to_bf16(f32[i * from_step]);
    }
    for (int64_t i = count; i < all; i++) {
        to[i * step] = 0;
    }
    for (int64_t i = 0; i < all && low != 0; i++) {
        bool rest = i < count && dtype == TD_F32;
        to[low + i * step] =
            rest ? td_f32_to_bf16(f32[i * from_step] - td_bf16_to_f32(to[i * step])) : 0;
    }
}

/* Row `i` of the source, of which `rows` are there and `count` elements are wanted. */
static void pack_row_of(td_bf16 *to, int64_t step, int64_t low, const td_bf16_source *source, int i,
                        int rows, int count)
{
    const char *from = i < rows ? row_of(source, source->dtype, i) : source->data;
    pack_run(to, step, low, from, 1, source->dtype, i < rows ? count : 0, TD_BF16_BLOCK);
}

void td_bf16_pack_a(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source, int m,
                    int k)
{
    for (int i = 0; i < TD_BF16_BLOCK; i++) {
        pack_row_of(to + i * row, 1, low, source, i, m, k);
    }
}

void td_bf16_pack_a_turned(td_bf16 *to, int64_t row, int64_t low, const td_bf16_source *source,
                           int m, int k)
{
    for (int p = 0; p < TD_BF16_BLOCK; p++) {
        pack_row_of(to + p, row, low, source, p, k, m);
    }
}

void td_bf16_pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n, int depth)
{
    for (int p = 0; p < depth; p++) {
        pack_row_of(to + p / 2 * 2 * TD_BF16_BLOCK + p % 2, 2, low, source, p, k, n);
    }
}

void td_bf16_pack_b_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                           int depth)
{
    int64_t size = source->dtype == TD_BF16 ? 2 : 4;
    for (int j = 0; j < TD_BF16_BLOCK; j++) {
        const char *from = j < n ? row_of(source, source->dtype, j) : source->data;
        int count = j < n ? k : 0;
        for (int odd = 0; odd < 2; odd++) { /* elements of each pair */
            pack_run(to + 2 * j + odd, 2 * TD_BF16_BLOCK, low, from + odd * size, 2, source->dtype,
                     (count + 1 - odd) / 2, depth / 2);
        }
    }
}

void td_bf16_pack_row(td_bf16 *to, int64_t low, const void *from, td_dtype dtype, int64_t count,
                      int64_t padded)
{
    pack_run(to, 1, low, from, 1, dtype, td_min64(count, padded), padded);
}

#endif
