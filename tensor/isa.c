#include "tensor/isa.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [TD_ISA_PORTABLE] = "portable",
    [TD_ISA_AVX2] = "avx2",
    [TD_ISA_AVX512] = "avx512",
};

enum { LEVELS = sizeof names / sizeof names[0], UNKNOWN = -1 };

static atomic_int current = UNKNOWN;

const char *td_isa_name(td_isa isa)
{
    return isa >= 0 && (int)isa < LEVELS ? names[isa] : "unknown";
}

td_isa td_isa_detect(void)
{
#if TD_X86
    /* The builtin asks CPUID, and XCR0 for whether the system saves the wide registers. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return TD_ISA_PORTABLE;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return TD_ISA_AVX512;
    }
    return TD_ISA_AVX2;
#else
    return TD_ISA_PORTABLE;
#endif
}

/* The level that the environment asks for, or `best` where it asks for nothing usable. */
static td_isa from_environment(td_isa best)
{
    const char *wish = getenv("TANDEM_CPU_ISA");
    if (!wish || !*wish) {
        return best;
    }
    for (int i = 0; i < LEVELS; i++) {
        if (strcmp(wish, names[i]) != 0) {
            continue;
        }
        if (i <= (int)best) {
            return (td_isa)i;
        }
        fprintf(stderr, "tandem: TANDEM_CPU_ISA=%s is more than this processor has; using %s\n",
                wish, names[best]);
        return best;
    }
    fprintf(stderr,
            "tandem: TANDEM_CPU_ISA=%s is unknown (use portable, avx2 or avx512); using %s\n", wish,
            names[best]);
    return best;
}

td_isa td_isa_current(void)
{
    int isa = atomic_load_explicit(&current, memory_order_relaxed);
    if (isa != UNKNOWN) {
        return (td_isa)isa;
    }
    /* Two threads may get here together: the first answer stays, and both are equal. */
    int chosen = (int)from_environment(td_isa_detect());
    int expected = UNKNOWN;
    atomic_compare_exchange_strong(&current, &expected, chosen);
    return (td_isa)(expected == UNKNOWN ? chosen : expected);
}

td_isa td_isa_force(td_isa isa)
{
    td_isa best = td_isa_detect();
    td_isa used = isa < best ? isa : best;
    atomic_store(&current, (int)used);
    return used;
}
