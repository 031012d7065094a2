/* A dataset that can be slow or fail. */
#include "tests/data/toy_dataset.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <setjmp.h> /* cmocka wants these before it */
#include <cmocka.h>

static td_status toy_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                           uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const toy *t = (const toy *)dataset;
    float *values = td_data_rw(x);
    int64_t *labels = td_data_rw(y);
    nanosleep(&(struct timespec){ .tv_nsec = t->nanoseconds }, NULL);
    for (int64_t i = 0; i < n; i++) {
        if (index[i] == t->fails_at) {
            return td_fail(TD_E_IO, "toy sample %lld is broken", (long long)index[i]);
        }
        values[2 * i] = (float)index[i];
        values[2 * i + 1] = (float)epoch;
        labels[i] = 3 * index[i];
    }
    return TD_OK;
}

static void toy_free(td_dataset *dataset)
{
    (void)dataset;
}

static const td_dataset_vtable toy_vtable = { "toy", toy_fetch, toy_free };

toy make_toy(int64_t length)
{
    toy t = { .fails_at = -1 };
    t.base = (td_dataset){ .vtable = &toy_vtable, .length = length, .sample_shape = TD_SHAPE(2) };
    return t;
}

int64_t take_epoch(td_loader *loader, int64_t *samples)
{
    int64_t taken = 0;
    for (td_batch batch; td_loader_next(loader, &batch);) {
        memcpy(samples + taken, batch.samples, (size_t)batch.size * sizeof *samples);
        taken += batch.size;
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    return taken;
}
