/*
 * Convolutions whose result has a handful of channels, far fewer than a vector has lanes: taps take
 * the place of channels. One product of matrices multiplies every pixel of the source with the
 * weights of all taps at once, and what belongs to one pixel of the result is added up afterwards:
 *
 *     z[source pixel][n][tap][c] = sum over channels k of source[pixel][n][k] * w[tap][k][c]
 *     result[pixel][n][c]        = sum over taps of z[source pixel at that tap][n][tap][c]
 *
 * Backward-weights the other way round: for every pixel of x, the pixels of dy that it meets are
 * laid side by side, and dw is one product of x with those.
 */
#include "tensor/cpu/conv_internal.h"

#include <math.h>
#include <string.h>

enum {
    MAX_RESULT = 8,   /* channels of the result */
    MIN_SOURCE = 12,  /* channels of x, in backward-weights */
    LANES = 16,       /* about as many channels are computed at once, used or not */
    MAX_WIDTH = 512,  /* taps times channels */
    SHUFFLE_COST = 2, /* of moving a number, in products of LANES channels */
    IMAGE_BLOCK = 64, /* pictures in a task of shuffling */
};

typedef struct plan {
    const td_conv_apply *apply;
    const td_conv_reduce *reduce;
    const td_conv_problem *problem; /* the convolution */
    td_conv_problem product;        /* that of 1x1 */
    td_conv_taps h, w;              /* from a pixel that is shuffled to the pixel it meets */
    int64_t met_width;              /* of the picture that the tables point into */
    int64_t source, result;         /* channels of a group */
    int64_t groups;
    int64_t taps, width; /* of a group: width = taps * result */
    char *weights;       /* [source channel][group][tap][result channel] */
    char *z;             /* [pixel][n][group][tap][result channel] */
} plan;

bool td_conv_narrow_wins(const td_conv_problem *p, td_conv_narrow_pass pass)
{
    bool back = pass == TD_CONV_NARROW_DATA;
    int64_t source = back ? p->oc : p->ic, result = back ? p->ic : p->oc;
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel, width = taps * result;
    bool few = pass == TD_CONV_NARROW_WEIGHTS && source < MIN_SOURCE; /* of a product's rows */
    bool grouped = pass == TD_CONV_NARROW_WEIGHTS && p->groups > 1;
    if (few || grouped || result > MAX_RESULT || taps == 1 || width > MAX_WIDTH) {
        return false;
    }
    /* Per picture, in products of LANES channels; each pixel of y meets all taps. */
    double y = (double)(p->h.out * p->w.out), x = (double)(p->h.in * p->w.in);
    double met = (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w);
    double direct = met * (double)source;
    if (pass != TD_CONV_NARROW_WEIGHTS) {
        direct = fmin(direct, (back ? x : y) * td_conv_dots_cost(p, back));
    }
    double product = (back ? y : x) * (double)(td_divide_up(width, LANES) * source);
    return direct > product + SHUFFLE_COST * y * (double)width;
}

/* A convolution of 1x1 over the pixels of x or y, from `ic` to `oc` channels of a group. */
static td_conv_problem product_over(const td_conv_problem *p, bool over_x, int64_t ic, int64_t oc)
{
    int64_t h = over_x ? p->h.in : p->h.out, w = over_x ? p->w.in : p->w.out;
    int64_t all_ic = ic * p->groups, all_oc = oc * p->groups;
    return (td_conv_problem){
        .dtype = p->dtype,
        .kernels = p->kernels,
        .n = p->n,
        .groups = p->groups,
        .ic = ic,
        .oc = oc,
        .oc_all = all_oc,
        .h = { h, h, 1, 1, 0, 1 },
        .w = { w, w, 1, 1, 0, 1 },
        .x = { w * p->n * all_ic, p->n * all_ic, all_ic },
        .y = { w * p->n * all_oc, p->n * all_oc, all_oc },
    };
}

/* `over_x`: the product runs over the pixels of x. */
static plan make_plan(const td_conv_problem *p, bool back, bool over_x, td_conv_space *space)
{
    plan made = { .problem = p,
                  .source = back ? p->oc : p->ic,
                  .result = back ? p->ic : p->oc,
                  .groups = p->groups,
                  .taps = (int64_t)p->h.kernel * p->w.kernel };
    made.width = made.taps * made.result;
    int64_t all_width = made.groups * made.width;
    made.product = product_over(p, over_x, made.source, made.width);
    int64_t size = (int64_t)p->kernels->size;
    made.weights = td_conv_take(space, made.source * all_width * size);
    made.z = td_conv_take(space, made.product.h.in * made.product.w.in * p->n * all_width * size);
    return made;
}

/* ---- loops, for both element types ---- */

/* Some pictures of one pixel of the result; `channels` and `width` are of a group. */
typedef struct add_up {
    int64_t images, groups, width, channels;
    const void *bias; /* or NULL */
    bool add;
} add_up;

#define UNROLLED(name, channels)                                                                   \
    case channels:                                                                                 \
        name##_add_up_of(to, from, taps, a, channels);                                             \
        break;

#define TYPED(name, elem)                                                                          \
    /* to[n][g][c] = (add ? that : 0) + bias[g][c] + the sum over taps of                          \
     * from[tap][n*width*groups + g*width + c] */                                                  \
    static inline __attribute__((always_inline)) void name##_add_up_of(                            \
        elem *restrict to, const elem *const *from, int64_t taps, const add_up *a,                 \
        const int64_t channels)                                                                    \
    {                                                                                              \
        const elem *bias = a->bias;                                                                \
        for (int64_t i = 0, g = 0; i < a->images * a->groups; i++, g++) {                          \
            elem sum[MAX_RESULT] = { 0 };                                                          \
            for (int64_t tap = 0; tap < taps; tap++) {                                             \
                for (int64_t c = 0; c < channels; c++) {                                           \
                    sum[c] += from[tap][i * a->width + c];                                         \
                }                                                                                  \
            }                                                                                      \
            g = g == a->groups ? 0 : g;                                                            \
            for (int64_t c = 0; c < channels; c++, to++) {                                         \
                elem start = a->add ? *to : 0;                                                     \
                *to = start + sum[c] + (bias ? bias[g * channels + c] : 0);                        \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void name##_add_up(elem *to, const elem *const *from, int64_t taps, const add_up *a)    \
    {                                                                                              \
        switch (sizeof(elem) == sizeof(float) ? a->channels : 0) {                                 \
            UNROLLED(name, 1)                                                                      \
            UNROLLED(name, 2)                                                                      \
            UNROLLED(name, 3)                                                                      \
            UNROLLED(name, 4)                                                                      \
            UNROLLED(name, 5)                                                                      \
            UNROLLED(name, 6)                                                                      \
        default:                                                                                   \
            name##_add_up_of(to, from, taps, a, a->channels);                                      \
            break;                                                                                 \
        }                                                                                          \
    }                                                                                              \
    /* to[n*width + c] = from[n][c], or 0 */                                                       \
    static void name##_spread(elem *restrict to, const elem *restrict from, int64_t images,        \
                              int64_t width, int64_t channels)                                     \
    {                                                                                              \
        for (int64_t n = 0; n < images; n++) {                                                     \
            for (int64_t c = 0; c < channels; c++) {                                               \
                to[n * width + c] = from ? from[n * channels + c] : 0;                             \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* dw[tap][k][c] = (add ? dw[tap][k][c] : 0) + from[k][tap][c] */                              \
    static void name##_unpack(elem *restrict dw, const elem *restrict from, const plan *p,         \
                              bool add)                                                            \
    {                                                                                              \
        for (int64_t k = 0; k < p->source; k++) {                                                  \
            for (int64_t tap = 0; tap < p->taps; tap++) {                                          \
                elem *to = dw + (tap * p->source + k) * p->result;                                 \
                for (int64_t c = 0; c < p->result; c++, from++) {                                  \
                    to[c] = add ? to[c] + *from : *from;                                           \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void name##_pack(elem *restrict to, const elem *restrict w, const plan *p, bool back)   \
    {                                                                                              \
        const int64_t oc = p->problem->oc, all = p->problem->oc_all;                               \
        for (int64_t i = 0; i < p->source * p->groups; i++) {                                      \
            const int64_t k = i / p->groups, first = i % p->groups * oc;                           \
            for (int64_t tap = 0; tap < p->taps; tap++) {                                          \
                for (int64_t c = 0; c < p->result; c++, to++) {                                    \
                    *to = back ? w[(tap * p->result + c) * all + first + k]                        \
                               : w[(tap * p->source + k) * all + first + c];                       \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

TYPED(f32, float)
TYPED(f64, double)

/* ---- forward and backward-data ---- */

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    plan p = make_plan(problem, apply->backward, !apply->backward, space);
    p.apply = apply;
    p.h = td_conv_taps_make(&problem->h, apply->backward, space);
    p.w = td_conv_taps_make(&problem->w, apply->backward, space);
    p.met_width = p.product.w.in;
    return p;
}

static td_conv_apply product_apply(const plan *p)
{
    return (td_conv_apply){
        .problem = &p->product, .source = p->apply->source, .weights = p->weights, .result = p->z
    };
}

/* Some pictures of one pixel of the result. */
static void add_up_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    int64_t blocks = td_divide_up(n, IMAGE_BLOCK);
    int64_t pixel = task / blocks, first = task % blocks * IMAGE_BLOCK;
    int64_t images = td_min64(IMAGE_BLOCK, n - first), count = 0;
    const void *from[MAX_WIDTH];
    for (int64_t tap = 0; tap < p->taps; tap++) {
        int64_t h = p->h.source[pixel / p->w.size * p->h.kernel + tap / p->w.kernel];
        int64_t w = p->w.source[pixel % p->w.size * p->w.kernel + tap % p->w.kernel];
        if (h >= 0 && w >= 0) {
            int64_t row = (h * p->met_width + w) * n + first;
            from[count++] = p->z + (row * p->groups * p->width + tap * p->result) * size;
        }
    }
    char *to = (char *)p->apply->result + (pixel * n + first) * p->groups * p->result * size;
    add_up sums = { images, p->groups, p->width, p->result, p->apply->bias, p->apply->accumulate };
    if (p->problem->dtype == TD_F32) {
        f32_add_up((float *)to, (const float *const *)from, count, &sums);
    } else {
        f64_add_up((double *)to, (const double *const *)from, count, &sums);
    }
}

int64_t td_conv_narrow_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    plan p = apply_plan(apply, &space);
    td_conv_apply product = product_apply(&p);
    return space.used + td_conv_apply_workspace(&product);
}

void td_conv_narrow_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = apply_plan(apply, &space);
    if (p.problem->dtype == TD_F32) {
        f32_pack((float *)p.weights, apply->weights, &p, apply->backward);
    } else {
        f64_pack((double *)p.weights, apply->weights, &p, apply->backward);
    }
    td_conv_apply product = product_apply(&p);
    td_conv_apply_run(pool, &product, space.base + space.used);
    int64_t blocks = td_divide_up(p.problem->n, IMAGE_BLOCK);
    td_pool_run(pool, blocks * p.h.size * p.w.size, add_up_task, &p);
}

/* ---- backward-weights ---- */

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = make_plan(problem, false, true, space);
    p.reduce = reduce;
    p.h = td_conv_taps_make(&problem->h, true, space);
    p.w = td_conv_taps_make(&problem->w, true, space);
    p.met_width = problem->w.out;
    return p;
}

static td_conv_reduce product_reduce(const plan *p)
{
    return (
        td_conv_reduce){ .problem = &p->product, .x = p->reduce->x, .dy = p->z, .dw = p->weights };
}

/* Some pictures of one pixel of x: what it meets of dy. */
static void spread_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    int64_t blocks = td_divide_up(n, IMAGE_BLOCK);
    int64_t pixel = task / blocks, first = task % blocks * IMAGE_BLOCK;
    int64_t images = td_min64(IMAGE_BLOCK, n - first);
    for (int64_t tap = 0; tap < p->taps; tap++) {
        int64_t h = p->h.source[pixel / p->w.size * p->h.kernel + tap / p->w.kernel];
        int64_t w = p->w.source[pixel % p->w.size * p->w.kernel + tap % p->w.kernel];
        const char *from = NULL;
        if (h >= 0 && w >= 0) {
            int64_t row = (h * p->met_width + w) * n + first;
            from = (const char *)p->reduce->dy + row * p->result * size;
        }
        char *to = p->z + ((pixel * n + first) * p->width + tap * p->result) * size;
        if (p->problem->dtype == TD_F32) {
            f32_spread((float *)to, (const float *)from, images, p->width, p->result);
        } else {
            f64_spread((double *)to, (const double *)from, images, p->width, p->result);
        }
    }
}

int64_t td_conv_narrow_reduce_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    plan p = reduce_plan(reduce, &space);
    td_conv_reduce product = product_reduce(&p);
    return space.used + td_conv_reduce_workspace(&product);
}

void td_conv_narrow_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = reduce_plan(reduce, &space);
    int64_t blocks = td_divide_up(p.problem->n, IMAGE_BLOCK);
    td_pool_run(pool, blocks * p.h.size * p.w.size, spread_task, &p);
    td_conv_reduce product = product_reduce(&p);
    td_conv_reduce_run(pool, &product, space.base + space.used);
    if (p.problem->dtype == TD_F32) {
        f32_unpack(reduce->dw, (const float *)p.weights, &p, reduce->accumulate);
    } else {
        f64_unpack(reduce->dw, (const double *)p.weights, &p, reduce->accumulate);
    }
}
