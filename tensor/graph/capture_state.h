/* A rehearsal or a recording of a step, seen from inside: what captured.c looks at. Not for users.
 */
#ifndef TD_TENSOR_CAPTURE_STATE_H
#define TD_TENSOR_CAPTURE_STATE_H

#include "tensor/hooks.h"

enum {
    TD_CAPTURE_CHECKS = 8,            /* of indices, in a step */
    TD_CAPTURE_NUMBER_BYTES = 1 << 20 /* for all numbers of a step */
};

/* A block of step memory: what for, and where it lies. */
typedef struct td_trace_block {
    td_device device;
    size_t offset, bytes;
    char place[48]; /* "fc1 (Linear)": the module that was running; "" outside of modules */
} td_trace_block;

/* The blocks of a step in the order of their taking. */
typedef struct td_trace {
    td_trace_block *blocks;
    size_t count, capacity;
} td_trace;

typedef struct td_capture_fill {
    void (*fill)(void *user, void *numbers);
    void *user, *numbers;
} td_capture_fill;

/* What the device checks for the host. */
typedef struct td_capture_check {
    const char *op, *what;
    int64_t limit;
    td_site at;
} td_capture_check;

typedef struct td_capture {
    td_recorder recorder; /* first: the two pointers are the same */
    td_device device;
    td_trace trace;
    char note[256]; /* why the step cannot be captured; "": it can */

    char *numbers;       /* the host's, TD_CAPTURE_NUMBER_BYTES */
    void *numbers_there; /* as many on the device; NULL: it reads the host's */
    size_t numbers_used;
    td_capture_fill *fills;
    int fill_count, fill_capacity;

    double *faults; /* on the device: two for each check; [0]: 1 + the place, [1]: what is there */
    td_capture_check checks[TD_CAPTURE_CHECKS];
    int check_count;
} td_capture;

/* TD_E_NOMEM. faults: room for 2 * TD_CAPTURE_CHECKS doubles on the device. */
td_status td_capture_open(td_capture *c, td_device device, double *faults);
void td_capture_close(td_capture *c);

/* Begins a warm-up or a recording: c becomes the thread's recorder, and what c has noted before is
 * forgotten. td_recorder_set(NULL) ends it. */
void td_capture_begin(td_capture *c, bool recording);

/* Writes all numbers again, and sends them to the device. */
void td_capture_fill_again(td_capture *c);
void td_capture_send(td_capture *c);

/* The first difference between a step's blocks and those of another, in words; false: there is
 * none. */
bool td_trace_differs(const td_trace *now, const td_trace *before, char *text, size_t size);

#endif
