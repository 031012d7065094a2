/* DLPack: the same memory on both sides, who owns it, and what is refused. */
#include "tensor/extra/dlpack.h"
#include "tensor/extra/dlpack_abi.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Out and in again; t is freed, and what comes back has the memory alone. */
static td_tensor *round_trip(td_tensor *t)
{
    const void *address = td_data(t);
    DLManagedTensor *managed = td_to_dlpack(t);
    assert_non_null(managed);
    assert_ptr_equal((char *)managed->dl_tensor.data + managed->dl_tensor.byte_offset, address);
    td_tensor *back = td_from_dlpack(managed);
    assert_non_null(back);
    assert_ptr_equal(td_data(back), address);
    assert_true(td_same_order(t, back) && t->dtype == back->dtype && back->step == 0);
    td_free(t);
    return back;
}

static void test_round_trips(void **state)
{
    (void)state;
    double values[24], read[24];
    for (int i = 0; i < 24; i++) {
        values[i] = i;
    }
    for (int dtype = 0; dtype < TD_DTYPE_COUNT; dtype++) {
        td_tensor *images = td_new_layout(TD_SHAPE(2, 3, 2, 2), (td_dtype)dtype, TD_IMAGE, TD_CPU);
        td_write(images, values, TD_F64);
        td_tensor *back = round_trip(images);
        td_read(back, read, TD_F64);
        assert_memory_equal(read, values, sizeof values);
        td_free(back);
    }
    td_tensor *none = round_trip(td_zeros(TD_SHAPE(3, 0), TD_F32, TD_CPU));
    assert_int_equal(td_numel(none), 0);
    td_free(none);
    td_tensor *scalar = round_trip(td_full(TD_SCALAR, 7.0, TD_I32, TD_CPU));
    assert_true(td_item(scalar) == 7.0);
    td_free(scalar);
}

/* A transposed part with an offset, and a repeated row. */
static void test_views(void **state)
{
    (void)state;
    td_tensor *base = td_arange(12, TD_F32, TD_CPU);
    td_tensor *part = td_slice_of_storage(base, 5, TD_SHAPE(2, 2), (int64_t[]){ 1, 4 });
    td_tensor *row = td_slice_of_storage(base, 4, TD_SHAPE(3, 2), (int64_t[]){ 0, 1 });
    part = round_trip(part);
    row = round_trip(row);
    float read[6];
    td_read(part, read, TD_F32);
    assert_memory_equal(read, ((float[]){ 5, 9, 6, 10 }), 4 * sizeof(float));
    td_set(base, (int64_t[]){ 5 }, -1.0); /* seen by all */
    assert_true(td_get(part, (int64_t[]){ 0, 0 }) == -1.0);
    td_read(row, read, TD_F32);
    assert_memory_equal(read, ((float[]){ 4, -1, 4, -1, 4, -1 }), sizeof read);
    td_free(base);
    assert_true(td_get(part, (int64_t[]){ 1, 1 }) == 10.0); /* still there */
    td_free(part);
    td_free(row);
}

static void test_what_goes_out(void **state)
{
    (void)state;
    td_tensor *t = td_full(TD_SHAPE(2, 3), 1.5, TD_BF16, TD_CPU_N(1));
    DLManagedTensor *managed = td_to_dlpack(t);
    const DLTensor *d = &managed->dl_tensor;
    assert_true(d->device.device_type == kDLCPU && d->device.device_id == 0);
    assert_true(d->dtype.code == kDLBfloat && d->dtype.bits == 16 && d->dtype.lanes == 1);
    assert_true(d->ndim == 2 && d->shape[0] == 2 && d->shape[1] == 3);
    assert_true(d->strides[0] == 3 && d->strides[1] == 1);
    td_free(t);
    assert_int_equal(((const uint16_t *)d->data)[5], 0x3fc0); /* 1.5, kept alive by `managed` */
    managed->deleter(managed);

    td_step_begin();
    td_tensor *made = td_step_new(TD_SHAPE(2), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    expect_fatal("td_clone it first", td_to_dlpack(made));
    assert_non_null(strstr(fatal_message(), "test_tensor_dlpack.c:"));
    td_step_abandon();
}

/* ---- another library's ---- */

static int deleted;

static void count_deletion(DLManagedTensor *managed)
{
    assert_ptr_equal(managed->manager_ctx, &deleted);
    deleted++;
}

static double memory[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
static int64_t shape[9] = { 2, 3, 1, 1, 1, 1, 1, 1, 1 }, strides[9] = { 1, 2 };

static DLManagedTensor foreign(void)
{
    return (DLManagedTensor){ .dl_tensor = { .data = memory,
                                             .device = { kDLCPU, 0 },
                                             .ndim = 2,
                                             .dtype = { kDLFloat, 64, 1 },
                                             .shape = shape,
                                             .byte_offset = 8 },
                              .manager_ctx = &deleted,
                              .deleter = count_deletion };
}

static void test_what_comes_in(void **state)
{
    (void)state;
    deleted = 0;
    DLManagedTensor managed = foreign();
    td_tensor *t = td_from_dlpack(&managed);
    assert_ptr_equal(td_data(t), memory + 1);
    assert_true(td_is_contiguous(t) && td_get(t, (int64_t[]){ 1, 0 }) == 4.0);
    td_tensor *view = td_slice_of_storage(t, 1, TD_SHAPE(5), (int64_t[]){ 1 });
    expect_fatal("", td_slice_of_storage(t, 1, TD_SHAPE(6), (int64_t[]){ 1 })); /* past its end */
    td_free(t);
    assert_int_equal(deleted, 0);
    td_free(view);
    assert_int_equal(deleted, 1);

    managed.dl_tensor.strides = strides;
    managed.deleter = NULL;
    t = td_from_dlpack(&managed);
    assert_true(td_get(t, (int64_t[]){ 1, 2 }) == 6.0);
    td_free(t);
    assert_int_equal(deleted, 1);
}

/* Refused, with a message; the structure stays the caller's. */
static void check_refused(DLManagedTensor managed, const char *part)
{
    deleted = 0;
    assert_null(td_from_dlpack(&managed));
    assert_error_says("td_from_dlpack", part, NULL);
    assert_int_equal(deleted, 0);
}

#define REFUSED(part, ...)                                                                         \
    do {                                                                                           \
        DLManagedTensor m = foreign();                                                             \
        __VA_ARGS__;                                                                               \
        check_refused(m, part);                                                                    \
    } while (0)

static void test_refusals(void **state)
{
    (void)state;
    static int64_t huge[2] = { INT64_MAX / 2, 8 }, negative[2] = { -1, 1 };
    static int64_t two[1] = { 2 }, last[1] = { INT64_MAX };
    assert_null(td_from_dlpack(NULL));
    assert_error_says("other library has failed", NULL);
    REFUSED("4 lanes", m.dl_tensor.dtype.lanes = 4);
    REFUSED("type code 5 of 64 bits", m.dl_tensor.dtype.code = 5); /* complex */
    REFUSED("of 8 bits", m.dl_tensor.dtype.bits = 8);
    REFUSED("9 dimensions", m.dl_tensor.ndim = 9);
    REFUSED("-1 dimensions", m.dl_tensor.ndim = -1);
    REFUSED("without a shape", m.dl_tensor.shape = NULL);
    REFUSED("size -1", m.dl_tensor.shape = negative);
    REFUSED("stride -1", m.dl_tensor.strides = negative);
    REFUSED("beyond any memory", m.dl_tensor.shape = huge);
    REFUSED("beyond any memory", m.dl_tensor.strides = huge; m.dl_tensor.ndim = 1;
            m.dl_tensor.shape = huge);
    REFUSED("no address", m.dl_tensor.data = NULL);
    REFUSED("no address", m.dl_tensor.byte_offset = 4);
    REFUSED("no address", m.dl_tensor.byte_offset = UINT64_MAX - 7); /* begins before its data */
    REFUSED("no address", m.dl_tensor.data = (void *)(UINTPTR_MAX - 15)); /* ends behind all */
    REFUSED("no address", m.dl_tensor.data = NULL; m.dl_tensor.byte_offset = UINT64_MAX - 7);
    REFUSED("beyond any memory", m.dl_tensor.strides = last; m.dl_tensor.shape = two;
            m.dl_tensor.ndim = 1);
    REFUSED("device type 8", m.dl_tensor.device.device_type = (DLDeviceType)8);
    REFUSED("number 99", m.dl_tensor.device = ((DLDevice){ kDLCUDA, 99 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),   cmocka_unit_test(test_views),
        cmocka_unit_test(test_what_goes_out), cmocka_unit_test(test_what_comes_in),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("DLPack", tests, NULL, NULL);
}
