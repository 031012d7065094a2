/*
 * Which instruction set the CPU kernels use. One binary carries them all: a kernel is compiled
 * for its instruction set by a function attribute and chosen when the program runs.
 */
#pragma once

/* TD_X86 is 1 where AVX2 and more may be, TD_NEON on AArch64. */
#if defined(__x86_64__)
#define TD_X86 1
#define TD_NEON 0
#elif defined(__aarch64__)
#define TD_X86 0
#define TD_NEON 1
#else
#define TD_X86 0
#define TD_NEON 0
#endif

/* The levels of a processor family in rising order; each can run everything below it. Those above
 * TD_ISA_VECTORS differ from it in products of bf16 (and those of x86 in that they round denormals
 * to a bf16 of 0); everything in f32 and f64 gives the same bits on all of them. */
typedef enum td_isa {
    TD_ISA_PORTABLE = 0, /* what every processor of the family has: SSE2 on x86-64 */
#if TD_NEON
    TD_ISA_NEON = TD_ISA_PORTABLE, /* 4 floats a vector, 32 registers, fused multiply-adds */
    TD_ISA_NEON_BF16,              /* and products of pairs of bf16, added up in f32 */
    TD_ISA_VECTORS = TD_ISA_NEON,
    TD_ISA_BEST = TD_ISA_NEON_BF16,
#else
    TD_ISA_AVX2,        /* AVX2 and FMA: 8 floats a vector, 16 registers */
    TD_ISA_AVX512,      /* AVX-512 F, BW, DQ, VL: 16 floats a vector, 32 registers */
    TD_ISA_AVX512_BF16, /* and products of pairs of bf16, added up in f32 */
    TD_ISA_AMX,         /* and products of whole tiles of bf16 */
    TD_ISA_VECTORS = TD_ISA_AVX512,
    TD_ISA_BEST = TD_ISA_AMX,
#endif
} td_isa;

#if TD_X86
#define TD_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define TD_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TD_TARGET_AVX512_BF16                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#define TD_TARGET_AMX                                                                              \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,amx-tile,amx-bf16")))
#elif TD_NEON
#define TD_TARGET_NEON_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#endif

/* The best level that this processor and its operating system support. The first call asks the
 * system for the tiles, which a process may use only with its leave. */
td_isa td_isa_detect(void);

/*
 * The level in use: the detected one, or a lower one asked for by the environment variable
 * TANDEM_CPU_ISA (portable, avx2, avx512, avx512_bf16, amx; on AArch64 neon, neon_bf16). An unknown
 * name, or a level that this machine does not have, is reported on stderr once and the best
 * available level is used.
 */
td_isa td_isa_current(void);

/* The same for kernels of f32 and f64: at most TD_ISA_VECTORS. */
td_isa td_isa_vectors(void);

/* What a file has made of a name for the vectors of f32 in use (tensor/cpu/each_vectors.inc). */
#if TD_X86
#define TD_OF_VECTORS(name)                                                                        \
    (td_isa_vectors() == TD_ISA_AVX512 ? &avx512_##name                                            \
     : td_isa_vectors() == TD_ISA_AVX2 ? &avx2_##name                                              \
                                       : &f32_##name)
#else
#define TD_OF_VECTORS(name) (&f32_##name)
#endif

/*
 * Uses this level from now on, or the detected one if that is lower; returns what is now in use.
 * For tests and benchmarks: call it between operations, never during one, and ask for workspace
 * sizes again afterwards.
 */
td_isa td_isa_force(td_isa isa);

/* The level's name, as TANDEM_CPU_ISA takes it. */
const char *td_isa_name(td_isa isa);
