#include "nn/io/checkpoint_differ.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LISTED = 10 };

void td_differ(td_difference *d, const char *format, ...)
{
    size_t length = strlen(d->text);
    size_t left = sizeof d->text - length;
    if (d->count < LISTED && left > 8) {
        char item[256];
        va_list args;
        va_start(args, format);
        vsnprintf(item, sizeof item, format, args);
        va_end(args);
        snprintf(d->text + length, left, "%s%s", d->count > 0 ? ", " : "", item);
    }
    d->count++;
}

static void describe(const td_difference *d, char *text, size_t size)
{
    text[0] = '\0';
    if (d->count > 0) {
        snprintf(text, size, "\n  %s (%d): %s%s", d->what, d->count, d->text,
                 d->count > LISTED ? ", ..." : "");
    }
}

td_status td_differences_report(const td_differences *d, const char *path)
{
    if (d->missing.count + d->unexpected.count + d->unlike.count == 0) {
        return TD_OK;
    }
    char missing[640], unexpected[640], unlike[640];
    describe(&d->missing, missing, sizeof missing);
    describe(&d->unexpected, unexpected, sizeof unexpected);
    describe(&d->unlike, unlike, sizeof unlike);
    return td_fail(TD_E_MISMATCH,
                   "'%s' does not fit; nothing was loaded. Was it saved from another model or "
                   "optimizer, or one of other sizes?%s%s%s",
                   path, missing, unexpected, unlike);
}
