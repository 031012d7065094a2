/* The CPU's table. */
#include "tensor/cpu/ops.h"

#include <pthread.h>

/* The same functions for every instruction set: they look it up themselves. Only the names differ.
 */
static td_kernels tables[] = {
#if TD_NEON
    [TD_ISA_NEON] = { .name = "cpu (neon)" },
    [TD_ISA_NEON_BF16] = { .name = "cpu (neon_bf16)" },
#else
    [TD_ISA_PORTABLE] = { .name = "cpu (portable)" },
    [TD_ISA_AVX2] = { .name = "cpu (avx2)" },
    [TD_ISA_AVX512] = { .name = "cpu (avx512)" },
    [TD_ISA_AVX512_BF16] = { .name = "cpu (avx512_bf16)" },
    [TD_ISA_AMX] = { .name = "cpu (amx)" },
#endif
};

static void fill_tables(void)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        td_kernels *t = &tables[i];
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) t->NAME = td_cpu_##NAME;
#define TD_KERNEL_GPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"
        t->check_precision = td_cpu_check_precision;
        t->measure_limits = td_cpu_measure_limits;
    }
}

const td_kernels *td_cpu_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    return &tables[td_isa_current()];
}
