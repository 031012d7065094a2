/* Flush-to-zero: arithmetic on denormal numbers is up to 80 times slower, so wherever training
 * computes they count as zero (flush-to-zero and denormals-are-zero, on x86). The mode belongs to a
 * thread: the pool's tasks and the collectives of dist/ set it, so that a sum is the same bits
 * whichever of them took it. */
#ifndef TD_TENSOR_DENORMALS_H
#define TD_TENSOR_DENORMALS_H

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { TD_MXCSR_FTZ_DAZ = 0x8040 };

/* Sets the mode; returns the old one for td_restore_denormals. */
static inline unsigned td_flush_denormals(void)
{
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | TD_MXCSR_FTZ_DAZ);
    return old;
}

/* Restores the two mode bits only: exception flags raised meanwhile stay. */
static inline void td_restore_denormals(unsigned old)
{
    _mm_setcsr((_mm_getcsr() & ~(unsigned)TD_MXCSR_FTZ_DAZ) | (old & TD_MXCSR_FTZ_DAZ));
}
#else
static inline unsigned td_flush_denormals(void)
{
    return 0;
}

static inline void td_restore_denormals(unsigned old)
{
    (void)old;
}
#endif

#endif
