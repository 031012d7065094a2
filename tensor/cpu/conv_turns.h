/*
 * The order of a convolution's tasks, each a block of the result's pixels times a panel of its
 * channels. The blocks of a panel follow each other, so that its weights stay in the cache. But a
 * thread's share are tasks in a row (tensor/cpu/pool.h): so it would have some channels of all
 * pixels, read the whole source, and write beside what another thread writes, all over the result;
 * and where one core writes next to another's lines, they fetch them from each other. Unless there
 * are more weights than pictures, the result is therefore cut into parts, one for each thread.
 */
#ifndef TD_TENSOR_CPU_CONV_TURNS_H
#define TD_TENSOR_CPU_CONV_TURNS_H

#include "tensor/cpu/conv_internal.h"

typedef struct td_conv_turns {
    int64_t blocks, panels;
    int64_t part; /* blocks of which all panels come before other blocks */
} td_conv_turns;

static inline td_conv_turns td_conv_turns_make(const td_conv_problem *problem, int64_t taps,
                                               int64_t blocks, int64_t panels, int threads)
{
    enum { RATIO = 4 }; /* from 1 to any number there is little between them */
    int64_t x = problem->ic * problem->h.in * problem->w.in;
    int64_t y = problem->oc * problem->h.out * problem->w.out;
    bool cut = problem->ic * problem->oc * taps < RATIO * problem->n * (x + y);
    return (td_conv_turns){ blocks, panels, cut ? td_divide_up(blocks, threads) : blocks };
}

static inline void td_conv_turn(const td_conv_turns *t, int64_t task, int64_t *block,
                                int64_t *panel)
{
    int64_t first = task / (t->panels * t->part) * t->part, rest = task - first * t->panels;
    int64_t count = td_min64(t->part, t->blocks - first);
    *panel = rest / count;
    *block = first + rest % count;
}

#endif
