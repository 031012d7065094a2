/* The optimizers: one pass over flat memory, in pieces of fixed size, a block each. A block does
 * what its piece contains of each slice. The formulas are tensor/kernels/formulas.h's, and the
 * numbers the CPU's: what a slice says is derived in double and rounded once. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_train.h"
#include "tensor/kernels/packed.h"
#include "tensor/kernels/scaling.h"

enum { PIECE = 4096, PACK = 4 };

/* The first slice that ends behind an element. */
__device__ static inline int first_slice(const td_optim_slice *slices, int count, int64_t element)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (slices[middle].begin + slices[middle].count > element) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* state: what an optimizer keeps beside a parameter: momentum; or averages. half: the parameters'
 * copy in 16 bits, which is written, too. */
template <class T> struct flat_memory {
    T *param;
    const T *grad;
    T *state[TD_UPDATE_STATES];
    td_cuda_half_parameters half;
};

/* A run of up to PACK elements at `at`, `n` of them; whole ones in one access. */
template <class T>
__device__ static inline td_pack<T, PACK> load_run(const T *from, int64_t at, int first, int last,
                                                   bool whole)
{
    if (whole) {
        return td_load_pack<PACK>(from + at);
    }
    td_pack<T, PACK> pack = { { 0, 0, 0, 0 } };
    for (int k = 0; k < PACK; k++) {
        if (k >= first && k < last) {
            pack.at[k] = from[at + k];
        }
    }
    return pack;
}
template <class T>
__device__ static inline void store_run(T *to, int64_t at, int first, int last, bool whole,
                                        const td_pack<T, PACK> &pack)
{
    if (whole) {
        td_store_pack<PACK>(to + at, pack);
        return;
    }
    for (int k = 0; k < PACK; k++) {
        if (k >= first && k < last) {
            to[at + k] = pack.at[k];
        }
    }
}

template <class S, class T>
__device__ static inline void store_half(void *to, int64_t at, int first, int last, bool whole,
                                         const td_pack<T, PACK> &pack)
{
    td_pack<S, PACK> half;
    for (int k = 0; k < PACK; k++) {
        half.at[k] = td_put<S>((float)pack.at[k]);
    }
    store_run((S *)to, at, first, last, whole, half);
}

/* STEP: what an optimizer does, made from a slice. */
template <class T, class STEP>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    optimize(int64_t n, flat_memory<T> flat, const td_optim_slice *slices, int count, bool packs)
{
    int64_t begin = (int64_t)blockIdx.x * PIECE, end = begin + PIECE < n ? begin + PIECE : n;
    for (int i = first_slice(slices, count, begin); i < count && slices[i].begin < end; i++) {
        __shared__ td_optim_slice settled;
        const td_optim_slice *slice = &slices[i];
        if (slice->device.scale != NULL) { /* for all threads alike */
            __syncthreads();
            if (threadIdx.x == 0) {
                settled = *slice;
                td_slice_settle(&settled);
            }
            __syncthreads();
            slice = &settled;
        }
        int64_t from = slice->begin > begin ? slice->begin : begin;
        int64_t to = slice->begin + slice->count < end ? slice->begin + slice->count : end;
        if (slice->skip) {
            continue;
        }
        STEP step(*slice, flat);
        for (int64_t at = from / PACK * PACK + (int64_t)threadIdx.x * PACK; at < to;
             at += TD_CUDA_THREADS * PACK) {
            int first = at < from ? (int)(from - at) : 0;
            int last = to - at < PACK ? (int)(to - at) : (int)PACK;
            bool whole = packs && first == 0 && last == PACK;
            int64_t value = at + slice->to_values;
            td_pack<T, PACK> w = load_run<T>(flat.param, value, first, last, whole);
            td_pack<T, PACK> g = load_run(flat.grad, at + slice->to_grads, first, last, whole);
            td_pack<T, PACK> state[TD_UPDATE_STATES] = { g, g, g };
            for (int k = 0; k < STEP::STATES; k++) {
                if (step.has_state) {
                    state[k] = load_run(flat.state[k], at, first, last, whole);
                }
            }
            for (int k = 0; k < PACK; k++) {
                step.take(w.at[k], g.at[k], state[0].at[k], state[1].at[k], state[2].at[k]);
            }
            store_run(flat.param, value, first, last, whole, w);
            if (flat.half.at && flat.half.dtype == TD_BF16) {
                store_half<__nv_bfloat16>(flat.half.at, value, first, last, whole, w);
            } else if (flat.half.at) {
                store_half<__half>(flat.half.at, value, first, last, whole, w);
            }
            for (int k = 0; k < STEP::STATES; k++) {
                if (step.has_state) {
                    store_run(flat.state[k], at, first, last, whole, state[k]);
                }
            }
        }
    }
}

template <class T> struct sgd_step {
    enum { STATES = 1 };
    T lr, decay, shrink, mu, fresh;
    bool has_state, first, nesterov;
    __device__ sgd_step(const td_optim_slice &s, const flat_memory<T> &flat)
        : lr((T)s.lr), decay((T)TD_ADDED_DECAY(s.decoupled, s.weight_decay)),
          shrink((T)TD_SHRINK(s.decoupled, s.lr, s.weight_decay)), mu((T)s.momentum),
          fresh((T)(1.0 - s.dampening)), has_state(s.momentum != 0 && flat.state[0]),
          first(s.first), nesterov(s.nesterov)
    {
    }
    __device__ void take(T &w, T g, T &momentum, T &, T &) const
    {
        T start = w * shrink, d = TD_DECAYED(g, start, decay), direction = d;
        if (has_state) {
            /* the first is d, whatever is in the memory */
            momentum = first ? TD_SGD_MOMENTUM((T)0, d, mu, (T)1)
                             : TD_SGD_MOMENTUM(momentum, d, mu, fresh);
            direction = TD_SGD_DIRECTION(momentum, d, mu, nesterov);
        }
        w = TD_SGD_STEP(start, direction, lr);
    }
};

template <class T> struct update_constants {
    T decay, shrink, lr, mu, eps, beta1, beta2, fresh1, fresh2, size, root_bias2;
    bool has_state;
    __device__ explicit update_constants(const td_optim_slice &s)
        : decay((T)TD_ADDED_DECAY(s.decoupled, s.weight_decay)),
          shrink((T)TD_SHRINK(s.decoupled, s.lr, s.weight_decay)), lr((T)s.lr), mu((T)s.momentum),
          eps((T)s.eps), beta1((T)s.beta1), beta2((T)s.beta2), fresh1((T)(1.0 - s.beta1)),
          fresh2((T)(1.0 - s.beta2)), size((T)(s.bias1 > 0.0 ? s.lr / s.bias1 : 0.0)),
          root_bias2((T)sqrt(s.bias2)), has_state(true)
    {
    }
};

#define TD_UPDATE(NAME, COUNT, ...)                                                                \
    template <class T> struct update_##NAME : update_constants<T> {                                \
        enum { STATES = COUNT };                                                                   \
        __device__ update_##NAME(const td_optim_slice &s, const flat_memory<T> &)                  \
            : update_constants<T>(s)                                                               \
        {                                                                                          \
        }                                                                                          \
        __device__ void take(T &w, T gradient, T &a, T &b, T &c) const                             \
        {                                                                                          \
            const update_constants<T> &k = *this;                                                  \
            w = w * k.shrink;                                                                      \
            T g = TD_DECAYED(gradient, w, k.decay);                                                \
            (void)b;                                                                               \
            (void)c;                                                                               \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    };
#include "tensor/kernels/updates.def"

template <class T, template <class> class STEP>
static void optim_launch(int64_t n, void *param, const void *grad, void *const *state,
                         td_cuda_half_parameters half, const td_optim_slice *slices, int count,
                         cudaStream_t stream)
{
    flat_memory<T> flat = { (T *)param, (const T *)grad, { NULL, NULL, NULL }, half };
    size_t bytes = PACK * sizeof(T);
    bool packs = td_aligned(param, bytes) && td_aligned(grad, bytes) &&
                 td_aligned(half.at, PACK * sizeof(uint16_t));
    for (int k = 0; k < STEP<T>::STATES; k++) {
        flat.state[k] = (T *)state[k];
        packs = packs && td_aligned(state[k], bytes);
    }
    unsigned blocks = (unsigned)((n + PIECE - 1) / PIECE);
    TD_LAUNCH((optimize<T, STEP<T>>), blocks, TD_CUDA_THREADS, stream, n, flat, slices, count,
              packs);
}

extern "C" void td_cuda_launch_sgd(td_dtype dtype, int64_t n, void *param, const void *grad,
                                   void *momentum, td_cuda_half_parameters half,
                                   const td_optim_slice *slices, int count, cudaStream_t stream)
{
    if (dtype == TD_F64) {
        optim_launch<double, sgd_step>(n, param, grad, &momentum, half, slices, count, stream);
    } else {
        optim_launch<float, sgd_step>(n, param, grad, &momentum, half, slices, count, stream);
    }
}

extern "C" void td_cuda_launch_update(td_update_op op, td_dtype dtype, int64_t n, void *param,
                                      const void *grad, void *const *state,
                                      td_cuda_half_parameters half, const td_optim_slice *slices,
                                      int count, cudaStream_t stream)
{
    switch (op) {
#define TD_UPDATE(NAME, COUNT, ...)                                                                \
    case TD_UPDATE_##NAME:                                                                         \
        dtype == TD_F64 ? optim_launch<double, update_##NAME>(n, param, grad, state, half, slices, \
                                                              count, stream)                       \
                        : optim_launch<float, update_##NAME>(n, param, grad, state, half, slices,  \
                                                             count, stream);                       \
        break;
#include "tensor/kernels/updates.def"
    case TD_UPDATE_COUNT:
        break;
    }
}

/* ---- packed state: a thread has a block of TD_PACK averages ---- */

__global__ void __launch_bounds__(TD_CUDA_THREADS)
    adam_packed(int64_t n, float *param, const float *grad, uint8_t *m, uint8_t *v,
                const td_optim_slice *slices, int count, td_dtype packed)
{
    int64_t begin = ((int64_t)blockIdx.x * TD_CUDA_THREADS + threadIdx.x) * TD_PACK;
    int64_t end = begin + TD_PACK < n ? begin + TD_PACK : n;
    int i = begin < n ? first_slice(slices, count, begin) : count;
    if (i == count || slices[i].begin > begin) { /* slices begin with a block */
        return;
    }
    td_optim_slice s = slices[i];
    if (s.device.scale != NULL) {
        td_slice_settle(&s);
    }
    if (s.skip) {
        return;
    }
    end = s.begin + s.count < end ? s.begin + s.count : end;
    int64_t at = begin / TD_PACK * td_packed_bytes(packed);
    float mean[TD_PACK], square[TD_PACK], unused = 0.0f;
    td_packed_get(packed, mean, m + at);
    td_packed_get(packed, square, v + at);
    update_ADAM<float> step(s, flat_memory<float>());
    for (int k = 0; k < (int)(end - begin); k++) {
        float w = param[begin + k + s.to_values];
        step.take(w, grad[begin + k + s.to_grads], mean[k], square[k], unused);
        param[begin + k + s.to_values] = w;
    }
    uint32_t draw[TD_PACK];
    for (int k = 0; k < TD_PACK; k += 4) {
        td_philox_words(s.rounding.key, (uint64_t)s.step,
                        (uint64_t)(s.rounding.element + begin - s.begin + k) / 4, draw + k);
    }
    td_packed_put(packed, m + at, mean, draw, 0);
    td_packed_put(packed, v + at, square, draw, 16);
}

extern "C" void td_cuda_launch_adam_packed(td_dtype packed, int64_t n, float *param,
                                           const float *grad, void *m, void *v,
                                           const td_optim_slice *slices, int count,
                                           cudaStream_t stream)
{
    int64_t each = (int64_t)TD_CUDA_THREADS * TD_PACK;
    unsigned blocks = (unsigned)((n + each - 1) / each);
    TD_LAUNCH((adam_packed), blocks, TD_CUDA_THREADS, stream, n, param, grad, (uint8_t *)m,
              (uint8_t *)v, slices, count, packed);
}
