/* A hash, notices on stderr, and the name that was probably meant. */
#include "tensor/system/text.h"

#include "tensor/system/number.h"

#include <ctype.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void td_append(char *text, size_t size, const char *format, ...)
{
    size_t length = strlen(text);
    va_list values;
    va_start(values, format);
    td_vsnprintf(text + length, size - length, format, values);
    va_end(values);
}

/* ---- plain text ---- */

/* The character at *at of UTF-8, and *at behind it; 0: it is none. */
static uint32_t next_character(const unsigned char **at)
{
    static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };
    uint32_t c = *(*at)++;
    int more = c < 0x80 ? 0 : c < 0xc0 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf8 ? 3 : -1;
    if (more > 0) {
        c &= 0x3fu >> more;
    }
    for (int i = 0; i < more; i++) {
        if ((**at & 0xc0) != 0x80) {
            return 0;
        }
        c = c << 6 | (*(*at)++ & 0x3fu);
    }
    return more < 0 || c < least[more] ? 0 : c;
}

static bool is_plain(uint32_t c)
{
    bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    bool turns = (c >= 0x2028 && c < 0x202f) || (c >= 0x2066 && c < 0x206a); /* or breaks a line */
    bool none = (c >= 0xd800 && c < 0xe000) || c == 0xfeff || c == 0xfffe || c == 0xffff;
    return !control && !turns && !none && c <= 0x10ffff;
}

bool td_is_plain_text(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0' && is_plain(next_character(&at))) {
        text = (const char *)at;
    }
    return *text == '\0';
}

bool td_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        uint32_t c = next_character(&at);
        if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
            return false;
        }
    }
    return true;
}

void td_clean_text(char *text)
{
    for (const unsigned char *at = (unsigned char *)text, *begin = at; *at != '\0'; begin = at) {
        uint32_t c = next_character(&at);
        for (; begin < at && c != '\t' && !is_plain(c); begin++) {
            text[begin - (unsigned char *)text] = '?';
        }
    }
}

/* ---- notices ---- */

void td_notice(const char *format, ...)
{
    enum { KEPT = 16 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char said[KEPT][160];
    static int count;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    td_vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    td_clean_text(text);
    pthread_mutex_lock(&lock);
    bool again = count == KEPT;
    for (int i = 0; i < count; i++) {
        again = again || strncmp(said[i], text, sizeof said[i] - 1) == 0;
    }
    if (!again) {
        snprintf(said[count], sizeof said[count], "%.*s", (int)sizeof said[count] - 1, text);
        count++;
        fprintf(stderr, "tandem: %s\n", text);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the nearest name ---- */

enum { LONGEST = 63 }; /* letters that are looked at */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* The distance of Damerau and Levenshtein (neighbours swapped once): row i of the table is how far
 * the first i letters of a are from every beginning of b. */
static int distance(const char *a, const char *b)
{
    int rows[3][LONGEST + 1];
    int length_a = (int)strnlen(a, LONGEST), length_b = (int)strnlen(b, LONGEST);
    for (int j = 0; j <= length_b; j++) {
        rows[0][j] = j;
    }
    for (int i = 1; i <= length_a; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            int changed = above[j - 1] + !same(a[i - 1], b[j - 1]);
            row[j] = least(changed, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
                row[j] = least(row[j], two_above[j - 2] + 1);
            }
        }
    }
    return rows[length_a % 3][length_b];
}

/* As many letters as the word, then others: it has been cut short, whatever their number. */
static bool begins(const char *name, const char *word)
{
    return word[0] != '\0' && strncasecmp(name, word, strlen(word)) == 0;
}

const char *td_nearest_name(const char *word, const char *const *names, int count)
{
    const char *nearest = names[0];
    int best = INT_MAX;
    for (int i = 0; i < count; i++) {
        int here = begins(names[i], word) ? 1 : distance(word, names[i]);
        if (here < best) {
            best = here;
            nearest = names[i];
        }
    }
    return nearest;
}

const char *td_alike_name(const char *word, const char *const *names, int count)
{
    if (count == 0) {
        return NULL;
    }
    const char *name = td_nearest_name(word, names, count);
    bool alike = same(word[0], name[0]) || 2 * distance(word, name) <= (int)strnlen(word, LONGEST);
    return alike ? name : NULL;
}
