/* Arrays and texts that grow. */
#include "tensor/system/list.h"

#include <string.h>

bool td_grow(void *items, int64_t count, size_t size)
{
    void *now, *grown; /* copied, as *items has another type than void * */
    if ((count & (count - 1)) != 0) {
        return true;
    }
    memcpy(&now, items, sizeof now);
    grown = realloc(now, (size_t)(count > 0 ? 2 * count : 1) * size);
    if (grown != NULL) {
        memcpy(items, &grown, sizeof grown);
    }
    return grown != NULL;
}

bool td_add_text(char ***texts, int64_t count, const char *text)
{
    if (!td_grow(texts, count, sizeof **texts)) {
        return false;
    }
    (*texts)[count] = strdup(text);
    return (*texts)[count] != NULL;
}

void td_free_texts(char **texts, int64_t count)
{
    for (int64_t i = 0; texts != NULL && i < count; i++) {
        free(texts[i]);
    }
    free(texts);
}

int td_compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
