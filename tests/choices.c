#include "tests/choices.h"

#include "tensor/tune/store.h"
#include "tensor/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const keys[] = { "test sum", "test product", "test quotient" };

static void make(bool ok)
{
    TD_REQUIRE(ok, TD_HERE, "choices: %s", td_last_error());
}

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
    td_plan_store *store = td_plan_store_of(owner);
    char *kept = td_plan_store_get(store, key, bytes);
    int way = kept != NULL ? read_way(kept) : -1;
    free(kept);
    *timed = way < 0;
    if (*timed) {
        const char text[] = "second (first 2.000 ms, second 1.000 ms)";
        way = read_way(text);
        td_plan_store_put(store, key, text, strlen(text));
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
    snprintf(path, sizeof path, "%s/plans-Test-%d-threads.txt", folder, td_threads(TD_CPU));
    return path;
}

void choices_force(const char *folder, const char *way)
{
    char owner[TD_PLAN_KEY_MAX];
    owner_of(owner);
    td_plan_cache *cache = td_plan_cache_new(owner);
    make(cache != NULL);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        make(td_plan_cache_put(cache, keys[i], way, strlen(way)) == TD_OK);
    }
    make(td_plan_cache_save(cache, choices_path(folder)) == TD_OK);
    td_plan_cache_free(cache);
    setenv("TANDEM_CACHE", folder, 1);
}
