/* What the loops over tiles share (gemm_tiles.inc). */
#pragma once

#include "tensor/cpu/gemm_kernels.h"

#include <string.h>

enum {
    MOST_ROWS = 8, /* of a tile: each needs a register for its address, too */
};

/* How many of the rows that are left to compute together, `most` being 6 or 8. There are tiles of
 * 1 to 6 and 8 rows; one of 1 or 2 rows waits for its own sums, so it is avoided. */
static inline int next_rows(int64_t left, int most)
{
    if (left >= most + 3 || left == most) {
        return most;
    }
    return left <= 6 ? (int)left : (int)(left + 1) / 2;
}
