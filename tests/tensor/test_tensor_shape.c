/* Shapes, broadcasting, layouts, views. */
#include "tests/help/expect_fatal.h"

#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void assert_strides(const int64_t *stride, int ndim, const int64_t *expected)
{
    for (int d = 0; d < ndim; d++) {
        assert_int_equal(stride[d], expected[d]);
    }
}

static void test_shape_arithmetic(void **state)
{
    (void)state;
    assert_int_equal(td_shape_numel(TD_SHAPE(2, 3, 4)), 24);
    assert_int_equal(td_shape_numel(TD_SCALAR), 1);
    assert_int_equal(td_shape_numel(TD_SHAPE(5, 0)), 0);
    const int64_t huge = INT64_C(1) << 40;
    assert_true(td_shape_numel(TD_SHAPE(huge, huge)) == INT64_MAX);
    assert_int_equal(td_shape_numel(TD_SHAPE(huge, huge, 0)), 0);
    assert_true(td_shape_equal(TD_SHAPE(2, 3), TD_SHAPE(2, 3)));
    assert_false(td_shape_equal(TD_SHAPE(2, 3), TD_SHAPE(3, 2)));
    assert_false(td_shape_equal(TD_SHAPE(2), TD_SHAPE(2, 1)));
    assert_true(td_shape_equal(TD_SCALAR, TD_SCALAR));
}

static void test_broadcasting(void **state)
{
    (void)state;
    const struct {
        td_shape a, b;
        bool fits;
        td_shape result;
    } cases[] = {
        { TD_SHAPE(2, 3), TD_SHAPE(2, 3), true, TD_SHAPE(2, 3) },
        { TD_SHAPE(2, 3), TD_SHAPE(3), true, TD_SHAPE(2, 3) },
        { TD_SHAPE(3), TD_SHAPE(2, 3), true, TD_SHAPE(2, 3) },
        { TD_SHAPE(4, 1, 3), TD_SHAPE(5, 1), true, TD_SHAPE(4, 5, 3) },
        { TD_SHAPE(2, 3), TD_SCALAR, true, TD_SHAPE(2, 3) },
        { TD_SCALAR, TD_SCALAR, true, TD_SCALAR },
        { TD_SHAPE(0, 3), TD_SHAPE(1, 3), true, TD_SHAPE(0, 3) },
        { TD_SHAPE(1), TD_SHAPE(0), true, TD_SHAPE(0) },
        { TD_SHAPE(2, 3), TD_SHAPE(2), false, TD_SCALAR },
        { TD_SHAPE(2), TD_SHAPE(0), false, TD_SCALAR },
        { TD_SHAPE(2, 3), TD_SHAPE(3, 2), false, TD_SCALAR },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_shape result = TD_SHAPE(99);
        assert_int_equal(td_broadcast_shape(cases[i].a, cases[i].b, &result), cases[i].fits);
        td_shape expected = cases[i].fits ? cases[i].result : TD_SHAPE(99);
        assert_true(td_shape_equal(result, expected));
    }
    td_shape in_place = TD_SHAPE(1, 3);
    assert_true(td_broadcast_shape(in_place, TD_SHAPE(2, 1), &in_place));
    assert_true(td_shape_equal(in_place, TD_SHAPE(2, 3)));
}

static void test_layout_strides(void **state)
{
    (void)state;
    int64_t stride[TD_MAX_DIMS];
    td_shape image = TD_SHAPE(2, 3, 4, 5); /* N C H W, or O I H W */
    td_layout_strides(TD_CPU, TD_ROW_MAJOR, image, stride);
    assert_strides(stride, 4, (int64_t[]){ 60, 20, 5, 1 });
    td_layout_strides(TD_CPU, TD_IMAGE, image, stride); /* [H][W][N][C] */
    assert_strides(stride, 4, (int64_t[]){ 3, 1, 30, 6 });
    td_layout_strides(TD_CPU, TD_FILTER, image, stride); /* [H][W][I][O] */
    assert_strides(stride, 4, (int64_t[]){ 1, 2, 30, 6 });
    td_layout_strides(TD_CPU, TD_FILTER, TD_SHAPE(2, 3), stride); /* [I][O] */
    assert_strides(stride, 2, (int64_t[]){ 1, 2 });
    td_layout_strides(TD_CPU, TD_IMAGE, TD_SHAPE(2, 3, 4), stride); /* falls back */
    assert_strides(stride, 3, (int64_t[]){ 12, 4, 1 });
    td_device cuda = { TD_DEVICE_CUDA, 0 };
    td_layout_strides(cuda, TD_IMAGE, image, stride); /* [N][H][W][C] */
    assert_strides(stride, 4, (int64_t[]){ 60, 1, 15, 3 });
    td_layout_strides(cuda, TD_FILTER, TD_SHAPE(2, 3), stride);
    assert_strides(stride, 2, (int64_t[]){ 3, 1 });
}

static void test_layouts_are_recognised(void **state)
{
    (void)state;
    td_tensor *image = td_new_layout(TD_SHAPE(2, 3, 4, 5), TD_F32, TD_IMAGE, TD_CPU);
    assert_true(td_is_layout(image, TD_IMAGE));
    assert_false(td_is_layout(image, TD_FILTER));
    assert_false(td_is_contiguous(image));
    assert_true(td_is_dense(image));
    td_free(image);

    /* At 1x1 maps an image batch is a plain matrix: strides of size 1 do not matter. */
    td_tensor *pixel = td_new_layout(TD_SHAPE(2, 3, 1, 1), TD_F32, TD_IMAGE, TD_CPU);
    assert_true(td_is_contiguous(pixel) && td_is_layout(pixel, TD_IMAGE));
    td_tensor *plain = td_new(TD_SHAPE(2, 3, 1, 1), TD_F32, TD_CPU);
    assert_true(td_is_layout(plain, TD_IMAGE) && td_same_order(plain, pixel));
    td_free(pixel);
    td_free(plain);

    /* A tensor without elements may have sizes whose product no integer holds. */
    const int64_t huge = INT64_C(1) << 40;
    td_tensor *none = td_new(TD_SHAPE(0, huge, huge), TD_F32, TD_CPU);
    assert_true(td_is_contiguous(none));
    td_free(none);
}

/* The same memory with other strides. */
static td_tensor *view_of(const td_tensor *t, td_shape shape, const int64_t *stride)
{
    td_tensor *view = td_slice_of_storage(t, 0, shape, stride);
    assert_non_null(view);
    return view;
}

static void test_density(void **state)
{
    (void)state;
    td_tensor *base = td_zeros(TD_SHAPE(24), TD_F32, TD_CPU);
    const struct {
        td_shape shape;
        int64_t stride[3];
        bool dense, contiguous;
    } cases[] = {
        { TD_SHAPE(2, 3, 4), { 12, 4, 1 }, true, true },
        { TD_SHAPE(4, 3, 2), { 1, 4, 12 }, true, false },
        { TD_SHAPE(2, 1, 4), { 4, 777, 1 }, true, true }, /* size 1: any stride */
        { TD_SHAPE(2, 3), { 4, 1 }, false, false },       /* holes */
        { TD_SHAPE(6), { 2 }, false, false },
        { TD_SHAPE(4, 3), { 0, 1 }, false, false }, /* repeats */
        { TD_SHAPE(3, 3), { 1, 1 }, false, false },
        { TD_SHAPE(0, 3), { 5, 7 }, true, true }, /* nothing */
        { TD_SHAPE(1), { 0 }, true, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_tensor *view = view_of(base, cases[i].shape, cases[i].stride);
        assert_int_equal(td_is_dense(view), cases[i].dense);
        assert_int_equal(td_is_contiguous(view), cases[i].contiguous);
        td_free(view);
    }
    td_free(base);
}

static void test_strides_of_copies(void **state)
{
    (void)state;
    td_tensor *base = td_zeros(TD_SHAPE(120), TD_F32, TD_CPU);
    const struct {
        td_shape shape;
        int64_t stride[4], expected[4];
    } cases[] = {
        { TD_SHAPE(4, 3, 2), { 1, 4, 12 }, { 1, 4, 12 } },          /* dense: the same */
        { TD_SHAPE(2, 3), { 20, 2 }, { 3, 1 } },                    /* holes are closed */
        { TD_SHAPE(3, 2), { 2, 20 }, { 1, 3 } },                    /* in the same order */
        { TD_SHAPE(2, 2, 4, 5), { 3, 1, 30, 6 }, { 2, 1, 20, 4 } }, /* two channels of an image */
        { TD_SHAPE(4, 3), { 0, 1 }, { 3, 1 } },                     /* expanded: row-major */
        { TD_SHAPE(3, 4), { 1, 0 }, { 4, 1 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_tensor *view = view_of(base, cases[i].shape, cases[i].stride);
        td_tensor *copy = td_clone(view);
        assert_true(td_is_dense(copy));
        assert_strides(copy->stride, copy->ndim, cases[i].expected);
        td_free(copy);
        td_free(view);
    }
    td_free(base);
}

static void test_slices_share_their_storage(void **state)
{
    (void)state;
    td_tensor *flat = td_arange(10, TD_F32, TD_CPU);
    td_tensor *part = td_slice_of_storage(flat, 4, TD_SHAPE(2, 3), (int64_t[]){ 3, 1 });
    assert_ptr_equal(part->storage, flat->storage);
    assert_int_equal(flat->storage->refs, 2);
    assert_true(td_get(part, (int64_t[]){ 1, 2 }) == 9.0);
    assert_ptr_equal(td_data(part), (const float *)td_data(flat) + 4);
    td_set(part, (int64_t[]){ 0, 0 }, -1.0);
    assert_true(td_get(flat, (int64_t[]){ 4 }) == -1.0);

    /* A slice of a slice counts from the storage's start, and outlives both. */
    td_tensor *last = td_slice_of_storage(part, 9, TD_SHAPE(1), (int64_t[]){ 1 });
    td_free(flat);
    td_free(part);
    assert_true(td_item(last) == 9.0);
    td_free(last);
}

static void test_slices_stay_inside(void **state)
{
    (void)state;
    td_tensor *flat = td_zeros(TD_SHAPE(10), TD_F32, TD_CPU);
    const int64_t one[] = { 1 }, back[] = { -1 };
    td_tensor *reversed = td_slice_of_storage(flat, 9, TD_SHAPE(10), back);
    td_free(reversed);
    td_tensor *empty = td_slice_of_storage(flat, 10, TD_SHAPE(0), one);
    td_free(empty);
    expect_fatal("does not fit into its storage of 10 elements",
                 td_slice_of_storage(flat, 1, TD_SHAPE(10), one));
    expect_fatal("offset -1", td_slice_of_storage(flat, -1, TD_SHAPE(2), one));
    expect_fatal("shape [10]", td_slice_of_storage(flat, 8, TD_SHAPE(10), back));
    const int64_t far[] = { INT64_MAX, INT64_MAX };
    expect_fatal("does not fit", td_slice_of_storage(flat, 0, TD_SHAPE(3, 3), far));
    td_free(flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_arithmetic),
        cmocka_unit_test(test_broadcasting),
        cmocka_unit_test(test_layout_strides),
        cmocka_unit_test(test_layouts_are_recognised),
        cmocka_unit_test(test_density),
        cmocka_unit_test(test_strides_of_copies),
        cmocka_unit_test(test_slices_share_their_storage),
        cmocka_unit_test(test_slices_stay_inside),
    };
    return cmocka_run_group_tests_name("tensor shapes", tests, NULL, NULL);
}
