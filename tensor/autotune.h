/* Algorithms that are chosen by timing (--autotune), where a device has several for a problem and
 * fixed rules on shapes would choose otherwise: a CPU's convolutions by Winograd's transform or
 * without it, where td_math allows it, and a GPU's among cuDNN's plans.
 *
 * All choices of a run are made at one moment. Its first step goes by the rules, and notes what it
 * meets. Behind that step td_autotune_choose gives each problem its choice: the one of an earlier
 * run, from a file (plan_store.h), or by timing. They hold from the second step on; what is met
 * later goes by the rules. So ranks can agree at that moment (td_autotune_agree, dist.h), and a
 * checkpoint that has the choices (td_autotune_text) tells a resumed run all that the one before
 * did.
 *
 * All ways give equal bits in equal runs; two of them differ in the last bits. For the process; any
 * thread may call these, but what changes choices not while a step runs. */
#ifndef TD_TENSOR_AUTOTUNE_H
#define TD_TENSOR_AUTOTUNE_H

#include "tensor/error.h"
#include "tensor/extern_c.h"

#include <stdbool.h>
#include <stddef.h>

TD_BEGIN_C

/* On: steps note what they meet. Either way choices that were made are forgotten. */
void td_set_autotune(bool on);
bool td_autotune(void);

typedef struct td_autotune_figures {
    int chosen; /* choices that hold now */
    int timed;  /* of them here and now; the others come from a file */
    int left;   /* problems that the rules decide: two minutes were over */
    double seconds;
} td_autotune_figures;

/* What was noted so far was not of the first step: it is forgotten. */
void td_autotune_first_step(void);

/* Makes the choices. Does nothing if it is off, or they are made, or were taken and some of them
 * are for what has run since; of those that are all for something else (other shapes, another
 * device) none stays. figures may be NULL. */
td_status td_autotune_choose(td_autotune_figures *figures);

/* The choices, as text with a zero behind it, to be freed. NULL: there are none yet, or no memory
 * for the text. */
char *td_autotune_text(size_t *bytes);
/* Takes these choices, which come from a checkpoint or another rank, instead of making any.
 * TD_E_FORMAT: it is no such text; all is as it was. Does nothing while it is off. */
td_status td_autotune_take(const char *text, size_t bytes);

/* ---- for devices ---- */

/* How a problem that was noted gets its choice: malloc'ed text; NULL: none. *timed: not from a
 * file. */
typedef char *(*td_autotune_fn)(const void *problem, size_t *bytes, bool *timed);

/* The choice for a problem, by its name: a copy with a zero behind it, to be freed. NULL: the rules
 * decide, now and until the round changes; then `choose` will be asked for it (in the order of
 * notes, each key once), with a copy of the problem, if choices are not made yet. Keys as
 * plan_cache.h says. */
char *td_autotune_choice(const char *key, size_t *bytes, td_autotune_fn choose, const void *problem,
                         size_t size);
/* A number that changes whenever choices do. */
unsigned td_autotune_round(void);

TD_END_C

#endif
