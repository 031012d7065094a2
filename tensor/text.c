/* A hash, notices on stderr, and the name that was probably meant. */
#include "tensor/text.h"

#include "tensor/number.h"

#include <ctype.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
