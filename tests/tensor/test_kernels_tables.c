/* What moves elements: copies to other dtypes and orders of memory, embedding and its gradient,
 * range checks of indices, images that are cut out; and dropout. */
#include "tests/tensor/reference.h"

#include "data/augment.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* ---- copies ---- */

/* Values must come through. Frees x and y. */
static void check_copy(td_tensor *x, td_tensor *y, double tolerance)
{
    double *want = ref_values(x);
    k()->copy(y, x);
    ref_close(y, want, NULL, tolerance, "copy");
    free(want);
    td_free(x);
    td_free(y);
}

static void copy_layouts(td_dtype dtype)
{
    static const int64_t shapes[][4] = {
        { 1, 1, 1, 1 },   { 2, 3, 5, 7 },   { 33, 3, 9, 10 },  { 5, 70, 1, 1 },
        { 3, 65, 33, 2 }, { 0, 3, 2, 2 },   { 16, 3, 40, 40 }, /* few channels or pixels: */
        { 2, 8, 11, 13 }, { 3, 200, 3, 3 }, { 2, 130, 2, 4 },  { 1, 8, 2, 4 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        td_shape s = { 4, { shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3] } };
        for (td_layout from = TD_ROW_MAJOR; from <= TD_FILTER; from++) {
            for (td_layout to = TD_ROW_MAJOR; to <= TD_FILTER; to++) {
                check_copy(ref_tensor(s, dtype, from, i), ref_filled(s, dtype, to, 0.0), 0.0);
            }
        }
        check_copy(ref_scattered(ref_tensor(s, dtype, TD_IMAGE, i)),
                   ref_scattered(ref_filled(s, dtype, TD_ROW_MAJOR, 0.0)), 0.0);
    }
    check_copy(ref_expanded(TD_SHAPE(7, 5), dtype, 0.5),
               ref_filled(TD_SHAPE(7, 5), dtype, TD_ROW_MAJOR, 0.0), 0.0);
}

static void test_copy_layouts(void **state)
{
    (void)state;
    ref_run(copy_layouts);
    ref_run_half(copy_layouts);
}

/* Small whole numbers exist in all dtypes. */
static void copy_dtypes(td_dtype unused)
{
    (void)unused;
    td_shape s = TD_SHAPE(3, 7, 31);
    double values[3 * 7 * 31];
    for (int i = 0; i < 3 * 7 * 31; i++) {
        values[i] = i % 128;
    }
    for (int pair = 0; pair < TD_DTYPE_COUNT * TD_DTYPE_COUNT; pair++) {
        td_dtype from = (td_dtype)(pair / TD_DTYPE_COUNT), to = (td_dtype)(pair % TD_DTYPE_COUNT);
        td_tensor *x = td_new(s, from, ref_device());
        td_write(x, values, TD_F64);
        check_copy(ref_scattered(x), ref_filled(s, to, TD_ROW_MAJOR, 1.0), 0.0);
    }
    check_copy(ref_tensor(TD_SHAPE(999), TD_F64, TD_ROW_MAJOR, 5),
               ref_filled(TD_SHAPE(999), TD_F32, TD_ROW_MAJOR, 0.0), 0x1p-24);
    check_copy(ref_tensor(TD_SHAPE(999), TD_F32, TD_ROW_MAJOR, 5),
               ref_filled(TD_SHAPE(999), TD_BF16, TD_ROW_MAJOR, 0.0), 0x1p-8);
}

static void test_copy_dtypes(void **state)
{
    (void)state;
    ref_run(copy_dtypes);
}

/* Runs of f16 from and to f32: around every half, as one by one. */
static void halves(td_dtype dtype)
{
    enum { ALL = 0x10000, FROM = 3, COUNT = ALL - FROM };
    static float values[ALL], back[COUNT];
    static td_f16 got[COUNT];
    for (unsigned i = 0; i < ALL; i++) {
        values[i] = td_f16_to_f32((td_f16)i) * (1.0f + (float)(i % 7) * 0x1p-12f);
    }
    td_tensor *all = td_zeros(TD_SHAPE(ALL), TD_F16, ref_device());
    td_tensor *half = td_slice_of_storage(all, FROM, TD_SHAPE(COUNT), (int64_t[]){ 1 });
    td_tensor *wide = td_from(values, TD_SHAPE(COUNT), dtype, ref_device());
    k()->copy(half, wide);
    td_read(half, got, TD_F16);
    k()->copy(wide, half);
    td_read(wide, back, dtype);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(got[i] == td_f32_to_f16(values[i]) || isnan(values[i]));
        assert_true(back[i] == td_f16_to_f32(got[i]) || (isnan(values[i]) && isnan(back[i])));
    }
    td_free(half);
    td_free(wide);
    td_free(all);
}

static void test_halves(void **state)
{
    (void)state;
    ref_run_as(halves, TD_F32);
}

/* ---- embedding ---- */

static void check_embedding(td_shape index_shape, int64_t rows, int64_t d, td_dtype dtype,
                            bool scattered)
{
    td_tensor *index = ref_indices(index_shape, rows, 1);
    td_tensor *table = ref_tensor(TD_SHAPE(rows, d), dtype, TD_ROW_MAJOR, 2);
    td_shape shape = index_shape;
    shape.dim[shape.ndim++] = d;
    td_tensor *dy = ref_tensor(shape, dtype, TD_ROW_MAJOR, 3);
    if (scattered) {
        index = ref_scattered(index);
        table = ref_scattered(table);
        dy = ref_scattered(dy);
    }
    int64_t n = td_numel(dy);
    double *from = ref_values(table), *at = ref_values(index), *g = ref_values(dy);
    double *want = ref_zeros(n);
    double *grad = ref_zeros(rows * d), *terms = ref_zeros(rows * d);
    for (int64_t i = 0; i < n; i++) {
        int64_t cell = (int64_t)at[i / d] * d + i % d;
        want[i] = from[cell];
        grad[cell] += g[i];
        terms[cell] += fabs(g[i]);
    }
    td_tensor *y = ref_filled(shape, dtype, TD_ROW_MAJOR, 9.0);
    td_tensor *dtable = ref_filled(TD_SHAPE(rows, d), dtype, TD_ROW_MAJOR, 0.5);
    k()->embedding(y, table, index);
    ref_close(y, want, NULL, 0.0, "embedding");
    k()->embedding_grad(dtable, dy, index, false);
    ref_close(dtable, grad, terms, ref_tolerance(dtype), "embedding_grad");
    k()->fill(dtable, 0.5);
    k()->embedding_grad(dtable, dy, index, true);
    for (int64_t i = 0; i < rows * d; i++) {
        grad[i] += 0.5;
        terms[i] += 0.5;
    }
    ref_close(dtable, grad, terms, ref_tolerance(dtype), "embedding_grad, accumulate");
    double *values[] = { from, at, g, want, grad, terms };
    td_tensor *tensors[] = { index, table, dy, y, dtable };
    for (int i = 0; i < 6; i++) {
        free(values[i]);
    }
    for (int i = 0; i < 5; i++) {
        td_free(tensors[i]);
    }
}

static void embedding_cases(td_dtype dtype)
{
    check_embedding(TD_SHAPE(7), 3, 5, dtype, false);
    check_embedding(TD_SHAPE(4, 9), 10, 33, dtype, true);
    check_embedding(TD_SHAPE(20, 20), 11, 150, dtype, false);
    check_embedding(TD_SHAPE(0), 3, 5, dtype, false);
    check_embedding(TD_SCALAR, 3, 5, dtype, false);
}

static void test_embedding(void **state)
{
    (void)state;
    ref_run(embedding_cases);
}

static void test_indices_in_range(void **state)
{
    (void)state;
    td_tensor *index = ref_scattered(ref_indices(TD_SHAPE(50, 40), 9, 1));
    int64_t bad = 77;
    assert_true(k()->indices_in_range(index, 9, &bad));
    assert_int_equal(bad, 77);
    td_set(index, (int64_t[]){ 40, 3 }, 9);
    td_set(index, (int64_t[]){ 30, 5 }, -2);
    assert_false(k()->indices_in_range(index, 9, &bad));
    assert_int_equal(bad, -2); /* the first in row-major order */
    assert_false(k()->indices_in_range(index, 0, &bad));
    td_free(index);
    td_tensor *none = ref_indices(TD_SHAPE(0), 1, 1);
    assert_true(k()->indices_in_range(none, 1, &bad));
    td_free(none);
}

/* Few values, so that many are equal; a NaN here and there. */
static td_tensor *scores(int64_t n, int64_t classes, td_dtype dtype)
{
    td_tensor *x = ref_tensor(TD_SHAPE(n, classes), dtype, TD_ROW_MAJOR, 5);
    double *values = ref_values(x);
    for (int64_t i = 0; i < n * classes; i++) {
        bool odd = (3 * (i / classes) + i % classes) % 17 == 0;
        values[i] = odd ? NAN : rint(3.0 * values[i]);
    }
    td_write(x, values, TD_F64);
    free(values);
    return x;
}

static int64_t places_below(td_tensor *x, td_tensor *labels, int64_t k)
{
    double *values = ref_values(x), *places = ref_values(labels);
    int64_t found = 0, classes = x->shape[1];
    for (int64_t i = 0; i < x->shape[0]; i++) {
        const double *row = values + i * classes;
        int64_t label = (int64_t)places[i], before = 0;
        for (int64_t c = 0; c < classes; c++) {
            before += row[c] > row[label] || (row[c] == row[label] && c < label);
        }
        found += !isnan(row[label]) && before < k;
    }
    free(values);
    free(places);
    return found;
}

static void test_count_top(void **state)
{
    (void)state;
    const int64_t sizes[] = { 0, 1, 37 }, classes[] = { 1, 7, 300 }, ks[] = { 0, 1, 5, 400 };
    for (int i = 0; i < 3 * 3 * 4 * 2; i++) {
        int64_t n = sizes[i % 3], wide = classes[i / 3 % 3], k_now = ks[i / 9 % 4];
        td_tensor *x = ref_scattered(scores(n, wide, i < 36 ? TD_F32 : TD_F64));
        td_tensor *labels = ref_indices(TD_SHAPE(n), wide, 2);
        td_tensor *count = ref_indices(TD_SCALAR, 5, 3);
        k()->count_top(count, x, labels, k_now);
        assert_true(td_item(count) == (double)places_below(x, labels, k_now));
        td_free(x);
        td_free(labels);
        td_free(count);
    }
}

/* ---- dropout ---- */

/* Frees x. */
static void check_dropout(td_tensor *x, td_tensor *y, double p, td_numbering of, bool accumulate)
{
    td_philox_key key = { 42, 7 };
    int64_t n = td_numel(x), kept = 0;
    double *from = ref_values(x), *want = accumulate ? ref_values(y) : ref_zeros(n);
    double *terms = ref_zeros(n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t draw[4];
        int64_t number = of.run > 0 ? of.first + i / of.run * of.pitch + i % of.run : i;
        td_philox(key, 5, (uint64_t)number / 4, draw);
        bool keep = (double)draw[number % 4] >= p * 0x1p32;
        double value = keep ? from[i] / (1.0 - p) : 0.0;
        kept += keep;
        terms[i] = fabs(want[i]) + fabs(value);
        want[i] += value;
    }
    assert_true(fabs((double)kept - (1.0 - p) * (double)n) <= 4.0 * sqrt((double)n));
    k()->dropout(y, x, p, key, &(uint64_t){ 5 }, of, accumulate);
    ref_close(y, want, terms, ref_tolerance(x->dtype), "dropout");
    free(from);
    free(want);
    free(terms);
    td_free(x);
    td_free(y);
}

static void dropout_cases(td_dtype t)
{
    static const double rates[] = { 0.0, 0.1, 0.5, 0.9 };
    const td_numbering whole = { 0 }, columns = { 24, 12, 60 }, rows = { 6000, 3000, 3000 };
    for (int i = 0; i < 4; i++) {
        double p = rates[i];
        check_dropout(ref_tensor(TD_SHAPE(1), t, TD_ROW_MAJOR, 1),
                      ref_tensor(TD_SHAPE(1), t, TD_ROW_MAJOR, 2), p, whole, false);
        check_dropout(ref_tensor(TD_SHAPE(50, 61), t, TD_ROW_MAJOR, 1),
                      ref_tensor(TD_SHAPE(50, 61), t, TD_ROW_MAJOR, 2), p, whole, true);
        check_dropout(ref_tensor(TD_SHAPE(40007), t, TD_ROW_MAJOR, 1),
                      ref_tensor(TD_SHAPE(40007), t, TD_ROW_MAJOR, 2), p, whole, false);
        check_dropout(ref_tensor(TD_SHAPE(4, 5, 6, 7), t, TD_IMAGE, 1),
                      ref_tensor(TD_SHAPE(4, 5, 6, 7), t, TD_IMAGE, 2), p, whole, true);
        check_dropout(ref_tensor(TD_SHAPE(500, 12), t, TD_ROW_MAJOR, 1),
                      ref_tensor(TD_SHAPE(500, 12), t, TD_ROW_MAJOR, 2), p, columns, false);
        check_dropout(ref_tensor(TD_SHAPE(50, 60), t, TD_ROW_MAJOR, 1),
                      ref_tensor(TD_SHAPE(50, 60), t, TD_ROW_MAJOR, 2), p, rows, true);
    }
}

static void test_dropout(void **state)
{
    (void)state;
    ref_run(dropout_cases);
    ref_run_half(dropout_cases);
}

/* ---- pictures ---- */

/* The bits that the CPU's loader makes of the same bytes and the same draws. */
static void check_pictures(const td_image_transform *transform, td_layout layout, bool reflect)
{
    enum { ALL = 9, COUNT = 13 };
    uint8_t bytes[ALL * TD_PICTURE_BYTES];
    td_byte_values table;
    td_picture pictures[COUNT];
    td_picture_cut cuts[COUNT];
    float want[COUNT * TD_PICTURE_BYTES];
    static const int64_t rows[4] = { TD_PICTURE_BYTES, 1024, 32, 1 };
    for (int i = 0; i < ALL * TD_PICTURE_BYTES; i++) {
        bytes[i] = (uint8_t)(i * 37 + i / 251);
    }
    td_byte_values_set(&table, transform);
    for (int i = 0; i < COUNT; i++) {
        int64_t which = (i * 5) % ALL;
        pictures[i] = td_augment_draw(transform, 3, (uint64_t)i);
        pictures[i].pixels = bytes + which * TD_PICTURE_BYTES;
        pictures[i].reflect = reflect;
        cuts[i] = (td_picture_cut){ which,   pictures[i].down, pictures[i].right,
                                    100 + i, pictures[i].flip, reflect };
    }
    td_augment_write(&table, pictures, COUNT, want, rows);
    td_tensor *all = td_from(bytes, TD_SHAPE(ALL, 3, 32, 32), TD_U8, ref_device());
    td_tensor *values = td_from(table.of, TD_SHAPE(3, 256), TD_F32, ref_device());
    td_tensor *y = ref_filled(TD_SHAPE(COUNT, 3, 32, 32), TD_F32, layout, NAN);
    td_tensor *labels = td_new(TD_SHAPE(COUNT), TD_I64, ref_device());
    int64_t read[COUNT];
    float got[COUNT * TD_PICTURE_BYTES];
    k()->pictures(y, labels, all, values, cuts);
    td_read(y, got, TD_F32);
    assert_memory_equal(got, want, sizeof got);
    td_read(labels, read, TD_I64);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(read[i], 100 + i);
    }
    td_free(labels);
    td_free(all);
    td_free(values);
    td_free(y);
}

static void test_pictures(void **state)
{
    (void)state;
    td_image_transform plain = { .seed = 1 };
    td_image_transform cifar = { .crop_padding = 4,
                                 .flip = true,
                                 .mean = { 0.4914f, 0.4822f, 0.4465f },
                                 .std = { 0.2023f, 0.1994f, 0.2010f },
                                 .seed = 7 };
    check_pictures(&plain, TD_IMAGE, false);
    check_pictures(&cifar, TD_IMAGE, false);
    check_pictures(&cifar, TD_IMAGE, true);
    check_pictures(&cifar, TD_ROW_MAJOR, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_layouts),     cmocka_unit_test(test_copy_dtypes),
        cmocka_unit_test(test_halves),           cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_indices_in_range), cmocka_unit_test(test_count_top),
        cmocka_unit_test(test_dropout),          cmocka_unit_test(test_pictures),
    };
    return cmocka_run_group_tests_name("kernels: copies, tables and dropout", tests, NULL, NULL);
}
