/* A schedule drawn: as text, played with a unit of time for each action, and as SVG, with the
 * times of a step. */
#include "dist/pipeline/stages.h"

#include "tensor/system/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The part of the time in which ranks wait. */
static double picture_bubble(const td_plan *plan, const td_action *list, double all)
{
    double busy = 0.0;
    for (int64_t i = 0; i < (int64_t)plan->ranks * td_plan_count(plan); i++) {
        busy += list[i].end - list[i].begin;
    }
    return 1.0 - busy / (all * plan->ranks);
}

/* ---- text ---- */

/* Forwards are digits, backwards letters; of a divided one the second half is a capital. */
static char picture_letter(td_action a)
{
    return a.kind == 'F'   ? (char)('0' + a.micro % 10)
           : a.kind == 'W' ? (char)('A' + a.micro % 26)
                           : (char)('a' + a.micro % 26);
}

/* line: zeros, one more than `width`, the units of time. */
static void picture_write(const td_plan *plan, const td_action *list, char *line, size_t width,
                          FILE *out)
{
    int count = td_plan_count(plan);
    for (int r = 0; r < plan->ranks; r++) {
        memset(line, '.', width);
        for (int i = r * count; i < (r + 1) * count; i++) {
            size_t length = (size_t)(list[i].end - list[i].begin);
            memset(line + (size_t)list[i].begin, picture_letter(list[i]), length);
        }
        fprintf(out, "rank %-3d %s\n", r, line);
    }
    td_fprintf(out, "bubble   %.3f\n", picture_bubble(plan, list, (double)width));
}

td_status td_schedule_text(const char *schedule, int ranks, int micro, FILE *out)
{
    td_plan plan;
    TD_CHECK(ranks >= 1 && ranks <= 1024, TD_E_ARG,
             "td_schedule_text: %d ranks: 1 to 1024 are possible", ranks);
    TD_TRY(td_plan_read(schedule, ranks, micro, &plan));
    td_action *list = td_plan_all(&plan);
    double all = list != NULL ? td_plan_play(&plan, list) : -1.0;
    char *line = all >= 0.0 ? calloc((size_t)all + 1, 1) : NULL;
    if (line != NULL) {
        picture_write(&plan, list, line, (size_t)all, out);
    }
    free(line);
    free(list);
    return line != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory to play a schedule");
}

/* ---- SVG ---- */

enum { LEFT = 60, TOP = 24, WIDTH = 900, LANE = 34 };

static void picture_box(FILE *out, td_action a, int rank, double all)
{
    const char *fill = a.kind == 'F' ? "#4c78a8" : a.kind == 'W' ? "#72b7b2" : "#f58518";
    double x = LEFT + WIDTH * a.begin / all, width = WIDTH * (a.end - a.begin) / all;
    int y = TOP + LANE * rank;
    td_fprintf(out,
               "<rect x='%.1f' y='%d' width='%.1f' height='%d' fill='%s' fill-opacity='%.2f' "
               "stroke='white'><title>%c of micro-batch %d, chunk %d: %.2f ms</title></rect>\n",
               x, y, width, LANE - 6, fill, 1.0 / (1 + a.chunk % 3), a.kind, a.micro, a.chunk,
               1e3 * (a.end - a.begin));
    if (width > 9.0) {
        td_fprintf(out, "<text x='%.1f' y='%d' text-anchor='middle' fill='black'>%d</text>\n",
                   x + width / 2, y + 18, a.micro);
    }
}

/* The earliest action begins at 0. */
static void picture_svg(const td_plan *plan, const td_action *list, double all, FILE *out)
{
    int count = td_plan_count(plan);
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' "
            "font-family='sans-serif' font-size='12'>\n",
            LEFT + WIDTH + 10, TOP + LANE * plan->ranks + 24);
    for (int r = 0; r < plan->ranks; r++) {
        fprintf(out, "<text x='4' y='%d'>rank %d</text>\n", TOP + LANE * r + 18, r);
        for (int i = r * count; i < (r + 1) * count; i++) {
            picture_box(out, list[i], r, all);
        }
    }
    td_fprintf(out,
               "<text x='%d' y='14'>forward blue, backward orange, weights' half green; %.1f ms, "
               "bubble %.3f</text>\n</svg>\n",
               LEFT, 1e3 * all, picture_bubble(plan, list, all));
}

static td_status picture_save(const td_plan *plan, const td_action *list, double all,
                              const char *path)
{
    FILE *out = fopen(path, "w");
    bool written = false;
    if (out != NULL) {
        picture_svg(plan, list, all, out);
        written = !ferror(out);
        written = fclose(out) == 0 && written;
    }
    return written ? TD_OK : td_fail(TD_E_IO, "cannot write '%s': %s", path, strerror(errno));
}

/* Gathers all ranks' actions, rank after rank; *time: from the first one's beginning, which becomes
 * 0, to the last one's end. */
static td_status picture_gather(const td_pipe *p, td_tensor **gathered, double *time)
{
    int64_t count = td_plan_count(&p->plan), bytes = count * (int64_t)sizeof(td_action);
    TD_TRY(p->actions != NULL ? TD_OK : td_fail(TD_E_ARG, "td_pipeline_picture: no step yet"));
    td_tensor *mine = td_from(p->actions, TD_SHAPE(bytes), TD_U8, TD_CPU);
    *gathered = td_zeros(TD_SHAPE(p->plan.ranks, bytes), TD_U8, TD_CPU);
    td_status status = mine != NULL && *gathered != NULL
                           ? td_all_gather(p->group, *gathered, mine, NULL)
                           : TD_E_NOMEM;
    td_free(mine);
    TD_TRY(status);
    td_action *all = td_data_rw(*gathered);
    double first = all[0].begin;
    for (int64_t i = 0; i < p->plan.ranks * count; i++) {
        first = fmin(first, all[i].begin);
    }
    for (int64_t i = 0; i < p->plan.ranks * count; i++) {
        all[i].begin -= first;
        all[i].end -= first;
        *time = fmax(*time, all[i].end);
    }
    return TD_OK;
}

td_status td_pipeline_picture(td_module *net, const char *path, double *bubble)
{
    td_pipe *p = td_pipe_of(net, "td_pipeline_picture", TD_NOWHERE);
    td_tensor *gathered = NULL;
    double time = 0.0;
    td_status status = picture_gather(p, &gathered, &time);
    if (status == TD_OK && bubble != NULL) { /* every rank has all actions */
        *bubble = picture_bubble(&p->plan, td_data(gathered), time);
    }
    if (status == TD_OK && p->rank == 0) {
        status = picture_save(&p->plan, td_data(gathered), time, path);
    }
    td_free(gathered);
    return td_group_agree(p->group, status);
}
