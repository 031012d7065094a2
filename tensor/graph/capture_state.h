/* The recorder of a captured step: what a warm-up or a recording has noted, for captured.c to read.
 * Not for users. */
#pragma once

#include "tensor/backend.h"
#include "tensor/hooks.h"

enum {
    TD_CAPTURE_NUMBER_BYTES = 1 << 20 /* for all numbers of a step */
};

/* A block of step memory: where the block lies, and the module that allocated it. */
typedef struct td_trace_block {
    td_device device;
    size_t offset, bytes;
    char place[48]; /* "fc1 (Linear)": the module that was running; "" outside of modules */
} td_trace_block;

/* The blocks of a step in the order of allocation. */
typedef struct td_trace {
    td_trace_block *blocks;
    size_t count, capacity;
} td_trace;

typedef struct td_capture_fill {
    void (*fill)(void *user, void *numbers);
    void *user, *numbers;
} td_capture_fill;

typedef struct td_capture {
    td_recorder recorder; /* first: the two pointers are the same */
    td_device device;
    td_trace trace;
    char note[256]; /* why the step cannot be captured; "": it can */

    /* The step's numbers (td_step_numbers): TD_CAPTURE_NUMBER_BYTES of the host's memory, and as
     * many of the device's, to which td_capture_send copies them. NULL: the device reads the
     * host's. */
    char *numbers;
    void *numbers_there;
    size_t numbers_used;
    td_capture_fill *fills;
    int fill_count;
    size_t fill_capacity;

    double *faults; /* on the device: two for each check, as td_graphs.note_outside writes them */
    td_index_check checks[TD_INDEX_CHECKS];
    int check_count;
} td_capture;

/* TD_E_NOMEM. faults: room for 2 * TD_INDEX_CHECKS doubles on the device. */
td_status td_capture_open(td_capture *c, td_device device, double *faults);
void td_capture_close(td_capture *c);

/* Begins a warm-up or a recording: c becomes the thread's recorder, and what c has noted before is
 * forgotten. td_recorder_set(NULL) ends it; td_step_abandon, too, which calls `abandoned`. */
void td_capture_begin(td_capture *c, void (*abandoned)(td_recorder *r), bool recording);

void td_capture_fill_again(td_capture *c); /* calls all fill functions again */
void td_capture_send(td_capture *c);       /* copies the numbers to the device */

/* Whether the blocks of two steps differ; text then says what the first difference is. */
bool td_trace_differs(const td_trace *now, const td_trace *before, char *text, size_t size);
