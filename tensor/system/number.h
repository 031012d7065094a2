/* Numbers as files, options and messages have them: with a point before the decimals, also in a
 * program whose locale writes a comma. The rest of the library calls these functions, and never
 * strtod, sscanf or printf, for numbers that are not whole. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* As the functions of C whose names they have, in C's locale. */
double td_strtod(const char *text, char **end);
int td_snprintf(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int td_vsnprintf(char *text, size_t size, const char *format, va_list values)
    __attribute__((format(printf, 3, 0)));
int td_vasprintf(char **text, const char *format, va_list values)
    __attribute__((format(printf, 2, 0)));
int td_fprintf(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
