/* --hash-every: what two runs are compared by (apps/compare). Each rank writes its own file into
 * the run's folder: hashes.tsv on rank 0, hashes.rank1.tsv on rank 1. A line is a step, what, a
 * name and 16 hexadecimal digits, between tabs. In a step that is hashed the lines are, in this
 * order:
 *
 *     step      2 ranks           the fingerprint before the step (nn/io/fingerprint.h)
 *     before    PATH              of each tensor and text of it
 *     forward   OP, MODULE        of the result of each operation of this rank
 *     backward  OP, MODULE, I     of the gradient of its input I
 *     gradient  PATH              of the gradient that backward has left, averaged
 *     after     PATH              of each tensor and text after the step
 *
 * What ranks share is summed over them; of the rest each rank hashes its own copy. */
#pragma once

#include "tandem.h"

typedef struct hashes hashes;

/* The file of a rank in a run's folder. */
void hashes_path(const char *dir, int rank, char path[4096]);

/* Makes the folder if need be. A run that goes on after `done` steps keeps the lines up to there.
 * TD_E_IO, TD_E_NOMEM. */
td_status hashes_open(const char *dir, int64_t done, hashes **out);
/* Before a step, from 1: the state; from now on operations of this thread are hashed. All ranks
 * call these three, and each returns TD_OK or why the exchange or the disk failed. */
td_status hashes_before(hashes *h, int64_t step, const td_checkpoint_options *state);
/* After its backward: the gradients; operations are no longer hashed. */
td_status hashes_gradients(hashes *h, const td_params *params);
/* After the optimizer's step. */
td_status hashes_after(hashes *h, const td_checkpoint_options *state);
/* NULL is fine. */
void hashes_close(hashes *h);
