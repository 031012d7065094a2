/* tensor/elementwise.def's operations of integers, and all dtypes' comparisons that have no table.
 */
#include "tensor/cpu/ops_integers.h"

#include "tensor/f16.h"

/* y (elements Y, given as TO) = VALUE of a and b (elements I, computed in T, read by GET). */
#define LOOP(NAME, TO, Y, I, T, GET, VALUE)                                                        \
    static void NAME(int64_t n, TO *to, int64_t sy, const void *av, int64_t sa, const void *bv,    \
                     int64_t sb)                                                                   \
    {                                                                                              \
        Y *y = to;                                                                                 \
        const I *left = av, *right = bv;                                                           \
        if (sy == 1 && sa == 1 && sb == 1) {                                                       \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T a = GET(left[i]), b = GET(right[i]);                                             \
                y[i] = (Y)(VALUE);                                                                 \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T a = GET(left[i * sa]), b = GET(right[i * sb]);                                       \
            y[i * sy] = (Y)(VALUE);                                                                \
        }                                                                                          \
    }

#define TD_INTEGER(name, value)                                                                    \
    LOOP(name##_i64, void, int64_t, int64_t, int64_t, , value)                                     \
    LOOP(name##_i32, void, int32_t, int32_t, int32_t, , value)                                     \
    LOOP(name##_u8, void, uint8_t, uint8_t, uint8_t, , value)
#define TD_COMPARE(name, whether)                                                                  \
    LOOP(name##_i64, uint8_t, uint8_t, int64_t, int64_t, , whether)                                \
    LOOP(name##_i32, uint8_t, uint8_t, int32_t, int32_t, , whether)                                \
    LOOP(name##_u8, uint8_t, uint8_t, uint8_t, uint8_t, , whether)                                 \
    LOOP(name##_f16, uint8_t, uint8_t, td_f16, float, td_f16_to_f32, whether)
#include "tensor/elementwise.def"

td_binary_loop td_integer_loop(td_binary_op op, td_dtype dtype)
{
    switch (op) {
#define TD_INTEGER(name, value)                                                                    \
    case TD_BINARY_##name:                                                                         \
        return dtype == TD_I64 ? name##_i64 : dtype == TD_I32 ? name##_i32 : name##_u8;
#include "tensor/elementwise.def"
    default:
        return NULL;
    }
}

td_compare_loop td_integer_compare_loop(td_compare_op op, td_dtype dtype)
{
    switch (op) {
#define TD_COMPARE(name, whether)                                                                  \
    case TD_COMPARE_##name:                                                                        \
        return dtype == TD_I64   ? name##_i64                                                      \
               : dtype == TD_I32 ? name##_i32                                                      \
               : dtype == TD_F16 ? name##_f16                                                      \
                                 : name##_u8;
#include "tensor/elementwise.def"
    default:
        return NULL;
    }
}
