/* Random states, and the order of parameters, as text in a checkpoint's metadata. */
#include "nn/io/checkpoint_internal.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stdlib.h>

enum { WORDS = 624, WORD_DIGITS = 8 };

char *td_format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        td_fail(TD_E_NOMEM, "no memory for a name in a checkpoint");
        return NULL;
    }
    return text;
}

void td_generator_to_text(const td_generator *g, char text[TD_GENERATOR_TEXT])
{
    uint64_t cached;
    memcpy(&cached, &g->cached_normal, sizeof cached);
    int at = snprintf(text, TD_GENERATOR_TEXT, "%" PRIu64 " %d %d %016" PRIx64 " ", g->seed,
                      (int)g->next, (int)g->has_cached, cached);
    for (int i = 0; i < WORDS; i++) {
        at += snprintf(text + at, (size_t)(TD_GENERATOR_TEXT - at), "%08" PRIx32, g->state[i]);
    }
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_word(const char *text, uint32_t *word)
{
    *word = 0;
    for (int i = 0; i < WORD_DIGITS; i++) {
        int digit = digit_value(text[i]);
        if (digit < 0) {
            return false; /* the end of the text, too */
        }
        *word = *word << 4 | (uint32_t)digit;
    }
    return true;
}

bool td_generator_from_text(const char *text, td_generator *g)
{
    uint64_t cached;
    int next, has_cached, at = 0;
    if (sscanf(text, "%" SCNu64 " %d %d %" SCNx64 " %n", &g->seed, &next, &has_cached, &cached,
               &at) != 4 ||
        at == 0 || next < 0 || next > WORDS || has_cached < 0 || has_cached > 1) {
        return false;
    }
    g->next = next;
    g->has_cached = has_cached;
    memcpy(&g->cached_normal, &cached, sizeof cached);
    for (int i = 0; i < WORDS; i++, at += WORD_DIGITS) {
        if (!read_word(text + at, &g->state[i])) {
            return false;
        }
    }
    return text[at] == '\0';
}

/* ---- orders ---- */

char *td_order_to_text(const int *order, int count)
{
    enum { DIGITS = 12 }; /* of a number, and the space */
    char *text = malloc((size_t)count * DIGITS + 1);
    if (text == NULL) {
        td_fail(TD_E_NOMEM, "no memory for the order of %d parameters", count);
        return NULL;
    }
    size_t at = 0;
    text[0] = '\0';
    for (int k = 0; k < count; k++) {
        at += (size_t)snprintf(text + at, DIGITS + 1, "%s%d", k > 0 ? " " : "", order[k]);
    }
    return text;
}

/* How many numbers; negative: there is something else. */
static int count_numbers(const char *text)
{
    int count = 0;
    while (*text != '\0') {
        char *end;
        (void)strtol(text, &end, 10);
        if (end == text || (*end != ' ' && *end != '\0')) {
            return -1;
        }
        count++;
        text = *end == ' ' ? end + 1 : end;
    }
    return count;
}

bool td_order_from_text(const char *text, int *order, int count, bool *same_count)
{
    int there = count_numbers(text);
    bool *seen = there > 0 ? calloc((size_t)there, sizeof *seen) : NULL;
    bool valid = seen != NULL;
    *same_count = there == count;
    for (int k = 0; valid && k < there; k++) {
        char *end;
        long number = strtol(text, &end, 10);
        valid = number >= 0 && number < there && !seen[number];
        if (valid) {
            seen[number] = true;
        }
        if (valid && *same_count) {
            order[k] = (int)number;
        }
        text = *end == ' ' ? end + 1 : end;
    }
    free(seen);
    return valid;
}

void td_check_extra(const td_checkpoint *checkpoint, const char *function)
{
    for (int i = 0; i < checkpoint->extra_count; i++) {
        const td_named_tensor *item = &checkpoint->extra[i];
        bool named =
            item->name != NULL && strncmp(item->name, TD_KEY_EXTRA, strlen(TD_KEY_EXTRA)) == 0;
        TD_REQUIRE(named && item->tensor != NULL, TD_HERE,
                   "%s: extra[%d] is '%s': it needs a tensor and a name that begins with '%s'",
                   function, i, item->name != NULL ? item->name : "NULL", TD_KEY_EXTRA);
    }
}
