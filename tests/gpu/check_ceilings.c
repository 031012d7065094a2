/* make gpu-check: the limits of a GPU, by large products and copies. */
#include "tests/gpu/check.h"

#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
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

/* Random multiples of 1/128 in [-1, 1), which all dtypes have: of constants, or zeros, products
 * take less power and so less time. */
static td_tensor *random_matrix(int64_t n, uint64_t *seed)
{
    td_tensor *t = td_new(TD_SHAPE(n, n), TD_F32, TD_CPU);
    float *values = t != NULL ? td_data_rw(t) : NULL;
    for (int64_t i = 0; values != NULL && i < n * n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)((int)(*seed >> 56) - 128) / 128.0f;
    }
    return t;
}

/* The last element of the product of two CPU tensors. */
static double last_element(const td_tensor *a, const td_tensor *b, int64_t n)
{
    const float *row = (const float *)td_data(a) + (n - 1) * n, *column = td_data(b);
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += (double)row[k] * (double)column[k * n + n - 1];
    }
    return sum;
}

static bool measure_matmul(td_device device, int64_t n, td_dtype dtype, td_precision precision)
{
    uint64_t seed = 1;
    td_tensor *a = random_matrix(n, &seed), *b = random_matrix(n, &seed);
    if (a == NULL || b == NULL) {
        printf("matmul: %s\n", td_last_error());
        return false;
    }
    operands o = { .c = td_zeros(TD_SHAPE(n, n), dtype, device),
                   .a = td_clone_as(a, dtype, device),
                   .b = td_clone_as(b, dtype, device),
                   .math = { .precision = precision } };
    if (o.c == NULL || o.a == NULL || o.b == NULL) {
        printf("matmul: %s\n", td_last_error());
        return false;
    }
    double taken = least(device, multiply, &o);
    int64_t last[2] = { n - 1, n - 1 };
    double got = td_get(o.c, last), want = last_element(a, b, n);
    printf("matmul %s, %lld: %.1f TFLOP/s\n", td_precision_name(precision), (long long)n,
           2e-12 * (double)n * (double)n * (double)n / taken);
    td_tensor *all[] = { o.c, o.a, o.b, a, b };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        td_free(all[i]);
    }
    return fabs(got - want) <= 0.01 * sqrt((double)n); /* a sum is of about sqrt(n) / 3 */
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
