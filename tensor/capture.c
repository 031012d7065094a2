#include "tensor/capture_state.h"

#include "tensor/backend.h"
#include "tensor/step.h"
#include "tensor/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local td_capture *running;
static _Thread_local int graphs;

td_capture_mode td_capture_now(void)
{
    return running != NULL ? running->mode : TD_CAPTURE_OFF;
}

int td_capture_graphs(void)
{
    return graphs;
}

void td_capture_count_graph(int by)
{
    graphs += by;
}

/* ---- beginning and end ---- */

td_status td_capture_open(td_capture *c, td_device device, double *faults)
{
    const td_backend *backend = td_backend_of(device);
    *c = (td_capture){ .device = device, .faults = faults };
    c->numbers = calloc(1, TD_CAPTURE_NUMBER_BYTES);
    bool there = backend != NULL && backend->graphs != NULL;
    c->numbers_there = there ? backend->take(device, TD_CAPTURE_NUMBER_BYTES) : NULL;
    if (c->numbers == NULL || (there && c->numbers_there == NULL)) {
        td_capture_close(c);
        return td_fail(TD_E_NOMEM, "no memory for the numbers of a step that is to be captured");
    }
    return TD_OK;
}

void td_capture_close(td_capture *c)
{
    if (c->numbers_there != NULL) {
        td_backend_of(c->device)->give(c->device, c->numbers_there);
    }
    free(c->numbers);
    free(c->fills);
    free(c->trace.blocks);
    *c = (td_capture){ .mode = TD_CAPTURE_OFF };
}

void td_capture_begin(td_capture *c, td_capture_mode mode)
{
    TD_REQUIRE(running == NULL, TD_NOWHERE, "a captured step inside of a captured step");
    c->mode = mode;
    c->trace.count = 0;
    c->note[0] = '\0';
    c->numbers_used = 0;
    c->fill_count = 0;
    c->check_count = 0;
    running = c;
}

void td_capture_end(td_capture *c)
{
    c->mode = TD_CAPTURE_OFF;
    running = NULL;
}

void td_capture_note(const char *format, ...)
{
    if (running == NULL || running->note[0] != '\0') {
        return;
    }
    char text[sizeof running->note];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *place = td_context_top();
    snprintf(running->note, sizeof running->note, "%.160s%s%.60s", text,
             place != NULL ? ", in " : "", place != NULL ? place : "");
}

/* ---- numbers ---- */

void *td_capture_numbers(size_t bytes, void (*fill)(void *user, void *numbers), void *user)
{
    enum { UNIT = 64 };
    td_capture *c = running;
    size_t room = (bytes + UNIT - 1) / UNIT * UNIT;
    TD_REQUIRE(c != NULL, TD_NOWHERE, "numbers for a captured step, and none is under way");
    if (room > TD_CAPTURE_NUMBER_BYTES - c->numbers_used) {
        td_capture_note("it has more numbers that change than there is room for (%s)",
                        td_describe_bytes(TD_CAPTURE_NUMBER_BYTES));
        void *own = td_step_bytes(bytes);
        fill(user, own);
        return own;
    }
    if (c->fill_count == c->fill_capacity) {
        int capacity = c->fill_capacity > 0 ? 2 * c->fill_capacity : 64;
        td_capture_fill *fills = realloc(c->fills, (size_t)capacity * sizeof *fills);
        TD_REQUIRE(fills != NULL, TD_NOWHERE, "out of memory for a captured step's numbers");
        c->fills = fills;
        c->fill_capacity = capacity;
    }
    void *numbers = c->numbers + c->numbers_used;
    c->numbers_used += room;
    c->fills[c->fill_count++] = (td_capture_fill){ fill, user, numbers };
    fill(user, numbers);
    return numbers;
}

const void *td_capture_on_device(const void *host, size_t bytes)
{
    const td_capture *c = running;
    if (c == NULL || c->numbers_there == NULL) {
        return NULL;
    }
    uintptr_t at = (uintptr_t)host - (uintptr_t)c->numbers;
    bool inside = at <= c->numbers_used && bytes <= c->numbers_used - at;
    return inside ? (const char *)c->numbers_there + at : NULL;
}

void td_capture_fill_again(td_capture *c)
{
    for (int i = 0; i < c->fill_count; i++) {
        c->fills[i].fill(c->fills[i].user, c->fills[i].numbers);
    }
}

void td_capture_send(td_capture *c)
{
    if (c->numbers_there != NULL && c->numbers_used > 0) {
        td_backend_of(c->device)->upload(c->device, c->numbers_there, c->numbers, c->numbers_used);
    }
}

/* ---- checks ---- */

bool td_capture_check_indices(const td_tensor *index, int64_t limit, const char *op,
                              const char *what, td_site at)
{
    td_capture *c = running;
    const td_backend *backend = td_backend_of(td_device_of(index));
    if (c == NULL || backend == NULL || backend->graphs == NULL ||
        !td_same_device(c->device, td_device_of(index)) || c->check_count == TD_CAPTURE_CHECKS) {
        return false;
    }
    double *fault = c->faults + 2 * c->check_count;
    c->checks[c->check_count++] = (td_capture_check){ op, what, limit, at };
    backend->graphs->note_outside(index, limit, fault);
    return true;
}

/* ---- step memory ---- */

void td_capture_taken(td_device device, size_t offset, size_t bytes)
{
    if (running == NULL) {
        return;
    }
    td_trace *t = &running->trace;
    if (t->count == t->capacity) {
        size_t capacity = t->capacity > 0 ? 2 * t->capacity : 256;
        td_trace_block *blocks = realloc(t->blocks, capacity * sizeof *blocks);
        TD_REQUIRE(blocks != NULL, TD_NOWHERE, "out of memory for the list of a step's blocks");
        t->blocks = blocks;
        t->capacity = capacity;
    }
    td_trace_block *b = &t->blocks[t->count++];
    const char *place = td_context_top();
    *b = (td_trace_block){ .device = device, .offset = offset, .bytes = bytes };
    snprintf(b->place, sizeof b->place, "%s", place != NULL ? place : "");
}

static void describe(const td_trace_block *b, char *text, size_t size)
{
    snprintf(text, size, "%s at %zu of %s%s%s", td_describe_bytes(b->bytes), b->offset,
             td_device_name(b->device), b->place[0] != '\0' ? " in " : "", b->place);
}

bool td_trace_differs(const td_trace *now, const td_trace *before, char *text, size_t size)
{
    size_t shared = now->count < before->count ? now->count : before->count;
    for (size_t i = 0; i < shared; i++) {
        const td_trace_block *a = &now->blocks[i], *b = &before->blocks[i];
        if (td_same_device(a->device, b->device) && a->offset == b->offset &&
            a->bytes == b->bytes) {
            continue;
        }
        char is[128], was[128];
        describe(a, is, sizeof is);
        describe(b, was, sizeof was);
        snprintf(text, size, "block %zu of its memory is %s, and was %s the step before", i + 1, is,
                 was);
        return true;
    }
    if (now->count == before->count) {
        return false;
    }
    char extra[128];
    describe(now->count > shared ? &now->blocks[shared] : &before->blocks[shared], extra,
             sizeof extra);
    snprintf(text, size, "it took %zu blocks of memory, and %zu the step before: %s is %s",
             now->count, before->count, extra, now->count > shared ? "new" : "missing");
    return true;
}
