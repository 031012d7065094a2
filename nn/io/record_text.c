/* How values become text in a file's metadata, and values again. */
#include "nn/io/records.h"

#include "autograd/hooks.h"
#include "nn/extra/inspect.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/extend.h"
#include "tensor/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

char *td_format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int length = td_vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        td_fail(TD_E_NOMEM, "no memory for a name in a checkpoint");
        return NULL;
    }
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

const td_text_kind td_text_count = { put_count, read_count, "which is no count", false };

static char *put_rate(const void *of)
{
    return td_format("%.17g", *(const double *)of);
}

static bool read_rate(const char *text, void *to)
{
    char *end;
    double *rate = to;
    *rate = td_strtod(text, &end);
    return end != text && *end == '\0' && *rate >= 0 && *rate < INFINITY;
}

const td_text_kind td_text_rate = { put_rate, read_rate, "which is no learning rate", true };

static char *put_scaler(const void *of)
{
    const td_scaler_state *s = of;
    return td_format("%.17g %" PRId64 " %" PRId64, s->scale, s->good, s->skipped);
}

static bool read_scaler(const char *text, void *to)
{
    td_scaler_state *s = to;
    char *counts;
    int used = 0;
    s->scale = td_strtod(text, &counts);
    return sscanf(counts, " %" SCNd64 " %" SCNd64 "%n", &s->good, &s->skipped, &used) == 2 &&
           counts[used] == '\0' && counts != text && s->scale > 0 && s->scale < INFINITY &&
           s->good >= 0 && s->good <= TD_MOST_COUNT && s->skipped >= 0 &&
           s->skipped <= TD_MOST_COUNT;
}

/* A file without a scaler is of a run in another precision. */
const td_text_kind td_text_scaler = { put_scaler, read_scaler,
                                      "which is no loss scale with two counts", true };

static char *put_dropout(const void *of)
{
    const td_dropout_place *place = of;
    return td_format("%" PRIu64 " %" PRIu64, place->seed, place->calls);
}

static bool read_dropout(const char *text, void *to)
{
    td_dropout_place *place = to;
    return sscanf(text, "%" SCNu64 " %" SCNu64, &place->seed, &place->calls) == 2;
}

const td_text_kind td_text_dropout = { put_dropout, read_dropout, "which is not two numbers",
                                       false };

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
    return valid;
}

const td_text_kind td_text_generator = { put_generator, read_generator,
                                         "which is no state of a generator", false };

/* ---- the order of parameters in memory ---- */

/* Whether a tape still knows of the parameters: what it has saved must not move. */
static bool in_use(const td_params *params)
{
    bool used = false;
    for (int i = 0; i < td_params_count(params); i++) {
        used = used || td_leaf_uses(td_params_get(params, i)->tensor) > 0;
    }
    return used;
}

char *td_order_text(const td_params *params)
{
    enum { LONGEST = 12 }; /* of a number, and the space */
    int count = td_params_count(params);
    const int *order = td_params_order(params);
    char *text = malloc((size_t)count * LONGEST + 1);
    size_t at = 0;
    for (int k = 0; text != NULL && k < count; k++) {
        at += (size_t)snprintf(text + at, LONGEST + 1, "%s%d", k > 0 ? " " : "", order[k]);
    }
    return text;
}

/* Other parameters may take gradients here than when the file was made: then the order has no
 * meaning, and the present one stays; so it does where ranks share state by its place. */
bool td_order_read(const char *text, const td_params *params, int **order)
{
    if (in_use(params) || td_params_peers_of(params) != NULL) {
        return true;
    }
    size_t room = strlen(text) + 1;
    int *numbers = calloc(room, sizeof *numbers), there = 0;
    bool *seen = calloc(room, sizeof *seen);
    bool valid = numbers != NULL && seen != NULL;
    long most = -1;
    for (char *end; valid && *text != '\0'; text = *end == ' ' ? end + 1 : end, there++) {
        long number = strtol(text, &end, 10);
        valid = end != text && (*end == ' ' || *end == '\0') && number >= 0 &&
                number < (long)room && !seen[number];
        if (valid) {
            seen[number] = true;
            numbers[there] = (int)number;
            most = number > most ? number : most;
        }
    }
    valid = valid && there > 0 && most == there - 1; /* each number once */
    bool other = valid && there == td_params_count(params) &&
                 memcmp(numbers, td_params_order(params), (size_t)there * sizeof *numbers) != 0;
    *order = other ? numbers : NULL;
    free(other ? NULL : numbers);
    free(seen);
    return valid;
}
