/* Reads a trace (dist/trace.h): a line for each event, of all ranks. */
#include "apps/tools/report/report.h"

#include "tensor/system/files.h"
#include "tensor/system/list.h"

#include <cjson/cJSON.h>
#include <search.h>

enum { MOST_NAMES = 1 << 15, MOST_RANKS = 1 << 16, MEMORY_LANE = 1 << 20 };

const char *const report_kind_names[REPORT_KINDS] = {
    "forward", "backward", "optimizer", "waiting", "message", "part", "other", "memory"
};

/* The trace while it is read. */
typedef struct reading {
    const char *path;
    int64_t line;
    report_trace *trace;
    struct hsearch_data numbers; /* of the names */
} reading;

static td_status trace_is_wrong(const reading *r, const char *what)
{
    return td_fail(TD_E_FORMAT, "%s:%lld: %s: this is no trace that --trace has written", r->path,
                   (long long)r->line, what);
}

static td_status find_name(reading *r, const char *text, int *name)
{
    report_trace *t = r->trace;
    ENTRY *found, entry = { .key = (char *)(uintptr_t)text };
    if (hsearch_r(entry, FIND, &found, &r->numbers) != 0) {
        *name = (int)(intptr_t)found->data;
        return TD_OK;
    }
    if (t->name_count == MOST_NAMES) {
        return trace_is_wrong(r, "more than 32768 names");
    }
    TD_CHECK(td_add_text(&t->names, t->name_count, text), TD_E_NOMEM, "no memory for %s", r->path);
    *name = t->name_count++;
    entry = (ENTRY){ t->names[*name], (void *)(intptr_t)*name };
    (void)hsearch_r(entry, ENTER, &found, &r->numbers); /* there is room for twice as many */
    return TD_OK;
}

/* ---- an event ---- */

static const char *trace_text(const cJSON *event, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* A number of at least 0 and less than `limit`; otherwise -1. */
static double trace_number(const cJSON *event, const char *key, double limit)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return value >= 0 && value < limit ? value : -1;
}

/* Spans and counters alone are shown. A span of no known category is of REPORT_OTHER. */
static report_kind trace_kind(const cJSON *event, const char *name)
{
    const char *category = trace_text(event, "cat");
    if (strcmp(trace_text(event, "ph"), "X") != 0) {
        return strcmp(name, "memory") == 0 ? REPORT_MEMORY : REPORT_KINDS;
    }
    for (report_kind kind = REPORT_FORWARD; kind <= REPORT_PART; kind++) {
        if (strcmp(category, report_kind_names[kind]) == 0) {
            return kind;
        }
    }
    return strcmp(category, "span") == 0 && strstr(name, "wait") != NULL ? REPORT_WAIT
                                                                         : REPORT_OTHER;
}

static td_status add_event(reading *r, const cJSON *event)
{
    report_trace *t = r->trace;
    const char *name = trace_text(event, "name");
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
    report_kind kind = trace_kind(event, name);
    double rank = trace_number(event, "pid", MOST_RANKS);
    double lane = trace_number(event, "tid", MEMORY_LANE);
    double begin = trace_number(event, "ts", REPORT_LARGEST);
    double length = trace_number(event, "dur", REPORT_LARGEST);
    double bytes = trace_number(args, kind == REPORT_MEMORY ? "step" : "bytes", REPORT_LARGEST);
    if (kind == REPORT_KINDS) {
        if (strcmp(name, "thread_name") != 0) {
            return TD_OK;
        }
        name = trace_text(args, "name");
    }
    if (rank < 0 || lane < 0 || (kind < REPORT_KINDS && begin < 0) ||
        (kind < REPORT_MEMORY && length < 0)) {
        return trace_is_wrong(r, "an event without valid pid, tid, ts or dur");
    }
    report_event e = { .begin = begin,
                       .end = begin + (kind < REPORT_MEMORY ? length : 0),
                       .bytes = (int64_t)fmax(bytes, 0),
                       .rank = (int)rank,
                       .lane = kind == REPORT_MEMORY ? MEMORY_LANE : (int)lane,
                       .kind = kind };
    TD_TRY(find_name(r, name, &e.name));
    TD_CHECK(td_grow(&t->events, t->count, sizeof e), TD_E_NOMEM, "no memory for %s", r->path);
    t->events[t->count++] = e;
    return TD_OK;
}

/* ---- the file ---- */

/* A process that is killed ends its file in the middle. */
static td_status read_lines(reading *r, FILE *file, char **line, size_t *room)
{
    r->trace->cut = true;
    for (ssize_t length; (length = getline(line, room, file)) > 0;) {
        const char *text = **line == ',' ? *line + 1 : *line;
        r->line++;
        if (r->line == 1 && strstr(text, "\"traceEvents\":[\n") == NULL) {
            return trace_is_wrong(r, "no \"traceEvents\" in it");
        }
        if (*text == ']' || (*line)[length - 1] != '\n') {
            r->trace->cut = *text != ']';
            return TD_OK;
        }
        if (r->line > 1) {
            cJSON *event = cJSON_Parse(text);
            td_status status =
                cJSON_IsObject(event) ? add_event(r, event) : trace_is_wrong(r, "not an event");
            cJSON_Delete(event);
            TD_TRY(status);
        }
    }
    return TD_OK;
}

/* The name of a lane comes before its events: it begins at -1. */
static int compare_events(const void *a, const void *b)
{
    const report_event *x = a, *y = b;
    return x->rank != y->rank     ? x->rank - y->rank
           : x->lane != y->lane   ? x->lane - y->lane
           : x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                                  : (x->end < y->end) - (x->end > y->end);
}

/* Times count from the first event. Lanes are what is left of the names of lanes. */
static bool make_lanes(report_trace *t)
{
    double first = INFINITY;
    const report_event *named = NULL;
    if (t->count > 0) {
        qsort(t->events, (size_t)t->count, sizeof *t->events, compare_events);
    }
    for (int64_t i = 0; i < t->count; i++) {
        first = t->events[i].kind < REPORT_KINDS ? fmin(first, t->events[i].begin) : first;
    }
    for (int64_t i = 0, last = -1; i < t->count; i++) {
        report_event *e = &t->events[i], *before = last >= 0 ? &t->events[last] : NULL;
        if (e->kind == REPORT_KINDS) {
            named = e;
            continue;
        }
        if (before == NULL || before->rank != e->rank || before->lane != e->lane) {
            if (!td_grow(&t->lanes, t->lane_count, sizeof *t->lanes)) {
                return false;
            }
            bool has_name = named != NULL && named->rank == e->rank && named->lane == e->lane;
            t->ranks += before == NULL || before->rank != e->rank;
            t->lanes[t->lane_count++] = (report_lane){
                .rank = t->ranks - 1,
                .name = t->names[has_name ? named->name : e->name], /* memory: "memory" */
                .first = e,
            };
        }
        t->lanes[t->lane_count - 1].end = e + 1;
        e->begin -= first;
        e->end -= first;
        t->end = fmax(t->end, e->end);
        last = i;
    }
    return true;
}

td_status report_read_trace(const char *path, report_trace *trace)
{
    FILE *file;
    char *line = NULL;
    size_t room = 0;
    reading r = { .path = path, .trace = trace };
    TD_TRY(td_open_to_read(path, &file));
    td_status status = hcreate_r(2 * MOST_NAMES, &r.numbers) != 0
                           ? read_lines(&r, file, &line, &room)
                           : td_fail(TD_E_NOMEM, "no memory for %s", path);
    if (status == TD_OK && !make_lanes(trace)) {
        status = td_fail(TD_E_NOMEM, "no memory for %s", path);
    }
    status = status == TD_OK && trace->lane_count == 0 ? trace_is_wrong(&r, "no events") : status;
    status = status == TD_OK ? report_measure(trace) : status;
    hdestroy_r(&r.numbers);
    fclose(file);
    free(line);
    return status;
}
