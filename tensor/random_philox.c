/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011.
 *
 * Its key has 64 bits; ours is a seed and a stream of 64 bits each. The stream is first spread over
 * all bits by an invertible mix (the finalizer of SplitMix64) and then added to the seed by xor. So
 * streams 0, 1, 2, ... of a seed never share a key, stream 0 has the seed itself, and two pairs
 * meet with the chance of 2^-64. */
#include "tensor/random.h"

enum { ROUNDS = 10 };

static uint64_t mix_stream(uint64_t stream)
{
    stream = (stream ^ (stream >> 30)) * 0xbf58476d1ce4e5b9u;
    stream = (stream ^ (stream >> 27)) * 0x94d049bb133111ebu;
    return stream ^ (stream >> 31);
}

void td_philox(td_philox_key key, uint64_t a, uint64_t b, uint32_t out[4])
{
    const uint32_t multiplier0 = 0xd2511f53u, multiplier1 = 0xcd9e8d57u;
    const uint32_t weyl0 = 0x9e3779b9u, weyl1 = 0xbb67ae85u; /* golden ratio, sqrt(3) - 1 */

    uint64_t mixed = key.seed ^ mix_stream(key.stream);
    uint32_t key0 = (uint32_t)mixed, key1 = (uint32_t)(mixed >> 32);
    uint32_t word0 = (uint32_t)a, word1 = (uint32_t)(a >> 32);
    uint32_t word2 = (uint32_t)b, word3 = (uint32_t)(b >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product0 = (uint64_t)multiplier0 * word0;
        uint64_t product1 = (uint64_t)multiplier1 * word2;
        word0 = (uint32_t)(product1 >> 32) ^ word1 ^ key0;
        word1 = (uint32_t)product1;
        word2 = (uint32_t)(product0 >> 32) ^ word3 ^ key1;
        word3 = (uint32_t)product0;
        key0 += weyl0;
        key1 += weyl1;
    }
    out[0] = word0;
    out[1] = word1;
    out[2] = word2;
    out[3] = word3;
}
