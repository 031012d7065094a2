/* What operations must know about a step that is to be captured (tensor/captured.h): what a replay
 * will not do again, and how to do it instead. Per thread. Not for users.
 *
 * A replay runs the kernels of the recorded step with the arguments that they had then, and none of
 * the host's code. So, while a step is rehearsed or recorded:
 *  - numbers that change from step to step reach kernels by reference (td_capture_numbers);
 *  - what the host would read to check it is checked by the device, and read later
 *    (td_capture_check_indices);
 *  - whatever else brings values to the host or from it is noted, and keeps the step from being
 *    captured. */
#ifndef TD_TENSOR_CAPTURE_H
#define TD_TENSOR_CAPTURE_H

#include "tensor/tensor.h"

typedef enum td_capture_mode {
    TD_CAPTURE_OFF,
    TD_CAPTURE_REHEARSAL, /* the step is done as ever, and watched */
    TD_CAPTURE_RECORDING  /* the device notes what it is to do, and does nothing */
} td_capture_mode;

td_capture_mode td_capture_now(void);

/* Says what keeps the running step from being captured: "td_item brings a value to the host". Only
 * the first one of a step is kept. Nothing happens outside of rehearsals and recordings. */
void td_capture_note(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Numbers that a kernel reads when it runs. fill(user, numbers) writes them: now, and again before
 * each replay, in the order of these calls, so that it may also count what the step counts (its
 * other effects must not depend on the step's). Returns where they are, in host memory, up to the
 * end of the step or of the graph. user must live as long. Only in rehearsals and recordings. */
void *td_capture_numbers(size_t bytes, void (*fill)(void *user, void *numbers), void *user);

/* For devices: where on the device a kernel that is recorded finds the numbers at `host`; NULL:
 * they are not td_capture_numbers'. */
const void *td_capture_on_device(const void *host, size_t bytes);

/* Whether the elements of an index (i64) lie in [0, limit) is found by the device, and told, as a
 * programming mistake, when the step's results are read. false: not now; ask
 * kernels->indices_in_range. op, what: "cross_entropy", "label"; they are kept. */
bool td_capture_check_indices(const td_tensor *index, int64_t limit, const char *op,
                              const char *what, td_site at);

/* For arena.c: a block of step memory has been taken. */
void td_capture_taken(td_device device, size_t offset, size_t bytes);

/* For step.c: how many graphs of this thread use its step memory. */
int td_capture_graphs(void);

#endif
