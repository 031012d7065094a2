/* How a checkpoint and what it is to be loaded into differ, gathered for one message. Users do not
 * include this. */
#ifndef TD_NN_IO_CHECKPOINT_DIFFER_H
#define TD_NN_IO_CHECKPOINT_DIFFER_H

#include "tensor/error.h"

/* The first few of one sort of difference, and how many there are. */
typedef struct td_difference {
    const char *what;
    char text[560];
    int count;
} td_difference;

typedef struct td_differences {
    td_difference missing, unexpected, unlike;
} td_differences;

#define TD_NO_DIFFERENCES                                                                          \
    {                                                                                              \
        { .what = "missing in the file" }, { .what = "only in the file" },                         \
        {                                                                                          \
            .what = "unlike"                                                                       \
        }                                                                                          \
    }

/* Adds one. */
void td_differ(td_difference *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* TD_OK if there is none; TD_E_MISMATCH with a message that lists them. */
td_status td_differences_report(const td_differences *d, const char *path);

#endif
