/* How a process tells its parent why it failed: by a message in the file that TANDEM_ERROR_FILE
 * names, or in memory that td_spawn shares with it. Without either nothing is written. */
#pragma once

enum { TD_ERROR_BYTES = 1500 };

typedef struct td_error_note {
    _Atomic double when; /* seconds on td_clock(); 0: nothing was told */
    char message[TD_ERROR_BYTES];
} td_error_note;

/* Only a process's first message counts; later ones are dropped. Any thread. */
void td_error_report(const char *message);

/* From here on td_fatal and td_die report their messages, too. A handler that the program sets
 * later replaces td_fatal's. td_dist_init calls it when TANDEM_ERROR_FILE is set. */
void td_error_report_fatal(void);

/* For td_spawn's children: the note, instead of the file. NULL: the file again. */
void td_error_report_to(td_error_note *note);
