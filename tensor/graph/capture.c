/* Records one step as a graph of the device, and fills in numbers that change. */
#include "tensor/graph/capture_state.h"

#include "tensor/system/list.h"

#include <stdio.h>
#include <stdlib.h>

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
    *c = (td_capture){ .numbers = NULL };
}

/* ---- what the step's recorder gets ---- */

static td_capture *of(td_recorder *r)
{
    return (td_capture *)r;
}

static void capture_note(td_recorder *r, const char *why)
{
    td_capture *c = of(r);
    if (c->note[0] == '\0') {
        const char *place = td_context_top();
        snprintf(c->note, sizeof c->note, "%.160s%s%.60s", why, place != NULL ? ", in " : "",
                 place != NULL ? place : "");
    }
}

static void *numbers_of(td_recorder *r, size_t bytes, td_fill_fn fill, void *user)
{
    enum { UNIT = 64 };
    td_capture *c = of(r);
    size_t room = (bytes + UNIT - 1) / UNIT * UNIT;
    if (room > TD_CAPTURE_NUMBER_BYTES - c->numbers_used) {
        td_not_recordable("it has more numbers that change than there is room for (%s)",
                          td_describe_bytes(TD_CAPTURE_NUMBER_BYTES));
        void *own = td_step_bytes(bytes);
        fill(user, own);
        return own;
    }
    td_capture_fill *fills =
        td_list_room(c->fills, (size_t)c->fill_count, &c->fill_capacity, sizeof *fills);
    TD_REQUIRE(fills != NULL, TD_NOWHERE, "out of memory for a captured step's numbers");
    c->fills = fills;
    void *numbers = c->numbers + c->numbers_used;
    c->numbers_used += room;
    c->fills[c->fill_count++] = (td_capture_fill){ fill, user, numbers };
    fill(user, numbers);
    return numbers;
}

static const void *on_device(const td_recorder *r, const void *host, size_t bytes)
{
    const td_capture *c = (const td_capture *)r;
    if (c->numbers_there == NULL) {
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

static bool check_indices(td_recorder *r, const td_tensor *index, int64_t limit, const char *op,
                          const char *what, td_site at)
{
    td_capture *c = of(r);
    const td_backend *backend = td_backend_of(td_device_of(index));
    if (backend == NULL || backend->graphs == NULL ||
        !td_same_device(c->device, td_device_of(index))) {
        return false;
    }
    int i =
        td_index_check_place(c->checks, &c->check_count, (td_index_check){ op, what, limit, at });
    if (i >= 0) {
        backend->graphs->note_outside(index, limit, c->faults + 2 * i);
    }
    return i >= 0;
}

static void taken(td_recorder *r, td_device device, size_t offset, size_t bytes)
{
    td_trace *t = &of(r)->trace;
    td_trace_block *blocks = td_list_room(t->blocks, t->count, &t->capacity, sizeof *blocks);
    TD_REQUIRE(blocks != NULL, TD_NOWHERE, "out of memory for the list of a step's blocks");
    t->blocks = blocks;
    td_trace_block *b = &t->blocks[t->count++];
    const char *place = td_context_top();
    *b = (td_trace_block){ .device = device, .offset = offset, .bytes = bytes };
    snprintf(b->place, sizeof b->place, "%s", place != NULL ? place : "");
}

void td_capture_begin(td_capture *c, void (*abandoned)(td_recorder *r), bool recording)
{
    TD_REQUIRE(td_recorder_now() == NULL, TD_NOWHERE, "a captured step inside of a captured step");
    c->recorder = (td_recorder){ .recording = recording,
                                 .not_recordable = capture_note,
                                 .numbers = numbers_of,
                                 .on_device = on_device,
                                 .check_indices = check_indices,
                                 .taken = taken,
                                 .abandoned = abandoned };
    c->trace.count = 0;
    c->note[0] = '\0';
    c->numbers_used = 0;
    c->fill_count = 0;
    c->check_count = 0;
    td_recorder_set(&c->recorder);
}

/* ---- comparing two steps ---- */

static void capture_describe(const td_trace_block *b, char *text, size_t size)
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
        capture_describe(a, is, sizeof is);
        capture_describe(b, was, sizeof was);
        snprintf(text, size, "block %zu of its memory is %s, and was %s the step before", i + 1, is,
                 was);
        return true;
    }
    if (now->count == before->count) {
        return false;
    }
    char extra[128];
    capture_describe(now->count > shared ? &now->blocks[shared] : &before->blocks[shared], extra,
                     sizeof extra);
    snprintf(text, size, "it took %zu blocks of memory, and %zu the step before: %s is %s",
             now->count, before->count, extra, now->count > shared ? "new" : "missing");
    return true;
}
