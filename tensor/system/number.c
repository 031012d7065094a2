/* Numbers, read and written in C's locale whatever the program's is. */
#include "tensor/system/number.h"

#include <locale.h>
#include <stdlib.h>

/* This thread's calls of the C library are in C's locale until end_plain. C's own locale is a
 * constant of the C library, which is neither made nor freed. */
static locale_t begin_plain(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static void end_plain(locale_t before)
{
    uselocale(before);
}

double td_strtod(const char *text, char **end)
{
    locale_t before = begin_plain();
    double value = strtod(text, end);
    end_plain(before);
    return value;
}

int td_vsnprintf(char *text, size_t size, const char *format, va_list values)
{
    locale_t before = begin_plain();
    int length = vsnprintf(text, size, format, values);
    end_plain(before);
    return length;
}

int td_snprintf(char *text, size_t size, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = td_vsnprintf(text, size, format, values);
    va_end(values);
    return length;
}

int td_vasprintf(char **text, const char *format, va_list values)
{
    locale_t before = begin_plain();
    int length = vasprintf(text, format, values);
    end_plain(before);
    return length;
}

int td_fprintf(FILE *file, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    locale_t before = begin_plain();
    int length = vfprintf(file, format, values);
    end_plain(before);
    va_end(values);
    return length;
}
