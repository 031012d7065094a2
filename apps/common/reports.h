/* What a run tells about itself when it is over or interrupted: where its time went (--profile). */
#ifndef APPS_COMMON_REPORTS_H
#define APPS_COMMON_REPORTS_H

#include "tandem.h"

typedef struct reports_options {
    bool profile;
    const char *limits; /* "GFLOPS,GBS"; NULL: measured */
    td_device device;
} reports_options;

/* Starts counting. A run that does not catch Ctrl-C itself prints its reports on it, after the
 * running step, and ends. */
td_status reports_begin(const reports_options *options);

/* Prints on rank 0 what was asked for; once. */
void reports_end(void);

#endif
