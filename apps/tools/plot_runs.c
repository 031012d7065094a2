/* Draws what training runs have logged: loss, accuracy, learning rate and throughput of one run, or
 * of several side by side.
 *
 *     apps/plot_runs [--out runs.svg] DIR...
 *
 * DIR is what a lesson got as --log-dir, or train_net's OUT_DIR: the folder with metrics.csv.
 * gnuplot draws; the curves go to it as tables in its own script. */
#include "apps/tools/common/cli.h"
#include "apps/tools/plot_runs/run_table.h"
#include "tensor/temporary.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RUNS = 16, POINTS = 500, SERIES = 2, NAMES = 2 };

/* What may be in a panel, under the names that programs give it. */
typedef struct panel {
    const char *title;
    double scale;
    const char *range; /* of values, as gnuplot has it */
    struct {
        const char *name; /* in the legend */
        const char *columns[NAMES];
    } series[SERIES];
} panel;

static const panel panels[] = {
    { "loss", 1, "[*:*]", { { "train", { "train/loss", "loss" } }, { "test", { "test/loss" } } } },
    { "accuracy, % (training: mean of the epoch so far)",
      100,
      "[0:100]",
      { { "train", { "train/epoch_accuracy" } }, { "test", { "test/accuracy" } } } },
    { "learning rate", 1, "[0:*]", { { "", { "lr" } } } },
    { "images a second", 1, "[0:*]", { { "", { "images_per_second" } } } },
};
enum { LOSS = 0, PANELS = sizeof panels / sizeof *panels };

static const char *const colours[] = { "#1f5fb4", "#d0661a", "#2a8a3a", "#9040a0",
                                       "#b02030", "#707070", "#10a0a0", "#806010" };
enum { COLOURS = sizeof colours / sizeof *colours };

typedef struct plot {
    const char *out;
    int64_t width, height; /* 0: as the panels want */
    char **paths;
    int count;
    run_table runs[MOST_RUNS];
} plot;

/* Beyond this a linear scale shows the largest values only. */
static const double WIDE = 50;
/* Above and below the curves on a logarithmic scale, as a factor. */
static const double MARGIN = 1.25;

typedef struct extent {
    double low, high;
} extent;

/* ---- one curve ---- */

static int column_of(const run_table *run, int p, int s)
{
    for (int i = 0; i < NAMES && panels[p].series[s].columns[i] != NULL; i++) {
        int column = run_table_find(run, panels[p].series[s].columns[i]);
        if (column >= 0) {
            return column;
        }
    }
    return -1;
}

/* The mean of all points that fall into the same of POINTS parts of the steps: a million rows are
 * more than a picture has pixels. Widens `values` by what was written, and returns how many. */
static int write_points(FILE *script, const run_table *run, int column, double scale,
                        extent *values)
{
    double first = run_table_get(run, 0, 0), last = first;
    for (int64_t i = 0; i < run->rows; i++) {
        last = fmax(last, run_table_get(run, i, 0));
        first = fmin(first, run_table_get(run, i, 0));
    }
    double part = (last - first) / POINTS, step = 0, sum = 0;
    int64_t in_part = 0;
    int points = 0;
    for (int64_t i = 0; i < run->rows; i++) {
        double x = run_table_get(run, i, 0), y = run_table_get(run, i, column);
        if (!isnan(y)) {
            step += x;
            sum += y;
            in_part++;
        }
        double next = i + 1 < run->rows ? run_table_get(run, i + 1, 0) : INFINITY;
        bool ends = floor((next - first) / part) != floor((x - first) / part);
        if (in_part > 0 && (ends || run->rows <= POINTS || i + 1 == run->rows)) {
            double value = scale * sum / (double)in_part;
            fprintf(script, "%.9g %.9g\n", step / (double)in_part, value);
            values->low = fmin(values->low, value);
            values->high = fmax(values->high, value);
            points++;
            step = sum = 0;
            in_part = 0;
        }
    }
    return points;
}

/* ---- names ---- */

/* The last part of a path, which tells runs apart as a rule. */
static const char *short_name(const plot *p, int run)
{
    const char *path = p->paths[run], *slash = strrchr(path, '/');
    const char *name = slash != NULL && slash[1] != '\0' ? slash + 1 : path;
    for (int i = 0; i < p->count; i++) {
        size_t length = strlen(p->paths[i]), own = strlen(name);
        if (i != run && length >= own && strcmp(p->paths[i] + length - own, name) == 0) {
            return path;
        }
    }
    return name;
}

/* Text in gnuplot's single quotes. */
static void quote(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text != '\0'; text++) {
        fputs(*text == '\'' ? "''" : (char[]){ *text == '\n' ? ' ' : *text, '\0' }, script);
    }
    fputc('\'', script);
}

static void write_title(FILE *script, const plot *p, int run, const char *series)
{
    char title[4600];
    const char *name = p->count > 1 ? short_name(p, run) : "";
    snprintf(title, sizeof title, "%s%s%s", name, *name != '\0' && *series != '\0' ? ": " : "",
             series);
    fputs(*title != '\0' ? " title " : " notitle", script);
    if (*title != '\0') {
        quote(script, title);
    }
}

/* ---- the script ---- */

/* Training as lines; tests, of which there are few, as dots on a dashed line. */
static void write_style(FILE *script, int run, int series, int points)
{
    const char *colour = colours[run % COLOURS];
    if (series > 0) {
        fprintf(script, "with linespoints lc rgb '%s' dt 2 pt 7 ps 0.8", colour);
    } else if (points < 3) {
        fprintf(script, "with linespoints lc rgb '%s' lw 1.5 pt 1", colour);
    } else {
        fprintf(script, "with lines lc rgb '%s' lw 1.5", colour);
    }
}

/* Tables first, then the panel that shows them. Returns whether there was anything. */
static bool write_panel(FILE *script, const plot *p, int number)
{
    int points[MOST_RUNS][SERIES] = { { 0 } };
    extent values = { INFINITY, -INFINITY };
    bool any = false;
    for (int run = 0; run < p->count; run++) {
        for (int s = 0; s < SERIES; s++) {
            int column = column_of(&p->runs[run], number, s);
            if (column >= 0) {
                fprintf(script, "$p%dr%ds%d << END\n", number, run, s);
                points[run][s] =
                    write_points(script, &p->runs[run], column, panels[number].scale, &values);
                fputs("END\n", script);
                any = true;
            }
        }
    }
    if (!any) {
        return false;
    }
    fputs("set title ", script);
    quote(script, panels[number].title);
    bool wide = number == LOSS && values.low > 0 && values.high > WIDE * values.low;
    fputs("\nunset logscale y\n", script);
    if (wide) {
        fprintf(script, "set offsets 0, 0, 0, 0\nset yrange [%.6g:%.6g]\nset logscale y\nplot ",
                values.low / MARGIN, values.high * MARGIN);
    } else {
        fprintf(script, "set offsets 0, 0, graph 0.05, graph 0.05\nset yrange %s\nplot ",
                panels[number].range);
    }
    const char *comma = "";
    for (int s = 0; s < SERIES; s++) {
        for (int run = 0; run < p->count; run++) {
            if (points[run][s] > 0) {
                fprintf(script, "%s$p%dr%ds%d using 1:2 ", comma, number, run, s);
                write_style(script, run, s, points[run][s]);
                write_title(script, p, run, panels[number].series[s].name);
                comma = ", \\\n     ";
            }
        }
    }
    fputc('\n', script);
    return true;
}

static int count_panels(const plot *p)
{
    int count = 0;
    for (int number = 0; number < PANELS; number++) {
        bool any = false;
        for (int i = 0; i < p->count * SERIES; i++) {
            any = any || column_of(&p->runs[i / SERIES], number, i % SERIES) >= 0;
        }
        count += any;
    }
    return count;
}

static bool is_svg(const char *out)
{
    size_t length = strlen(out);
    return length >= 4 && strcmp(out + length - 4, ".svg") == 0;
}

static td_status write_script(FILE *script, const plot *p, const char *picture)
{
    int count = count_panels(p), columns = count > 1 ? 2 : 1, rows = (count + 1) / 2;
    if (count == 0) {
        return td_fail(TD_E_FORMAT, "%s: no column of loss, accuracy, lr or throughput in it",
                       p->paths[0]);
    }
    fprintf(script, "set terminal %s noenhanced size %" PRId64 ",%" PRId64 " font 'sans,11'%s\n",
            is_svg(p->out) ? "svg" : "pngcairo", p->width > 0 ? p->width : 560 * columns,
            p->height > 0 ? p->height : 360 * rows,
            is_svg(p->out) ? " background rgb 'white'" : "");
    fputs("set output ", script);
    quote(script, picture);
    fprintf(
        script,
        "\nset multiplot layout %d,%d\nset grid lc rgb '#c8c8c8'\nset xlabel 'step' offset 0,0.7\n"
        "set autoscale xfix\n"
        "set key outside bottom center horizontal samplen 2 height 1\n",
        rows, columns);
    for (int number = 0; number < PANELS; number++) {
        write_panel(script, p, number);
    }
    fputs("unset multiplot\nunset output\n", script);
    return fflush(script) == 0 && !ferror(script)
               ? TD_OK
               : td_fail(TD_E_IO, "the script for gnuplot cannot be written: %s", strerror(errno));
}

/* ---- gnuplot ---- */

static td_status run_gnuplot(const char *script)
{
    char command[4200], said[2048] = "";
    snprintf(command, sizeof command, "gnuplot '%s' 2>&1", script);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) {
        return td_fail(TD_E_IO, "gnuplot cannot be started: %s", strerror(errno));
    }
    size_t length = fread(said, 1, sizeof said - 1, pipe);
    said[length] = '\0';
    while (fgetc(pipe) != EOF) { /* it must not wait for us */
    }
    int code = pclose(pipe);
    if (WIFEXITED(code) && WEXITSTATUS(code) == 127) {
        return td_fail(TD_E_UNSUPPORTED,
                       "gnuplot is not installed: make deps, or apt install gnuplot-nox");
    }
    return code == 0 ? TD_OK : td_fail(TD_E_IO, "gnuplot failed: %s", said);
}

static td_status draw_with(FILE *script, const char *script_path, const plot *p)
{
    char *picture;
    int fd = td_temporary_open(p->out, &picture);
    if (fd < 0) {
        return td_fail(TD_E_IO, "%s: cannot be written: %s", p->out, strerror(errno));
    }
    close(fd); /* gnuplot opens it */
    td_status status = write_script(script, p, picture);
    if (status == TD_OK) {
        status = run_gnuplot(script_path);
    }
    if (status == TD_OK && rename(picture, p->out) != 0) {
        status = td_fail(TD_E_IO, "%s: cannot be written: %s", p->out, strerror(errno));
    }
    if (status != TD_OK) {
        unlink(picture);
    }
    free(picture);
    return status;
}

static td_status draw(const plot *p)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/plot_runs.XXXXXX", folder != NULL ? folder : "/tmp");
    int file = strchr(path, '\'') == NULL ? mkstemp(path) : -1;
    FILE *script = file >= 0 ? fdopen(file, "w") : NULL;
    if (script == NULL) {
        return td_fail(TD_E_IO, "%s: no temporary file can be made there", path);
    }
    td_status status = draw_with(script, path, p);
    fclose(script);
    unlink(path);
    return status;
}

/* ---- the program ---- */

static td_status run(plot *p)
{
    size_t length = strlen(p->out);
    if (!is_svg(p->out) && (length < 4 || strcmp(p->out + length - 4, ".png") != 0)) {
        return td_fail(TD_E_ARG, "--out %s: the name must end in .png or .svg", p->out);
    }
    if (p->count > MOST_RUNS) {
        return td_fail(TD_E_ARG, "%d runs are more than a picture can show; give %d at most",
                       p->count, MOST_RUNS);
    }
    for (int i = 0; i < p->count; i++) {
        TD_TRY(run_table_read(p->paths[i], &p->runs[i]));
    }
    return draw(p);
}

int main(int argc, char **argv)
{
    static plot p = { .out = "runs.png" };
    cli_option options[] = {
        { .name = "out",
          .argument = "FILE",
          .help = "Picture to write: a .png or an .svg",
          .kind = CLI_TEXT,
          .value = &p.out },
        { .name = "width",
          .argument = "N",
          .help = "Its width in pixels; 0: 560 for each of two columns",
          .kind = CLI_INT,
          .value = &p.width,
          .high = 20000 },
        { .name = "height",
          .argument = "N",
          .help = "Its height in pixels; 0: 360 for each row",
          .kind = CLI_INT,
          .value = &p.height,
          .high = 20000 },
    };
    cli_rest dirs = { .name = "DIR...", .wanted = "one folder", .least = 1 };
    cli_parse_rest(argc, argv,
                   "Draws loss, accuracy, learning rate and throughput of training runs from their "
                   "metrics.csv (--log-dir of the lessons, OUT_DIR of train_net).",
                   options, (int)(sizeof options / sizeof *options), &dirs);
    p.paths = dirs.values;
    p.count = dirs.count;
    td_status status = run(&p);
    for (int i = 0; i < p.count && i < MOST_RUNS; i++) {
        run_table_free(&p.runs[i]);
    }
    if (status != TD_OK) {
        fprintf(stderr, "plot_runs: %s\n", td_last_error());
        return EXIT_FAILURE;
    }
    printf("%s\n", p.out);
    return EXIT_SUCCESS;
}
