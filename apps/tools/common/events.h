/* TensorBoard event files, written by hand: they are small enough.
 *
 * A file is a row of TFRecords (little-endian), each holding one Event message (protobuf):
 *   record   u64 length | u32 masked crc of the length | bytes | u32 masked crc of the bytes
 *   masked   crc32c rotated right by 15, plus 0xa282ead8
 *   Event    1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary
 *   Summary  1: repeated Value; Value  1: string tag, 2: float simple_value
 * (tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto) */
#ifndef APPS_TOOLS_EVENTS_H
#define APPS_TOOLS_EVENTS_H

#include "tandem.h"

typedef struct events events;

/* A new file DIR/events.out.tfevents.SECONDS.HOST.PID. */
td_status events_open(const char *dir, events **out);

/* One event with several scalars; NaN: left out. Flushed. */
td_status events_scalars(events *e, int64_t step, const char *const *tags, const double *values,
                         int count);

void events_close(events *e); /* NULL is fine */

#endif
