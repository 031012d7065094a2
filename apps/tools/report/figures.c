/* Draws a report's figures as SVG. Their colours are classes of the page's style (page.css), so
 * that they follow its dark and light scheme. */
#include "apps/tools/report/report.h"

#include "tensor/system/number.h"

enum { BINS = 300, COLOURS = 7, WIDTH = 960, CURVE_WIDTH = 420, LEFT = 52, LABELS = 136 };
enum { PART_HEIGHT = 10, SPAN_HEIGHT = 18, LANE_HEIGHT = 34, MOST_LANES = 64 };

/* Where a figure's values are drawn. */
typedef struct axes {
    double left, right, top, bottom;     /* in the units of the drawing */
    double x_low, x_high, y_low, y_high; /* the values there */
} axes;

static double x_of(const axes *a, double x)
{
    x = fmin(fmax(x, a->x_low), a->x_high);
    return a->left + (a->right - a->left) * (x - a->x_low) / (a->x_high - a->x_low);
}

static double y_of(const axes *a, double y)
{
    return a->bottom - (a->bottom - a->top) * (y - a->y_low) / (a->y_high - a->y_low);
}

/* Where an axis has numbers: at `count` multiples of `step`, from the `first` one on. */
typedef struct ticks {
    double step, first;
    int count;
} ticks;

/* About `count` multiples of 1, 2 or 5 times a power of ten, of `least` at least, in low..high. */
static ticks ticks_of(double low, double high, double count, double least)
{
    double power = pow(10, floor(log10((high - low) / count)));
    double times = (high - low) / count / power;
    ticks t = { .step = power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10) };
    t.step = fmax(t.step, least);
    t.first = ceil(low / t.step);
    t.count = (int)fmin(floor(high / t.step) - t.first + 1, 3 * count);
    return t;
}

static void put_number(FILE *out, const char *place, double x, double y, double number)
{
    td_fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%.8g</text>\n", place, x, y,
               number == 0 ? 0 : number); /* no -0 */
}

static void put_grid(FILE *out, const axes *a)
{
    ticks y = ticks_of(a->y_low, a->y_high, 4, 0), x = ticks_of(a->x_low, a->x_high, 5, 1);
    for (int i = 0; i < y.count; i++) {
        double number = (y.first + i) * y.step, at = y_of(a, number);
        td_fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", a->left, at, a->right);
        put_number(out, "end", a->left - 5, at + 4, number);
    }
    for (int i = 0; i < x.count; i++) {
        double number = (x.first + i) * x.step;
        put_number(out, "middle", x_of(a, number), a->bottom + 14, number);
    }
    td_fprintf(out, "<text class=\"end\" x=\"%.1f\" y=\"%.1f\">step</text>\n", a->right,
               a->bottom + 28);
}

/* ---- curves ---- */

/* A column of a run: the means of rows that follow each other, in at most BINS groups. */
typedef struct curve {
    double x[BINS], y[BINS];
    int points;
} curve;

static bool make_curve(const report_table *t, const char *columns, double scale, curve *c)
{
    int column = columns != NULL ? report_column(t, columns) : -1;
    int64_t rows = 0, at = 0;
    for (int64_t row = 0; column >= 0 && row < t->rows; row++) {
        rows += isfinite(t->cells[row * t->columns + column]);
    }
    *c = (curve){ .points = 0 };
    for (int64_t row = 0, group = rows / BINS + 1; rows > 0 && row < t->rows; row++) {
        const double *cells = &t->cells[row * t->columns];
        if (isfinite(cells[column])) {
            double count =
                (double)(rows - at + at % group < group ? rows - at + at % group : group);
            c->x[at / group] += cells[0] / count;
            c->y[at / group] += scale * cells[column] / count;
            c->points = (int)(at++ / group) + 1;
        }
    }
    return c->points > 0;
}

/* Training as a line; tests dashed, with dots. */
static void put_curve(FILE *out, const axes *a, const curve *c, int run, bool test)
{
    fprintf(out, "<path class=\"line c%d%s\" d=\"", run % COLOURS, test ? " test" : "");
    for (int i = 0; i < c->points; i++) {
        td_fprintf(out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', x_of(a, c->x[i]), y_of(a, c->y[i]));
    }
    td_fprintf(out, "\"><title>%s: last %.5g</title></path>\n", test ? "test" : "train",
               c->y[c->points - 1]);
    for (int i = 0; i < c->points && c->points <= (test ? 60 : 1); i++) {
        td_fprintf(out, "<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", run % COLOURS,
                   x_of(a, c->x[i]), y_of(a, c->y[i]));
    }
}

bool report_curves(FILE *out, const char *title, const char *columns, const char *test_columns,
                   double scale, const report_run *runs, int count)
{
    axes a = { LEFT, CURVE_WIDTH - 8, 10, 214, INFINITY, -INFINITY, INFINITY, -INFINITY };
    curve c;
    for (int i = 0; i < 2 * count; i++) {
        make_curve(&runs[i / 2].metrics, i % 2 == 0 ? columns : test_columns, scale, &c);
        for (int k = 0; k < c.points; k++) {
            a.x_low = fmin(a.x_low, c.x[k]);
            a.x_high = fmax(a.x_high, c.x[k]);
            a.y_low = fmin(a.y_low, c.y[k]);
            a.y_high = fmax(a.y_high, c.y[k]);
        }
    }
    if (a.y_low > a.y_high) {
        return false;
    }
    double room = fmax(0.05 * (a.y_high - a.y_low), fmax(1e-3 * fabs(a.y_high), 1e-12));
    a.y_low = a.y_low >= 0 && a.y_low < 6 * room ? 0 : a.y_low - room;
    a.y_high += room;
    a.x_high = fmax(a.x_high, a.x_low + 1);
    fprintf(out,
            "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 %d 250\" role=\"img\" "
            "aria-label=\"%s by step\">\n",
            title, CURVE_WIDTH, title);
    put_grid(out, &a);
    for (int i = 0; i < 2 * count; i++) {
        if (make_curve(&runs[i / 2].metrics, i % 2 == 0 ? columns : test_columns, scale, &c)) {
            put_curve(out, &a, &c, i / 2, i % 2 == 1);
        }
    }
    fputs("</svg></figure>\n", out);
    return true;
}

/* ---- one step ---- */

/* What colour an event has: a part of a step that of its kernels; "step" itself none. */
static report_kind colour_of(const report_trace *t, const report_event *e)
{
    const char *name = t->names[e->name];
    return e->kind != REPORT_PART              ? e->kind
           : strncmp(name, "forward", 7) == 0  ? REPORT_FORWARD
           : strncmp(name, "backward", 8) == 0 ? REPORT_BACKWARD
           : strcmp(name, "step") == 0         ? REPORT_KINDS
                                               : REPORT_OTHER;
}

/* A lane's events of one colour, as one path: neighbours are joined. */
static void put_spans(FILE *out, const axes *a, const report_trace *t, const report_lane *l,
                      report_kind colour, bool parts)
{
    double y = a->top + (parts ? 0 : PART_HEIGHT), from = 0, to = -1;
    int paths = 0;
    for (const report_event *e = l->first; e <= l->end; e++) {
        if (e < l->end && (colour_of(t, e) != colour || (e->kind == REPORT_PART) != parts ||
                           e->end < a->x_low || e->begin > a->x_high)) {
            continue;
        }
        double x = e < l->end ? x_of(a, e->begin) : INFINITY;
        if (x > to + 0.2 && to >= 0) {
            if (paths++ == 0) {
                fprintf(out, "<path class=\"k-%s\" d=\"", report_kind_names[colour]);
            }
            td_fprintf(out, "M%.1f %.1fH%.1fv%dH%.1fz", from, y, to,
                       parts ? PART_HEIGHT - 3 : SPAN_HEIGHT, from);
        }
        from = x > to + 0.2 ? x : from;
        to = e < l->end ? fmax(to, fmax(x + 0.3, x_of(a, e->end))) : to;
    }
    fputs(paths > 0 ? "\"/>\n" : "", out);
}

static void put_messages(FILE *out, const axes *a, const report_trace *t, const report_lane *l)
{
    for (const report_event *e = l->first; e < l->end; e++) {
        double x = x_of(a, e->begin), width = x_of(a, e->end) - x;
        double mib = (double)e->bytes / 1048576;
        if (e->kind == REPORT_MESSAGE && e->end > a->x_low && e->begin < a->x_high) {
            td_fprintf(out,
                       "<rect class=\"k-message\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                       "height=\"%d\"><title>",
                       x, a->top + PART_HEIGHT, fmax(width - 0.5, 0.5), SPAN_HEIGHT);
            report_html(out, "", t->names[e->name], "");
            td_fprintf(out, ": %.3g MiB in %.3g ms</title></rect>\n", mib,
                       (e->end - e->begin) / 1e3);
            if (width > 50) {
                td_fprintf(out, "<text class=\"in\" x=\"%.1f\" y=\"%.1f\">%.3g MiB</text>\n", x + 3,
                           a->top + PART_HEIGHT + 13, mib);
            }
        }
    }
}

static void put_memory(FILE *out, const axes *a, const report_trace *t, const report_lane *l)
{
    double most = 1;
    for (int64_t i = 0; i < t->count; i++) {
        most = t->events[i].kind == REPORT_MEMORY ? fmax(most, (double)t->events[i].bytes) : most;
    }
    td_fprintf(out, "<text class=\"small\" y=\"%.1f\">up to %.3g MiB</text>\n", a->bottom - 3,
               most / 1048576);
    td_fprintf(out, "<path class=\"memory\" d=\"M%.1f %.1f", a->left, a->bottom);
    for (const report_event *e = l->first; e < l->end; e++) {
        if (e->begin >= a->x_low && e->begin <= a->x_high) {
            td_fprintf(out, "H%.1fV%.1f", x_of(a, e->begin),
                       a->bottom - (a->bottom - a->top) * (double)e->bytes / most);
        }
    }
    td_fprintf(out, "H%.1fV%.1fz\"/>\n", a->right, a->bottom);
}

void report_timeline(FILE *out, const report_trace *t, int step)
{
    axes a = { .left = LABELS,
               .right = WIDTH - 4,
               .x_low = step < 0 ? 0 : INFINITY,
               .x_high = step < 0 ? t->end : 0 };
    for (int rank = 0; step >= 0 && rank < t->ranks; rank++) {
        a.x_low = fmin(a.x_low, t->steps[rank * t->step_count + step].begin);
        a.x_high = fmax(a.x_high, t->steps[rank * t->step_count + step].end);
    }
    a.x_high = fmax(a.x_high, a.x_low + 1);
    int lanes = t->lane_count < MOST_LANES ? t->lane_count : MOST_LANES;
    int height = 22 + LANE_HEIGHT * lanes;
    double range = a.x_high - a.x_low;
    ticks x = ticks_of(0, range, 8, 0);
    td_fprintf(out,
               "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s of %d ranks, %.4g ms\">\n",
               WIDTH, height, step < 0 ? "The whole trace" : "One step", t->ranks, range / 1e3);
    fputs("<text x=\"0\" y=\"11\">ms</text>\n", out);
    for (int i = 0; i < x.count; i++) {
        double at = x_of(&a, a.x_low + i * x.step);
        td_fprintf(out, "<path class=\"grid\" d=\"M%.1f 16V%d\"/>", at, height);
        put_number(out, "middle", at, 11, i * x.step / 1e3);
    }
    for (const report_lane *l = t->lanes; l < t->lanes + lanes; l++) {
        a.top = 20 + LANE_HEIGHT * (double)(l - t->lanes);
        a.bottom = a.top + LANE_HEIGHT - 5;
        td_fprintf(out, "<text y=\"%.1f\">rank %d", a.top + 14, l->first->rank);
        report_html(out, " ", l->name, "</text>\n");
        for (report_kind colour = REPORT_FORWARD; colour < REPORT_MEMORY; colour++) {
            if (colour != REPORT_MESSAGE) {
                put_spans(out, &a, t, l, colour, false);
                put_spans(out, &a, t, l, colour, true);
            }
        }
        put_messages(out, &a, t, l);
        if (l->first->kind == REPORT_MEMORY) {
            put_memory(out, &a, t, l);
        }
    }
    fputs("</svg>\n", out);
}

/* ---- all steps ---- */

/* Of the first rank; of long runs steps at equal distances. One share above the other. */
void report_stack(FILE *out, const report_trace *t)
{
    int stride = t->step_count / BINS + 1;
    axes a = { LEFT, WIDTH - 8, 8, 184, 1, t->step_count + 1, 0, 1e-6 };
    for (const report_step *s = t->steps; s < t->steps + t->step_count; s++) {
        a.y_high = fmax(a.y_high, (s->end - s->begin + s->share[REPORT_DATA]) / 950);
    }
    fprintf(out,
            "<svg viewBox=\"0 0 %d 220\" role=\"img\" aria-label=\"Milliseconds of each step\">\n",
            WIDTH);
    put_grid(out, &a);
    for (int share = 0; share < REPORT_SHARES; share++) {
        fprintf(out, "<path class=\"s%d\" d=\"", share);
        for (int step = 0; step < t->step_count; step += stride) {
            double x = x_of(&a, step + 1), low = 0, own = t->steps[step].share[share] / 1e3;
            for (int below = 0; below < share; below++) {
                low += t->steps[step].share[below] / 1e3;
            }
            td_fprintf(out, "M%.1f %.1fH%.1fV%.1fH%.1fz", x, y_of(&a, low + own),
                       x_of(&a, step + 1 + stride), y_of(&a, low), x);
        }
        fprintf(out, "\"><title>%s</title></path>\n", report_share_names[share]);
    }
    fputs("</svg>\n", out);
}
