/* Results of steps on their way to the host: a ring of copies, each of which can be waited for. Not
 * for users. */
#pragma once

#include "tensor/tensor.h"

enum { TD_RESULTS_MOST_DEPTH = 64 };

typedef struct td_results {
    td_device device;
    td_tensor *values;                    /* f64, on the device: what the running step writes */
    double *host;                         /* [depth][numbers] */
    void *arrived[TD_RESULTS_MOST_DEPTH]; /* events; all NULL on a CPU */
    const void *tags[TD_RESULTS_MOST_DEPTH];
    int numbers, depth, first, waiting;
    bool pinned;
} td_results;

/* TD_E_NOMEM, TD_E_DEVICE. */
td_status td_results_open(td_results *r, td_device device, int numbers, int depth);
void td_results_close(td_results *r);

/* What has been written to values, for td_results_next; tag comes with it. Does not wait. There
 * must be room: waiting < depth. */
td_status td_results_post(td_results *r, const void *tag);

/* The oldest; waits for it. The numbers are valid until depth more have been posted. waiting > 0.
 */
td_status td_results_next(td_results *r, const double **numbers, const void **tag);
