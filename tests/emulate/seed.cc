/* The emulated GPU's chance: what a GPU leaves open is drawn, and the same seed draws the same. */
#include "tests/emulate/cudart.h"
#include "cuda_runtime.h"

#include <stdlib.h>

namespace
{

/* 0: nothing is drawn. */
uint64_t seed()
{
    static const char *wanted = getenv("TANDEM_EMULATE_SEED");
    static const uint64_t number = wanted != NULL ? (uint64_t)atoll(wanted) : 1;
    return number;
}

} // namespace

extern "C" bool td_emulate_is_seeded(void)
{
    return seed() != 0;
}

unsigned td_emulate_draw(unsigned below)
{
    static uint64_t state = seed() * 0x9e3779b97f4a7c15u;
    if (!td_emulate_is_seeded()) {
        return 0;
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % below);
}

unsigned td_emulate_most_blocks(unsigned most)
{
    locked guard;
    unsigned few = 1 + td_emulate_draw(3);
    return td_emulate_is_seeded() && td_emulate_draw(4) == 0 && few < most ? few : most;
}
