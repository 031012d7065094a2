/* Autotuning: choosing algorithms by timing (--autotune). Without autotuning, fixed rules choose by
 * shape. On a GPU, autotuning decides which of cuDNN's plans is used; a CPU has nothing to choose.
 *
 * All choices of a run are made at one moment. The first step follows the rules and records its
 * problems (operations with their shapes). After the first step td_autotune_choose chooses an
 * algorithm for each problem: from the file of an earlier run (tensor/tune/store.h), or by timing.
 * The choices apply from the second step on; problems that come later follow the rules. Several
 * ranks agree on the same choices by td_autotune_agree (dist/graph/captured.h). A checkpoint can
 * hold the choices as text (td_autotune_text), so that a resumed run computes in the same way.
 *
 * Each algorithm gives the same bits in every run; two algorithms differ in the last bits. The
 * setting and the choices belong to the process. Any thread may call these functions, but functions
 * that change choices must not be called while a step runs. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>

TD_BEGIN_C

/* Turns autotuning on or off, and forgets all choices. td_autotune returns the setting. */
void td_set_autotune(bool on);
bool td_autotune(void);

typedef struct td_autotune_stats {
    int chosen;     /* choices that hold now */
    int timed;      /* choices made by timing in this call; the others come from a file */
    int left;       /* problems left to the rules because timing took two minutes */
    double seconds; /* the time of the call */
} td_autotune_stats;

/* Forgets the problems noted so far: the first step of the run comes next. */
void td_autotune_first_step(void);

/* Makes the choices. Ignored if autotuning is off, or if choices exist already. Choices taken by
 * td_autotune_take are dropped, and made again, if none of them fits a problem that has run since
 * (other shapes, another device). stats may be NULL. */
td_status td_autotune_choose(td_autotune_stats *stats);

/* The choices as text of *bytes bytes, with a '\0' after them; the caller frees the text by free().
 * NULL: there are no choices yet, or no memory. */
char *td_autotune_text(size_t *bytes);
/* Uses the choices of a text, from a checkpoint or another rank, instead of making choices. Ignored
 * while autotuning is off. TD_E_FORMAT: the text is not valid, and nothing is changed. */
td_status td_autotune_take(const char *text, size_t bytes);

/* ---- for devices ---- */

/* A function that chooses for a noted problem. It returns malloc'ed text, or NULL: no choice. It
 * sets *timed if the choice was timed, and does not come from a file. */
typedef char *(*td_autotune_fn)(const void *problem, size_t *bytes, bool *timed);

/* The choice for the problem named by `key` (tensor/tune/store.h), a copy with a '\0' at its end,
 * which the caller frees by free(). NULL: the rules decide until td_autotune_round changes. In that
 * case the problem is noted, if choices are not made yet: td_autotune_choose calls `choose` once
 * for each key, in the order of notes, with a copy of the problem (`size` bytes). */
char *td_autotune_choice(const char *key, size_t *bytes, td_autotune_fn choose, const void *problem,
                         size_t size);
/* A number that changes whenever choices do. */
unsigned td_autotune_round(void);

TD_END_C
