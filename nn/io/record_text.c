/* How values become text in a file's metadata, and values again; and differences text. */
#include "nn/io/records.h"

#include "autograd/hooks.h"
#include "tensor/system/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

const td_text_kind td_text_rate = { put_rate, read_rate, "which is no learning rate", true, NULL };

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

const td_text_kind td_text_dropout = { put_dropout, read_dropout, "which is not two numbers", false,
                                       NULL };

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
    const int *order = params->order;
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
                 memcmp(numbers, params->order, (size_t)there * sizeof *numbers) != 0;
    *order = other ? numbers : NULL;
    free(other ? NULL : numbers);
    free(seen);
    return valid;
}

/* ---- differences ---- */

enum { LISTED = 10 }; /* differences in a message */

void td_differ(td_difference *d, const char *format, ...)
{
    size_t length = strlen(d->text), left = sizeof d->text - length;
    if (d->count < LISTED && left > 16) {
        char item[256];
        va_list args;
        va_start(args, format);
        td_vsnprintf(item, sizeof item, format, args);
        va_end(args);
        snprintf(d->text + length, left - 6, "%s%s", d->count > 0 ? ", " : "", item);
    } else if (d->count == LISTED) { /* room was left for it */
        memcpy(d->text + length, ", ...", 6);
    }
    d->count++;
}
