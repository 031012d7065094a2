/* The profiler: where the time of a run goes, by kernel and module, and how near each comes to what
 * the machine can do. One per process. Off, it costs nothing. */
#ifndef TD_TENSOR_PROFILE_H
#define TD_TENSOR_PROFILE_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

typedef struct td_profile_options {
    /* What counts as 100 %: operations a second in f32 and f64, and bytes a second. 0: measured
     * now, on the device, with all its threads. */
    double flops_f32, flops_f64, bytes;
    td_device device;
} td_profile_options;

/* Starts counting, from nothing. TD_E_NOMEM: no memory to measure in. options NULL: defaults. */
td_status td_profile_start(const td_profile_options *options);
void td_profile_stop(void);
bool td_profile_on(void);

typedef struct td_profile_row {
    const char *kernel; /* "conv2d_grad_input" */
    const char *module; /* "layer1.0.conv1 (Conv2d)"; "" outside of modules */
    bool backward;
    bool span; /* no kernel, but named time outside of kernels: "loader wait" */
    int64_t calls;
    double seconds;
    double flops, bytes; /* of all calls; see tensor/observe/cost.h */
    double least;        /* seconds that the machine's limits allow for them */
} td_profile_row;

typedef struct td_profile_totals {
    int64_t steps;       /* that have ended */
    double step_seconds; /* from their begins to their ends */
    double seconds;      /* since the start, or until the stop */
    double kernels;      /* in kernels that the thread which started the profile has called: a
                          * GPU's time, which the host may have spent otherwise */
    double other;        /* in kernels on other threads (DataParallel's replicas) */
    double spans;        /* in spans, on the thread that started the profile */
    int rows;
    double flops_f32, flops_f64, bytes_per_second; /* the limits */
} td_profile_totals;

/* What has been counted: rows in falling order of seconds; they are good until the next start. */
td_profile_totals td_profile_result(void);
td_profile_row td_profile_get(int row);

/* A table of all that, per step; `most` rows (0: all), then what lies outside of kernels. */
void td_profile_print(FILE *out, int most);

TD_END_C

#endif
