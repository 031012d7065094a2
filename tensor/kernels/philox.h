/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011), as every device computes it: the same bits everywhere. */
#pragma once

#include <stdint.h>

/* A function that kernels of every device may call. */
#ifdef __CUDACC__
#define TD_EVERYWHERE __host__ __device__ static inline
#else
#define TD_EVERYWHERE static inline
#endif

#define TD_PHILOX_M0 UINT32_C(0xd2511f53)
#define TD_PHILOX_M1 UINT32_C(0xcd9e8d57)
#define TD_PHILOX_W0 UINT32_C(0x9e3779b9) /* golden ratio */
#define TD_PHILOX_W1 UINT32_C(0xbb67ae85) /* sqrt(3) - 1 */
enum { TD_PHILOX_ROUNDS = 10 };

/* The four words of counter (a, b); key: td_philox_mixed_key. */
TD_EVERYWHERE void td_philox_words(uint64_t key, uint64_t a, uint64_t b, uint32_t *out)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    uint32_t word0 = (uint32_t)a, word1 = (uint32_t)(a >> 32);
    uint32_t word2 = (uint32_t)b, word3 = (uint32_t)(b >> 32);
    for (int round = 0; round < TD_PHILOX_ROUNDS; round++) {
        uint64_t product0 = (uint64_t)TD_PHILOX_M0 * word0;
        uint64_t product1 = (uint64_t)TD_PHILOX_M1 * word2;
        word0 = (uint32_t)(product1 >> 32) ^ word1 ^ key0;
        word1 = (uint32_t)product1;
        word2 = (uint32_t)(product0 >> 32) ^ word3 ^ key1;
        word3 = (uint32_t)product0;
        key0 += TD_PHILOX_W0;
        key1 += TD_PHILOX_W1;
    }
    out[0] = word0;
    out[1] = word1;
    out[2] = word2;
    out[3] = word3;
}
