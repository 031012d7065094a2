/* Memory for what is measured, in huge pages where the system gives them, as tandem's arena takes
 * it: otherwise every pixel of a large picture may be a page that the processor has to look up. */
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

/* At a multiple of 2 MiB, in whole ones; NULL if there is none. The caller frees it with free(). */
static inline void *bench_memory(size_t bytes)
{
    const size_t unit = (size_t)2 << 20;
    size_t whole = (bytes + unit - 1) / unit * unit;
    whole = whole > 0 ? whole : unit;
    void *memory = aligned_alloc(unit, whole);
    if (memory) {
        madvise(memory, whole, MADV_HUGEPAGE); /* a wish */
    }
    return memory;
}
