/* Data that every rank can make for every rank, and serial results. */
#include "tests/comm/dist_data.h"
#include "tensor/f16.h"

#include <stdlib.h>
#include <string.h>

uint64_t dist_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Element i of a rank's data. Floats of different magnitudes, so that the order of a sum shows;
 * integers from 1 on. */
static void store_value(void *array, td_dtype dtype, int64_t at, int rank, uint64_t seed, int64_t i)
{
    uint64_t bits = dist_mix(seed * 1000003 + (uint64_t)rank * 777767777 + (uint64_t)i);
    double value = (double)(int64_t)(bits >> 40) / (1 << 20) - 8;
    value *= (bits & 7) == 0 ? 32 : 1;
    switch (dtype) {
    case TD_F32:
        ((float *)array)[at] = (float)value;
        return;
    case TD_F64:
        ((double *)array)[at] = value;
        return;
    case TD_BF16:
        ((td_bf16 *)array)[at] = td_f32_to_bf16((float)value);
        return;
    case TD_F16:
        ((td_f16 *)array)[at] = td_f32_to_f16((float)value);
        return;
    case TD_I64:
        ((int64_t *)array)[at] = (int64_t)bits; /* sums wrap around */
        return;
    case TD_I32:
        ((int32_t *)array)[at] = (int32_t)bits;
        return;
    default:
        ((uint8_t *)array)[at] = (uint8_t)bits;
        return;
    }
}

static float load_float(const void *array, td_dtype dtype, int64_t i)
{
    switch (dtype) {
    case TD_F32:
        return ((const float *)array)[i];
    case TD_BF16:
        return td_bf16_to_f32(((const td_bf16 *)array)[i]);
    default:
        return td_f16_to_f32(((const td_f16 *)array)[i]);
    }
}

static uint64_t load_integer(const void *array, td_dtype dtype, int64_t i)
{
    switch (dtype) {
    case TD_I64:
        return (uint64_t)((const int64_t *)array)[i];
    case TD_I32:
        return (uint64_t)((const int32_t *)array)[i];
    default:
        return ((const uint8_t *)array)[i];
    }
}

#define COMBINE(type)                                                                              \
    static type combine_##type(type x, type y, td_reduction op)                                    \
    {                                                                                              \
        switch (op) {                                                                              \
        case TD_MIN:                                                                               \
            return y < x ? y : x;                                                                  \
        case TD_MAX:                                                                               \
            return y > x ? y : x;                                                                  \
        case TD_PRODUCT:                                                                           \
            return x * y;                                                                          \
        default:                                                                                   \
            return x + y;                                                                          \
        }                                                                                          \
    }
COMBINE(float)
COMBINE(double)

static uint64_t combine_integer(uint64_t x, uint64_t y, td_reduction op)
{
    switch (op) {
    case TD_MIN:
        return (int64_t)y < (int64_t)x ? y : x;
    case TD_MAX:
        return (int64_t)y > (int64_t)x ? y : x;
    case TD_PRODUCT:
        return x * y;
    default:
        return x + y;
    }
}

/* Element i of ranks [begin, end) reduced, in the tree that splits a range at its middle. */
static double tree_double(void *const *in, int begin, int end, int64_t i, double scale,
                          td_reduction op)
{
    int middle = begin + (end - begin) / 2;
    return end - begin == 1 ? ((double *)in[begin])[i] * scale
                            : combine_double(tree_double(in, begin, middle, i, scale, op),
                                             tree_double(in, middle, end, i, scale, op), op);
}

static float tree_float(void *const *in, int begin, int end, int64_t i, td_dtype dtype, float scale,
                        td_reduction op)
{
    int middle = begin + (end - begin) / 2;
    return end - begin == 1 ? load_float(in[begin], dtype, i) * scale
                            : combine_float(tree_float(in, begin, middle, i, dtype, scale, op),
                                            tree_float(in, middle, end, i, dtype, scale, op), op);
}

/* One element reduced over `size` ranks: in[r] at index i, to out at index i. */
static void reduce_element(void *out, void *const *in, int size, int64_t i, td_dtype dtype,
                           td_reduction op)
{
    double scale = op == TD_AVERAGE ? 1.0 / size : 1;
    if (dtype == TD_F64) {
        ((double *)out)[i] = tree_double(in, 0, size, i, scale, op);
    } else if (td_is_float(dtype)) {
        float sum = tree_float(in, 0, size, i, dtype, (float)scale, op);
        if (dtype == TD_F32) {
            ((float *)out)[i] = sum;
        } else {
            ((uint16_t *)out)[i] = dtype == TD_BF16 ? td_f32_to_bf16(sum) : td_f32_to_f16(sum);
        }
    } else {
        uint64_t sum = load_integer(in[0], dtype, i);
        for (int r = 1; r < size; r++) {
            sum = combine_integer(sum, load_integer(in[r], dtype, i), op);
        }
        memcpy((char *)out + (size_t)i * td_dtype_size(dtype), &sum, td_dtype_size(dtype));
    }
}

dist_data dist_data_make(td_dtype dtype, int64_t n, int size, uint64_t seed)
{
    dist_data d = { .dtype = dtype, .n = n, .size = size };
    for (int r = 0; r < size; r++) {
        d.of[r] = malloc((size_t)n * td_dtype_size(dtype) + 1);
        REQUIRE(d.of[r] != NULL);
        for (int64_t i = 0; i < n; i++) {
            store_value(d.of[r], dtype, i, r, seed, i);
        }
    }
    d.reduced = malloc((size_t)n * td_dtype_size(dtype) + 1);
    REQUIRE(d.reduced != NULL);
    return d;
}

void dist_data_reduce(dist_data *d, td_reduction op)
{
    for (int64_t i = 0; i < d->n; i++) {
        reduce_element(d->reduced, d->of, d->size, i, d->dtype, op);
    }
}

void dist_data_free(dist_data *d)
{
    for (int r = 0; r < d->size; r++) {
        free(d->of[r]);
    }
    free(d->reduced);
}

size_t dist_data_bytes(const dist_data *d, int64_t n)
{
    return (size_t)n * td_dtype_size(d->dtype);
}
