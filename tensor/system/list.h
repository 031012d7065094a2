/* Memory of lists that grow, and places in linked lists. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Makes room for one more item of `size` bytes in an array of `count`. items: the address of the
 * pointer to the array, of any type; the pointer of an empty array may be NULL. All of the array's
 * memory comes from here (or is of one item): it doubles when the count is a power of two. false:
 * no memory, and the array is unchanged. */
bool td_grow(void *items, int64_t count, size_t size);
/* Adds a copy of the text to such an array, whose count the caller increases; false: no memory. */
bool td_add_text(char ***texts, int64_t count, const char *text);
/* Frees such an array and its texts, of which some may be NULL. NULL is fine. */
void td_free_texts(char **texts, int64_t count);
/* Compares two of its texts, for qsort and bsearch. */
int td_compare_texts(const void *a, const void *b);

/* For a list that is filled again and again: the memory of `count` items, `size` bytes each, with
 * room for one more; when it is full, it grows twofold. NULL: memory is short, and the list is as
 * it was. */
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

/* The address of the pointer to the item in a linked list that begins at *list, whose items have a
 * `next`; item NULL: of the pointer that ends the list. The item must be in the list. */
#define TD_LINK_TO(list, item)                                                                     \
    __extension__({                                                                                \
        __typeof__(list) td_link_ = (list);                                                        \
        while (*td_link_ != (item)) {                                                              \
            td_link_ = &(*td_link_)->next;                                                         \
        }                                                                                          \
        td_link_;                                                                                  \
    })
