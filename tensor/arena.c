/* The allocator of step memory: the smallest hole that is large enough, the lowest first. */
#include "tensor/arena.h"

#include "tensor/backend.h"
#include "tensor/system/container.h"
#include "tensor/hooks.h"
#include "tensor/system/list.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
enum { GUARD = TD_ALIGNMENT }; /* bytes behind each block that nobody may touch */
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
enum { GUARD = 0 };
#endif

_Static_assert(sizeof(void *) == 8, "tandem needs a 64-bit machine: addresses here have 64 bits");

enum {
    GROWTH = 2 << 20,  /* bytes; a huge page */
    DEVICE_UNIT = 256, /* bytes; what libraries for GPUs expect addresses to be a multiple of */
    SMALL = 16 << 10,  /* bytes; blocks up to this size lie in the nook while there is room */
    NOOK = 256 << 10,  /* bytes; keeps small blocks from splitting the holes for large ones */
};

/* A part of the arena, taken or free. The table of blocks is in ascending order, without gaps, from
 * 0 to top; two free blocks are never neighbours, and the last block is never free. The nook, the
 * first NOOK bytes, ends with a block that is always taken, so that no hole reaches out of it. */
typedef struct block {
    size_t offset, bytes;
    bool taken;
} block;

struct td_arena {
    td_device device;
    const td_backend *backend; /* NULL: the memory is the CPU's */
    char *base;
    size_t reserved;  /* addresses */
    size_t committed; /* bytes from base that have memory */
    size_t top;       /* the end of the last block */
    bool has_nook;    /* while there are blocks */
    block *blocks;
    size_t count, capacity;
    td_memory_stats stats; /* reserved is filled in when asked */
};

/* ---- memory from the system ---- */

static size_t arena_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* What this process may use: the machine's memory, or less in a container, where going beyond means
 * being killed without a word. */
static size_t available_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    size_t physical = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)8 << 30;
    size_t group = td_container_memory_now().limit;
    return group < physical ? group : physical;
}

/* Reserves addresses, aligned to GROWTH; under a limit on them (ulimit -v) takes what there is. */
static bool reserve_addresses(td_arena *arena, size_t limit)
{
    size_t bytes = arena_round_up(limit, GROWTH);
    char *start = MAP_FAILED;
    while (bytes > 0) {
        start = mmap(NULL, bytes + GROWTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
        if (start != MAP_FAILED) {
            break;
        }
        bytes = bytes / 2 / GROWTH * GROWTH;
    }
    if (start == MAP_FAILED) {
        return false;
    }
    size_t skip = (size_t)(-(uintptr_t)start % GROWTH);
    if (skip > 0) {
        munmap(start, skip);
    }
    munmap(start + skip + bytes, GROWTH - skip);
    arena->base = start + skip;
    arena->reserved = bytes;
    return true;
}

static bool commit_on_device(td_arena *arena, size_t bytes)
{
    size_t reached = arena->backend->commit(arena->device, arena->base, bytes);
    arena->stats.growths += reached > arena->committed;
    arena->committed = reached;
    return bytes <= reached;
}

/* Adds memory so that the first `bytes` can be used. */
static bool commit(td_arena *arena, size_t bytes)
{
    if (bytes > arena->committed && arena->backend != NULL) {
        return bytes <= arena->reserved && commit_on_device(arena, bytes);
    }
    size_t target = arena_round_up(bytes, GROWTH);
    if (bytes <= arena->committed) {
        return true;
    }
    if (bytes > arena->reserved) {
        return false;
    }
    char *start = arena->base + arena->committed;
    size_t more = target - arena->committed;
    if (mprotect(start, more, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    /* Huge pages, where the system allows them. Measured with ResNet-18, against the same program
     * with PR_SET_THP_DISABLE: a first step 5 to 15 % shorter for want of page faults, later ones 0
     * to 2 %; no more memory, since the arena grows by whole huge pages anyway. A system may stall
     * at first touch to make room for them, but that is once, in the first step. */
    madvise(start, more, MADV_HUGEPAGE);
    ASAN_POISON_MEMORY_REGION(start, more);
    arena->committed = target;
    arena->stats.growths++;
    return true;
}

static bool reserve(td_arena *arena, size_t limit)
{
    if (arena->backend == NULL) {
        if (reserve_addresses(arena, limit > 0 ? limit : available_memory())) {
            return true;
        }
        td_fail(TD_E_NOMEM, "no addresses for step memory: raise the limit on them (ulimit -v)");
        return false;
    }
    arena->reserved = limit;
    arena->base = arena->backend->reserve(arena->device, &arena->reserved);
    return arena->base != NULL;
}

td_arena *td_arena_new(td_device device, size_t limit)
{
    td_arena *arena = calloc(1, sizeof *arena);
    TD_CHECK_NULL(arena != NULL, TD_E_NOMEM, "out of memory for the table of step memory");
    arena->device = device;
    arena->backend = td_backend_of(device);
    if (!reserve(arena, limit)) {
        free(arena);
        return NULL;
    }
    td_arena_begin_step(arena);
    return arena;
}

void td_arena_free(td_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    if (arena->backend != NULL) {
        arena->backend->release(arena->device, arena->base);
    } else {
        ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->committed);
        munmap(arena->base, arena->reserved);
    }
    free(arena->blocks);
    free(arena);
}

/* ---- the table of blocks ---- */

static bool insert_block(td_arena *arena, size_t at, block b)
{
    block *blocks = td_list_room(arena->blocks, arena->count, &arena->capacity, sizeof b);
    if (blocks == NULL) {
        return false;
    }
    arena->blocks = blocks;
    memmove(&arena->blocks[at + 1], &arena->blocks[at], (arena->count - at) * sizeof b);
    arena->blocks[at] = b;
    arena->count++;
    return true;
}

static void remove_block(td_arena *arena, size_t at)
{
    arena->count--;
    memmove(&arena->blocks[at], &arena->blocks[at + 1], (arena->count - at) * sizeof(block));
}

/* The index of the smallest hole of at least `bytes`, in the nook or outside, or count. */
static size_t best_hole(const td_arena *arena, size_t bytes, bool in_nook)
{
    size_t best = arena->count, nook = arena->has_nook ? NOOK : 0;
    for (size_t i = 0; i < arena->count; i++) {
        const block *b = &arena->blocks[i];
        if (!b->taken && b->bytes >= bytes && (b->offset < nook) == in_nook &&
            (best == arena->count || b->bytes < arena->blocks[best].bytes)) {
            best = i;
        }
    }
    return best;
}

/* The index of the taken block at an offset, or count. */
static size_t find_block(const td_arena *arena, size_t offset)
{
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (arena->blocks[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found =
        low < arena->count && arena->blocks[low].offset == offset && arena->blocks[low].taken;
    return found ? low : arena->count;
}

/* ---- poison: 0xff is NaN for every float type, and -1 or 255 for integers ---- */

static void poison(const td_arena *arena, size_t offset, size_t bytes)
{
    if (arena->backend != NULL) {
        return;
    }
    char *start = arena->base + offset;
#ifdef TD_DEBUG
    ASAN_UNPOISON_MEMORY_REGION(start, bytes);
    memset(start, 0xff, bytes);
#endif
    ASAN_POISON_MEMORY_REGION(start, bytes);
}

static void unpoison(const td_arena *arena, size_t offset, size_t bytes)
{
    if (arena->backend != NULL) {
        return;
    }
    char *start = arena->base + offset;
    ASAN_UNPOISON_MEMORY_REGION(start, bytes);
#ifdef TD_DEBUG
    memset(start, 0xff, bytes);
#endif
}

/* ---- taking and giving ---- */

/* Turns a hole into a block of `bytes` and a smaller hole; false if the table cannot grow. */
static bool take_hole(td_arena *arena, size_t hole, size_t bytes)
{
    block whole = arena->blocks[hole];
    if (whole.bytes > bytes) {
        block rest = { whole.offset + bytes, whole.bytes - bytes, false };
        if (!insert_block(arena, hole + 1, rest)) {
            return false;
        }
    }
    arena->blocks[hole] = (block){ whole.offset, bytes, true };
    return true;
}

static bool take_top(td_arena *arena, size_t bytes)
{
    if (bytes > arena->reserved - arena->top || !commit(arena, arena->top + bytes)) {
        return false;
    }
    if (!insert_block(arena, arena->count, (block){ arena->top, bytes, true })) {
        return false;
    }
    arena->top += bytes;
    return true;
}

/* Before the first block. Where there are few addresses, there is no nook. */
static void open_nook(td_arena *arena, size_t unit)
{
    block hole = { 0, NOOK - unit, false }, end = { NOOK - unit, unit, true };
    arena->has_nook = arena->reserved >= 256 * (size_t)NOOK && commit(arena, NOOK) &&
                      insert_block(arena, 0, end) && insert_block(arena, 0, hole);
    if (!arena->has_nook) {
        arena->count = 0;
    }
    arena->top = arena->has_nook ? NOOK : 0;
}

static void count_take(td_arena *arena, size_t offset, size_t bytes)
{
    td_memory_stats *stats = &arena->stats;
    stats->allocations++;
    stats->in_use += bytes;
    stats->peak = stats->in_use > stats->peak ? stats->in_use : stats->peak;
    /* FNV-1a over words. */
    const uint64_t prime = 0x100000001b3u;
    stats->address_hash = (stats->address_hash ^ offset) * prime;
    stats->address_hash = (stats->address_hash ^ bytes) * prime;
}

void *td_arena_take(td_arena *arena, size_t bytes)
{
    if (bytes > arena->reserved) {
        return NULL;
    }
    size_t unit = arena->backend != NULL ? DEVICE_UNIT : TD_ALIGNMENT;
    size_t rounded = arena_round_up((bytes > 0 ? bytes : 1) + GUARD, unit);
    if (arena->count == 0) {
        open_nook(arena, unit);
    }
    size_t hole = rounded <= SMALL ? best_hole(arena, rounded, true) : arena->count;
    if (hole == arena->count) {
        hole = best_hole(arena, rounded, false);
    }
    bool from_hole = hole < arena->count;
    if (from_hole ? !take_hole(arena, hole, rounded) : !take_top(arena, rounded)) {
        return NULL;
    }
    size_t offset = from_hole ? arena->blocks[hole].offset : arena->top - rounded;
    count_take(arena, offset, rounded);
    unpoison(arena, offset, bytes);
    td_tell_taken(arena, arena->device, offset, rounded);
    return arena->base + offset;
}

bool td_arena_owns(const td_arena *arena, const void *address)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)arena->base;
    return offset < arena->reserved;
}

void td_arena_give(td_arena *arena, void *address)
{
    size_t at = arena->count;
    if (td_arena_owns(arena, address)) {
        at = find_block(arena, (size_t)((char *)address - arena->base));
    }
    TD_REQUIRE(at < arena->count, TD_NOWHERE,
               "step memory at %p is given back, but it is not taken: given back twice?", address);
    block *b = &arena->blocks[at];
    poison(arena, b->offset, b->bytes);
    arena->stats.in_use -= b->bytes;
    b->taken = false;
    td_tell_given(arena, b->offset);

    if (at + 1 < arena->count && !b[1].taken) {
        b->bytes += b[1].bytes;
        remove_block(arena, at + 1);
    }
    if (at > 0 && !b[-1].taken) {
        b[-1].bytes += b->bytes;
        remove_block(arena, at--);
    }
    if (at + 1 == arena->count) { /* the last one: what is behind it is free as well */
        arena->top = arena->blocks[at].offset;
        arena->count--;
    }
}

size_t td_arena_reset(td_arena *arena)
{
    size_t taken = arena->stats.in_use;
    if (taken > 0) {
        poison(arena, 0, arena->top);
    }
    arena->count = 0;
    arena->top = 0;
    arena->stats.in_use = 0;
    return taken;
}

void td_arena_begin_step(td_arena *arena)
{
    arena->stats.peak = arena->stats.in_use;
    arena->stats.allocations = 0;
    arena->stats.address_hash = 0xcbf29ce484222325u; /* FNV's start */
}

td_memory_stats td_arena_stats(const td_arena *arena)
{
    td_memory_stats stats = arena->stats;
    stats.reserved = arena->committed;
    return stats;
}

size_t td_arena_limit(const td_arena *arena)
{
    return arena->reserved;
}
