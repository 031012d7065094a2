/* Signals that ask to stop: Ctrl-C, a closed terminal (SIGHUP), SIGTERM, and the warnings of batch
 * systems (SIGUSR1, SIGUSR2, SIGXCPU). The training loop finishes its step, saves and leaves. A
 * second Ctrl-C ends the program at once, or its launcher does. */
#pragma once

#include <stdbool.h>

/* From here on signals ask to stop (and, with `speaks`, a line says so), until signals_restore; and
 * a file that becomes too large for the system's limit is an error of writing, not the end of the
 * program. */
void signals_catch(bool speaks);
void signals_restore(void);

bool stop_requested(void);

/* The exit code of a program that a signal ended, as shells count it: 130 after Ctrl-C. */
int stop_exit_code(void);
