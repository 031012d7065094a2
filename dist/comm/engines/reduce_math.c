/* Reductions over the ranks' arrays, by one fixed tree. */
#include "dist/comm/engines/reduce_math.h"

#include "dist/comm/watchdog.h"

#include "tensor/f16.h"
#include "tensor/backend.h"
#include "tensor/storage.h"

#include <stdalign.h>
#include <string.h>

/* Arrays are reduced in pieces that stay in the first-level cache. */
enum { PIECE_BYTES = 8192 };

typedef void (*loop_fn)(void *out, const void *a, const void *b, int64_t n, double sa, double sb);

/* The next loop's elements do not depend on each other, although its arrays may be the same. */
#if defined(__clang__)
#define TD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TD_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define TD_ISA portable
#define TD_LOOP_TARGET
#include "dist/comm/engines/reduce_loops.inc"
#undef TD_ISA
#undef TD_LOOP_TARGET

static void load_f16(float *out, const void *array, int64_t n)
{
    td_f16_widen(n, out, array);
}

static void store_f16(void *array, const float *values, int64_t n)
{
    td_f16_narrow(n, array, values);
}

#if defined(__x86_64__)
#define TD_ISA avx2
#define TD_LOOP_TARGET __attribute__((target("avx2,fma")))
#include "dist/comm/engines/reduce_loops.inc"
#undef TD_ISA
#undef TD_LOOP_TARGET
#endif

/* The loops of one instruction set. */
typedef struct math {
    const loop_fn (*loops)[TD_PRODUCT + 1];
    void (*load[2])(float *out, const void *array, int64_t n); /* bf16, f16 */
    void (*store[2])(void *array, const float *values, int64_t n);
} math;

static math choose_math(void)
{
    math m = { loops_portable,
               { load_bf16_portable, load_f16 },
               { store_bf16_portable, store_f16 } };
#if defined(__x86_64__)
    if (td_cpu_has_avx2()) {
        m = (math){ loops_avx2, { load_bf16_avx2, load_f16 }, { store_bf16_avx2, store_f16 } };
    }
#endif
    return m;
}

static inline const char *at(const void *array, int64_t index, size_t size)
{
    return (const char *)array + (size_t)index * size;
}

/* The fold of one piece of the arrays: `count` elements from `first` on. */
typedef struct fold {
    const math *m;
    loop_fn loop;
    const void *const *in;
    int half;    /* which of the 16-bit types, which are computed in f32; otherwise -1 */
    size_t size; /* of an element of the arrays */
    int64_t first, count;
    double scale; /* of a term, for TD_AVERAGE */
} fold;

enum { MOST_LEVELS = 18 }; /* of the tree of 65,536 ranks, and one for the terms */

/* A value of the tree, and the factor that it still needs. */
typedef struct folded {
    const void *values;
    double scale;
} folded;

/* Folds the terms [begin, end): each half by itself, then both. rows: memory for the result and for
 * what is folded on the way. */
static folded fold_terms(const fold *f, int begin, int end, char (*rows)[PIECE_BYTES])
{
    if (end - begin == 1) {
        const void *term = at(f->in[begin], f->first, f->size);
        if (f->half >= 0) {
            f->m->load[f->half]((float *)(void *)rows[0], term, f->count);
            term = rows[0];
        }
        return (folded){ term, f->scale };
    }
    int middle = begin + (end - begin) / 2;
    folded left = fold_terms(f, begin, middle, rows);
    folded right = fold_terms(f, middle, end, rows + 1);
    f->loop(rows[0], left.values, right.values, f->count, left.scale, right.scale);
    return (folded){ rows[0], 1.0 };
}

void td_reduce_arrays(void *const *out, int outs, const void *const *in, int n, int64_t count,
                      td_dtype dtype, td_reduction op)
{
    const size_t size = td_dtype_size(dtype);
    if (n == 1) {
        for (int k = 0; k < outs; k++) {
            memmove(out[k], in[0], (size_t)count * size);
        }
        return;
    }
    const math m = choose_math();
    const bool is_half = dtype == TD_BF16 || dtype == TD_F16;
    const int half = dtype - TD_BF16;
    loop_fn loop = m.loops[is_half ? TD_F32 : dtype][op];
    TD_REQUIRE(loop != NULL, TD_NOWHERE, "there is no %s of %s: averages are for floats",
               td_reduction_name(op), td_dtype_name(dtype));
    const int64_t piece = PIECE_BYTES / (int64_t)(is_half ? sizeof(float) : size);
    alignas(64) char rows[MOST_LEVELS][PIECE_BYTES];
    alignas(64) char rounded[PIECE_BYTES / 2];
    for (int64_t first = 0; first < count; first += piece) {
        int64_t here = count - first < piece ? count - first : piece;
        const fold f = { .m = &m,
                         .loop = loop,
                         .in = in,
                         .half = is_half ? half : -1,
                         .size = size,
                         .first = first,
                         .count = here,
                         .scale = 1.0 / n };
        const void *result = fold_terms(&f, 0, n, rows).values;
        if (is_half) {
            m.store[half](rounded, result, here);
            result = rounded;
        }
        for (int k = 0; k < outs; k++) {
            memcpy((char *)out[k] + (size_t)first * size, result, (size_t)here * size);
        }
    }
}
