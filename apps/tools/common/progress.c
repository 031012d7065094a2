/* Prints the progress of a run: whole lines, and one live line on a terminal. */
#include "apps/tools/common/progress.h"
#include "tensor/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define AVERAGE_WEIGHT 0.1 /* of the newest step in the moving average */

void progress_begin(progress *p, bool speaks, int64_t steps_left)
{
    const char *terminal = getenv("TERM");
    *p = (progress){ .speaks = speaks, .steps_left = steps_left, .last = td_clock() };
    p->live = speaks && isatty(STDERR_FILENO) && terminal != NULL && strcmp(terminal, "dumb") != 0;
}

void progress_end(progress *p)
{
    if (p->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        p->shown = false;
    }
}

void progress_eta(const progress *p, char *text, size_t size)
{
    int64_t epochs = p->steps > 0 ? (p->steps_left + p->steps - 1) / p->steps : 0;
    int64_t left =
        (int64_t)((double)p->steps_left * p->step_seconds + (double)epochs * p->between + 0.5);
    snprintf(text, size, "%" PRId64 ":%02d:%02d", left / 3600, (int)(left / 60 % 60),
             (int)(left % 60));
}

static void draw(progress *p, const progress_point *now)
{
    struct winsize size;
    char accuracy[32] = "", left[32], text[256];
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    int width = known ? size.ws_col - 1 : 79; /* a full last column would wrap */
    if (now->accuracy >= 0) {
        snprintf(accuracy, sizeof(accuracy), "  acc %.2f%%", 100.0 * now->accuracy);
    }
    progress_eta(p, left, sizeof(left));
    snprintf(text, sizeof(text),
             "epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64
             "  %.0f %s/s  loss %.4f%s  ETA %s",
             now->epoch, now->epochs, now->step, now->steps, progress_rate(p, now->batch),
             p->tokens ? "tokens" : "images", now->loss, accuracy, left);
    fprintf(stderr, "\r\033[K%.*s", width, text);
    fflush(stderr);
    p->shown = true;
    p->drawn = p->last;
}

void progress_epoch(progress *p, int64_t steps)
{
    double now = td_clock();
    if (p->steps > 0) {
        p->between = now - p->last;
    }
    p->steps = steps;
    p->last = now;
}

void progress_step(progress *p, const progress_point *now)
{
    double time = td_clock();
    double seconds = time - p->last;
    p->step_seconds = p->step_seconds == 0
                          ? seconds
                          : p->step_seconds + AVERAGE_WEIGHT * (seconds - p->step_seconds);
    p->last = time;
    p->steps_left--;
    if (p->live && (!p->shown || time - p->drawn > REDRAW_SECONDS)) {
        draw(p, now);
    }
}

double progress_rate(const progress *p, int64_t batch)
{
    return p->step_seconds > 0 ? (double)batch / p->step_seconds : 0;
}

void progress_print(progress *p, const char *format, ...)
{
    if (!p->speaks) {
        return;
    }
    progress_end(p);
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    putchar('\n');
    fflush(stdout);
}
