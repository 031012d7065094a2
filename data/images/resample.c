/* Resizes images by an antialiased bilinear filter. */
#include "data/images/resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISION = 22, HALF = 1 << (PRECISION - 1) };

/* Along one axis: result i is the sum of weight[i*most + k] * source[first[i] + k], k < count[i].
 */
typedef struct axis {
    int results, most;
    int *first, *count;
    int32_t *weight;
} axis;

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* One result's weights; `row` has room for them in double. */
static void fill_weights(axis *a, int i, double center, double reach, int sources, double *row)
{
    int first = (int)(center - reach + 0.5), end = (int)(center + reach + 0.5);
    first = first < 0 ? 0 : first;
    end = end > sources ? sources : end;
    double sum = 0.0;
    for (int k = 0; k < end - first; k++) {
        row[k] = triangle((k + first - center + 0.5) * (1.0 / reach));
        sum += row[k];
    }
    for (int k = 0; k < end - first; k++) {
        double weight = sum != 0.0 ? row[k] / sum : row[k];
        a->weight[(size_t)i * (size_t)a->most + (size_t)k] =
            (int32_t)(weight * (1 << PRECISION) + 0.5);
    }
    a->first[i] = first;
    a->count[i] = end - first;
}

static void free_axis(axis *a)
{
    free(a->first);
    free(a->weight);
}

/* `sources` pixels become `size`; results [begin, begin + results) are wanted. */
static bool make_axis(axis *a, int sources, int size, int begin, int results)
{
    double scale = (double)sources / size, reach = scale < 1.0 ? 1.0 : scale;
    *a = (axis){ .results = results, .most = (int)ceil(reach) * 2 + 1 };
    a->first = malloc((size_t)results * 2 * sizeof(int));
    a->weight = malloc((size_t)results * (size_t)a->most * sizeof(int32_t));
    double *row = malloc((size_t)a->most * sizeof *row);
    bool made = a->first != NULL && a->weight != NULL && row != NULL;
    if (made) {
        a->count = a->first + results;
        for (int i = 0; i < results; i++) {
            fill_weights(a, i, (begin + i + 0.5) * scale, reach, sources, row);
        }
    }
    free(row);
    return made;
}

static inline uint8_t to_byte(int32_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

typedef int32_t four_ints __attribute__((vector_size(16)));

/* The four bytes from `at` as integers; the fourth belongs to the next pixel and is not used. */
static inline four_ints four_bytes(const uint8_t *at)
{
    uint8_t byte[4];
    memcpy(byte, at, sizeof byte);
    return (four_ints){ byte[0], byte[1], byte[2], byte[3] };
}

/* One row, which has a spare byte behind its last pixel. */
static inline __attribute__((always_inline)) void row_inline(const axis *a, const uint8_t *from,
                                                             uint8_t *to)
{
    for (int i = 0; i < a->results; i++) {
        const uint8_t *at = from + 3 * (size_t)a->first[i];
        const int32_t *weight = a->weight + (size_t)i * (size_t)a->most;
        four_ints sum = { HALF, HALF, HALF, HALF };
        for (int k = 0; k < a->count[i]; k++) {
            sum += four_bytes(at + 3 * (size_t)k) * weight[k];
        }
        for (int c = 0; c < 3; c++) {
            to[3 * i + c] = to_byte(sum[c]);
        }
    }
}

/* Result i of the columns: `count` rows of `bytes` each, which begin at `from`. */
static inline __attribute__((always_inline)) void
column_inline(const axis *a, int i, const uint8_t *from, size_t bytes, uint8_t *to)
{
    enum { BLOCK = 64 };
    const int32_t *weight = a->weight + (size_t)i * (size_t)a->most;
    for (size_t begin = 0; begin < bytes; begin += BLOCK) {
        size_t count = bytes - begin < BLOCK ? bytes - begin : BLOCK;
        int32_t sum[BLOCK];
        for (size_t j = 0; j < count; j++) {
            sum[j] = HALF;
        }
        for (int k = 0; k < a->count[i]; k++) {
            const uint8_t *row = from + (size_t)k * bytes + begin;
            for (size_t j = 0; j < count; j++) {
                sum[j] += row[j] * weight[k];
            }
        }
        for (size_t j = 0; j < count; j++) {
            to[begin + j] = to_byte(sum[j]);
        }
    }
}

typedef struct passes {
    const axis *rows, *columns;
    const uint8_t *from; /* the crop's first pixel that is needed */
    size_t stride;       /* bytes of a row of the bitmap */
    int source_rows;     /* that are needed */
    size_t row_bytes;    /* of the crop */
    uint8_t *padded;     /* a row with a spare byte */
    uint8_t *between;    /* [source_rows][window.width][3] */
    uint8_t *to;
} passes;

static inline __attribute__((always_inline)) void run_inline(const passes *p)
{
    size_t bytes = (size_t)p->rows->results * 3;
    for (int r = 0; r < p->source_rows; r++) {
        memcpy(p->padded, p->from + (size_t)r * p->stride, p->row_bytes);
        row_inline(p->rows, p->padded, p->between + (size_t)r * bytes);
    }
    int top = p->columns->first[0];
    for (int i = 0; i < p->columns->results; i++) {
        column_inline(p->columns, i, p->between + (size_t)(p->columns->first[i] - top) * bytes,
                      bytes, p->to + (size_t)i * bytes);
    }
}

#if defined(__x86_64__)
/* The same, quicker. */
__attribute__((target("avx2"))) static void run_avx2(const passes *p)
{
    run_inline(p);
}
#endif

static void resample_run(const passes *p)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        run_avx2(p);
        return;
    }
#endif
    run_inline(p);
}

td_status td_resample(const td_bitmap *from, td_box crop, int width, int height, td_box window,
                      uint8_t *rgb)
{
    axis rows = { 0 }, columns = { 0 };
    bool made = make_axis(&rows, crop.width, width, window.left, window.width) &&
                make_axis(&columns, crop.height, height, window.top, window.height);
    passes p = { .rows = &rows, .columns = &columns, .to = rgb };
    if (made) {
        int last = window.height - 1, top = columns.first[0];
        p.source_rows = columns.first[last] + columns.count[last] - top;
        p.stride = (size_t)from->width * 3;
        p.row_bytes = (size_t)crop.width * 3;
        p.from = from->rgb + (size_t)(crop.top + top) * p.stride + (size_t)crop.left * 3;
        p.padded = calloc(1, p.row_bytes + 1);
        p.between = malloc((size_t)p.source_rows * (size_t)window.width * 3);
        made = p.padded != NULL && p.between != NULL;
    }
    if (made) {
        resample_run(&p);
    }
    free(p.padded);
    free(p.between);
    free_axis(&rows);
    free_axis(&columns);
    return made ? TD_OK : td_fail(TD_E_NOMEM, "no memory to resize an image");
}
