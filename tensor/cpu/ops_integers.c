/* tensor/kernels/elementwise.def's operations and comparisons of integers. */
#include "tensor/cpu/ops_integers.h"

/* y (elements Y) = VALUE of a and b (elements I). */
#define LOOP(NAME, Y, I, VALUE)                                                                    \
    static void NAME(int64_t n, void *yv, const void *av, const void *bv)                          \
    {                                                                                              \
        Y *y = yv;                                                                                 \
        const I *left = av, *right = bv;                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            I a = left[i], b = right[i];                                                           \
            y[i] = (Y)(VALUE);                                                                     \
        }                                                                                          \
    }

#define TD_INTEGER(name, value)                                                                    \
    LOOP(name##_i64, int64_t, int64_t, value)                                                      \
    LOOP(name##_i32, int32_t, int32_t, value)                                                      \
    LOOP(name##_u8, uint8_t, uint8_t, value)
#define TD_COMPARE(name, whether)                                                                  \
    LOOP(name##_i64, uint8_t, int64_t, whether)                                                    \
    LOOP(name##_i32, uint8_t, int32_t, whether)                                                    \
    LOOP(name##_u8, uint8_t, uint8_t, whether)
#include "tensor/kernels/elementwise.def"

td_binary_loop td_integer_loop(td_binary_op op, td_dtype dtype)
{
    switch (op) {
#define TD_INTEGER(name, value)                                                                    \
    case TD_BINARY_##name:                                                                         \
        return dtype == TD_I64 ? name##_i64 : dtype == TD_I32 ? name##_i32 : name##_u8;
#include "tensor/kernels/elementwise.def"
    default:
        return NULL;
    }
}

td_binary_loop td_integer_compare_loop(td_compare_op op, td_dtype dtype)
{
    switch (op) {
#define TD_COMPARE(name, whether)                                                                  \
    case TD_COMPARE_##name:                                                                        \
        return dtype == TD_I64 ? name##_i64 : dtype == TD_I32 ? name##_i32 : name##_u8;
#include "tensor/kernels/elementwise.def"
    default:
        return NULL;
    }
}
