/* What the CPU's optimizers (ops_optim.c) and their updates that are put off (ops_optim_late.c)
 * share. */
#ifndef TD_TENSOR_CPU_OPS_OPTIM_H
#define TD_TENSOR_CPU_OPS_OPTIM_H

#include "tensor/cpu/loops.h"
#include "tensor/kernels.h"

enum { TD_OPTIM_TENSORS = 3 }; /* parameters, and up to two states */

/* One call: a pass over flat memory. */
typedef struct td_optim_job td_optim_job;
struct td_optim_job {
    const td_loops *loops;
    td_device device;
    int64_t size; /* bytes of an element */
    char *param, *state[TD_OPTIM_TENSORS - 1];
    const char *grad;
    const td_optim_slice *slices;
    int count;
    bool late; /* slices without a gradient are put off */
    /* The update of elements [begin, begin + n), which are some of the slice's. */
    void (*step)(const td_optim_job *job, const td_optim_slice *slice, int64_t begin, int64_t n);
};

/*
 * Puts the job's slices without a gradient off, if they are worth it: weights that no data meets
 * still decay, but nobody looks at them. Several steps are then made at once, element by element in
 * the same order and so to the same bits, when somebody asks for an address among them (td_ptr) or
 * enough have come together. False: they are to be done now. tensors: parameters and states, NULL
 * where there is none.
 */
bool td_optim_put_off(const td_optim_job *job, td_tensor *const *tensors);

#endif
