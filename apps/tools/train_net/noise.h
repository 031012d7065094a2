/* Noise in place of pictures (MODEL.DUMMY_INPUT): what a machine does when no disk and no decoder
 * holds it up. */
#ifndef APPS_TOOLS_NOISE_H
#define APPS_TOOLS_NOISE_H

#include "tandem.h"

/* `length` samples [3,size,size] of about normal numbers, the same on every machine, with the
 * labels 0, 1, ... classes - 1, 0, ... The caller ends it by td_dataset_free. */
td_status noise_open(int64_t length, int64_t size, int classes, td_dataset **dataset);

#endif
