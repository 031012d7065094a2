/* Texts of a checkpoint's parts: counts, and the states of generators. */
#include "tensor/part.h"

#include "tensor/extend.h"
#include "tensor/system/number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

char *td_format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int length = td_vasprintf(&text, format, args);
    va_end(args);
    TD_CHECK_NULL(length >= 0, TD_E_NOMEM, "no memory for a name in a checkpoint");
    return text;
}

static char *put_count(const void *of)
{
    return td_format("%" PRId64, *(const int64_t *)of);
}

bool td_read_count(const char *text, int64_t most, int64_t *count)
{
    char *end;
    *count = strtoll(text, &end, 10);
    return end != text && *end == '\0' && *count >= 0 && *count <= most;
}

static bool read_count(const char *text, void *to)
{
    return td_read_count(text, TD_MOST_COUNT, to);
}

const td_text_kind td_text_count = { put_count, read_count, "which is no count", false, NULL };

/* ---- a generator's whole state ---- */

enum { WORDS = 624, DIGITS = 8 /* of a word */ };

static char *put_generator(const void *of)
{
    const td_generator *g = of;
    uint64_t cached;
    memcpy(&cached, &g->cached_normal, sizeof cached);
    char words[WORDS * DIGITS + 1];
    for (int i = 0; i < WORDS; i++) {
        snprintf(words + (ptrdiff_t)DIGITS * i, DIGITS + 1, "%08" PRIx32, g->state[i]);
    }
    return td_format("%" PRIu64 " %d %d %016" PRIx64 " %s", g->seed, (int)g->next,
                     (int)g->has_cached, cached, words);
}

static bool read_generator(const char *text, void *to)
{
    td_generator *g = to;
    uint64_t cached = 0;
    int at = 0;
    bool valid = sscanf(text, "%" SCNu64 " %" SCNd32 " %" SCNd32 " %" SCNx64 " %n", &g->seed,
                        &g->next, &g->has_cached, &cached, &at) == 4 &&
                 g->next >= 0 && g->next <= WORDS && g->has_cached >= 0 && g->has_cached <= 1 &&
                 at > 0 && strspn(text + at, "0123456789abcdef") == WORDS * DIGITS &&
                 text[at + WORDS * DIGITS] == '\0';
    for (int i = 0; valid && i < WORDS; i++) {
        (void)sscanf(text + at + (ptrdiff_t)DIGITS * i, "%8" SCNx32, &g->state[i]);
    }
    memcpy(&g->cached_normal, &cached, sizeof cached);
    g->order = (td_epoch_order){ 0 };
    return valid;
}

const td_text_kind td_text_generator = { put_generator, read_generator,
                                         "which is no state of a generator", false, NULL };

/* ---- the order of an epoch ---- */

static const char *const order_words[] = { "", "in order", "own" };

static char *put_order(const void *of)
{
    const td_epoch_order *o = of;
    return o->kind == TD_ORDER_SHUFFLED ? td_format("shuffled %" PRIu64 " %" PRIu64 " %" PRId64,
                                                    o->seed, o->epoch, o->length)
                                        : td_format("%s", order_words[o->kind]);
}

static bool read_order(const char *text, void *to)
{
    td_epoch_order *o = to;
    *o = (td_epoch_order){ 0 };
    for (int kind = 0; kind < TD_ORDER_SHUFFLED; kind++) {
        if (strcmp(text, order_words[kind]) == 0) {
            o->kind = kind;
            return true;
        }
    }
    int used = 0;
    o->kind = TD_ORDER_SHUFFLED;
    return sscanf(text, "shuffled %" SCNu64 " %" SCNu64 " %" SCNd64 "%n", &o->seed, &o->epoch,
                  &o->length, &used) == 3 &&
           text[used] == '\0';
}

const td_text_kind td_text_order = { put_order, read_order, "which is no order of samples", true,
                                     NULL };
