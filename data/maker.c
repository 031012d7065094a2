/* Memory of a loader's batches, and the tensors in it. */
#include "data/maker.h"

int64_t td_batch_samples(const td_batch_plan *plan, int64_t batch)
{
    int64_t left = plan->samples - batch * plan->batch_size;
    return left < plan->batch_size ? left : plan->batch_size;
}

void td_batch_plan_fit(td_batch_plan *plan, int64_t samples)
{
    plan->samples = samples;
    plan->batches = (samples + plan->batch_size - 1) / plan->batch_size;
}

static bool make_tensors(td_batch_memory *m, const td_batch_plan *plan, td_device device)
{
    const td_dataset *d = plan->dataset;
    int64_t n = plan->batch_size;
    m->layout = d->layout;
    m->device = device;
    m->x = td_new_layout(td_batch_shape(d, n), d->dtype, d->layout, device);
    m->y = m->x != NULL ? td_new(td_batch_y_shape(d, n), td_batch_y_dtype(d), device) : NULL;
    if (m->y == NULL) {
        return false;
    }
    m->x->name = "the loader's x";
    m->y->name = "the loader's y";
    m->x->lent = m->y->lent = true;
    return true;
}

/* The caller of td_loader_next, to whom it was lent, must not free it. */
static void free_lent(td_tensor *t)
{
    if (t != NULL) {
        t->lent = false;
        td_free(t);
    }
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
    free_lent(memory->tail_x);
    free_lent(memory->tail_y);
    free_lent(memory->x);
    free_lent(memory->y);
}

/* Replaces *tail by a view of full's memory with n samples: strides may depend on their number. */
static void see_tail(const td_batch_memory *m, const td_tensor *full, td_layout layout, int64_t n,
                     td_tensor **tail)
{
    int64_t stride[TD_MAX_DIMS];
    td_shape shape = td_shape_of(full);
    shape.dim[0] = n;
    td_layout_strides(m->device, layout, shape, stride);
    free_lent(*tail);
    *tail = td_slice_of_storage(full, full->offset, shape, stride);
    TD_REQUIRE(*tail != NULL, TD_NOWHERE, "loader: %s", td_last_error());
    (*tail)->name = full->name;
    (*tail)->lent = true;
}

void td_batch_memory_of(td_batch_memory *m, int64_t n, td_tensor **x, td_tensor **y)
{
    bool full = n == m->y->shape[0];
    if (!full && (m->tail_y == NULL || m->tail_y->shape[0] != n)) {
        see_tail(m, m->x, m->layout, n, &m->tail_x);
        see_tail(m, m->y, TD_ROW_MAJOR, n, &m->tail_y);
    }
    *x = full ? m->x : m->tail_x;
    *y = full ? m->y : m->tail_y;
}
