/* Checks of indices whose outcome nobody waits for: the GPU notes the first index that is out of
 * range, and the host reports the index when it next waits for a value of the GPU. The kernels that
 * read the index must bear any value. */
#include "tensor/cuda/cuda.h"

/* The checks that a device has been asked for since the last report; a call in a loop is one check.
 * A device's work comes from one thread at a time. */
static struct checks {
    td_index_check list[TD_INDEX_CHECKS];
    int count;
    double *faults; /* on the device, two for each check, as td_graphs.note_outside writes them */
} checks[TD_MAX_DEVICES];

bool td_cuda_check_later(const td_tensor *index, int64_t limit, const char *op, const char *what,
                         td_site at)
{
    td_device device = td_device_of(index);
    struct checks *c = &checks[device.index];
    size_t bytes = 2 * TD_INDEX_CHECKS * sizeof(double);
    if (c->faults == NULL && (c->faults = td_cuda_take(device, bytes)) != NULL) {
        td_cuda_must(cudaMemsetAsync(c->faults, 0, bytes, td_cuda_of(device)->stream), op);
    }
    int i = c->faults == NULL
                ? -1
                : td_index_check_place(c->list, &c->count, (td_index_check){ op, what, limit, at });
    if (i < 0) {
        return false;
    }
    td_cuda_graphs.note_outside(index, limit, c->faults + 2 * i);
    return true;
}

void td_cuda_fetch_checks(td_cuda *gpu, double *faults)
{
    const struct checks *c = &checks[gpu->device.index];
    if (c->count > 0) {
        td_cuda_must(cudaMemcpyAsync(faults, c->faults, 2 * (size_t)c->count * sizeof *faults,
                                     cudaMemcpyDeviceToHost, gpu->stream),
                     "checking indices");
    }
}

void td_cuda_report_checks(td_cuda *gpu, const double *faults)
{
    struct checks *c = &checks[gpu->device.index];
    int count = c->count, i = 0;
    while (i < count && faults[2 * i] == 0) {
        i++;
    }
    c->count = 0;
    if (i == count) {
        return;
    }
    /* A fatal handler may jump away: the next check begins without this fault. */
    td_cuda_must(cudaMemsetAsync(c->faults, 0, 2 * (size_t)count * sizeof *faults, gpu->stream),
                 "checking indices");
    td_report_index(&c->list[i], faults + 2 * i);
}
