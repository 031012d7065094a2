/* Writes the page of a report: HTML with its style and script in it, which needs no other file. */
#include "apps/tools/report/report.h"

#include "tensor/system/number.h"
#include "tensor/system/temporary.h"

#include "build/report/page.inc" /* the lines of page.html, page.css and page.js */

enum { MOST_ROWS = 20 };

/* ---- text ---- */

/* Bytes that are not UTF-8 are left to the browser, which shows them as U+FFFD. */
void report_html(FILE *out, const char *before, const char *text, const char *after)
{
    fputs(before, out);
    for (; *text != '\0'; text++) {
        if (strchr("<>&\"'", *text) != NULL) {
            fprintf(out, "&#%d;", *text);
        } else {
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
        }
    }
    fputs(after, out);
}

void report_json(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || strchr("<>&\"'\\", *text) != NULL) {
            fprintf(out, "\\u%04x", *text);
        } else {
            fputc(*text, out);
        }
    }
    fputc('"', out);
}

/* A part of page.html: the lines after <!-- name -->. */
static void put_part(FILE *out, const char *name)
{
    bool inside = false;
    for (const char *const *line = page_html; *line != NULL; line++) {
        bool mark = strncmp(*line, "<!-- ", 5) == 0;
        if (inside && !mark) {
            fputs(*line, out);
        }
        size_t length = strlen(name);
        inside =
            mark ? strncmp(*line + 5, name, length) == 0 && (*line)[5 + length + 1] == '-' : inside;
    }
}

static void put_lines(FILE *out, const char *const *lines)
{
    for (; *lines != NULL; lines++) {
        fputs(*lines, out);
    }
}

/* ---- runs, curves, settings ---- */

static double last_value(const report_table *t, const char *columns)
{
    int column = report_column(t, columns);
    for (int64_t row = t->rows - 1; column >= 0 && row >= 0; row--) {
        if (isfinite(t->cells[row * t->columns + column])) {
            return t->cells[row * t->columns + column];
        }
    }
    return NAN;
}

/* What each run came to; the table is the key of the curves' colours, too. */
static void put_runs(FILE *out, const report_run *runs, int count)
{
    static const char *const columns[] = { "step", "train/epoch_loss epoch_loss train/loss loss",
                                           "test/loss", "test/accuracy",
                                           "images_per_second tokens_per_second" };
    put_part(out, "runs");
    for (int i = 0; i < count; i++) {
        fprintf(out, "<tr><th scope=\"row\"><i class=\"swatch c%d\"></i>", i % 7);
        report_html(out, "", runs[i].path, "</th>");
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            double value = last_value(&runs[i].metrics, columns[k]) * (k == 3 ? 100 : 1);
            td_fprintf(out, isfinite(value) ? "<td>%.5g</td>" : "<td></td>", value);
        }
        fputs("</tr>\n", out);
    }
    put_part(out, "table ends");
}

static void put_curves(FILE *out, const report_run *runs, int count)
{
    put_part(out, "curves");
    bool any = report_curves(out, "Loss", "train/loss loss", "test/loss", 1, runs, count);
    any |= report_curves(out, "Accuracy, %", "train/epoch_accuracy", "test/accuracy", 100, runs,
                         count);
    any |= report_curves(out, "Learning rate", "lr", NULL, 1, runs, count);
    any |= report_curves(out, "Images a second", "images_per_second", NULL, 1, runs, count);
    any |= report_curves(out, "Tokens a second", "tokens_per_second", NULL, 1, runs, count);
    fputs("</div>\n", out);
    put_part(out, any ? "" : "no curves");
    fputs("</section>\n", out);
}

/* NULL: the run has no such setting. */
static const char *setting_of(const report_run *run, const char *key)
{
    for (int i = 0; i < run->settings.count; i++) {
        if (strcmp(run->settings.keys[i], key) == 0) {
            return run->settings.values[i];
        }
    }
    return NULL;
}

/* The row of a setting, if it differs as asked, and unless a run before `run` has it, too. */
static int put_setting(FILE *out, const report_run *runs, int count, int run, int index,
                       bool differ)
{
    const char *key = runs[run].settings.keys[index], *own = setting_of(&runs[run], key);
    bool before = own == NULL || own != runs[run].settings.values[index], differs = false;
    for (int i = 0; i < count && !before; i++) {
        const char *other = setting_of(&runs[i], key);
        before = i < run && other != NULL;
        differs = differs || other == NULL || strcmp(other, own) != 0;
    }
    if (before || differs != differ) {
        return 0;
    }
    report_html(out, "<tr><th scope=\"row\">", key, "</th>");
    for (int i = 0; i < count; i++) {
        const char *value = setting_of(&runs[i], key);
        report_html(out, "<td>", value != NULL ? value : "-", "</td>");
    }
    fputs("</tr>\n", out);
    return 1;
}

static void put_settings(FILE *out, const report_run *runs, int count)
{
    int rows = 0;
    put_part(out, "settings");
    for (int differ = count > 1; differ >= 0; differ--) {
        put_part(out, differ ? "settings that differ" : "other settings");
        for (int i = 0; i < count; i++) {
            report_html(out, "<th>", runs[i].path, "");
        }
        fputs("</tr></thead>\n<tbody>\n", out);
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < runs[i].settings.count; k++) {
                rows += put_setting(out, runs, count, i, k, differ != 0);
            }
        }
        put_part(out, "table ends");
    }
    put_part(out, rows > 0 ? "settings end" : "no settings");
}

/* ---- a trace ---- */

static double steps_counted(const report_trace *t)
{
    return fmax(t->step_count - report_first_step(t), 1);
}

/* The name of a kernel without its module. */
static void put_kernel(FILE *out, const char *before, const char *name)
{
    char kernel[64];
    snprintf(kernel, sizeof kernel, "%.*s", report_kernel_length(name), name);
    report_html(out, before, kernel, "");
}

/* What limits a step, in one sentence. */
static void put_limit(FILE *out, const report_trace *t, const report_row *rows, int count)
{
    static const char *const says[REPORT_SHARES] = {
        "Compute limits the step: kernels run",
        "Communication limits the step: a message is under way and no kernel runs",
        "Waiting for other ranks limits the step: nothing else happens",
        "The host limits the step: neither a kernel runs nor a message is under way",
        "Data limits the step: it waits for its batch",
    };
    report_step mean = report_mean_step(t);
    report_share most = REPORT_COMPUTE;
    double whole = mean.end + mean.share[REPORT_DATA] + 1e-9;
    for (report_share i = REPORT_COMPUTE; i < REPORT_SHARES; i++) {
        most = mean.share[i] > mean.share[most] ? i : most;
    }
    td_fprintf(out, "<p class=\"limit\">%s for %.4g of its %.4g ms (%.0f&nbsp;%%).", says[most],
               mean.share[most] / 1e3, whole / 1e3, 100 * mean.share[most] / whole);
    for (int i = 0; i < count && most == REPORT_COMPUTE; i++) {
        if (rows[i].kind <= REPORT_OPTIMIZER) {
            put_kernel(out, " Most of that takes ", t->names[rows[i].name]);
            td_fprintf(out, " (%s): %.4g ms.", report_kind_names[rows[i].kind],
                       rows[i].time / 1e3 / steps_counted(t));
            break;
        }
    }
    fputs("</p>\n", out);
}

static void put_shares(FILE *out, const report_trace *t)
{
    report_step mean = report_mean_step(t);
    double whole = mean.end + mean.share[REPORT_DATA] + 1e-9, x = 0;
    fputs("<svg class=\"bar\" viewBox=\"0 0 960 22\" preserveAspectRatio=\"none\" "
          "aria-hidden=\"true\">",
          out);
    for (int i = 0; i < REPORT_SHARES; i++) {
        double width = 960 * mean.share[i] / whole;
        td_fprintf(out, "<rect class=\"s%d\" x=\"%.1f\" width=\"%.1f\" height=\"22\"/>", i, x,
                   width);
        x += width;
    }
    fputs("</svg>\n", out);
    put_part(out, "shares");
    for (int i = 0; i < REPORT_SHARES; i++) {
        td_fprintf(out,
                   "<tr><th scope=\"row\"><i class=\"swatch s%d\"></i>%s</th><td>%.3f</td>"
                   "<td>%.1f</td></tr>\n",
                   i, report_share_names[i], mean.share[i] / 1e3, 100 * mean.share[i] / whole);
    }
    double hidden = mean.messages - mean.share[REPORT_EXPOSED];
    td_fprintf(out,
               "<tr><th scope=\"row\">communication hidden by kernels</th><td>%.3f</td><td></td>"
               "</tr>\n</tbody></table>\n",
               hidden / 1e3);
}

/* The kernels, or the messages. */
static void put_rows(FILE *out, const report_trace *t, const report_row *rows, int count,
                     bool messages)
{
    double whole = 0, steps = steps_counted(t);
    int shown = 0;
    for (int i = 0; i < count; i++) {
        whole += rows[i].kind <= REPORT_OPTIMIZER ? rows[i].time : 0;
    }
    for (const report_row *r = rows; r < rows + count && shown < MOST_ROWS; r++) {
        if (r->kind == REPORT_WAIT || (r->kind == REPORT_MESSAGE) != messages) {
            continue;
        }
        put_part(out, shown++ > 0 ? "" : messages ? "messages" : "kernels");
        fputs("<tr><th scope=\"row\">", out);
        if (messages) {
            report_html(out, "", t->names[r->name], "");
        } else {
            put_kernel(out, "", t->names[r->name]);
        }
        td_fprintf(out, "</th><td><i class=\"swatch k-%s\"></i>%s</td><td>%.4g</td><td>%.3f</td>",
                   report_kind_names[r->kind], report_kind_names[r->kind], (double)r->calls / steps,
                   r->time / 1e3 / steps);
        if (messages) {
            td_fprintf(out, "<td>%.3f</td>", (double)r->bytes / 1048576 / (double)r->calls);
        }
        td_fprintf(out, "<td>%.3g</td></tr>\n",
                   messages ? (double)r->bytes / (r->time + 1e-9) / 1e3 : 100 * r->time / whole);
    }
    put_part(out, shown > 0 ? "table ends" : "");
}

static td_status put_trace(FILE *out, const report_run *run)
{
    const report_trace *t = &run->trace;
    report_row *rows;
    int count;
    report_html(out, "<section class=\"trace\"><h2>Where the time goes: ", run->path, "</h2>\n");
    if (t->count == 0) {
        put_part(out, "no trace");
        fputs("</section>\n", out);
        return TD_OK;
    }
    TD_TRY(report_rows(t, &rows, &count));
    put_part(out, t->cut ? "cut" : "");
    if (t->step_count > 0) {
        put_limit(out, t, rows, count);
        put_shares(out, t);
    }
    put_part(out, t->step_count > 0 ? "step" : "no steps");
    report_timeline(out, t, report_typical_step(t));
    put_part(out, "legend");
    if (t->step_count > 0) {
        put_part(out, "stack");
        report_stack(out, t);
        fputs("</div>\n", out);
    }
    put_rows(out, t, rows, count, false);
    put_rows(out, t, rows, count, true);
    fputs("</section>\n", out);
    free(rows);
    return TD_OK;
}

/* ---- the page ---- */

td_status report_page(FILE *out, const report_run *runs, int count)
{
    put_part(out, "head");
    report_html(out, "<title>", runs->path, count > 1 ? " and others</title>\n" : "</title>\n");
    fputs("<style>\n", out);
    put_lines(out, page_css);
    fputs("</style>\n</head>\n<body>\n<header><h1>", out);
    for (int i = 0; i < count; i++) {
        report_html(out, i > 0 ? ", " : "", runs[i].path, "");
    }
    fputs("</h1></header>\n<main>\n", out);
    put_runs(out, runs, count);
    put_curves(out, runs, count);
    for (int i = 0; i < count; i++) {
        TD_TRY(put_trace(out, &runs[i]));
    }
    put_settings(out, runs, count);
    put_part(out, "foot");
    fprintf(out, "<p>Made by tandem %s.</p></footer>\n", td_version());
    fputs("<script type=\"application/json\" id=\"traces\">[", out);
    for (int i = 0, packed = 0; i < count; i++) {
        if (runs[i].trace.count > 0) {
            fputs(packed++ > 0 ? ",\n" : "", out);
            report_pack(out, &runs[i].trace);
        }
    }
    fputs("]</script>\n<script>\n", out);
    put_lines(out, page_js);
    fputs("</script>\n</body>\n</html>\n", out);
    return TD_OK;
}

td_status report_write(const char *path, char *const *paths, int count)
{
    report_run *runs = calloc((size_t)count, sizeof *runs);
    td_status status = runs != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory for a report");
    for (int i = 0; i < count && status == TD_OK; i++) {
        status = report_read(paths[i], &runs[i]);
    }
    char *name = NULL;
    FILE *out;
    status = status == TD_OK ? td_temporary_begin(path, 0, &out, &name) : status;
    if (status == TD_OK) {
        status = td_temporary_end(out, name, path, 0, report_page(out, runs, count));
    }
    for (int i = 0; runs != NULL && i < count; i++) {
        report_run_free(&runs[i]);
    }
    free(runs);
    return status;
}
