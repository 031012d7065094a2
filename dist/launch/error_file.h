/* How a process tells its parent why it failed: by a message in the file that TANDEM_ERROR_FILE
 * names, or in the pipe from td_spawn. Without either nothing is written. */
#ifndef TD_DIST_ERROR_FILE_H
#define TD_DIST_ERROR_FILE_H

/* Only a process's first message counts; later ones are dropped. Any thread. */
void td_error_report(const char *message);

/* From here on td_fatal and td_die report their messages, too. A handler that the program sets
 * later replaces td_fatal's. td_dist_init calls it when TANDEM_ERROR_FILE is set. */
void td_error_report_fatal(void);

/* For td_spawn's children: the pipe, instead of the file. */
void td_error_report_to(int fd);

#endif
