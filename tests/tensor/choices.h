/* For tests of autotuning without a GPU: operations that can be computed in two ways, "first" and
 * "second", and choices that are made in advance, by the file of an earlier run. */
#pragma once

#include "tandem.h"

/* A step of three such operations. Returns a number that says in which way each was computed; the
 * rules choose the first way. */
uint64_t choices_step(void);

/* Writes the files that earlier runs with the CPU's present number of threads would have left in a
 * folder, with one choice for all three operations: "first" or "second". Sets $TANDEM_CACHE. */
void choices_force(const char *folder, const char *way);
/* The file of the third operation. */
const char *choices_path(const char *folder);
