/* What is to be known, and is no error: "tandem: ..." on stderr. */
#ifndef TD_TENSOR_NOTICE_H
#define TD_TENSOR_NOTICE_H

/* A line, once for each different text. Any thread. */
void td_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
