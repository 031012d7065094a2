/* A failure on its way from node to coordinator, and as people read it. */
#ifndef TD_DIST_LAUNCHER_REPORT_H
#define TD_DIST_LAUNCHER_REPORT_H

#include "dist/launch/launcher.h"

void td_failure_pack(const td_worker_failure *failure, char *text, size_t size);
bool td_failure_unpack(const char *text, td_worker_failure *failure);

/* "rank 1 failed first: exit code 3\n  host ..., pid ..., ...\n  message..." */
void td_failure_text(const td_worker_failure *failure, int round, char *text, size_t size);

#endif
