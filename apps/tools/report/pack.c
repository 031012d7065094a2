/* Packs a trace for the page's script: 1,000 steps in less than a megabyte.
 *
 * An event is four numbers: its name times 8 plus its kind; microseconds since the begin of the
 * event before it in its lane; microseconds that it takes; and, for messages, bytes; for memory,
 * KiB. A number is written in characters of 5 bits, the lowest first; a sixth bit says that more
 * follow.
 *
 * Of a long run the events of some steps are all there: the first ones, the typical one, and others
 * at equal distances. In the other steps kernels of one pass that follow each other are one event,
 * and so are messages.
 */
#include "apps/tools/report/report.h"

enum { MOST_EVENTS = 32000, FIRST_STEPS = 3, MEMORY_PARTS = 8 };

typedef struct packing {
    FILE *out;
    int64_t at; /* where the event before begins */
} packing;

static void put_packed(const packing *p, int64_t number)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; number > 31; number >>= 5) {
        fputc(digits[(number & 31) + 32], p->out);
    }
    fputc(digits[number], p->out);
}

static void pack_event(packing *p, const report_event *e)
{
    int64_t begin = llround(e->begin);
    put_packed(p, (int64_t)e->name * 8 + (int64_t)e->kind);
    put_packed(p, begin - p->at);
    put_packed(p, llround(e->end) - begin);
    if (e->kind == REPORT_MESSAGE) {
        put_packed(p, e->bytes);
    } else if (e->kind == REPORT_MEMORY) {
        put_packed(p, (e->bytes + 512) / 1024);
    }
    p->at = begin;
}

/* Whether an event that comes after `open` becomes a part of it. */
static bool joins(const report_event *open, const report_event *e, double step)
{
    return open->kind == e->kind &&
           (e->kind == REPORT_MEMORY ? e->begin - open->begin < step / MEMORY_PARTS
                                     : (e->kind <= REPORT_OPTIMIZER || e->kind == REPORT_MESSAGE) &&
                                           e->begin - open->end < step / 50);
}

static void pack_lane(FILE *out, const report_trace *t, const report_lane *l, int stride)
{
    packing p = { .out = out };
    report_event open = { .kind = REPORT_KINDS };
    const report_step *steps = &t->steps[l->rank * t->step_count];
    int step = 0, typical = report_typical_step(t);
    for (const report_event *e = l->first; e < l->end; e++) {
        while (step + 1 < t->step_count && e->begin >= steps[step + 1].begin) {
            step++;
        }
        bool whole = step % stride == 0 || step < FIRST_STEPS || step == typical;
        double length = t->step_count > 0 ? steps[step].end - steps[step].begin : t->end / 1000;
        if ((!whole || t->step_count == 0) && stride > 1 && joins(&open, e, length)) {
            open.name = e->kind == REPORT_MEMORY ? e->name : t->name_count + (int)e->kind;
            open.end = fmax(open.end, e->end);
            open.bytes = e->kind == REPORT_MESSAGE ? open.bytes + e->bytes
                         : e->bytes > open.bytes   ? e->bytes
                                                   : open.bytes;
            continue;
        }
        if (open.kind != REPORT_KINDS) {
            pack_event(&p, &open);
        }
        open = *e;
    }
    pack_event(&p, &open);
}

void report_pack(FILE *out, const report_trace *t)
{
    int stride = (int)fmin(ceil((double)t->count / MOST_EVENTS), 1 << 24);
    fprintf(out, "{\"typical\":%d,\"stride\":%d,\"names\":[", report_typical_step(t), stride);
    for (int i = 0; i < t->name_count; i++) {
        report_json(out, t->names[i]);
        fputc(',', out);
    }
    for (report_kind kind = REPORT_FORWARD; kind <= REPORT_OPTIMIZER; kind++) {
        fprintf(out, "\"several kernels, %s\",", report_kind_names[kind]);
    }
    fputs("\"\",\"several messages\"],\"lanes\":[\n", out); /* by kind: nothing joins waiting */
    for (const report_lane *l = t->lanes; l < t->lanes + t->lane_count; l++) {
        fprintf(out, "%s{\"rank\":%d,\"name\":", l > t->lanes ? "," : "", l->first->rank);
        report_json(out, l->name);
        fputs(",\"events\":\"", out);
        pack_lane(out, t, l, stride);
        fputs("\"}\n", out);
    }
    fputs("]}", out);
}
