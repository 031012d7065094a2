/* Storages: memory of tensors, counted, and lent between a step's tensors. */
#include "tensor/storage.h"

#include "tensor/arena.h"
#include "tensor/backend.h"
#include "tensor/hooks.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static td_storage *new_storage(td_storage_kind kind, void *data, size_t bytes, td_device device)
{
    td_storage *storage = calloc(1, sizeof *storage);
    TD_CHECK_NULL(storage != NULL, TD_E_NOMEM, "out of memory for the header of %zu bytes on %s",
                  bytes, td_device_name(device));
    storage->data = data;
    storage->bytes = bytes;
    storage->refs = 1;
    storage->device = device;
    storage->kind = (unsigned char)kind;
    return storage;
}

/* Gives a persistent block back. */
static void give_block(void *block, td_device device)
{
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        backend->give(device, block);
    } else {
        free(block);
    }
}

/* The host's memory, zeroed or undefined: where its block begins, which is for free, and where data
 * may begin. calloc does not align, but large memory that it gives costs nothing where it is never
 * written. */
static void *take_host_block(size_t bytes, bool zeroed, void **data)
{
    /* An empty tensor has an address as well. */
    size_t rounded = bytes == 0 ? TD_ALIGNMENT : (bytes + TD_ALIGNMENT - 1) & -(size_t)TD_ALIGNMENT;
    size_t room = zeroed ? rounded + TD_ALIGNMENT : rounded;
    char *block = room < bytes ? NULL
                  : zeroed     ? calloc(1, room)
                               : aligned_alloc(TD_ALIGNMENT, room);
    if (block != NULL) {
        *data = block + (TD_ALIGNMENT - (uintptr_t)block % TD_ALIGNMENT) % TD_ALIGNMENT;
    }
    return block;
}

static void *take_block(size_t bytes, td_device device, bool zeroed, void **data)
{
    const td_backend *backend = td_backend_of(device);
    if (backend == NULL) {
        void *block = take_host_block(bytes, zeroed, data);
        if (block == NULL) {
            td_fail(TD_E_NOMEM,
                    "out of memory: %s on %s could not be had; close other programs, or use fewer "
                    "or smaller tensors",
                    td_describe_bytes(bytes), td_device_name(device));
        }
        return block;
    }
    TD_REQUIRE(backend->open(device) == TD_OK, TD_NOWHERE, "%s", td_last_error());
    *data = backend->take(device, bytes);
    if (*data != NULL && zeroed && bytes > 0) {
        backend->zero(device, *data, bytes);
    }
    return *data;
}

td_storage *td_storage_new(size_t bytes, td_device device, bool zeroed)
{
    td_require_device(device, TD_NOWHERE);
    td_not_recordable("it makes a tensor that outlives it");
    void *data, *block = take_block(bytes, device, zeroed, &data);
    if (block == NULL) {
        return NULL;
    }
    td_storage *storage = new_storage(TD_STORAGE_PERSISTENT, data, bytes, device);
    if (storage == NULL) {
        give_block(block, device);
        return NULL;
    }
    storage->owner = block;
    return storage;
}

td_storage *td_storage_borrow(void *data, size_t bytes, td_device device)
{
    td_require_device(device, TD_NOWHERE);
    return new_storage(TD_STORAGE_BORROWED, data, bytes, device);
}

td_storage *td_storage_lend(void *data, size_t bytes, td_device device, td_lender *lender)
{
    td_require_device(device, TD_NOWHERE);
    td_storage *storage = new_storage(TD_STORAGE_LENT, data, bytes, device);
    if (storage != NULL) {
        storage->owner = lender;
    }
    return storage;
}

void td_hold(td_storage *storage)
{
    storage->refs++;
}

void td_unhold(td_storage *storage)
{
    TD_REQUIRE(storage->refs > 0, TD_NOWHERE,
               "td_unhold: nobody holds this storage any more: a tensor was freed twice, or there "
               "are more calls of td_unhold than of td_hold");
    if (--storage->refs > 0) {
        return;
    }
    switch ((td_storage_kind)storage->kind) {
    case TD_STORAGE_STEP:
        td_arena_give(storage->owner, storage->data);
        storage->data = NULL;
        storage->released = true;
        return;
    case TD_STORAGE_PERSISTENT:
        give_block(storage->owner, storage->device);
        free(storage);
        return;
    case TD_STORAGE_LENT: {
        td_lender *lender = storage->owner;
        lender->give_back(lender, storage->data);
        free(storage);
        return;
    }
    case TD_STORAGE_BORROWED:
        free(storage);
        return;
    }
}

/* glibc's heap, where another one replaces its malloc (a sanitizer's, jemalloc), is made by the
 * first malloc_trim, which no second thread may call meanwhile. */
void td_trim_heap(void)
{
#if defined(__GLIBC__)
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    malloc_trim(0);
    pthread_mutex_unlock(&lock);
#endif
}

/* ---- headers over a storage ---- */

void td_init_header(td_tensor *t, td_storage *storage, int64_t offset, td_shape shape,
                    const int64_t *stride, td_dtype dtype)
{
    memset(t, 0, sizeof *t);
    t->ndim = shape.ndim;
    for (int d = 0; d < shape.ndim; d++) {
        t->shape[d] = shape.dim[d];
        t->stride[d] = stride[d];
    }
    t->dtype = dtype;
    t->storage = storage;
    t->offset = offset;
}

void td_init_borrowed(td_tensor *t, td_storage *storage, void *values, td_shape shape,
                      td_dtype dtype)
{
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(TD_CPU, TD_ROW_MAJOR, shape, stride);
    *storage = (td_storage){ .data = values, .refs = 1, .kind = TD_STORAGE_BORROWED };
    if (!td_shape_bytes(shape, dtype, &storage->bytes)) {
        storage->bytes = SIZE_MAX;
    }
    td_init_header(t, storage, 0, shape, stride, dtype);
}
