/* What a run tells about itself when it is over, or has stopped on Ctrl-C: where its time went
 * (--profile) and what its memory is for (--memory). */
#pragma once

#include "tandem.h"

typedef struct reports {
    bool profile;
    const char *limits;  /* "GFLOPS,GBS"; NULL: measured */
    const char *kernels; /* the file of kernels' costs; NULL: none */
    bool memory;
    const char *picture; /* of step memory; NULL: none */
    td_device device;
    bool open; /* begun, and not ended */
} reports;

/* Starts counting what is asked for. TD_E_IO: the picture has no place. */
td_status reports_begin(reports *r);

/* Prints it on rank 0; once. net NULL: the run was refused before it had a model, and there is
 * nothing to tell. --memory also lists parameters and state if there is an optimizer. TD_E_IO: the
 * picture cannot be written. */
td_status reports_end(reports *r, td_module *net, const td_optim *optim);
