/*
 * The order of tasks, each a block of a result's rows times a panel of its columns.
 *
 * The blocks of a panel follow each other, so that its weights stay in the cache. A thread's share
 * is a range of tasks (tensor/cpu/pool.h). Normally the blocks are cut into parts, one for each
 * thread, so a thread computes all panels of its blocks. With one part it would compute some
 * columns of all rows: it would read the whole source, and write next to other threads everywhere;
 * and cores that write next to each other fetch lines from each other. Only if there are many more
 * weights than rows, there is one part, and the threads begin at different blocks.
 */
#pragma once

#include <stdint.h>

typedef struct td_turns {
    int64_t blocks, panels;
    int64_t parts;  /* of the blocks; all panels of a part come before the next part */
    int64_t starts; /* blocks at which panels begin, one after the other; 1: all at the first */
} td_turns;

/* `weights` are the elements of all panels, `rows` those of the rows' source and result; of both
 * only their ratio matters. */
static inline td_turns td_turns_make(int64_t blocks, int64_t panels, int64_t weights, int64_t rows,
                                     int threads)
{
    enum { RATIO = 4 }; /* 1 and 1000 took 0.5 % longer in a step of ResNet-18, batch 32 */
    int64_t most = threads < blocks ? threads : blocks;
    return weights < RATIO * rows ? (td_turns){ blocks, panels, most, 1 }
                                  : (td_turns){ blocks, panels, 1, threads };
}

/* The block and panel of a task, of blocks * panels. */
static inline void td_turn(const td_turns *t, int64_t task, int64_t *block, int64_t *panel)
{
    int64_t part = ((task / t->panels + 1) * t->parts - 1) / t->blocks;
    int64_t first = t->blocks * part / t->parts;
    int64_t count = t->blocks * (part + 1) / t->parts - first, rest = task - first * t->panels;
    *panel = rest / count;
    int64_t start = *panel * t->starts / t->panels * count / t->starts; /* of a thread's share */
    *block = first + (rest + start) % count;
}
