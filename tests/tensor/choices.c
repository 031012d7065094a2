/* Operations that can be computed in two ways, and choices made in advance. */
#include "tests/tensor/choices.h"

#include "tensor/tune/store.h"
#include "tensor/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const keys[] = { "test sum", "test product", "test quotient" };

static void owner_of(char owner[TD_PLAN_KEY_MAX])
{
    snprintf(owner, TD_PLAN_KEY_MAX, "Test, %d threads", td_threads(TD_CPU));
}

/* The way that a text names in its first word: 0 or 1; -1: neither. */
static int read_way(const char *text)
{
    size_t length = strcspn(text, " ");
    return length == 5 && strncmp(text, "first", 5) == 0    ? 0
           : length == 6 && strncmp(text, "second", 6) == 0 ? 1
                                                            : -1;
}

/* As a device does it: from the file, or else by a clock, here one that always says the same. */
static char *choose(const void *problem, size_t *bytes, bool *timed)
{
    const char *key = keys[*(const int *)problem], *ways[] = { "first", "second" };
    char owner[TD_PLAN_KEY_MAX];
    owner_of(owner);
    char *kept = td_plan_get(owner, key, bytes);
    int way = kept != NULL ? read_way(kept) : -1;
    free(kept);
    *timed = way < 0;
    if (*timed) {
        const char text[] = "second (first 2.000 ms, second 1.000 ms)";
        way = read_way(text);
        td_plan_put(owner, key, text, strlen(text));
    }
    *bytes = strlen(ways[way]);
    return strdup(ways[way]);
}

uint64_t choices_step(void)
{
    uint64_t ways = 0;
    td_step_begin();
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        char *text = td_autotune_choice(keys[i], &bytes, choose, &i, sizeof i);
        ways = 2 * ways + (text != NULL && read_way(text) == 1);
        free(text);
    }
    td_step_end();
    return ways;
}

const char *choices_path(const char *folder)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/Test-%d-threads/test-quotient", folder, td_threads(TD_CPU));
    return path;
}

void choices_force(const char *folder, const char *way)
{
    char owner[TD_PLAN_KEY_MAX];
    owner_of(owner);
    setenv("TANDEM_CACHE", folder, 1);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        td_plan_put(owner, keys[i], way, strlen(way));
    }
}
