/* Random tensors, awkward views, and checks against references in double precision. */
#include "tests/tensor/reference.h"

#include "tensor/cpu/isa.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t digest;

td_device ref_device(void)
{
    static td_device device;
    static bool known;
    const char *name = getenv("TANDEM_TEST_DEVICE");
    if (!known && name != NULL && td_device_parse(name, &device) != TD_OK) {
        fail_msg("TANDEM_TEST_DEVICE: %s", td_last_error());
    }
    known = true;
    return device;
}

const td_kernels *ref_kernels(void)
{
    return td_kernels_of(ref_device());
}

double ref_random(uint64_t seed, int64_t i)
{
    uint64_t z = (seed * 0x9e3779b97f4a7c15u) ^ (uint64_t)i;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 40) * 0x1p-23 - 1.0;
}

static void *allocate(int64_t n, size_t size)
{
    void *memory = calloc(n > 0 ? (size_t)n : 1, size);
    assert_non_null(memory);
    return memory;
}

td_tensor *ref_tensor(td_shape shape, td_dtype dtype, td_layout layout, uint64_t seed)
{
    td_tensor *t = td_new_layout(shape, dtype, layout, ref_device());
    assert_non_null(t);
    int64_t n = td_numel(t);
    double *values = allocate(n, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        values[i] = ref_random(seed, i);
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
}

td_tensor *ref_indices(td_shape shape, int64_t limit, uint64_t seed)
{
    td_tensor *t = td_new(shape, TD_I64, ref_device());
    assert_non_null(t);
    int64_t n = td_numel(t), *index = allocate(n, sizeof *index);
    for (int64_t i = 0; i < n; i++) {
        index[i] = (int64_t)((ref_random(seed, i) + 1.0) * 0.5 * (double)limit);
    }
    td_write(t, index, TD_I64);
    free(index);
    return t;
}

td_tensor *ref_filled(td_shape shape, td_dtype dtype, td_layout layout, double value)
{
    td_tensor *t = td_new_layout(shape, dtype, layout, ref_device());
    assert_non_null(t);
    int64_t n = td_numel(t);
    double *values = allocate(n, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        values[i] = value;
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
}

td_tensor *ref_scattered(td_tensor *t)
{
    td_shape shape = td_shape_of(t), room = { .ndim = 1, .dim = { 1 } };
    int64_t stride[TD_MAX_DIMS];
    for (int d = 0; d < shape.ndim; d++) {
        stride[d] = room.dim[0] * 2;
        room.dim[0] *= 2 * (shape.dim[d] > 0 ? shape.dim[d] : 1);
    }
    room.dim[0] += 3;
    td_tensor *base = td_zeros(room, t->dtype, ref_device());
    assert_non_null(base);
    td_tensor *out = td_slice_of_storage(base, 3, shape, stride);
    assert_non_null(out);
    td_free(base);
    double *values = ref_values(t);
    td_write(out, values, TD_F64);
    free(values);
    td_free(t);
    return out;
}

td_tensor *ref_expanded(td_shape shape, td_dtype dtype, double value)
{
    int64_t stride[TD_MAX_DIMS] = { 0 };
    td_tensor *one = td_full(TD_SHAPE(1), value, dtype, ref_device());
    assert_non_null(one);
    td_tensor *t = td_slice_of_storage(one, 0, shape, stride);
    assert_non_null(t);
    td_free(one);
    return t;
}

double *ref_values(const td_tensor *t)
{
    double *values = ref_zeros(td_numel(t));
    td_read(t, values, TD_F64);
    return values;
}

double *ref_zeros(int64_t n)
{
    return allocate(n, sizeof(double));
}

int64_t ref_at4(const td_tensor *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return ((n * t->shape[1] + c) * t->shape[2] + h) * t->shape[3] + w;
}

double ref_tolerance(td_dtype dtype)
{
    switch (dtype) {
    case TD_F64:
        return 1e-12;
    case TD_BF16:
        return 0x1p-8;
    case TD_F16:
        return 0x1p-10;
    default:
        return 1e-6;
    }
}

void ref_digest(const void *memory, size_t bytes)
{
    const unsigned char *byte = memory;
    for (size_t i = 0; i < bytes; i++) {
        digest = (digest ^ byte[i]) * 0x100000001b3u;
    }
}

static bool is_close(double got, double want, double allowed)
{
    if (isnan(want)) {
        return isnan(got);
    }
    return got == want || fabs(got - want) <= allowed;
}

void ref_close(const td_tensor *got, const double *want, const double *terms, double tolerance,
               const char *what)
{
    double *values = ref_values(got);
    int64_t n = td_numel(got);
    for (int64_t i = 0; i < n; i++) {
        double allowed = tolerance * fmax(terms ? terms[i] : fabs(want[i]), 1e-30);
        allowed += got->dtype == TD_F16 ? 0x1p-25 : 0.0; /* half of its least distance */
        if (!is_close(values[i], want[i], allowed)) {
            fail_msg("%s: element %lld of %s is %.17g instead of %.17g: %.3g off, %.3g allowed",
                     what, (long long)i, td_describe(got), values[i], want[i],
                     fabs(values[i] - want[i]), allowed);
        }
    }
    ref_digest(values, (size_t)n * sizeof *values);
    free(values);
}

double ref_relative_l2(const td_tensor *got, const double *want)
{
    double *values = ref_values(got), error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < td_numel(got); i++) {
        error += (values[i] - want[i]) * (values[i] - want[i]);
        norm += want[i] * want[i];
    }
    free(values);
    return error == 0.0 ? 0.0 : sqrt(error / norm);
}

static void run_twice(void (*body)(td_dtype dtype), td_dtype dtype)
{
    uint64_t first = 0;
    for (int time = 0; time < 2; time++) {
        digest = 0xcbf29ce484222325u;
        body(dtype);
        first = time == 0 ? digest : first;
        if (digest != first) {
            fail_msg("%s, %s: other bits the second time", td_device_name(ref_device()),
                     td_dtype_name(dtype));
        }
    }
}

static void run_as(void (*body)(td_dtype dtype), const td_dtype *dtypes, int count)
{
    if (ref_device().type != TD_DEVICE_CPU) {
        for (int d = 0; d < count; d++) {
            run_twice(body, dtypes[d]);
        }
        return;
    }
    static const int threads[] = { 1, 2, 3, 8 };
    for (int isa = TD_ISA_PORTABLE; isa <= (int)td_isa_detect(); isa++) {
        td_isa_force((td_isa)isa);
        for (int d = 0; d < count; d++) {
            if (isa > TD_ISA_VECTORS && dtypes[d] != TD_BF16) {
                continue; /* the levels above differ in bf16 alone */
            }
            uint64_t first = 0;
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                assert_int_equal(td_set_threads(TD_CPU, threads[t]), TD_OK);
                digest = 0xcbf29ce484222325u;
                body(dtypes[d]);
                first = t == 0 ? digest : first;
                if (digest != first) {
                    fail_msg("%s, %s: other bits with %d threads than with 1",
                             td_isa_name((td_isa)isa), td_dtype_name(dtypes[d]), threads[t]);
                }
            }
        }
    }
    td_isa_force(td_isa_detect());
    assert_int_equal(td_set_threads(TD_CPU, 0), TD_OK);
}

void ref_run(void (*body)(td_dtype dtype))
{
    run_as(body, (const td_dtype[]){ TD_F32, TD_F64 }, 2);
}

void ref_run_as(void (*body)(td_dtype dtype), td_dtype dtype)
{
    run_as(body, &dtype, 1);
}

void ref_run_half(void (*body)(td_dtype dtype))
{
    run_as(body, (const td_dtype[]){ TD_BF16, TD_F16 }, ref_device().type == TD_DEVICE_CPU ? 1 : 2);
}
