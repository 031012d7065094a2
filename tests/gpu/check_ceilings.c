#include "tests/gpu/check.h"

#include "tensor/extend.h"
#include "tensor/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 5, REPEATS = 10 };

/* The least of some rounds, in seconds a call. */
static double least(td_device device, void (*call)(void *), void *user)
{
    double best = 1e30;
    call(user);
    for (int i = 0; i < ROUNDS; i++) {
        check_wait(device);
        double start = check_seconds();
        for (int k = 0; k < REPEATS; k++) {
            call(user);
        }
        check_wait(device);
        double taken = (check_seconds() - start) / REPEATS;
        best = taken < best ? taken : best;
    }
    return best;
}

typedef struct operands {
    td_tensor *c, *a, *b;
    td_math math;
} operands;

static void copy(void *user)
{
    const operands *o = user;
    td_kernels_of(td_device_of(o->c))->copy(o->c, o->a);
}

static void multiply(void *user)
{
    const operands *o = user;
    td_kernels_of(td_device_of(o->c))->matmul(o->c, o->a, o->b, NULL, false, o->math);
}

static bool measure_copy(td_device device, int64_t n)
{
    operands o = { .c = td_zeros(TD_SHAPE(n, n), TD_F32, device),
                   .a = td_zeros(TD_SHAPE(n, n), TD_F32, device) };
    if (o.c == NULL || o.a == NULL) {
        printf("copy: %s\n", td_last_error());
        return false;
    }
    double taken = least(device, copy, &o);
    printf("copy: %.0f GB/s read and written (%.0f MB)\n", 8e-9 * (double)(n * n) / taken,
           4e-6 * (double)(n * n));
    td_free(o.c);
    td_free(o.a);
    return true;
}

static bool measure_matmul(td_device device, int64_t n, td_dtype dtype, td_precision precision)
{
    td_shape shape = TD_SHAPE(n, n);
    operands o = { .c = td_zeros(shape, dtype, device),
                   .a = td_full(shape, 0.5, dtype, device),
                   .b = td_full(shape, 0.25, dtype, device),
                   .math = { .precision = precision } };
    if (o.c == NULL || o.a == NULL || o.b == NULL) {
        printf("matmul: %s\n", td_last_error());
        return false;
    }
    double taken = least(device, multiply, &o);
    int64_t last[2] = { n - 1, n - 1 };
    double got = td_get(o.c, last), want = 0.125 * (double)n;
    printf("matmul %s, %lld: %.1f TFLOP/s\n", td_precision_name(precision), (long long)n,
           2e-12 * (double)n * (double)n * (double)n / taken);
    td_free(o.c);
    td_free(o.a);
    td_free(o.b);
    return got > 0.99 * want && got < 1.01 * want;
}

bool check_ceilings(td_device device, int64_t n)
{
    static const struct {
        td_dtype dtype;
        td_precision precision;
    } kinds[] = { { TD_BF16, TD_PRECISION_BF16 },
                  { TD_F16, TD_PRECISION_FP16 },
                  { TD_F32, TD_PRECISION_TF32 },
                  { TD_F32, TD_PRECISION_FP32 } };
    bool good = measure_copy(device, n);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (td_precision_check(device, kinds[i].precision) == TD_OK) {
            good = measure_matmul(device, n, kinds[i].dtype, kinds[i].precision) && good;
        }
    }
    return good;
}
