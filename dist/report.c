/* Reports on collectives that do not end. */
#include "dist/watchdog.h"

#include "tensor/clock.h"
#include "dist/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double ASK = 0.5; /* seconds to wait for the store's answer in a report */

/* ---- words ---- */

const char *td_collective_name(td_collective_kind kind)
{
    static const char *const names[TD_COLLECTIVE_COUNT] = {
        "all_reduce", "broadcast",    "reduce",        "all_gather", "reduce_scatter",
        "gather",     "scatter",      "all_to_all",    "send",       "recv",
        "barrier",    "group_memory", "captured step",
    };
    return kind < TD_COLLECTIVE_COUNT ? names[kind] : "unknown";
}

const char *td_reduction_name(td_reduction op)
{
    static const char *const names[] = { "sum", "average", "min", "max", "product" };
    return op >= TD_SUM && op <= TD_PRODUCT ? names[op] : "unknown reduction";
}

void td_ranks_text(const bool *present, int count, bool value, char *text, size_t size)
{
    size_t length = 0;
    snprintf(text, size, "none");
    for (int i = 0, end; i < count; i = end + 1) {
        end = i;
        if (present[i] != value) {
            continue;
        }
        while (end + 1 < count && present[end + 1] == value) {
            end++;
        }
        char range[48];
        size_t more = (size_t)snprintf(range, sizeof(range), end > i ? "%s%d-%d" : "%s%d",
                                       length > 0 ? ", " : "", i, end);
        if (length + more + sizeof("...") > size) {
            snprintf(text + length, size - length, "...");
            return;
        }
        memcpy(text + length, range, more + 1);
        length += more;
    }
}

static bool has_op(td_collective_kind kind)
{
    return kind == TD_COLLECTIVE_ALL_REDUCE || kind == TD_COLLECTIVE_REDUCE ||
           kind == TD_COLLECTIVE_REDUCE_SCATTER;
}

static bool has_root(td_collective_kind kind)
{
    return kind == TD_COLLECTIVE_BROADCAST || kind == TD_COLLECTIVE_REDUCE ||
           kind == TD_COLLECTIVE_GATHER || kind == TD_COLLECTIVE_SCATTER;
}

/* "f32, 1048576 elements, root 0". */
static void describe_data(const td_entered *e, char *text, size_t size)
{
    int length = snprintf(text, size, "%s, %lld element%s", td_dtype_name(e->dtype),
                          (long long)e->count, e->count == 1 ? "" : "s");
    if (has_op(e->kind) && e->op != TD_SUM) {
        length += snprintf(text + length, size - (size_t)length, ", %s", td_reduction_name(e->op));
    }
    if (has_root(e->kind)) {
        snprintf(text + length, size - (size_t)length, ", root %d", e->peer);
    } else if (e->kind == TD_COLLECTIVE_ALL_GATHER && e->peer > 0) {
        snprintf(text + length, size - (size_t)length, ", unit %d", e->peer);
    }
}

void td_describe_entered(const td_entered *e, char *text, size_t size)
{
    char data[128] = "";
    if (e->kind == TD_COLLECTIVE_MEMORY) {
        snprintf(data, sizeof data, " (%lld bytes)", (long long)e->count);
    } else if (e->kind != TD_COLLECTIVE_BARRIER && e->kind != TD_COLLECTIVE_REPLAY) {
        char inside[120];
        describe_data(e, inside, sizeof inside);
        snprintf(data, sizeof data, " (%s)", inside);
    }
    char side[32] = "";
    if (e->kind == TD_COLLECTIVE_SEND || e->kind == TD_COLLECTIVE_RECV) {
        snprintf(side, sizeof side, " %s rank %d", e->kind == TD_COLLECTIVE_SEND ? "to" : "from",
                 e->peer);
    }
    snprintf(text, size, "%s number %llu%s%s", td_collective_name(e->kind),
             (unsigned long long)e->number, side, data);
}

td_entered td_entered_of(const td_collective *c)
{
    return (td_entered){ .number = c->number,
                         .kind = c->kind,
                         .dtype = c->dtype,
                         .op = c->op,
                         .peer = c->peer,
                         .count = c->count };
}

/* ---- comparing ---- */

bool td_entered_match(const td_entered *a, const td_entered *b)
{
    return a->number == b->number && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op &&
           a->peer == b->peer && a->count == b->count;
}

td_status td_compare_entered(const td_entered *entered, int size)
{
    char text[TD_CAUSE_BYTES];
    size_t length = 0;
    int kinds = 0;
    bool *named = calloc((size_t)size, 2 * sizeof *named), *these = named + size;
    if (named == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for a message");
    }
    for (int first = 0; first < size; first++) {
        if (named[first]) {
            continue;
        }
        int count = 0;
        for (int r = 0; r < size; r++) {
            these[r] = td_entered_match(&entered[first], &entered[r]);
            named[r] = named[r] || these[r];
            count += these[r];
        }
        char ranks[128], what[192];
        td_ranks_text(these, size, true, ranks, sizeof ranks);
        td_describe_entered(&entered[first], what, sizeof what);
        int added = snprintf(text + length, sizeof text - length, "%srank%s %s call%s %s",
                             kinds++ == 0 ? "" : "; ", count == 1 ? "" : "s", ranks,
                             count == 1 ? "s" : "", what);
        length += (size_t)added;
        length = length < sizeof text ? length : sizeof text - 1;
    }
    free(named);
    return kinds <= 1 ? TD_OK
                      : td_fail(TD_E_MISMATCH,
                                "the ranks do not do the same: %s. All ranks must call the same "
                                "collectives, in the same order, on tensors of the same size",
                                text);
}

td_status td_check_sequence(td_group *group, const td_collective *c)
{
    if (c->kind == TD_COLLECTIVE_SEND || c->kind == TD_COLLECTIVE_RECV) {
        return TD_OK;
    }
    td_entered mine;
    memset(&mine, 0, sizeof mine);
    mine = td_entered_of(c);
    td_entered *all = calloc((size_t)group->size, sizeof *all);
    if (all == NULL) {
        return td_fail(TD_E_NOMEM, "out of memory for the check of the sequence");
    }
    td_collective gather = *c;
    gather.kind = TD_COLLECTIVE_ALL_GATHER;
    gather.dtype = TD_U8;
    gather.op = TD_SUM;
    gather.peer = 0;
    gather.in = &mine;
    gather.out = all;
    gather.count = (int64_t)sizeof mine;
    td_status status = group->engine_type->run(group->engine, &gather);
    if (status == TD_OK) {
        status = td_compare_entered(all, group->size);
    }
    free(all);
    return status;
}

/* ---- reports ---- */

/* What another rank has entered last; false: unknown. */
static bool ask(td_group *group, int rank, td_entered *entered)
{
    if (group->engine_type->entered != NULL) {
        return group->engine_type->entered(group->engine, rank, entered);
    }
    char key[32];
    snprintf(key, sizeof key, "entered/%d", rank);
    bool exists;
    void *value;
    size_t size;
    *entered = (td_entered){ .number = 0 };
    if (td_store_check(group->store, key, &exists) != TD_OK) {
        return false;
    }
    if (!exists) {
        return true;
    }
    if (td_store_get(group->store, key, ASK, &value, &size) != TD_OK) {
        return false;
    }
    bool whole = size == sizeof *entered;
    if (whole) {
        memcpy(entered, value, size);
    }
    free(value);
    return whole;
}

/* "; rank 3 has not: its last was broadcast number 16 (...), its process, pid 12, is stopped". */
static size_t describe_missing(const td_entered *last, int rank, bool known, char *text,
                               size_t size)
{
    char what[192] = "nothing yet";
    if (!known) {
        snprintf(what, sizeof what, "unknown, since it does not answer");
    } else if (last->number > 0) {
        td_describe_entered(last, what, sizeof what);
    }
    int length = snprintf(text, size, "; rank %d has not: its last was %s%s%s", rank, what,
                          last->note[0] != '\0' ? "; " : "", last->note);
    return (size_t)length < size ? (size_t)length : size - 1;
}

/* Lists the ranks that have called the collective and those that have not. */
static void describe_ranks(td_group *group, const td_collective *c, char *text, size_t size)
{
    bool *here = calloc((size_t)group->size, sizeof *here);
    char missing[TD_CAUSE_BYTES / 2] = "", ranks[128];
    size_t length = 0;
    int count = 0;
    for (int r = 0; here != NULL && r < group->size; r++) {
        td_entered last = { .number = 0 };
        bool known = r == group->rank || ask(group, r, &last);
        here[r] = r == group->rank || (known && last.number >= c->number);
        count += here[r];
        if (!here[r]) {
            length += describe_missing(&last, r, known, missing + length, sizeof missing - length);
        } else if (last.note[0] != '\0') {
            length += (size_t)snprintf(missing + length, sizeof missing - length,
                                       "; of rank %d, %s", r, last.note);
        }
        length = length < sizeof missing ? length : sizeof missing - 1;
    }
    if (here != NULL) {
        td_ranks_text(here, group->size, true, ranks, sizeof ranks);
        snprintf(text, size, "rank%s %s ha%s called it%s%s", count == 1 ? "" : "s", ranks,
                 count == 1 ? "s" : "ve", missing,
                 count == group->size ? ", so one of them is slow or a link between them is cut"
                                      : "");
    }
    free(here);
}

/* The same for a message, for which only the peer matters. */
static void describe_peer(td_group *group, const td_collective *c, char *text, size_t size)
{
    td_entered last = { .number = 0 };
    char what[192] = "no collective yet";
    bool known = ask(group, c->peer, &last);
    if (!known) {
        snprintf(what, sizeof what, "unknown, since it does not answer");
    } else if (last.number > 0) {
        td_describe_entered(&last, what, sizeof what);
    }
    snprintf(text, size, "rank %d has not %s it; the last collective that it has called: %s%s%s",
             c->peer, c->kind == TD_COLLECTIVE_SEND ? "received" : "sent", what,
             last.note[0] != '\0' ? "; " : "", last.note);
}

void td_stall_report(td_group *group, const td_collective *c, const char *verb, double seconds,
                     char *text, size_t size)
{
    td_entered mine = td_entered_of(c);
    char what[192], who[TD_CAUSE_BYTES * 3 / 4] = "";
    td_describe_entered(&mine, what, sizeof what);
    if (c->kind == TD_COLLECTIVE_SEND || c->kind == TD_COLLECTIVE_RECV) {
        describe_peer(group, c, who, sizeof who);
    } else {
        describe_ranks(group, c, who, sizeof who);
    }
    snprintf(text, size, "%s%s %s after %.1f s on rank %d: %s", group->label, what, verb, seconds,
             group->rank, who);
}

void td_tell_entered(td_group *group, const td_collective *c)
{
    char key[32];
    td_entered mine;
    memset(&mine, 0, sizeof mine);
    mine = td_entered_of(c);
    snprintf(key, sizeof key, "entered/%d", group->rank);
    (void)td_store_set(group->store, key, &mine, sizeof mine); /* only for reports */
}
