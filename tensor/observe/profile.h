/* The profiler: the time of a run by kernel and module, compared with the limits of the machine. A
 * process has one profiler, which costs nothing while it is off. docs/profile.md reads a table. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

typedef struct td_profile_options {
    /* The limits that count as 100 %: floating-point operations per second in f32 and f64, and
     * bytes per second. 0: td_profile_start measures the limit on the device, with all threads. */
    double flops_f32, flops_f64, bytes;
    td_device device;
} td_profile_options;

/* Clears the counts and starts the profiler. options NULL: all defaults. TD_E_NOMEM: no memory for
 * measuring the limits. */
td_status td_profile_start(const td_profile_options *options);
void td_profile_stop(void);

typedef struct td_profile_row {
    const char *kernel; /* "conv2d_grad_input" */
    const char *module; /* "layer1.0.conv1 (Conv2d)"; "" outside of modules; the profiler's */
    bool backward;
    bool span; /* not a kernel, but a named time outside of kernels: "loader wait" */
    int64_t calls;
    double seconds;
    double flops, bytes; /* operations and bytes of all calls; formulas: tensor/observe/cost.h */
    double least;        /* the seconds that all calls would take at the machine's limits */
} td_profile_row;

typedef struct td_profile_totals {
    int64_t steps;       /* steps that have ended */
    double step_seconds; /* the time of these steps */
    double seconds;      /* from td_profile_start until now or td_profile_stop */
    double kernels;      /* in kernels called by the thread that started the profiler; for a GPU,
                          * the GPU's time */
    double other;        /* in kernels called by other threads (DataParallel's replicas) */
    double spans;        /* in spans of the thread that started the profiler */
    int rows;
    double flops_f32, flops_f64, bytes_per_second; /* the limits */
} td_profile_totals;

/* The totals, and the i-th row; the row with most seconds is row 0. Rows are valid until the next
 * td_profile_start. */
td_profile_totals td_profile_result(void);
td_profile_row td_profile_get(int row);

/* Prints a table of times per step: at most `most` rows (0: all), then the time outside of kernels.
 */
void td_profile_print(FILE *out, int most);

TD_END_C
