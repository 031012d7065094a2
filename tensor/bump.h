/* Bump memory for small things that end together: taken one behind the other, given back all at
 * once. Chunks are kept, so that a second round of the same takes calls no malloc and gets the same
 * addresses. */
#ifndef TD_TENSOR_BUMP_H
#define TD_TENSOR_BUMP_H

#include <stddef.h>

typedef struct td_bump {
    struct td_bump_chunk *first, *current; /* NULL: none yet */
    size_t used;                           /* bytes of the current one */
} td_bump;

/* Zeroed, 16-byte aligned memory. NULL when memory is short. */
void *td_bump_take(td_bump *bump, size_t bytes);

/* Gives everything back to the bump... */
void td_bump_reset(td_bump *bump);

/* ...and to the system. */
void td_bump_free(td_bump *bump);

#endif
