/* A ring of results on their way from the device to the host. */
#include "tensor/graph/captured_results.h"

#include "tensor/backend.h"

#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const td_results *r)
{
    return (size_t)r->numbers * sizeof(double);
}

td_status td_results_open(td_results *r, td_device device, int numbers, int depth)
{
    const td_backend *backend = td_backend_of(device);
    *r = (td_results){ .device = device, .numbers = numbers, .depth = depth };
    r->pinned = backend != NULL && backend->graphs != NULL;
    size_t bytes = (size_t)depth * bytes_of(r);
    r->values = td_zeros(TD_SHAPE(numbers), TD_F64, device);
    r->host = r->pinned ? backend->graphs->host_take(device, bytes) : calloc(1, bytes);
    if (r->values == NULL || r->host == NULL) {
        td_results_close(r);
        return td_fail(TD_E_NOMEM, "no memory for the results of steps on %s",
                       td_device_name(device));
    }
    for (int i = 0; r->pinned && i < depth; i++) {
        td_status status = backend->streams->event_new(device, &r->arrived[i]);
        if (status != TD_OK) {
            td_results_close(r);
            return status;
        }
    }
    return TD_OK;
}

void td_results_close(td_results *r)
{
    const td_backend *backend = td_backend_of(r->device);
    if (r->pinned && r->host != NULL) {
        backend->wait(r->device); /* copies to it may be under way */
        backend->graphs->host_give(r->device, r->host);
    } else {
        free(r->host);
    }
    for (int i = 0; i < r->depth; i++) {
        if (r->arrived[i] != NULL) {
            backend->streams->event_free(r->device, r->arrived[i]);
        }
    }
    td_free(r->values);
    *r = (td_results){ .numbers = 0 };
}

td_status td_results_post(td_results *r, const void *tag)
{
    const td_backend *backend = td_backend_of(r->device);
    int at = (r->first + r->waiting) % r->depth;
    double *to = r->host + (size_t)at * (size_t)r->numbers;
    r->tags[at] = tag;
    if (r->pinned) {
        backend->graphs->fetch(r->device, to, td_ptr(r->values), bytes_of(r));
        TD_TRY(backend->streams->record(r->device, r->arrived[at],
                                        backend->streams->compute(r->device)));
    } else {
        td_memory_download(r->device, to, td_ptr(r->values), bytes_of(r));
    }
    r->waiting++;
    return TD_OK;
}

td_status td_results_next(td_results *r, const double **numbers, const void **tag)
{
    const td_backend *backend = td_backend_of(r->device);
    int at = r->first;
    if (r->pinned) {
        TD_TRY(backend->graphs->wait_event(r->device, r->arrived[at]));
    }
    r->first = (at + 1) % r->depth;
    r->waiting--;
    *numbers = r->host + (size_t)at * (size_t)r->numbers;
    *tag = r->tags[at];
    return TD_OK;
}
