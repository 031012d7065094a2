/* Exchanges tensors with other libraries by DLPack. */
#include "tensor/extra/dlpack.h"

#include "tensor/backend.h"
#include "tensor/extra/dlpack_abi.h"
#include "tensor/hooks.h"

#include <stdlib.h>

static const DLDataType dtypes[TD_DTYPE_COUNT] = {
    [TD_F32] = { kDLFloat, 32, 1 },   [TD_F64] = { kDLFloat, 64, 1 },
    [TD_BF16] = { kDLBfloat, 16, 1 }, [TD_F16] = { kDLFloat, 16, 1 },
    [TD_I64] = { kDLInt, 64, 1 },     [TD_I32] = { kDLInt, 32, 1 },
    [TD_U8] = { kDLUInt, 8, 1 },
};

/* ---- out ---- */

static void delete_exported(DLManagedTensor *managed)
{
    td_free(managed->manager_ctx);
    free(managed);
}

struct DLManagedTensor *td_to_dlpack_at(const td_tensor *t, td_site at)
{
    td_check_alive(t, at);
    TD_REQUIRE(t->step == 0, at,
               "td_to_dlpack: %s belongs to a step and is gone at its end: td_clone it first",
               td_label(t));
    td_not_recordable("another library cannot wait for what is recorded");
    td_device device = td_device_of(t);
    const td_backend *backend = td_backend_of(device);
    td_tensor *view = td_slice_of_storage(t, t->offset, td_shape_of(t), t->stride);
    DLManagedTensor *managed = view != NULL ? calloc(1, sizeof *managed) : NULL;
    if (managed == NULL) {
        td_free(view);
        td_fail(TD_E_NOMEM, "td_to_dlpack: out of memory for the header of %s", td_label(t));
        return NULL;
    }
    if (backend != NULL) {
        backend->wait(device);
    }
    /* CPUs have no numbers elsewhere. The offset is in the address: not everybody adds it. */
    managed->dl_tensor = (DLTensor){
        .data = td_ptr(t),
        .device = { backend != NULL ? kDLCUDA : kDLCPU, backend != NULL ? device.index : 0 },
        .ndim = t->ndim,
        .dtype = dtypes[t->dtype],
        .shape = view->shape,
        .strides = view->stride,
    };
    t->storage->exported = true;
    managed->manager_ctx = view;
    managed->deleter = delete_exported;
    return managed;
}

/* ---- in ---- */

typedef struct foreign_lender {
    td_lender lender;
    DLManagedTensor *managed;
} foreign_lender;

static void give_to_owner(td_lender *lender, void *data)
{
    (void)data;
    DLManagedTensor *managed = ((foreign_lender *)lender)->managed;
    if (managed->deleter != NULL) {
        managed->deleter(managed);
    }
    free(lender);
}

static td_status read_dtype(DLDataType type, td_dtype *dtype)
{
    for (int i = 0; i < TD_DTYPE_COUNT; i++) {
        if (type.code == dtypes[i].code && type.bits == dtypes[i].bits && type.lanes == 1) {
            *dtype = (td_dtype)i;
            return TD_OK;
        }
    }
    return td_fail(TD_E_UNSUPPORTED,
                   "td_from_dlpack: no dtype is like type code %d of %d bits and %d lanes; convert "
                   "to f32, f64, bf16, f16, i64, i32 or u8 first",
                   type.code, type.bits, type.lanes);
}

static td_status read_device(DLDevice from, td_device *device)
{
    if (from.device_type == kDLCPU) {
        *device = TD_CPU;
        return TD_OK;
    }
    TD_CHECK(from.device_type == kDLCUDA && from.device_id >= 0 && from.device_id < TD_MAX_DEVICES,
             TD_E_UNSUPPORTED,
             "td_from_dlpack: device type %d, number %d; there are CPUs (type 1) and "
             "CUDA's GPUs (type 2), up to number %d",
             (int)from.device_type, from.device_id, TD_MAX_DEVICES - 1);
    return td_device_parse(td_device_name(TD_CUDA_N(from.device_id)), device);
}

/* Shape and strides, and the elements from the first in memory to the last. */
static td_status read_shape(const DLTensor *from, td_shape *shape, int64_t *stride, int64_t *span)
{
    TD_CHECK(from->ndim >= 0 && from->ndim <= TD_MAX_DIMS &&
                 (from->ndim == 0 || from->shape != NULL),
             TD_E_UNSUPPORTED, "td_from_dlpack: %d dimensions%s; 0 to %d are possible", from->ndim,
             from->shape == NULL ? " without a shape" : "", TD_MAX_DIMS);
    int64_t dense = 1, last = 0, way;
    bool empty = false, fits = true;
    shape->ndim = from->ndim;
    for (int d = from->ndim - 1; d >= 0; d--) {
        int64_t n = shape->dim[d] = from->shape[d];
        stride[d] = from->strides != NULL ? from->strides[d] : dense;
        TD_CHECK(n >= 0 && stride[d] >= 0, TD_E_UNSUPPORTED,
                 "td_from_dlpack: dimension %d has size %lld and stride %lld; neither may "
                 "be negative: copy the array first",
                 d, (long long)n, (long long)stride[d]);
        empty |= n == 0;
        fits &= !__builtin_mul_overflow(dense, n > 0 ? n : 1, &dense) &&
                !__builtin_mul_overflow(n > 0 ? n - 1 : 0, stride[d], &way) &&
                !__builtin_add_overflow(last, way, &last);
    }
    TD_CHECK(fits && last < INT64_MAX / 8, TD_E_ARG,
             "td_from_dlpack: shape and strides reach beyond any memory");
    *span = empty ? 0 : last + 1;
    return TD_OK;
}

/* The address of the first element. Data of a NULL pointer may be for no elements. */
static td_status find_data(const DLTensor *from, td_dtype dtype, td_shape shape, int64_t span,
                           char **data)
{
    uintptr_t begin = (uintptr_t)from->data, end;
    size_t size = td_dtype_size(dtype);
    bool none = from->data == NULL;
    bool valid = none ? span == 0
                      : !__builtin_add_overflow(begin, from->byte_offset, &begin) &&
                            !__builtin_add_overflow(begin, (size_t)span * size, &end) &&
                            begin % size == 0;
    *data = none || !valid ? NULL : (char *)from->data + from->byte_offset;
    TD_CHECK(valid, TD_E_ARG,
             "td_from_dlpack: the data of %s%s are at %p + %llu, which is no address of them",
             td_dtype_name(dtype), td_describe_shape(shape), from->data,
             (unsigned long long)from->byte_offset);
    return TD_OK;
}

/* Takes the structure over. NULL: memory is short. */
static td_tensor *wrap(DLManagedTensor *managed, void *data, size_t bytes, td_device device)
{
    foreign_lender *lender = malloc(sizeof *lender);
    td_tensor *t = malloc(sizeof *t);
    td_storage *storage =
        lender != NULL && t != NULL ? td_storage_lend(data, bytes, device, &lender->lender) : NULL;
    if (storage == NULL) {
        free(lender);
        free(t);
        td_fail(TD_E_NOMEM, "td_from_dlpack: out of memory for a tensor's header");
        return NULL;
    }
    *lender = (foreign_lender){ { give_to_owner }, managed };
    t->storage = storage;
    return t;
}

td_tensor *td_from_dlpack(struct DLManagedTensor *managed)
{
    td_shape shape;
    td_dtype dtype;
    td_device device;
    int64_t stride[TD_MAX_DIMS], span;
    TD_CHECK_NULL(managed != NULL, TD_E_ARG,
                  "td_from_dlpack: NULL, so the other library has failed");
    const DLTensor *from = &managed->dl_tensor;
    if (read_dtype(from->dtype, &dtype) != TD_OK || read_device(from->device, &device) != TD_OK ||
        read_shape(from, &shape, stride, &span) != TD_OK) {
        return NULL;
    }
    char *data;
    if (find_data(from, dtype, shape, span, &data) != TD_OK) {
        return NULL;
    }
    td_tensor *t = wrap(managed, data, (size_t)span * td_dtype_size(dtype), device);
    if (t != NULL) {
        td_init_header(t, t->storage, 0, shape, stride, dtype);
    }
    return t;
}
