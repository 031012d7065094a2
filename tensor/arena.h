/* The arena: an allocator for the step memory of one device and one thread. The table of blocks
 * lies in the host's memory, so the arena works for devices whose memory the host cannot touch.
 *
 * A block is cut from the smallest hole that is large enough (the lowest one of equal holes). If no
 * hole is, the block comes after the last block. Neighbouring holes are joined. The first 256 KiB,
 * the nook, are for small blocks only: a loss that lives as long as the step would otherwise cut a
 * large hole in two.
 *
 *     nook             large blocks and holes                       top
 *     |s|s|  hole  |   activation   |  hole  |   activation   |     |  reserved addresses ...
 *
 * The address of a block depends only on the order of allocations and releases, not on how large
 * the arena has become. So equal steps get equal addresses.
 *
 * The arena first reserves a long range of addresses without memory. It maps memory to the range's
 * beginning as steps need more, and keeps that memory. So the arena grows in place. */
#pragma once

#include "tensor/extend.h"

typedef struct td_arena td_arena;

/* limit: the largest size of the arena in bytes; 0: all memory of this machine, container or
 * device. NULL with td_last_error(): memory is short. */
td_arena *td_arena_new(td_device device, size_t limit);

/* Gives all memory back to the system, and frees the arena. NULL is fine. */
void td_arena_free(td_arena *arena);

/* A block of at least 64 bytes, 64-byte aligned, contents undefined. NULL when memory is short. */
void *td_arena_take(td_arena *arena, size_t bytes);

/* Releases a block. An address at which no block begins is a fatal error. */
void td_arena_give(td_arena *arena, void *block);

/* Whether an address lies in the arena's range. */
bool td_arena_owns(const td_arena *arena, const void *address);

/* Releases all blocks; returns the bytes that were still in use. */
size_t td_arena_reset(td_arena *arena);

/* Starts the statistics of a new step. */
void td_arena_begin_step(td_arena *arena);
td_memory_stats td_arena_stats(const td_arena *arena);

/* The largest size that the arena can reach, in bytes. */
size_t td_arena_limit(const td_arena *arena);
