/* For tests of --autotune: a convolution that has a choice, and choices that are made in advance,
 * by the file of an earlier run. */
#ifndef TD_TESTS_CHOICES_H
#define TD_TESTS_CHOICES_H

#include "tensor/cpu/conv.h"
#include "tandem.h"

/* Forward and backward of a 3x3 convolution in a step, under Winograd's permission. Returns a hash
 * of the result's and both gradients' bits. */
uint64_t choices_step(void);
/* The three passes that it has. */
td_conv2d_desc choices_desc(void);

/* Writes the file that earlier runs on this CPU with its present number of threads would have left
 * in a folder, with one choice for all three passes: "winograd" or "direct". Sets $TANDEM_CACHE. */
void choices_force(const char *folder, const char *way);
/* Where it is. */
const char *choices_path(const char *folder);

#endif
