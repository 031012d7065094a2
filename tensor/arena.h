/* The arena: step memory of one device and one thread. The host reads and writes the table of
 * blocks only, never the memory of a device that is not a CPU.
 *
 * Blocks come from the smallest hole that fits (the lowest one of equals) or, if none fits, from
 * behind the last block; neighbouring holes are joined. Small blocks look among the first bytes
 * first, which larger ones leave to them, so that they do not cut large holes in two. Where a block
 * lies depends on the order of takes and gives alone, not on how far the arena has grown, so equal
 * steps get equal addresses.
 *
 * A large stretch of addresses is reserved at first, without memory; memory is added at its end as
 * it is needed and stays. So the arena grows in place. */
#ifndef TD_TENSOR_ARENA_H
#define TD_TENSOR_ARENA_H

#include "tensor/extend.h"
#include "tensor/step.h"

typedef struct td_arena td_arena;

/* limit: the most bytes that it may hold; 0: what this machine, container or device has. NULL with
 * td_last_error(). */
td_arena *td_arena_new(td_device device, size_t limit);

/* Gives all memory back to the system. NULL is fine. */
void td_arena_free(td_arena *arena);

/* A block of at least 64 bytes, 64-byte aligned, contents undefined. NULL when memory is short. */
void *td_arena_take(td_arena *arena, size_t bytes);

/* Gives a block back. Fatal if it is none of the arena's. */
void td_arena_give(td_arena *arena, void *block);

/* Whether an address lies in the arena's stretch. */
bool td_arena_owns(const td_arena *arena, const void *address);

/* Gives all blocks back; what had been taken is returned in bytes. */
size_t td_arena_reset(td_arena *arena);

/* Starts the figures of a new step. */
void td_arena_begin_step(td_arena *arena);
td_memory_stats td_arena_stats(const td_arena *arena);

/* The most bytes that it can hold. */
size_t td_arena_limit(const td_arena *arena);

#endif
