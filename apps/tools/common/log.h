/* What a run logs, and where it may write. A folder of metrics has DIR/metrics.csv for people and
 * scripts, DIR/metrics.jsonl (a JSON object a line) for programs, and a TensorBoard event file
 * (`tensorboard --logdir DIR`). All have the same scalars under the same names. */
#pragma once

#include "tandem.h"

#include <stdint.h>

typedef struct metrics metrics;

/* Makes the folder if need be. names[count]: the scalars ("train/loss"), the CSV's columns after
 * step. A run that starts at step 0 copies older files to metrics.csv.old and .jsonl.old; one that
 * resumes at `first_step` keeps its rows up to there and goes on below them. */
td_status metrics_open(const char *dir, const char *const *names, int count, int64_t first_step,
                       metrics **out);

/* One row: the scalars in the order of the names; NaN: none (an empty cell, no key). Written at
 * once. */
td_status metrics_write(metrics *m, int64_t step, const double *values);

void metrics_close(metrics *m); /* NULL is fine */

/* Bytes of a file's whole lines up to the last one whose number, at its beginning (none: 0), is at
 * most `step`. A run that was killed, or whose disk was full, may have left half a line at the end.
 */
long log_kept_bytes(const char *path, int64_t step);

/* TD_OK if a file can be made at path (NULL: none is to be made): its folder is there and may be
 * written to. Asked before a run, so that hours of training do not end in a checkpoint, or a
 * picture, that has no place. */
td_status check_can_save(const char *path);
