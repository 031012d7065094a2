/* Factors are read where they lie, or packed as the kernels of bf16 want them; products of parts.
 */
#include "tensor/cpu/attention_tiles.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/f16.h"

#include <string.h>

enum {
    WIDE = TD_BF16_BLOCK, /* columns of a panel of bf16, and rows and columns of a packed step */
    STEP = 16,
};

void td_tiles_start(td_tiles *t, td_dtype dtype, int64_t width)
{
    bool bf16 = dtype == TD_BF16, steps = bf16 && td_bf16_full_steps();
    *t = (td_tiles){ .kernels = td_gemm_kernels_for(dtype),
                     .loops = td_loops_of(bf16 ? TD_F32 : dtype),
                     .dtype = dtype,
                     .size = (int64_t)td_dtype_size(dtype),
                     .sum = dtype == TD_F64 ? 8 : 4,
                     .depth = !bf16   ? 1
                              : steps ? WIDE
                                      : 2,
                     .step = steps ? WIDE : STEP,
                     .width = width };
    int64_t packed = td_divide_up(width, WIDE) * WIDE;
    for (int64_t i = 0; i < TD_TILE; i++) {
        t->of_tile[i] = i * TD_TILE * t->sum;
        t->of_lanes[i] = i * t->sum;
        t->of_half[i] = i * TD_TILE * t->size;
        t->of_left[i] = i * packed * t->size;
        t->of_sums[i] = i * width * t->sum;
    }
}

/* ---- factors ---- */

td_left td_left_from(td_left factor, int64_t first)
{
    factor.at += first * (factor.rows[1] - factor.rows[0]);
    return factor;
}

td_right td_right_from(const td_tiles *t, td_right factor, int64_t first)
{
    factor.at += first * factor.row * t->size;
    return factor;
}

/* Rows and columns [0, m) x [0, n) as rows of bf16, in blocks of 32 x 32 that are filled up with
 * zeros. by_columns: row i is column i of the source. */
static void pack_left(td_bf16 *to, int64_t to_row, td_bf16_source source, int64_t m, int64_t n,
                      bool by_columns)
{
    const char *data = source.data;
    int64_t size = source.dtype == TD_BF16 ? 2 : 4;
    for (int64_t i = 0; i < m; i += WIDE) {
        for (int64_t p = 0; p < n; p += WIDE) {
            int rows = (int)td_min64(WIDE, m - i), columns = (int)td_min64(WIDE, n - p);
            int64_t at = by_columns ? p * source.stride + i : i * source.stride + p;
            source.data = data + at * size;
            (by_columns ? td_bf16_pack_a_turned : td_bf16_pack_a)(to + i * to_row + p, to_row, 0,
                                                                  &source, rows, columns);
        }
    }
}

td_left td_tiles_left(const td_tiles *t, const char *from, const int64_t *rows, int64_t count,
                      td_conv_space *space)
{
    if (t->width % t->depth == 0) {
        return (td_left){ from, rows, 1 };
    }
    int64_t row = t->of_left[1];
    char *to = td_conv_take(space, td_divide_up(count, TD_TILE) * TD_TILE * row);
    if (to != NULL) {
        td_bf16_source source = { from, TD_BF16, (rows[1] - rows[0]) / t->size };
        pack_left((td_bf16 *)to, row / t->size, source, count, t->width, false);
    }
    return (td_left){ to, t->of_left, 1 };
}

/* A panel has all rows, up to whole tiles. */
td_right td_tiles_right(const td_tiles *t, const char *from, int64_t row, int64_t count,
                        td_conv_space *space)
{
    if (t->dtype != TD_BF16) {
        return (td_right){ from, row / t->size, t->kernels->panel * t->size };
    }
    int64_t all = td_divide_up(count, TD_TILE) * TD_TILE, panel = all * WIDE * t->size;
    char *to = td_conv_take(space, td_divide_up(t->width, WIDE) * panel);
    for (int64_t j = 0; to != NULL && j < t->width; j += WIDE) {
        for (int64_t i = 0; i < all; i += WIDE) {
            td_bf16_source source = { from + i * row + j * t->size, TD_BF16, row / t->size };
            int k = i < count ? (int)td_min64(WIDE, count - i) : 0;
            td_bf16_pack_b((td_bf16 *)(to + j / WIDE * panel) + i * WIDE, 0, &source, k,
                           (int)td_min64(WIDE, t->width - j), WIDE);
        }
    }
    return (td_right){ to, WIDE, panel };
}

int64_t td_tiles_turned_bytes(const td_tiles *t)
{
    return TD_TILE * (t->dtype == TD_BF16 ? t->of_left[1] : t->width * t->size);
}

td_right td_right_turned(const td_tiles *t, const char *turned)
{
    if (t->dtype != TD_BF16) {
        return (td_right){ turned, TD_TILE, t->kernels->panel * t->size };
    }
    return (td_right){ turned, WIDE, t->of_left[1] * WIDE }; /* panels of h rows, filled up */
}

void td_tiles_turn(const td_tiles *t, char *to, const char *from, int64_t row, int64_t count)
{
    if (t->dtype != TD_BF16) {
        if (count < TD_TILE) {
            memset(to, 0, (size_t)td_tiles_turned_bytes(t));
        }
        t->kernels->pack(to, TD_TILE, from, t->width, count, 1, row / t->size);
        return;
    }
    for (int64_t j = 0; j < TD_TILE; j += WIDE) {
        for (int64_t p = 0; p < t->width; p += WIDE) {
            td_bf16_source source = { from + j * row + p * t->size, TD_BF16, row / t->size };
            int n = j < count ? (int)td_min64(WIDE, count - j) : 0;
            td_bf16_pack_b_turned((td_bf16 *)to + j * t->of_left[1] / t->size + p * WIDE, 0,
                                  &source, (int)td_min64(WIDE, t->width - p), n, WIDE);
        }
    }
}

td_left td_tiles_by_keys(const td_tiles *t, const char *tile, char *room, td_tile_part part)
{
    if (t->dtype != TD_BF16) {
        return (td_left){ tile, t->of_tile, 1 };
    }
    td_bf16_source source = { tile, TD_F32, TD_TILE };
    pack_left((td_bf16 *)room, TD_TILE, source, part.keys, part.queries, false);
    return (td_left){ room, t->of_half, 1 };
}

td_left td_tiles_by_queries(const td_tiles *t, const char *tile, char *room, td_tile_part part)
{
    if (t->dtype != TD_BF16) {
        return (td_left){ tile, t->of_lanes, TD_TILE };
    }
    td_bf16_source source = { tile, TD_F32, TD_TILE };
    pack_left((td_bf16 *)room, TD_TILE, source, part.queries, part.keys, true);
    return (td_left){ room, t->of_half, 1 };
}

void td_tiles_put(const td_tiles *t, char *to, char *sums, bool accumulate)
{
    if (t->dtype != TD_BF16) {
        memcpy(to, sums, (size_t)(t->width * t->size));
        return;
    }
    const td_loops *bf16 = td_loops_of(TD_BF16);
    for (int64_t i = 0; accumulate && i < t->width; i++) {
        ((float *)sums)[i] += td_bf16_to_f32(((const td_bf16 *)to)[i]);
    }
    bf16->narrow(t->width, to, (const float *)sums);
}

/* ---- products ---- */

/* c (m x n) = or += a (m x k) b (k x n), from column `first` on. Without terms c becomes 0. */
static void tiles_multiply(const td_tiles *t, td_sink c, td_left a, td_right b, int64_t first,
                           int64_t m, int64_t n, int64_t k, bool accumulate)
{
    int64_t panel = t->kernels->panel, column = t->kernels->pairs * t->size;
    k = k > 0 ? td_divide_up(k, t->depth) * t->depth : 0;
    for (int64_t j = first; j < n; j += panel - j % panel) {
        td_gemm_term term = { a.at, b.at + j / panel * b.panel + j % panel * column, k };
        td_gemm_block block = { .terms = &term,
                                .count = k > 0,
                                .a_row = a.rows,
                                .c_row = c.rows,
                                .a_col = a.step,
                                .b_row = b.row,
                                .c = c.at + j * t->sum,
                                .m = m,
                                .n = (int)td_min64(panel - j % panel, n - j),
                                .accumulate = accumulate,
                                .dtype = TD_F32 };
        t->kernels->block(&block);
    }
}

/* Whether no query is kept from a key; the first query of a step that reads key k. */
static bool is_whole(td_tile_part part)
{
    return part.shift >= part.keys - 1;
}

static int64_t first_query(const td_tiles *t, td_tile_part part, int64_t k)
{
    return k > part.shift ? (k - part.shift) / t->step * t->step : 0;
}

void td_tiles_scores(const td_tiles *t, char *tile, td_left keys, td_right turned,
                     td_tile_part part)
{
    int64_t step = is_whole(part) ? TD_TILE : t->step;
    int64_t lanes = td_divide_up(part.queries, TD_ATTENTION_LANES) * TD_ATTENTION_LANES;
    for (int64_t k = 0; k < part.keys; k += step) {
        td_left rows = keys;
        rows.at += keys.rows[k];
        tiles_multiply(t, (td_sink){ tile + t->of_tile[k], t->of_tile }, rows, turned,
                       step == TD_TILE ? 0 : first_query(t, part, k), td_min64(step, part.keys - k),
                       lanes, t->width, false);
    }
}

void td_tiles_sum_keys(const td_tiles *t, td_sink to, td_left p, td_right rows, td_tile_part part,
                       bool accumulate)
{
    int64_t step = is_whole(part) ? TD_TILE : t->step;
    for (int64_t q = 0; q < part.queries; q += step) {
        td_left of_step = p;
        of_step.at += p.rows[q];
        tiles_multiply(t, (td_sink){ to.at + to.rows[q], to.rows }, of_step, rows, 0,
                       td_min64(step, part.queries - q), t->width,
                       td_min64(q + step + part.shift, part.keys), accumulate);
    }
}

void td_tiles_sum_queries(const td_tiles *t, td_sink to, td_left p, td_right rows,
                          td_tile_part part, bool accumulate)
{
    int64_t step = is_whole(part) ? TD_TILE : t->step;
    for (int64_t k = 0; k < part.keys; k += step) {
        int64_t first = step == TD_TILE ? 0 : first_query(t, part, k);
        td_left of_step = p;
        of_step.at += p.rows[k] + first * t->size;
        tiles_multiply(t, (td_sink){ to.at + to.rows[k], to.rows }, of_step,
                       td_right_from(t, rows, first), 0, td_min64(step, part.keys - k), t->width,
                       part.queries - first, accumulate);
    }
}
