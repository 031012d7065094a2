/* Memory of lists that grow, and places in linked lists. */
#pragma once

#include <stdlib.h>

/* The memory of a list of `count` items, `size` bytes each, with room for one more: when it is
 * full, it grows twofold. NULL: memory is short, and the list is as it was. */
static inline void *td_list_room(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) {
        return items;
    }
    size_t more = *capacity > 0 ? 2 * *capacity : 8;
    void *grown = realloc(items, more * size);
    *capacity = grown != NULL ? more : *capacity;
    return grown;
}

/* In a linked list that begins at *list, whose items have a `next`: what points to the item; with
 * NULL, what ends the list. */
#define TD_LINK_TO(list, item)                                                                     \
    __extension__({                                                                                \
        __typeof__(list) td_link_ = (list);                                                        \
        while (*td_link_ != (item)) {                                                              \
            td_link_ = &(*td_link_)->next;                                                         \
        }                                                                                          \
        td_link_;                                                                                  \
    })
