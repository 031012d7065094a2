/* For tests of the loader: a dataset that can be slow or fail. */
#pragma once

#include "data/data.h"

/* x = (number, epoch), y = 3 * number. */
typedef struct toy {
    td_dataset base;
    int64_t fails_at; /* the sample that cannot be read: "toy sample N is broken"; -1: none */
    long nanoseconds; /* that a fetch takes */
} toy;

toy make_toy(int64_t length); /* quick, and never fails; nothing to free */

/* Takes the rest of an epoch, which must not fail; writes its samples in order, returns how many.
 */
int64_t take_epoch(td_loader *loader, int64_t *samples);
