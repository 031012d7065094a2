/* Detects the instruction set of the processor, and which is used. */
#include "tensor/cpu/isa.h"

#include "tensor/backend.h"
#include "tensor/system/environment.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if TD_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif TD_NEON
#include <sys/auxv.h>
#endif

enum { LEVELS = TD_ISA_BEST + 1, UNKNOWN = -1 };

static const char *const names[LEVELS] = {
#if TD_NEON
    [TD_ISA_NEON] = "neon",
    [TD_ISA_NEON_BF16] = "neon_bf16",
#else
    [TD_ISA_PORTABLE] = "portable",       [TD_ISA_AVX2] = "avx2", [TD_ISA_AVX512] = "avx512",
    [TD_ISA_AVX512_BF16] = "avx512_bf16", [TD_ISA_AMX] = "amx",
#endif
};

/* make EMULATE=1: what comes after AVX-512 is done by software (tests/emulate/instructions.h). */
#ifdef TD_EMULATED
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif

static atomic_int current = UNKNOWN, detected = UNKNOWN;

const char *td_isa_name(td_isa isa)
{
    return isa >= 0 && (int)isa < LEVELS ? names[isa] : "unknown";
}

#if TD_X86

/* The processor has tiles and bf16 products of them, and the system saves the tiles of a thread and
 * lets this process use them. Other systems than Linux are not known to ask for. */
static bool has_amx(void)
{
    enum { TILE_DATA = 18, REQUEST_PERMISSION = 0x1023 };
    const unsigned osxsave = 1u << 27, amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & amx_bf16) || !(d & amx_tile)) {
        return false;
    }
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> (TILE_DATA - 1) & 3) != 3) {
        return false;
    }
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#endif

static td_isa detect(void)
{
#if TD_X86
    /* The builtin asks CPUID, and XCR0 for whether the system saves the wide registers. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return TD_ISA_PORTABLE;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        if (EMULATED) {
            return TD_ISA_AMX;
        }
        if (!__builtin_cpu_supports("avx512bf16")) {
            return TD_ISA_AVX512;
        }
        return has_amx() ? TD_ISA_AMX : TD_ISA_AVX512_BF16;
    }
    return TD_ISA_AVX2;
#elif TD_NEON
    const unsigned long bf16 = 1ul << 14; /* HWCAP2_BF16, which older headers lack */
    return (getauxval(AT_HWCAP2) & bf16) != 0 ? TD_ISA_NEON_BF16 : TD_ISA_NEON;
#else
    return TD_ISA_PORTABLE;
#endif
}

td_isa td_isa_detect(void)
{
    int isa = atomic_load_explicit(&detected, memory_order_relaxed);
    if (isa == UNKNOWN) {
        isa = (int)detect(); /* threads that get here together find the same */
        atomic_store(&detected, isa);
    }
    return (td_isa)isa;
}

/* The level that the environment asks for, or `best` where it asks for nothing usable. */
static td_isa from_environment(td_isa best)
{
    const char *wish = getenv("TANDEM_CPU_ISA");
    td_check_environment(); /* every program that computes comes here */
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
    fprintf(stderr, "tandem: TANDEM_CPU_ISA=%s is unknown (use %s", wish, names[0]);
    for (int i = 1; i < LEVELS; i++) {
        fprintf(stderr, "%s%s", i < LEVELS - 1 ? ", " : " or ", names[i]);
    }
    fprintf(stderr, "); using %s\n", names[best]);
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

td_isa td_isa_vectors(void)
{
    td_isa isa = td_isa_current();
    return isa < TD_ISA_VECTORS ? isa : TD_ISA_VECTORS;
}

bool td_cpu_has_avx2(void)
{
#if TD_X86
    return td_isa_current() >= TD_ISA_AVX2;
#else
    return false;
#endif
}

td_isa td_isa_force(td_isa isa)
{
    td_isa best = td_isa_detect();
    td_isa used = isa < best ? isa : best;
    atomic_store(&current, (int)used);
    return used;
}
