/* The optimizers: one pass over flat memory, cut into chunks of fixed size. A chunk does what it
 * contains of each slice. */
#include "tensor/cpu/ops.h"
#include "tensor/kernels/formulas.h"
#include "tensor/kernels/packed.h"
#include "tensor/kernels/scaling.h"

#include <math.h>

enum { STATES = TD_UPDATE_STATES };

/* One call: a pass over flat memory. */
typedef struct td_optim_job td_optim_job;
struct td_optim_job {
    const td_loops *loops;
    td_device device;
    int64_t size; /* bytes of an element */
    char *param, *state[STATES];
    const char *grad;
    td_update_op op; /* of update */
    td_dtype packed; /* state's dtype, if it is not the parameters' */
    const td_optim_slice *slices;
    int count;
    /* The update of elements [begin, begin + n), which are some of the slice's. */
    void (*step)(const td_optim_job *job, const td_optim_slice *slice, int64_t begin, int64_t n);
};

static void *at(char *base, const td_optim_job *job, int64_t begin)
{
    return base ? base + begin * job->size : NULL;
}

static void *values_at(const td_optim_job *job, const td_optim_slice *s, int64_t begin)
{
    return job->param + (begin + s->to_values) * job->size;
}

static const char *grad_at(const td_optim_job *job, const td_optim_slice *s, int64_t begin)
{
    return job->grad + (begin + s->to_grads) * job->size;
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
    job->loops->sgd(n, values_at(job, s, begin), grad_at(job, s, begin), at(momentum, job, begin),
                    &step);
}

static td_update_step constants_of(const td_optim_slice *s)
{
    return (td_update_step){
        .weight_decay = TD_ADDED_DECAY(s->decoupled, s->weight_decay),
        .shrink = TD_SHRINK(s->decoupled, s->lr, s->weight_decay),
        .lr = s->lr,
        .mu = s->momentum,
        .eps = s->eps,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .size = s->bias1 > 0.0 ? s->lr / s->bias1 : 0.0,
        .root_bias2 = sqrt(s->bias2),
    };
}

static void update_step(const td_optim_job *job, const td_optim_slice *s, int64_t begin, int64_t n)
{
    td_update_step step = constants_of(s);
    void *state[STATES];
    for (int k = 0; k < STATES; k++) {
        state[k] = at(job->state[k], job, begin);
    }
    job->loops->update(job->op, n, values_at(job, s, begin), grad_at(job, s, begin), state, &step);
}

/* Pieces of packed state are unpacked, changed, and packed again. */
static void packed_step(const td_optim_job *job, const td_optim_slice *s, int64_t begin, int64_t n)
{
    enum { MOST = 256 };
    td_update_step step = constants_of(s);
    uint32_t draw[MOST];
    float averages[2][MOST] = { { 0 } };
    void *state[STATES] = { averages[0], averages[1] };
    for (int64_t from = begin; from < begin + n; from += MOST) {
        int64_t count = begin + n - from < MOST ? begin + n - from : MOST;
        int64_t blocks = (count + TD_PACK - 1) / TD_PACK;
        uint8_t *at[2];
        for (int k = 0; k < 2; k++) {
            at[k] = (uint8_t *)job->state[k] + from / TD_PACK * td_packed_bytes(job->packed);
            job->loops->unpack(blocks, averages[k], at[k], job->packed);
        }
        job->loops->update(job->op, count, values_at(job, s, from), grad_at(job, s, from), state,
                           &step);
        job->loops->philox(blocks * TD_PACK / 4, draw, s->rounding.key, (uint64_t)s->step,
                           (uint64_t)(s->rounding.element + from - s->begin) / 4);
        for (int k = 0; k < 2; k++) {
            job->loops->pack(blocks, at[k], averages[k], job->packed, draw, 16 * k);
        }
    }
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
        if (s->device.scale != NULL) {
            td_slice_settle(s);
        }
        int64_t from = s->begin > begin ? s->begin : begin;
        int64_t to = s->begin + s->count < end ? s->begin + s->count : end;
        if (!s->skip && from < to) {
            job->step(job, s, from, to - from);
        }
    }
}

static void run_optim(td_optim_job *job, const td_tensor *param)
{
    job->loops = td_loops_of(param->dtype);
    job->size = (int64_t)td_dtype_size(param->dtype);
    job->device = td_device_of(param);
    int64_t n = 0; /* up to the end of the last slice */
    if (job->count > 0) {
        const td_optim_slice *last = &job->slices[job->count - 1];
        n = last->begin + last->count;
    }
    td_parallel(job->device, n, 1, optim_range, job);
}

void td_cpu_sgd(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                const td_optim_slice *slices, int count)
{
    td_optim_job job = {
        .param = td_ptr(param),
        .grad = td_ptr(grad),
        .state = { momentum ? td_ptr(momentum) : NULL },
        .slices = slices,
        .count = count,
        .step = sgd_step,
    };
    run_optim(&job, param);
}

void td_cpu_update(td_update_op op, td_tensor *param, const td_tensor *grad,
                   td_tensor *const *state, const td_optim_slice *slices, int count)
{
    td_optim_job job = {
        .param = td_ptr(param),
        .grad = td_ptr(grad),
        .op = op,
        .slices = slices,
        .count = count,
        .step = update_step,
    };
    for (int k = 0; k < STATES; k++) {
        job.state[k] = state[k] != NULL ? td_ptr(state[k]) : NULL;
    }
    if (state[0]->dtype != param->dtype) {
        job.step = packed_step;
        job.packed = state[0]->dtype;
    }
    run_optim(&job, param);
}
