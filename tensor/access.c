/* Reading and writing elements, and copies between devices. */
#include "tensor/backend.h"
#include "tensor/kernels/element.h"
#include "tensor/hooks.h"

void td_begin_write(td_tensor *t, const char *what, td_site at)
{
    td_check_alive(t, at);
    for (int d = 0; d < t->ndim; d++) {
        TD_REQUIRE(t->stride[d] != 0 || t->shape[d] <= 1, at,
                   "%s: %s is expanded along dimension %d, where all its elements share one place "
                   "in memory; write into the tensor it was expanded from, or td_clone it",
                   what, td_label(t), d);
    }
    t->storage->version++;
}

static void require_host(const td_tensor *t, const char *what, td_site at)
{
    TD_REQUIRE(td_backend_of(td_device_of(t)) == NULL, at,
               "%s: %s is in memory that the host cannot touch; td_read copies its values out, "
               "td_write in, and td_clone_as(t, dtype, TD_CPU) makes a copy on the CPU",
               what, td_label(t));
}

const void *td_data_at(const td_tensor *t, td_site at)
{
    td_check_alive(t, at);
    require_host(t, "td_data", at);
    return td_ptr(t);
}

void *td_data_rw_at(td_tensor *t, td_site at)
{
    td_check_alive(t, at);
    require_host(t, "td_data_rw", at);
    td_begin_write(t, "td_data_rw", at);
    return td_ptr(t);
}

/* ---- single elements ---- */

/* The place of an element, counted from element [0,...,0]. */
static int64_t element_place(const td_tensor *t, const int64_t *index, const char *what, td_site at)
{
    int64_t place = 0;
    for (int d = 0; d < t->ndim; d++) {
        TD_REQUIRE(index[d] >= 0 && index[d] < t->shape[d], at,
                   "%s: index %lld of dimension %d is out of range for %s", what,
                   (long long)index[d], d, td_label(t));
        place += index[d] * t->stride[d];
    }
    return place;
}

static void *address_of(const td_tensor *t, int64_t place)
{
    return (char *)td_ptr(t) + place * (int64_t)td_dtype_size(t->dtype);
}

static double load(const td_tensor *t, int64_t place)
{
    const td_backend *backend = td_backend_of(td_device_of(t));
    if (backend == NULL) {
        return td_load_element(td_ptr(t), t->dtype, place);
    }
    _Alignas(8) char element[8];
    backend->download(td_device_of(t), element, address_of(t, place), td_dtype_size(t->dtype));
    return td_load_element(element, t->dtype, 0);
}

double td_get_at(const td_tensor *t, const int64_t *index, td_site at)
{
    td_check_alive(t, at);
    td_not_recordable("td_get reads a value");
    return load(t, element_place(t, index, "td_get", at));
}

void td_set_at(td_tensor *t, const int64_t *index, double value, td_site at)
{
    td_begin_write(t, "td_set", at);
    td_not_recordable("td_set writes a value of the host");
    int64_t place = element_place(t, index, "td_set", at);
    const td_backend *backend = td_backend_of(td_device_of(t));
    if (backend == NULL) {
        td_store_element(td_ptr(t), t->dtype, place, value);
        return;
    }
    _Alignas(8) char element[8];
    td_store_element(element, t->dtype, 0, value);
    backend->upload(td_device_of(t), address_of(t, place), element, td_dtype_size(t->dtype));
}

double td_item_at(const td_tensor *t, td_site at)
{
    td_check_alive(t, at);
    TD_REQUIRE(td_numel(t) == 1, at,
               "td_item: %s has %lld elements, not one; td_get takes an index", td_label(t),
               (long long)td_numel(t));
    td_not_recordable("td_item reads a value");
    return load(t, 0);
}

/* ---- between devices ---- */

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
    size_t bytes = td_tensor_bytes(like);
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

/* Whether y and x have the same bytes in the same order, without holes. */
static bool same_bytes(const td_tensor *y, const td_tensor *x)
{
    return y->dtype == x->dtype && td_is_dense(y) && td_same_order(y, x);
}

static void copy_on(td_device device, td_tensor *y, const td_tensor *x)
{
    td_kernels_of(device)->copy(y, x);
}

/* The bytes of a dense tensor into one of the same order on another device. */
static void send_bytes(td_tensor *y, const td_tensor *x)
{
    td_device to = td_device_of(y), from = td_device_of(x);
    const td_backend *receiver = td_backend_of(to), *sender = td_backend_of(from);
    if (sender == NULL) {
        receiver->upload(to, td_ptr(y), td_ptr(x), td_tensor_bytes(x));
    } else if (receiver == NULL) {
        sender->download(from, td_ptr(y), td_ptr(x), td_tensor_bytes(x));
    } else {
        receiver->move(to, td_ptr(y), from, td_ptr(x), td_tensor_bytes(x));
    }
}

/* To another device. A device converts and orders better than the host: what comes from the host
 * goes over as it is, and is converted there; anything else is converted where it comes from, and
 * arrives in the order of y. */
static void send(td_tensor *y, const td_tensor *x)
{
    bool from_host = td_backend_of(td_device_of(x)) == NULL, same = same_bytes(y, x);
    bool arrives_apart = from_host ? !same : !td_is_dense(y);
    stand_in ready, arrived;
    bool made_ready = !same && !(from_host && td_is_dense(x));
    if (made_ready) {
        td_tensor *dense = open_stand_in(&ready, td_device_of(x), from_host ? x : y);
        copy_on(td_device_of(x), dense, x);
        x = dense;
    }
    if (arrives_apart) {
        td_tensor *there = open_stand_in(&arrived, td_device_of(y), x);
        send_bytes(there, x);
        copy_on(td_device_of(y), y, there);
        close_stand_in(&arrived);
    } else {
        send_bytes(y, x);
    }
    if (made_ready) {
        close_stand_in(&ready);
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
    } else {
        send(y, x);
    }
}

/* ---- all elements ---- */

void td_read_at(const td_tensor *t, void *values, td_dtype dtype, td_site at)
{
    td_check_alive(t, at);
    td_not_recordable("td_read reads values");
    td_storage storage;
    td_tensor to;
    td_init_borrowed(&to, &storage, values, td_shape_of(t), dtype);
    td_copy_across(&to, t);
}

void td_write_at(td_tensor *t, const void *values, td_dtype dtype, td_site at)
{
    td_begin_write(t, "td_write", at);
    td_not_recordable("td_write writes values of the host");
    td_storage storage;
    td_tensor from;
    /* The cast drops const: the copy only reads. */
    td_init_borrowed(&from, &storage, (void *)(uintptr_t)values, td_shape_of(t), dtype);
    td_copy_across(t, &from);
}

void td_fill_inplace_at(td_tensor *t, double value, td_site at)
{
    td_begin_write(t, "td_fill_", at);
    td_kernels_for(t)->fill(t, value);
}

void td_copy_inplace_at(td_tensor *to, const td_tensor *from, td_site at)
{
    td_check_alive(from, at);
    td_begin_write(to, "td_copy_", at);
    TD_REQUIRE(td_same_shape(to, from), at, "td_copy_: the shapes differ: %s from %s", td_label(to),
               td_label(from));
    if (to->storage != from->storage) {
        td_copy_across(to, from);
        return;
    }
    /* Views of the same memory may overlap (a matrix from its transpose): by way of a copy. */
    td_tensor *copy = td_clone(from);
    TD_REQUIRE(copy != NULL, at, "td_copy_: %s", td_last_error());
    td_copy_across(to, copy);
    td_free(copy);
}
