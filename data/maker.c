/* Memory of a loader's batches, and the tensors in it. */
#include "data/maker.h"
#include "tensor/extend.h"

int64_t td_batch_samples(const td_batch_plan *plan, int64_t batch)
{
    int64_t left = plan->samples - batch * plan->batch_size;
    return left < plan->batch_size ? left : plan->batch_size;
}

/* A view of full's memory of another shape: strides may depend on the number of samples. */
static td_tensor *tail_of(const td_tensor *full, td_shape shape, td_layout layout)
{
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(td_device_of(full), layout, shape, stride);
    td_tensor *tail = td_slice_of_storage(full, full->offset, shape, stride);
    if (tail != NULL) {
        tail->name = full->name;
    }
    return tail;
}

static bool make_tensors(td_batch_memory *m, const td_batch_plan *plan, td_device device)
{
    const td_dataset *d = plan->dataset;
    int64_t n = plan->batch_size, tail = td_batch_samples(plan, plan->batches - 1);
    m->x = td_new_layout(td_batch_shape(d, n), d->dtype, d->layout, device);
    m->y = m->x != NULL ? td_new(td_batch_y_shape(d, n), td_batch_y_dtype(d), device) : NULL;
    if (m->y == NULL) {
        return false;
    }
    m->x->name = "the loader's x";
    m->y->name = "the loader's y";
    if (tail < n) {
        m->tail_x = tail_of(m->x, td_batch_shape(d, tail), d->layout);
        m->tail_y = tail_of(m->y, td_batch_y_shape(d, tail), TD_ROW_MAJOR);
        return m->tail_x != NULL && m->tail_y != NULL;
    }
    return true;
}

bool td_batch_memory_make(td_batch_memory *memory, const td_batch_plan *plan, td_device device)
{
    if (make_tensors(memory, plan, device)) {
        return true;
    }
    td_fail_context(TD_E_NOMEM, "loader: a batch of %lld samples on %s",
                    (long long)plan->batch_size, td_device_name(device));
    return false;
}

void td_batch_memory_free(td_batch_memory *memory)
{
    td_free(memory->tail_x);
    td_free(memory->tail_y);
    td_free(memory->x);
    td_free(memory->y);
}

void td_batch_memory_of(const td_batch_memory *memory, int64_t n, td_tensor **x, td_tensor **y)
{
    bool full = n == memory->y->shape[0];
    *x = full ? memory->x : memory->tail_x;
    *y = full ? memory->y : memory->tail_y;
}
