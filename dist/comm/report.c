/* Reports on collectives that do not end. */
#include "dist/comm/watchdog.h"

#include "tensor/clock.h"
#include "tensor/system/number.h"
#include "tensor/system/text.h"
#include "dist/comm/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

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

/* Appends " (f32, 1048576 elements, root 0)". */
static void append_data(const td_entered *e, char *text, size_t size)
{
    const td_kind *kind = td_kind_of(e->kind);
    td_append(text, size, " (%s, %lld element%s", td_dtype_name(e->dtype), (long long)e->count,
              e->count == 1 ? "" : "s");
    if (kind->reduces && e->op != TD_SUM) {
        td_append(text, size, ", %s", td_reduction_name(e->op));
    }
    if (kind->gives == TD_ROOT || kind->takes == TD_ROOT) {
        td_append(text, size, ", root %d", e->peer);
    } else if (e->kind == TD_COLLECTIVE_ALL_GATHER && e->peer > 0) {
        td_append(text, size, ", unit %d", e->peer);
    }
    td_append(text, size, ")");
}

void td_describe_entered(const td_entered *e, char *text, size_t size)
{
    snprintf(text, size, "%s number %llu", td_kind_of(e->kind)->name,
             (unsigned long long)e->number);
    if (e->kind == TD_COLLECTIVE_SEND || e->kind == TD_COLLECTIVE_RECV) {
        td_append(text, size, " %s rank %d", e->kind == TD_COLLECTIVE_SEND ? "to" : "from",
                  e->peer);
    }
    if (e->kind == TD_COLLECTIVE_MEMORY) {
        td_append(text, size, " (%lld bytes)", (long long)e->count);
    } else if (e->kind != TD_COLLECTIVE_BARRIER && e->kind != TD_COLLECTIVE_REPLAY) {
        append_data(e, text, size);
    }
}

td_entered td_entered_of(const td_collective *c)
{
    return (td_entered){ .number = c->number,
                         .kind = c->kind,
                         .dtype = c->dtype,
                         .op = c->op,
                         .peer = c->peer,
                         .count = c->count,
                         .name = c->name };
}

/* ---- comparing ---- */

bool td_entered_match(const td_entered *a, const td_entered *b)
{
    return a->number == b->number && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op &&
           a->peer == b->peer && a->count == b->count;
}

/* ", named 'F0.1'"; nothing for a message without a name. */
static const char *describe_name(const td_message_name *name, char text[32])
{
    snprintf(text, 32, ", named '%.*s'", (int)sizeof name->text, name->text);
    return name->text[0] != '\0' ? text : "";
}

td_status td_compare_message(const td_entered *sent, const td_collective *c, int rank)
{
    char theirs[32], mine[32];
    if (sent->count == c->count && sent->dtype == c->dtype &&
        memcmp(&sent->name, &c->name, sizeof c->name) == 0) {
        return TD_OK;
    }
    return td_fail(TD_E_MISMATCH,
                   "a message does not match: rank %d sends %lld elements of %s%s (its message "
                   "number %llu), and rank %d wants to receive %lld of %s%s",
                   c->peer, (long long)sent->count, td_dtype_name(sent->dtype),
                   describe_name(&sent->name, theirs), (unsigned long long)sent->number, rank,
                   (long long)c->count, td_dtype_name(c->dtype), describe_name(&c->name, mine));
}

td_status td_compare_entered(const td_entered *entered, int size)
{
    char text[TD_CAUSE_BYTES] = "";
    int kinds = 0;
    bool *named = calloc((size_t)size, 2 * sizeof *named), *these = named + size;
    TD_CHECK(named != NULL, TD_E_NOMEM, "out of memory for a message");
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
        td_append(text, sizeof text, "%srank%s %s call%s %s", kinds++ == 0 ? "" : "; ",
                  count == 1 ? "" : "s", ranks, count == 1 ? "s" : "", what);
    }
    free(named);
    return kinds <= 1 ? TD_OK
                      : td_fail(TD_E_MISMATCH,
                                "the ranks do not do the same: %s. All ranks must call the same "
                                "collectives, in the same order, on tensors of the same size",
                                text);
}

/* ---- reports ---- */

/* What another rank has entered last. */
typedef struct last_call {
    bool known;
    td_entered entered;
    char note[TD_NOTE_BYTES];
} last_call;

static last_call report_ask(td_group *group, int rank)
{
    last_call last = { .known = true };
    if (rank != group->rank) {
        last.known = group->engine_type->entered(group->engine, rank, &last.entered, last.note);
    }
    return last;
}

/* "broadcast number 16 (...); its process, pid 12, is stopped". */
static void describe_last(const last_call *last, const char *nothing, char *text, size_t size)
{
    char what[192];
    snprintf(what, sizeof what, "%s", last->known ? nothing : "unknown, since it does not answer");
    if (last->known && last->entered.number > 0) {
        td_describe_entered(&last->entered, what, sizeof what);
    }
    snprintf(text, size, "%s%s%s", what, last->note[0] != '\0' ? "; " : "", last->note);
}

/* Lists the ranks that have called the collective and those that have not. */
static void describe_ranks(td_group *group, const td_collective *c, char *text, size_t size)
{
    bool *here = calloc((size_t)group->size, sizeof *here);
    char missing[TD_CAUSE_BYTES / 2] = "", ranks[128], what[320];
    int count = 0;
    for (int r = 0; here != NULL && r < group->size; r++) {
        last_call last = report_ask(group, r);
        here[r] = r == group->rank || (last.known && last.entered.number >= c->number);
        count += here[r];
        describe_last(&last, "nothing yet", what, sizeof what);
        const char *format = here[r] ? "; of rank %d, %s" : "; rank %d has not: its last was %s";
        if (!here[r] || last.note[0] != '\0') {
            td_append(missing, sizeof missing, format, r, here[r] ? last.note : what);
        }
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
    last_call last = report_ask(group, c->peer);
    char what[320];
    describe_last(&last, "no collective yet", what, sizeof what);
    snprintf(text, size, "rank %d has not %s it; the last collective that it has called: %s",
             c->peer, c->kind == TD_COLLECTIVE_SEND ? "received" : "sent", what);
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
    td_snprintf(text, size, "%s%s %s after %.1f s on rank %d: %s", group->label, what, verb,
                seconds, group->rank, who);
}
