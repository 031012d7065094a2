/* The reader of kept plans (tensor/tune/store.c) against invented files: all or nothing of a file
 * is taken over, and what was there before stays. */
#include "tensor/tune/store.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    td_plan_cache *cache = td_plan_cache_new("a GPU");
    require(cache != NULL);
    require(td_plan_cache_put(cache, "mine", "{}", 2) == TD_OK);
    td_status status = td_plan_cache_parse(cache, data, size);
    require(status == TD_OK || td_plan_cache_count(cache) == 1);
    size_t bytes = 0;
    const char *mine = td_plan_cache_get(cache, "mine", &bytes);
    require(mine != NULL && bytes == 2 && memcmp(mine, "{}", 2) == 0);
    td_plan_cache_free(cache);
    return 0;
}
