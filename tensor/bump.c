/* Allocates small objects that are all freed together. */
#include "tensor/bump.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 16, CHUNK_BYTES = 64 << 10 };

struct td_bump_chunk {
    struct td_bump_chunk *next;
    size_t bytes;
    alignas(UNIT) char data[];
};

/* Moves on to a chunk that has room: the next one, or a new one in front of it. */
static int next_chunk(td_bump *bump, size_t bytes)
{
    struct td_bump_chunk **link = bump->current != NULL ? &bump->current->next : &bump->first;
    if (*link == NULL || (*link)->bytes < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        struct td_bump_chunk *chunk = malloc(sizeof *chunk + size);
        if (chunk == NULL) {
            return -1;
        }
        chunk->next = *link;
        chunk->bytes = size;
        *link = chunk;
    }
    bump->current = *link;
    bump->used = 0;
    return 0;
}

void *td_bump_take(td_bump *bump, size_t bytes)
{
    size_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
    if (bump->current == NULL || bump->current->bytes - bump->used < rounded) {
        if (next_chunk(bump, rounded) != 0) {
            return NULL;
        }
    }
    void *memory = bump->current->data + bump->used;
    bump->used += rounded;
    return memset(memory, 0, bytes);
}

void td_bump_reset(td_bump *bump)
{
    bump->current = NULL;
    bump->used = 0;
}

void td_bump_free(td_bump *bump)
{
    struct td_bump_chunk *chunk = bump->first;
    while (chunk != NULL) {
        struct td_bump_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    *bump = (td_bump){ NULL, NULL, 0 };
}
