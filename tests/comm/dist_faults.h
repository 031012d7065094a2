/* For tests of faults: survivors and what they were told. */
#pragma once

#include "tests/help/dist_procs.h"

enum { FAULT_SURVIVED = 7 }; /* exit code of a rank that was told */

/* Shared by the ranks: when the fault happened (td_clock). */
extern _Atomic double *fault_at;
int fault_setup(void **state); /* cmocka group setup */

/* How long survivors may take to notice: the five seconds that are promised (it takes a tenth of
 * one where nothing else runs); more under sanitizers. */
double fault_patience(void);

/* In a rank: the group's time-out from now on; its beginning may have taken longer. */
void fault_set_timeout(double seconds);

/* How often each fault is repeated: 5 times, 50 with TANDEM_LONG, once under sanitizers. */
int fault_repeats(void);

/* procs_run, and nothing may be left then. Ranks meet in a file and over TCP by turns. */
void fault_run(int size, double limit, procs_fn fn, void *arg, procs_end *ends);

/* In a survivor: writes what it was told, ends the group; returns its exit code. */
int fault_report(td_status status);

/* In the parent: the rank has ended as a survivor. Otherwise the test fails with its output. */
void assert_survived(const procs_end *ends, int rank);
