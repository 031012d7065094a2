/* A bump allocator, for small objects that are all freed together: each allocation comes right
 * after the one before, in chunks of 64 KiB. td_bump_reset keeps the chunks. So the same
 * allocations after a reset need no malloc and get the same addresses. */
#pragma once

#include <stddef.h>

typedef struct td_bump {
    struct td_bump_chunk *first, *current; /* NULL: none yet */
    size_t used;                           /* bytes of the current one */
} td_bump;

/* Zeroed, 16-byte aligned memory. NULL when memory is short. */
void *td_bump_take(td_bump *bump, size_t bytes);

/* Frees all objects, and keeps the chunks for the next ones. */
void td_bump_reset(td_bump *bump);

/* Frees all objects and chunks. */
void td_bump_free(td_bump *bump);
