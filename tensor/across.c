#include "tensor/across.h"

#include "tensor/backend.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <stdlib.h>

/* A dense tensor in scratch memory, for the time of a transfer. */
typedef struct stand_in {
    td_tensor tensor;
    td_storage storage;
} stand_in;

/* Of t's shape, on a device, in the memory order of `like` and with its dtype. */
static td_tensor *open_stand_in(stand_in *s, td_device device, const td_tensor *like)
{
    int64_t stride[TD_MAX_DIMS];
    td_strides_like(like, stride);
    size_t bytes = (size_t)td_numel(like) * td_dtype_size(like->dtype);
    s->storage = (td_storage){ .data = td_scratch(device, bytes),
                               .bytes = bytes,
                               .refs = 1,
                               .kind = TD_STORAGE_BORROWED,
                               .device = device };
    td_init_header(&s->tensor, &s->storage, 0, td_shape_of(like), stride, like->dtype);
    return &s->tensor;
}

static void close_stand_in(stand_in *s)
{
    td_scratch_free(s->storage.device, s->storage.data);
}

static size_t bytes_of(const td_tensor *t)
{
    return (size_t)td_numel(t) * td_dtype_size(t->dtype);
}

/* Whether y and x have the same bytes in the same order, without holes. */
static bool same_bytes(const td_tensor *y, const td_tensor *x)
{
    return y->dtype == x->dtype && td_is_dense(y) && td_same_order(y, x);
}

static void copy_on(td_device device, td_tensor *y, const td_tensor *x)
{
    td_kernels_of(device)->copy(y, x);
}

/* From the host. The bytes go over as they are; the device converts them and puts them in order. */
static void upload(td_tensor *y, const td_tensor *x)
{
    td_device device = td_device_of(y);
    const td_backend *backend = td_backend_of(device);
    if (same_bytes(y, x)) {
        backend->upload(device, td_ptr(y), td_ptr(x), bytes_of(x));
        return;
    }
    stand_in gathered, arrived;
    bool dense = td_is_dense(x);
    if (!dense) {
        td_tensor *together = open_stand_in(&gathered, td_device_of(x), x);
        copy_on(td_device_of(x), together, x);
        x = together;
    }
    td_tensor *there = open_stand_in(&arrived, device, x);
    backend->upload(device, td_ptr(there), td_ptr(x), bytes_of(x));
    copy_on(device, y, there);
    close_stand_in(&arrived);
    if (!dense) {
        close_stand_in(&gathered);
    }
}

/* To the host. The device converts and puts in order what then goes over as it is. */
static void download(td_tensor *y, const td_tensor *x)
{
    td_device device = td_device_of(x);
    const td_backend *backend = td_backend_of(device);
    stand_in ordered, arrived;
    bool same = same_bytes(y, x), dense = td_is_dense(y);
    if (!same) {
        td_tensor *ready = open_stand_in(&ordered, device, y);
        copy_on(device, ready, x);
        x = ready;
    }
    if (dense) {
        backend->download(device, td_ptr(y), td_ptr(x), bytes_of(x));
    } else {
        td_tensor *here = open_stand_in(&arrived, td_device_of(y), y);
        backend->download(device, td_ptr(here), td_ptr(x), bytes_of(x));
        copy_on(td_device_of(y), y, here);
        close_stand_in(&arrived);
    }
    if (!same) {
        close_stand_in(&ordered);
    }
}

/* Between two devices: converted where it comes from, put in order where it goes to. */
static void move(td_tensor *y, const td_tensor *x)
{
    td_device to = td_device_of(y), from = td_device_of(x);
    const td_backend *backend = td_backend_of(to);
    stand_in ordered, arrived;
    bool same = same_bytes(y, x), dense = td_is_dense(y);
    if (!same) {
        td_tensor *ready = open_stand_in(&ordered, from, y);
        copy_on(from, ready, x);
        x = ready;
    }
    if (dense) {
        backend->move(to, td_ptr(y), from, td_ptr(x), bytes_of(x));
    } else {
        td_tensor *there = open_stand_in(&arrived, to, y);
        backend->move(to, td_ptr(there), from, td_ptr(x), bytes_of(x));
        copy_on(to, y, there);
        close_stand_in(&arrived);
    }
    if (!same) {
        close_stand_in(&ordered);
    }
}

void td_copy_across(td_tensor *y, const td_tensor *x)
{
    td_device to = td_device_of(y), from = td_device_of(x);
    bool to_host = td_backend_of(to) == NULL, from_host = td_backend_of(from) == NULL;
    if (td_numel(y) == 0) {
        return;
    }
    if ((to_host && from_host) || td_same_device(to, from)) {
        copy_on(to, y, x);
    } else if (from_host) {
        upload(y, x);
    } else if (to_host) {
        download(y, x);
    } else {
        move(y, x);
    }
}

void td_require_host(const td_tensor *t, const char *what, td_site at)
{
    TD_REQUIRE(td_backend_of(td_device_of(t)) == NULL, at,
               "%s: %s lies in memory that the host cannot touch; td_read copies its values out, "
               "td_write in, and td_clone_as(t, dtype, TD_CPU) makes a copy on the CPU",
               what, td_label(t));
}
