/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011.
 *
 * Its key has 64 bits; ours is a seed and a stream of 64 bits each. The stream is first spread over
 * all bits by an invertible mix (the finalizer of SplitMix64) and then added to the seed by xor. So
 * streams 0, 1, 2, ... of a seed never share a key, stream 0 has the seed itself, and two pairs
 * meet with the chance of 2^-64. */
#include "tensor/random.h"

static uint64_t mix_stream(uint64_t stream)
{
    stream = (stream ^ (stream >> 30)) * 0xbf58476d1ce4e5b9u;
    stream = (stream ^ (stream >> 27)) * 0x94d049bb133111ebu;
    return stream ^ (stream >> 31);
}

uint64_t td_philox_mixed_key(td_philox_key key)
{
    return key.seed ^ mix_stream(key.stream);
}

void td_philox(td_philox_key key, uint64_t a, uint64_t b, uint32_t out[4])
{
    uint64_t mixed = td_philox_mixed_key(key);
    uint32_t key0 = (uint32_t)mixed, key1 = (uint32_t)(mixed >> 32);
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
