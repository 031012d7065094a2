/* Philox's key has 64 bits; ours is a seed and a stream of 64 bits each. The stream is first spread
 * over all bits by an invertible mix (the finalizer of SplitMix64) and then added to the seed by
 * xor. So streams 0, 1, 2, ... of a seed never share a key, stream 0 has the seed itself, and two
 * pairs meet with the chance of 2^-64. */
#include "tensor/philox.h"
#include "tensor/random.h"
#include "tensor/extend.h"

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
    td_philox_words(td_philox_mixed_key(key), a, b, out);
}
