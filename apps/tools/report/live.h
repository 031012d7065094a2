/* --report-live: the page of a run that still trains, for a browser on the same machine. */
#pragma once

#include "tandem.h"

typedef struct report_live report_live;

/* Serves the page of the run in `folder` at http://127.0.0.1:PORT/ from a thread of its own, until
 * report_live_close. What is made of the run so far is read from its files when a browser asks, at
 * most every 30 seconds; nothing that is received is written anywhere. Close it before the trace.
 * TD_E_IO: the port is in use, or not for this user; TD_E_NOMEM. */
td_status report_live_open(int port, const char *folder, report_live **live);
void report_live_close(report_live **live); /* sets it to NULL; NULL is fine */
