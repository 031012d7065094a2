/* What all datasets share: owners and users, and the shapes of a batch. */
#include "data/dataset.h"
#include "data/inspect.h"

#include <string.h>

/* ---- owners and users ---- */

void td_dataset_count_loader(const td_dataset *dataset, int by)
{
    __atomic_add_fetch(&((td_dataset *)(uintptr_t)dataset)->loaders, by, __ATOMIC_RELAXED);
}

static void end(td_dataset *dataset)
{
    td_dataset_free(dataset->scaled);
    dataset->vtable->free(dataset);
}

void td_dataset_count_part(const td_dataset *dataset, int by)
{
    td_dataset *d = (td_dataset *)(uintptr_t)dataset;
    d->parts += by;
    if (d->parts == 0 && d->freed) {
        end(d);
    }
}

void td_dataset_free_at(td_dataset *dataset, td_site at)
{
    if (dataset == NULL) {
        return;
    }
    TD_REQUIRE(
        dataset->loaders == 0, at,
        "td_dataset_free: this dataset (%s) has %d open loader%s; call td_loader_close first",
        dataset->vtable->kind, dataset->loaders, dataset->loaders == 1 ? "" : "s");
    TD_REQUIRE(!dataset->freed, at, "td_dataset_free: this dataset (%s) was freed before",
               dataset->vtable->kind);
    dataset->freed = true;
    if (dataset->parts == 0) {
        end(dataset);
    }
}

/* ---- shapes of a batch ---- */

static td_shape with_batch(int64_t n, td_shape sample)
{
    td_shape shape = { .ndim = sample.ndim + 1, .dim = { n } };
    memcpy(shape.dim + 1, sample.dim, (size_t)sample.ndim * sizeof *shape.dim);
    return shape;
}

td_shape td_batch_shape(const td_dataset *dataset, int64_t n)
{
    return with_batch(n, dataset->sample_shape);
}

td_shape td_batch_y_shape(const td_dataset *dataset, int64_t n)
{
    return with_batch(n, dataset->target_shape);
}

td_dtype td_batch_y_dtype(const td_dataset *dataset)
{
    bool numbers = dataset->target_shape.ndim > 0 || dataset->scalars;
    return numbers && dataset->classes == 0 ? dataset->target_dtype : TD_I64;
}

int64_t td_dataset_targets(const td_dataset *dataset)
{
    bool tokens = td_batch_y_dtype(dataset) == TD_I64;
    return tokens ? td_shape_numel(dataset->target_shape) : 1;
}
