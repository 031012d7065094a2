/* The watched tables: each kernel says to the watchers what it is and how much work it was, and
 * calls the device's. A kernel that is missing here runs unseen. */
#include "tensor/watch.h"

#include "tensor/backend.h"
#include "tensor/timed.h"

#include <pthread.h>

/* W: the cost of a call, from its arguments. */
#define WATCHED(NAME, PARAMETERS, ARGUMENTS, W)                                                    \
    static void watched_##NAME PARAMETERS                                                          \
    {                                                                                              \
        double begin = td_watch_enter(#NAME);                                                      \
        td_cpu_kernels()->NAME ARGUMENTS;                                                          \
        td_watch_leave(#NAME, begin, W);                                                           \
    }                                                                                              \
    static void timed_##NAME PARAMETERS                                                            \
    {                                                                                              \
        td_timed_enter(#NAME)->NAME ARGUMENTS;                                                     \
        td_timed_leave(W);                                                                         \
    }

/* Bytes of tensors that are read or written once. */
#define B(t) td_cost_bytes(t)
/* ... and of one that may be added to. */
#define BA(t, accumulate) (((accumulate) ? 2.0 : 1.0) * td_cost_bytes(t))

WATCHED(fill, (td_tensor * y, double value), (y, value), td_cost_of(y, 0, B(y)))
WATCHED(copy, (td_tensor * y, const td_tensor *x), (y, x), td_cost_of(y, 0, B(x) + B(y)))
WATCHED(axpy, (td_tensor * y, double alpha, const td_tensor *x), (y, alpha, x),
        td_cost_of(y, 2, B(x) + BA(y, true)))

WATCHED(unscale, (td_tensor * x, const td_tensor *scale, td_tensor *found), (x, scale, found),
        td_cost_of(x, 2, BA(x, true)))
WATCHED(adapt_scale, (td_tensor * scale, const td_tensor *found, const td_scale_rule *rule),
        (scale, found, rule), td_cost_of(scale, 1, BA(scale, true)))

WATCHED(unary, (td_unary_op op, td_tensor *y, const td_tensor *x, double p), (op, y, x, p),
        td_cost_of(y, 1, B(x) + B(y)))
/* dx = dy * slope(x or y) */
WATCHED(unary_grad,
        (td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x, const td_tensor *y,
         double p, bool accumulate),
        (op, dx, dy, x, y, p, accumulate),
        td_cost_of(dx, accumulate ? 3 : 2, B(dy) + B(x != NULL ? x : y) + BA(dx, accumulate)))
WATCHED(binary, (td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b),
        (op, y, a, b), td_cost_of(y, 1, B(a) + B(b) + B(y)))

WATCHED(reduce, (td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate),
        (op, y, x, accumulate), td_cost_of(x, 1, B(x) + BA(y, accumulate)))
WATCHED(argmax, (td_tensor * index, const td_tensor *x, int dim), (index, x, dim),
        td_cost_of(x, 1, B(x) + B(index)))
WATCHED(argmax_grad,
        (td_tensor * dx, const td_tensor *dy, const td_tensor *index, int dim, bool accumulate),
        (dx, dy, index, dim, accumulate), td_cost_of(dx, 0, B(dy) + B(index) + BA(dx, accumulate)))

WATCHED(matmul,
        (td_tensor * c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
         bool accumulate, td_math math),
        (c, a, b, bias, accumulate, math), td_cost_matmul(c, a, b, bias, accumulate))
WATCHED(conv2d,
        (td_tensor * y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
         const td_conv2d_params *params, td_tensor *stats),
        (y, x, w, bias, params, stats), td_cost_conv2d(y, x, w, params, NULL, false))
WATCHED(conv2d_grad_input,
        (td_tensor * dx, const td_tensor *dy, const td_tensor *w, const td_conv2d_params *params,
         bool accumulate),
        (dx, dy, w, params, accumulate), td_cost_conv2d(dy, dx, w, params, dx, accumulate))
WATCHED(conv2d_grad_weight,
        (td_tensor * dw, const td_tensor *dy, const td_tensor *x, const td_conv2d_params *params,
         bool accumulate),
        (dw, dy, x, params, accumulate), td_cost_conv2d(dy, x, dw, params, dw, accumulate))

WATCHED(batch_norm, (const td_batch_norm_args *args), (args), td_cost_batch_norm(args))
WATCHED(batch_norm_grad, (const td_batch_norm_grad_args *args), (args),
        td_cost_batch_norm_grad(args))
/* Mean, sum of squares about it: four; scale and shift: four. */
WATCHED(layer_norm,
        (td_tensor * y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
         const td_tensor *weight, const td_tensor *bias, double eps),
        (y, mean, inv_std, x, weight, bias, eps), td_cost_of(x, 8, B(x) + B(y)))
WATCHED(layer_norm_grad,
        (td_tensor * dx, td_tensor *dweight, td_tensor *dbias, const td_tensor *dy,
         const td_tensor *x, const td_tensor *weight, const td_tensor *mean,
         const td_tensor *inv_std, bool accumulate_dx, bool accumulate_dweight,
         bool accumulate_dbias),
        (dx, dweight, dbias, dy, x, weight, mean, inv_std, accumulate_dx, accumulate_dweight,
         accumulate_dbias),
        td_cost_of(x, 12, B(dy) + B(x) + BA(dx, accumulate_dx)))

/* Largest, difference, exp, sum, scale. */
WATCHED(softmax, (td_tensor * y, const td_tensor *x, int dim, bool log), (y, x, dim, log),
        td_cost_of(x, 5, B(x) + B(y)))
WATCHED(softmax_grad,
        (td_tensor * dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
         bool accumulate),
        (dx, dy, y, dim, log, accumulate), td_cost_of(dx, 4, B(dy) + B(y) + BA(dx, accumulate)))
WATCHED(cross_entropy,
        (td_tensor * loss, td_tensor *log_p, const td_tensor *logits, const td_tensor *labels,
         double smoothing),
        (loss, log_p, logits, labels, smoothing),
        td_cost_of(logits, 5, B(logits) + B(log_p) + B(labels)))
WATCHED(cross_entropy_grad,
        (td_tensor * dlogits, const td_tensor *dloss, const td_tensor *log_p,
         const td_tensor *labels, double smoothing, bool accumulate),
        (dlogits, dloss, log_p, labels, smoothing, accumulate),
        td_cost_of(dlogits, 3, B(log_p) + B(labels) + BA(dlogits, accumulate)))

WATCHED(max_pool2d,
        (td_tensor * y, td_tensor *index, const td_tensor *x, const td_pool2d_params *params),
        (y, index, x, params), td_cost_pool2d(y, x, index, params, NULL, false))
WATCHED(max_pool2d_grad,
        (td_tensor * dx, const td_tensor *dy, const td_tensor *index,
         const td_pool2d_params *params, bool accumulate),
        (dx, dy, index, params, accumulate), td_cost_pool2d(dy, dx, index, params, dx, accumulate))
WATCHED(avg_pool2d, (td_tensor * y, const td_tensor *x, const td_pool2d_params *params),
        (y, x, params), td_cost_pool2d(y, x, NULL, params, NULL, false))
WATCHED(avg_pool2d_grad,
        (td_tensor * dx, const td_tensor *dy, const td_pool2d_params *params, bool accumulate),
        (dx, dy, params, accumulate), td_cost_pool2d(dy, dx, NULL, params, dx, accumulate))

/* The rows that are looked up, once each way. */
WATCHED(embedding, (td_tensor * y, const td_tensor *table, const td_tensor *index),
        (y, table, index), td_cost_of(y, 0, 2.0 * B(y) + B(index)))
WATCHED(embedding_grad,
        (td_tensor * dtable, const td_tensor *dy, const td_tensor *index, bool accumulate),
        (dtable, dy, index, accumulate), td_cost_of(dy, 1, 3.0 * B(dy) + B(index)))
WATCHED(pictures,
        (td_tensor * y, td_tensor *labels, const td_tensor *pictures, const td_tensor *values,
         const td_picture_cut *cuts),
        (y, labels, pictures, values, cuts), td_cost_of(y, 0, B(y) + (double)td_numel(y)))
WATCHED(dropout,
        (td_tensor * y, const td_tensor *x, double p, td_philox_key key, const uint64_t *step,
         bool accumulate),
        (y, x, p, key, step, accumulate), td_cost_of(y, 1, B(x) + BA(y, accumulate)))

/* Weight decay, momentum, Nesterov's look ahead, the step: two each. */
WATCHED(sgd,
        (td_tensor * param, const td_tensor *grad, td_tensor *momentum,
         const td_optim_slice *slices, int count),
        (param, grad, momentum, slices, count),
        td_cost_optim(param, slices, count, momentum != NULL, momentum != NULL ? 8 : 4))
WATCHED(adam,
        (td_tensor * param, const td_tensor *grad, td_tensor *m, td_tensor *v,
         const td_optim_slice *slices, int count),
        (param, grad, m, v, slices, count), td_cost_optim(param, slices, count, 2, 14))

WATCHED(count_equal, (td_tensor * count, const td_tensor *a, const td_tensor *b), (count, a, b),
        td_cost_of(a, 1, B(a) + B(b)))

WATCHED(count_top, (td_tensor * count, const td_tensor *x, const td_tensor *labels, int64_t k),
        (count, x, labels, k), td_cost_of(x, 1, B(x) + B(labels)))

/* Those that give a value; they are calls like the others. */
#define WATCHED_VALUE(NAME, TYPE, PARAMETERS, ARGUMENTS, W)                                        \
    static TYPE watched_##NAME PARAMETERS                                                          \
    {                                                                                              \
        double begin = td_watch_enter(#NAME);                                                      \
        TYPE value = td_cpu_kernels()->NAME ARGUMENTS;                                             \
        td_watch_leave(#NAME, begin, W);                                                           \
        return value;                                                                              \
    }                                                                                              \
    static TYPE timed_##NAME PARAMETERS                                                            \
    {                                                                                              \
        TYPE value = td_timed_enter(#NAME)->NAME ARGUMENTS;                                        \
        td_timed_leave(W);                                                                         \
        return value;                                                                              \
    }

WATCHED_VALUE(sum_of_squares, double, (const td_tensor *x), (x), td_cost_of(x, 2, B(x)))
WATCHED_VALUE(all_finite, bool, (const td_tensor *x), (x), td_cost_of(x, 1, B(x)))
WATCHED_VALUE(indices_in_range, bool, (const td_tensor *index, int64_t limit, int64_t *bad),
              (index, limit, bad), td_cost_of(index, 0, B(index)))

/* GPUs alone have it. */
static void timed_clip(td_tensor *const *x, int count, td_tensor *all, double max_norm,
                       double *norm)
{
    td_timed_enter("clip")->clip(x, count, all, max_norm, norm);
    td_cost cost = { .dtype = count > 0 ? x[0]->dtype : TD_F32 };
    for (int i = 0; i < count; i++) { /* read, read and written */
        td_cost one = td_cost_of(x[i], 3, 3.0 * B(x[i]));
        cost.flops += one.flops;
        cost.bytes += one.bytes;
    }
    td_timed_leave(cost);
}

/* All of them: DO is a statement without its semicolon. */
#define FOR_ALL(DO)                                                                                \
    DO(fill);                                                                                      \
    DO(copy);                                                                                      \
    DO(axpy);                                                                                      \
    DO(unscale);                                                                                   \
    DO(adapt_scale);                                                                               \
    DO(unary);                                                                                     \
    DO(unary_grad);                                                                                \
    DO(binary);                                                                                    \
    DO(reduce);                                                                                    \
    DO(argmax);                                                                                    \
    DO(argmax_grad);                                                                               \
    DO(matmul);                                                                                    \
    DO(conv2d);                                                                                    \
    DO(conv2d_grad_input);                                                                         \
    DO(conv2d_grad_weight);                                                                        \
    DO(batch_norm);                                                                                \
    DO(batch_norm_grad);                                                                           \
    DO(layer_norm);                                                                                \
    DO(layer_norm_grad);                                                                           \
    DO(softmax);                                                                                   \
    DO(softmax_grad);                                                                              \
    DO(cross_entropy);                                                                             \
    DO(cross_entropy_grad);                                                                        \
    DO(max_pool2d);                                                                                \
    DO(max_pool2d_grad);                                                                           \
    DO(avg_pool2d);                                                                                \
    DO(avg_pool2d_grad);                                                                           \
    DO(embedding);                                                                                 \
    DO(embedding_grad);                                                                            \
    DO(pictures);                                                                                  \
    DO(dropout);                                                                                   \
    DO(sgd);                                                                                       \
    DO(adam);                                                                                      \
    DO(count_equal);                                                                               \
    DO(count_top);                                                                                 \
    DO(sum_of_squares);                                                                            \
    DO(all_finite);                                                                                \
    DO(indices_in_range)

static td_kernels watched, timed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    const td_backend *gpu = td_backend_of(TD_CUDA);
    watched = *td_cpu_kernels();
#define SEEN(NAME) watched.NAME = watched_##NAME
    FOR_ALL(SEEN);
#undef SEEN
    if (gpu != NULL) {
        timed = *gpu->kernels();
#define SEEN(NAME) timed.NAME = timed_##NAME
        FOR_ALL(SEEN);
#undef SEEN
        timed.clip = timed_clip;
    }
}

const td_kernels *td_watched_kernels(void)
{
    pthread_once(&once, make_tables);
    return &watched;
}

const td_kernels *td_timed_table(void)
{
    pthread_once(&once, make_tables);
    return &timed;
}
