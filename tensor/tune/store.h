/* Plans of library calls on disk, so that a choice that took time (autotuning, run-time
 * compilation) is made once. Knows nothing of CUDA.
 *
 * A plan is text, named by a key. `owner` says whom it is for: a kind of device and a version of
 * its library. Each plan is a file, FOLDER/OWNER/KEY, where FOLDER is $TANDEM_CACHE,
 * $XDG_CACHE_HOME/tandem or ~/.cache/tandem (TANDEM_CACHE=off: there are no files). In the names of
 * files, '-' stands for what is no letter, digit, '.' or '_'. The file can be looked at:
 *
 *     tandem-plan 1
 *     NVIDIA H200, sm_90, cuDNN 91900
 *     conv forward bf16 ...
 *     {...}
 *     end
 *
 * It is written to a temporary file and renamed, so processes can share a folder; nothing waits for
 * the disk. A file that is damaged (its end shows it) or another owner's is not used: the plan is
 * made again, and replaces it. Any thread may call these functions. With owner NULL they do
 * nothing. */
#pragma once

#include <stddef.h>

enum {
    TD_PLAN_KEY_MAX = 200,      /* bytes of a key, with the zero; printable */
    TD_PLAN_TEXT_MAX = 8 << 20, /* bytes of a plan */
};

/* The plan, with a zero behind it, to be freed; NULL: there is none. */
char *td_plan_get(const char *owner, const char *key, size_t *bytes);
/* Failing to write is no error, but a notice: the next run makes the plan again. */
void td_plan_put(const char *owner, const char *key, const char *text, size_t bytes);
/* Removes a plan that fails, so that no run meets it again. */
void td_plan_remove(const char *owner, const char *key);
