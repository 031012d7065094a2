/*
 * The order of tasks, each a block of a result's rows times a panel of its columns.
 *
 * The blocks of a panel follow each other, so that its weights stay in the cache. But a thread's
 * share are tasks in a row (tensor/cpu/pool.h): so it would have some columns of all rows, read the
 * whole source, and write beside what another thread writes, all over the result; and where one
 * core writes next to another's lines, they fetch them from each other. Unless the panels weigh
 * more than the rows, the result is therefore cut into parts, one for each thread. Otherwise the
 * threads begin at different blocks.
 */
#ifndef TD_TENSOR_CPU_TURNS_H
#define TD_TENSOR_CPU_TURNS_H

#include <stdint.h>

typedef struct td_turns {
    int64_t blocks, panels;
    int64_t part;    /* blocks of which all panels come before other blocks */
    int64_t threads; /* that have different panels of the same blocks */
} td_turns;

/* Elements that the panels have, and those that the rows have, of the source and the result. */
static inline td_turns td_turns_make(int64_t blocks, int64_t panels, int64_t in_panels,
                                     int64_t in_rows, int threads)
{
    enum { RATIO = 4 }; /* from 1 to any number there is little between them */
    int64_t part = (blocks + threads - 1) / threads;
    return in_panels < RATIO * in_rows ? (td_turns){ blocks, panels, part, 1 }
                                       : (td_turns){ blocks, panels, blocks, threads };
}

static inline void td_turn(const td_turns *t, int64_t task, int64_t *block, int64_t *panel)
{
    int64_t first = task / (t->panels * t->part) * t->part, rest = task - first * t->panels;
    int64_t left = t->blocks - first, count = left < t->part ? left : t->part;
    *panel = rest / count;
    int64_t shift = *panel * t->threads / t->panels * count / t->threads; /* of a thread's share */
    *block = first + (rest + shift) % count;
}

#endif
