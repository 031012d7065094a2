/* The arithmetic of reductions over ranks. */
#pragma once

#include "dist/comm/comm.h"

/* out[k][i] = in[0][i] op in[1][i] op ... op in[n-1][i] for every k: the result goes to several
 * places. Any of them may be one of the inputs. The terms [0,n) are combined in a fixed tree: a
 * range is split at its middle, each half is combined by itself, then both halves. So a sum over
 * ranks of partial sums over a power of two of equal leaves has the bits of the sum over all
 * leaves.
 *
 * f32 and f64 are computed as such; bf16 and f16 in f32, rounded once at the end; integers wrap
 * around. TD_AVERAGE (floats only) multiplies every term by 1/n first. TD_MIN and TD_MAX pass NaN
 * on. Denormals count as zero if the calling thread's mode is so (td_flush_denormals). The bits
 * do not depend on the instruction set. */
void td_reduce_arrays(void *const *out, int outs, const void *const *in, int n, int64_t count,
                      td_dtype dtype, td_reduction op);
