/* What a run tells about itself when it is over or interrupted: where its time went (--profile) and
 * what its memory is for (--memory). */
#ifndef APPS_TOOLS_REPORTS_H
#define APPS_TOOLS_REPORTS_H

#include "tandem.h"

typedef struct reports_options {
    bool profile;
    const char *limits; /* "GFLOPS,GBS"; NULL: measured */
    bool memory;
    const char *picture; /* of step memory; NULL: none */
    td_device device;
} reports_options;

/* Starts counting. A run that does not catch Ctrl-C itself prints its reports on it, after the
 * running step, and ends. */
td_status reports_begin(const reports_options *options);

/* Whose parameters and state --memory lists; both must live until reports_end. */
void reports_model(td_module *net, const td_optim *optim);

/* Prints on rank 0 what was asked for; once. */
void reports_end(void);

#endif
