/* How values become text in a file's metadata, and values again. */
#include "nn/io/records.h"

#include "autograd/hooks.h"
#include "nn/extra/inspect.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static char *put_string(const void *of)
{
    return td_format("%s", (const char *)of);
}

const td_text_kind td_text_string = { put_string, NULL, NULL };

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

static bool take_count(void *of, const char *text, bool set)
{
    int64_t count = 0;
    if (text != NULL && !td_read_count(text, TD_MOST_COUNT, &count)) {
        return false;
    }
    if (set) {
        *(int64_t *)of = count;
    }
    return true;
}

const td_text_kind td_text_count = { put_count, take_count, "which is no count" };

static char *put_rate(const void *of)
{
    return td_format("%.17g", *(const double *)of);
}

static bool take_rate(void *of, const char *text, bool set)
{
    char *end;
    double value = text != NULL ? strtod(text, &end) : 0;
    if (text != NULL && (end == text || *end != '\0' || !(value >= 0 && value < INFINITY))) {
        return false;
    }
    if (set && text != NULL) {
        *(double *)of = value;
    }
    return true;
}

const td_text_kind td_text_rate = { put_rate, take_rate, "which is no learning rate" };

static char *put_scaler(const void *of)
{
    td_scaler_state now = td_scaler_now((td_scaler *)(uintptr_t)of);
    return td_format("%.17g %" PRId64 " %" PRId64, now.scale, now.good, now.skipped);
}

/* A file without a scaler is of a run in another precision. */
static bool take_scaler(void *of, const char *text, bool set)
{
    td_scaler_state s;
    int used = 0;
    if (text == NULL) {
        return true;
    }
    if (sscanf(text, "%lf %" SCNd64 " %" SCNd64 "%n", &s.scale, &s.good, &s.skipped, &used) != 3 ||
        text[used] != '\0' || !(s.scale > 0 && s.scale < INFINITY) || s.good < 0 ||
        s.good > TD_MOST_COUNT || s.skipped < 0 || s.skipped > TD_MOST_COUNT) {
        return false;
    }
    if (set) {
        td_scaler_set(of, &s);
    }
    return true;
}

const td_text_kind td_text_scaler = { put_scaler, take_scaler,
                                      "which is no loss scale with two counts" };

static char *put_dropout(const void *of)
{
    const td_dropout_place *place = of;
    return td_format("%" PRIu64 " %" PRIu64, place->seed, place->calls);
}

static bool take_dropout(void *of, const char *text, bool set)
{
    td_dropout_place place;
    if (text == NULL || sscanf(text, "%" SCNu64 " %" SCNu64, &place.seed, &place.calls) != 2) {
        return false;
    }
    if (set) {
        *(td_dropout_place *)of = place;
    }
    return true;
}

const td_text_kind td_text_dropout = { put_dropout, take_dropout, "which is not two numbers" };

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

static bool take_generator(void *of, const char *text, bool set)
{
    td_generator g;
    uint64_t cached;
    int at = 0;
    if (text == NULL ||
        sscanf(text, "%" SCNu64 " %" SCNd32 " %" SCNd32 " %" SCNx64 " %n", &g.seed, &g.next,
               &g.has_cached, &cached, &at) != 4 ||
        at == 0 || g.next < 0 || g.next > WORDS || g.has_cached < 0 || g.has_cached > 1) {
        return false;
    }
    const char *words = text + at;
    if (strspn(words, "0123456789abcdef") != WORDS * DIGITS || words[WORDS * DIGITS] != '\0') {
        return false;
    }
    for (int i = 0; i < WORDS; i++) {
        (void)sscanf(words + (ptrdiff_t)DIGITS * i, "%8" SCNx32, &g.state[i]);
    }
    memcpy(&g.cached_normal, &cached, sizeof cached);
    if (set) {
        *(td_generator *)of = g;
    }
    return true;
}

const td_text_kind td_text_generator = { put_generator, take_generator,
                                         "which is no state of a generator" };

/* ---- the order of parameters in memory, "2 0 1": the k-th number is the k-th in memory ---- */

/* Whether a tape still knows of the parameters: what it has saved must not move. */
static bool in_use(const td_params *params)
{
    bool used = false;
    for (int i = 0; i < td_params_count(params); i++) {
        used = used || td_leaf_uses(td_params_get(params, i)->tensor) > 0;
    }
    return used;
}

static char *put_order(const void *of)
{
    enum { LONGEST = 12 }; /* of a number, and the space */
    int count = td_params_count(of);
    const int *order = td_params_order(of);
    char *text = malloc((size_t)count * LONGEST + 1);
    size_t at = 0;
    for (int k = 0; text != NULL && k < count; k++) {
        at += (size_t)snprintf(text + at, LONGEST + 1, "%s%d", k > 0 ? " " : "", order[k]);
    }
    return text;
}

/* The numbers of a text, which are a permutation, into order, of room for as many as the text has
 * bytes. Returns how many; 0: no permutation. */
static int read_order(const char *text, int *order)
{
    int count = 0;
    for (char *end; *text != '\0'; text = *end == ' ' ? end + 1 : end) {
        long number = strtol(text, &end, 10);
        if (end == text || (*end != ' ' && *end != '\0') || number < 0 || number > INT32_MAX) {
            return 0;
        }
        order[count++] = (int)number;
    }
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    bool valid = seen != NULL;
    for (int k = 0; valid && k < count; k++) {
        valid = order[k] < count && !seen[order[k]];
        if (valid) {
            seen[order[k]] = true;
        }
    }
    free(seen);
    return valid ? count : 0;
}

/* Other parameters may take gradients here than when the file was made: then the order has no
 * meaning, and the present one stays; so it does where ranks share state by its place. */
static bool take_order(void *of, const char *text, bool set)
{
    if (text == NULL || in_use(of) || td_params_peers_of(of) != NULL) {
        return true;
    }
    int count = td_params_count(of);
    int *order = calloc(strlen(text) + 1, sizeof *order);
    int there = order != NULL ? read_order(text, order) : 0;
    bool fits = there > 0;
    if (set && fits && there == count &&
        memcmp(order, td_params_order(of), (size_t)count * sizeof *order) != 0) {
        fits = td_params_reorder(of, order) == TD_OK;
    }
    free(order);
    return fits;
}

const td_text_kind td_text_order = { put_order, take_order, "which is no order" };
