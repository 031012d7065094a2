/* The optimizers: one pass over flat memory, cut into chunks of fixed size. A chunk does what it
 * contains of each slice. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_optim.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/formulas.h"
#include "tensor/scaling.h"
#include "tensor/storage.h"

#include <math.h>

static void *at(char *base, const td_optim_job *job, int64_t begin)
{
    return base ? base + begin * job->size : NULL;
}

static const char *grad_at(const td_optim_job *job, const td_optim_slice *s, int64_t begin)
{
    return s->zero_grad ? NULL : job->grad + begin * job->size;
}

static void sgd_step(const td_optim_job *job, const td_optim_slice *s, int64_t begin, int64_t n)
{
    td_sgd_step step = {
        .lr = s->lr,
        .weight_decay = TD_ADDED_DECAY(s->decoupled, s->weight_decay),
        .shrink = TD_SHRINK(s->decoupled, s->lr, s->weight_decay),
        .momentum = s->momentum,
        .dampening = s->dampening,
        .first = s->first,
        .nesterov = s->nesterov,
    };
    char *momentum = s->momentum != 0 ? job->state[0] : NULL;
    job->loops->sgd(n, at(job->param, job, begin), grad_at(job, s, begin), at(momentum, job, begin),
                    &step);
}

static void adam_step(const td_optim_job *job, const td_optim_slice *s, int64_t begin, int64_t n)
{
    td_adam_step step = {
        .weight_decay = TD_ADDED_DECAY(s->decoupled, s->weight_decay),
        .shrink = TD_SHRINK(s->decoupled, s->lr, s->weight_decay),
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .step_size = s->lr / s->bias1,
        .sqrt_bias2 = sqrt(s->bias2),
    };
    job->loops->adam(n, at(job->param, job, begin), grad_at(job, s, begin),
                     at(job->state[0], job, begin), at(job->state[1], job, begin), &step);
}

/* The first slice that ends behind an element. */
static int first_slice(const td_optim_job *job, int64_t element)
{
    int low = 0, high = job->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const td_optim_slice *s = &job->slices[middle];
        if (s->begin + s->count > element) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static void optim_range(void *ctx, int64_t begin, int64_t end)
{
    const td_optim_job *job = ctx;
    for (int i = first_slice(job, begin); i < job->count && job->slices[i].begin < end; i++) {
        td_optim_slice settled = job->slices[i], *s = &settled;
        if (s->scale != NULL) {
            td_slice_settle(s);
        }
        int64_t from = s->begin > begin ? s->begin : begin;
        int64_t to = s->begin + s->count < end ? s->begin + s->count : end;
        if (!s->skip && !(job->late && s->zero_grad) && from < to) {
            job->step(job, s, from, to - from);
        }
    }
}

/* tensors: the parameters and the states, NULL where there is none. */
static void run_optim(td_optim_job *job, td_tensor *const *tensors)
{
    const td_tensor *param = tensors[0];
    job->loops = td_loops_of(param->dtype);
    job->size = (int64_t)td_dtype_size(param->dtype);
    job->device = td_device_of(param);
    job->late = td_optim_put_off(job, tensors);
    if (!job->late) { /* what an earlier call has put off */
        for (int i = 0; i < TD_OPTIM_TENSORS; i++) {
            (void)(tensors[i] ? td_ptr(tensors[i]) : NULL);
        }
    }
    int64_t n = td_numel(param);
    td_parallel(job->device, n, td_element_chunk(n), optim_range, job);
}

void td_cpu_sgd(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                const td_optim_slice *slices, int count)
{
    td_optim_job job = {
        .param = td_ptr_as_is(param),
        .grad = td_ptr(grad),
        .state = { momentum ? td_ptr_as_is(momentum) : NULL },
        .slices = slices,
        .count = count,
        .step = sgd_step,
    };
    run_optim(&job, (td_tensor *[TD_OPTIM_TENSORS]){ param, momentum });
}

void td_cpu_adam(td_tensor *param, const td_tensor *grad, td_tensor *m, td_tensor *v,
                 const td_optim_slice *slices, int count)
{
    td_optim_job job = {
        .param = td_ptr_as_is(param),
        .grad = td_ptr(grad),
        .state = { td_ptr_as_is(m), td_ptr_as_is(v) },
        .slices = slices,
        .count = count,
        .step = adam_step,
    };
    run_optim(&job, (td_tensor *[TD_OPTIM_TENSORS]){ param, m, v });
}
