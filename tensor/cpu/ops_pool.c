/* Pooling of images in the CPU's layout: a pixel of all pictures and channels is one run of memory,
 * and a window is a handful of such runs (its taps). The gradient goes the other way round: a pixel
 * of the input gathers from the windows that it lies in, so nothing is written twice. */
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/staged.h"
#include "tensor/cpu/ops_norm.h"
#include "tensor/extend.h"

#include <string.h>

enum {
    MAX_TAPS = 255, /* that are passed to a loop at once */
    PIECE = 4096,   /* elements of a run that are one item of work */
};

typedef struct pool_job {
    const td_loops *loops;
    td_pool2d_params p;
    int64_t size;     /* bytes of an element */
    int64_t h, w;     /* of the images */
    int64_t oh, ow;   /* of the pooled ones */
    int64_t run;      /* elements of a pixel: pictures x channels */
    int64_t piece;    /* elements of a run that are one item of work */
    int64_t pieces;   /* of a run */
    char *to;         /* y or dx */
    const char *from; /* x or dy */
    uint8_t *index;   /* max pooling */
    bool accumulate;
    /* with batch normalisation */
    int64_t channels;
    const td_norm_constants *constants;
    const char *x;
    double *sums; /* [items][4][channels] */
} pool_job;

/* The taps gathered so far for one piece of a run. */
typedef struct tap_list {
    td_taps taps;
    const void *row[MAX_TAPS];
    const uint8_t *index[MAX_TAPS];
    uint8_t place[MAX_TAPS];
    double weight[MAX_TAPS];
} tap_list;

static void init_list(tap_list *list)
{
    list->taps = (td_taps){ 0, list->row, list->index, list->place };
}

/* What an item of work is: a pixel (of the output) and a piece of its run. */
typedef struct item {
    int64_t y, x;     /* the pixel */
    int64_t first, n; /* elements of the run */
    int64_t at;       /* offset of the first in `to` */
} item;

static item item_of(const pool_job *job, int64_t number, int64_t width)
{
    int64_t pixel = number / job->pieces, piece = number % job->pieces;
    item it = { .y = pixel / width, .x = pixel % width, .first = piece * job->piece };
    it.n = job->run - it.first < job->piece ? job->run - it.first : job->piece;
    it.at = pixel * job->run + it.first;
    return it;
}

static void run_pool(pool_job *job, td_device device, int64_t pixels, td_range_fn fn)
{
    if (job->run == 0) {
        return;
    }
    job->piece = job->piece > 0 ? job->piece : PIECE;
    job->pieces = (job->run + job->piece - 1) / job->piece;
    int64_t cost = (job->run < job->piece ? job->run : job->piece) * job->p.kernel[0] *
                   job->p.kernel[1] / (job->p.stride[0] * job->p.stride[1]);
    int64_t items = pixels * job->pieces;
    td_parallel(device, items, td_item_chunk(items, cost > 0 ? cost : 1), fn, job);
}

/* ---- windows ---- */

/* The part [begin, end) of a window along one side that lies in the image. */
static void clip(int64_t out, int stride, int pad, int kernel, int64_t size, int *begin, int *end)
{
    int64_t start = out * stride - pad;
    int64_t last = size - start;
    *begin = start < 0 ? (start < -kernel ? kernel : (int)-start) : 0;
    *end = last < kernel ? (last < *begin ? *begin : (int)last) : kernel;
}

static const char *pixel_of(const pool_job *job, int64_t y, int64_t x, int64_t width, int64_t first)
{
    return job->from + ((y * width + x) * job->run + first) * job->size;
}

/* The places of an output pixel's window that lie in the image. */
static void gather_window(const pool_job *job, const item *it, tap_list *list)
{
    const td_pool2d_params *p = &job->p;
    int h0, h1, w0, w1;
    clip(it->y, p->stride[0], p->pad[0], p->kernel[0], job->h, &h0, &h1);
    clip(it->x, p->stride[1], p->pad[1], p->kernel[1], job->w, &w0, &w1);
    init_list(list);
    for (int kh = h0; kh < h1; kh++) {
        for (int kw = w0; kw < w1; kw++) {
            int t = list->taps.count++;
            list->row[t] = pixel_of(job, it->y * p->stride[0] - p->pad[0] + kh,
                                    it->x * p->stride[1] - p->pad[1] + kw, job->w, it->first);
            list->place[t] = (uint8_t)(kh * p->kernel[1] + kw);
        }
    }
}

static void max_pool_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    tap_list list;
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i, job->ow);
        gather_window(job, &it, &list);
        char *y = job->to + it.at * job->size;
        uint8_t *index = job->index ? job->index + it.at : NULL;
        if (job->constants) {
            job->loops->norm_max_pool(it.n / job->channels, job->channels, y, index, &list.taps,
                                      job->constants);
        } else {
            job->loops->max_pool(it.n, y, index, &list.taps);
        }
    }
}

/* How many places of a window an average divides by. */
static double average_over(const pool_job *job, int64_t oy, int64_t ox)
{
    const td_pool2d_params *p = &job->p;
    int64_t out[2] = { oy, ox }, size[2] = { job->h, job->w };
    double places = 1.0;
    for (int k = 0; k < 2; k++) {
        int begin, end;
        /* PyTorch's rule: padding counts, but not what the last window has beyond it. */
        int64_t beyond = p->count_include_pad ? p->pad[k] : 0;
        clip(out[k], p->stride[k], p->pad[k] - (int)beyond, p->kernel[k], size[k] + 2 * beyond,
             &begin, &end);
        places *= end - begin;
    }
    return places;
}

/* The weighted sum of an item: taps are gathered, and added up MAX_TAPS at a time. 16 bits are
 * added up in f32, and rounded once. */
typedef struct weighted_sum {
    tap_list list;
    bool started;
    double sum[PIECE]; /* of floats, unless the images are f64 */
} weighted_sum;

static void sum_begin(weighted_sum *s)
{
    init_list(&s->list);
    s->started = false;
}

static void sum_gathered(const pool_job *job, const item *it, weighted_sum *s)
{
    job->loops->tap_sum(it->n, s->sum, &s->list.taps, s->list.weight, s->started);
    s->started = true;
    s->list.taps.count = 0;
}

static void sum_tap(const pool_job *job, const item *it, weighted_sum *s, const void *row,
                    double weight)
{
    if (s->list.taps.count == MAX_TAPS) {
        sum_gathered(job, it, s);
    }
    int t = s->list.taps.count++;
    s->list.row[t] = row;
    s->list.weight[t] = weight;
}

static void sum_end(const pool_job *job, const item *it, weighted_sum *s)
{
    sum_gathered(job, it, s);
    job->loops->put_sum(it->n, job->to + it->at * job->size, s->sum, job->accumulate);
}

static void avg_pool_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    const td_pool2d_params *p = &job->p;
    weighted_sum sum;
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i, job->ow);
        double weight = 1.0 / average_over(job, it.y, it.x);
        int h0, h1, w0, w1;
        clip(it.y, p->stride[0], p->pad[0], p->kernel[0], job->h, &h0, &h1);
        clip(it.x, p->stride[1], p->pad[1], p->kernel[1], job->w, &w0, &w1);
        sum_begin(&sum);
        for (int kh = h0; kh < h1; kh++) {
            for (int kw = w0; kw < w1; kw++) {
                const char *row = pixel_of(job, it.y * p->stride[0] - p->pad[0] + kh,
                                           it.x * p->stride[1] - p->pad[1] + kw, job->w, it.first);
                sum_tap(job, &it, &sum, row, weight);
            }
        }
        sum_end(job, &it, &sum);
    }
}

/* ---- gradients ---- */

/* The windows [begin, end) along one side that a pixel lies in. */
static void windows_of(int64_t pixel, int stride, int pad, int kernel, int64_t count,
                       int64_t *begin, int64_t *end)
{
    int64_t from = pixel + pad - kernel + 1; /* the first place a window with it may start at */
    *begin = from <= 0 ? 0 : (from + stride - 1) / stride;
    *end = (pixel + pad) / stride + 1;
    *end = *end < count ? *end : count;
}

/* The windows that an input pixel lies in. */
static void gather_windows(const pool_job *job, const item *it, tap_list *list)
{
    const td_pool2d_params *p = &job->p;
    int64_t h0, h1, w0, w1;
    windows_of(it->y, p->stride[0], p->pad[0], p->kernel[0], job->oh, &h0, &h1);
    windows_of(it->x, p->stride[1], p->pad[1], p->kernel[1], job->ow, &w0, &w1);
    init_list(list);
    for (int64_t oy = h0; oy < h1; oy++) {
        for (int64_t ox = w0; ox < w1; ox++) {
            int t = list->taps.count++;
            int64_t kh = it->y + p->pad[0] - oy * p->stride[0];
            int64_t kw = it->x + p->pad[1] - ox * p->stride[1];
            list->row[t] = pixel_of(job, oy, ox, job->ow, it->first);
            list->index[t] = job->index + (oy * job->ow + ox) * job->run + it->first;
            list->place[t] = (uint8_t)(kh * p->kernel[1] + kw);
        }
    }
}

/* The sums that batch normalisation's gradient wants of an item, while it is in the cache. */
static void add_sums(const pool_job *job, const item *it, int64_t number)
{
    int64_t channels = job->channels, row = channels * job->size;
    double *sums = job->sums + number * 4 * channels, *block = sums + 2 * channels;
    memset(sums, 0, (size_t)(2 * channels) * sizeof *sums);
    for (int64_t r = 0; r < it->n / channels; r += TD_NORM_BLOCK) {
        int64_t rest = it->n / channels - r, n = rest < TD_NORM_BLOCK ? rest : TD_NORM_BLOCK;
        int64_t at = it->at * job->size + r * row;
        td_norm_grad from = { .mask = TD_NORM_MASK_NONE, .dy = job->to + at, .x = job->x + at };
        job->loops->norm_grad_sums(n, channels, &from, job->constants, NULL, block,
                                   block + channels);
        for (int64_t c = 0; c < 2 * channels; c++) {
            sums[c] += block[c];
        }
    }
}

static void max_pool_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    tap_list list;
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i, job->w);
        gather_windows(job, &it, &list);
        job->loops->max_pool_grad(it.n, job->to + it.at * job->size, &list.taps, job->accumulate);
        if (job->sums) {
            add_sums(job, &it, i);
        }
    }
}

static void avg_pool_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    const td_pool2d_params *p = &job->p;
    weighted_sum sum;
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i, job->w);
        int64_t h0, h1, w0, w1;
        windows_of(it.y, p->stride[0], p->pad[0], p->kernel[0], job->oh, &h0, &h1);
        windows_of(it.x, p->stride[1], p->pad[1], p->kernel[1], job->ow, &w0, &w1);
        sum_begin(&sum);
        for (int64_t oy = h0; oy < h1; oy++) {
            for (int64_t ox = w0; ox < w1; ox++) {
                sum_tap(job, &it, &sum, pixel_of(job, oy, ox, job->ow, it.first),
                        1.0 / average_over(job, oy, ox));
            }
        }
        sum_end(job, &it, &sum);
    }
}

/* ---- the kernels ---- */

static pool_job describe(const td_tensor *x, const td_tensor *y, const td_pool2d_params *params)
{
    return (pool_job){
        .loops = td_loops_of(x->dtype),
        .p = *params,
        .size = (int64_t)td_dtype_size(x->dtype),
        .h = x->shape[2],
        .w = x->shape[3],
        .oh = y->shape[2],
        .ow = y->shape[3],
        .run = x->shape[0] * x->shape[1],
    };
}

void td_cpu_max_pool2d(td_tensor *y, td_tensor *index, const td_tensor *x,
                       const td_pool2d_params *params)
{
    td_staged sy, sindex, sx;
    pool_job job = describe(x, y, params);
    job.from = td_stage_in(&sx, x, TD_IMAGE);
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    job.index = td_stage_out(&sindex, index, TD_IMAGE, false);
    run_pool(&job, td_device_of(y), job.oh * job.ow, max_pool_range);
    td_stage_end(&sindex);
    td_stage_end(&sy);
    td_stage_end(&sx);
}

void td_cpu_max_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                            const td_pool2d_params *params, bool accumulate)
{
    td_staged sdx, sdy, sindex;
    pool_job job = describe(dx, dy, params);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    td_stage_in(&sindex, index, TD_IMAGE);
    job.index = td_ptr(sindex.tensor);
    job.accumulate = accumulate;
    run_pool(&job, td_device_of(dx), job.h * job.w, max_pool_grad_range);
    td_stage_end(&sindex);
    td_stage_end(&sdx);
    td_stage_end(&sdy);
}

void td_cpu_avg_pool2d(td_tensor *y, const td_tensor *x, const td_pool2d_params *params)
{
    td_staged sy, sx;
    pool_job job = describe(x, y, params);
    job.from = td_stage_in(&sx, x, TD_IMAGE);
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    run_pool(&job, td_device_of(y), job.oh * job.ow, avg_pool_range);
    td_stage_end(&sy);
    td_stage_end(&sx);
}

void td_cpu_avg_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                            bool accumulate)
{
    td_staged sdx, sdy;
    pool_job job = describe(dx, dy, params);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    job.accumulate = accumulate;
    run_pool(&job, td_device_of(dx), job.h * job.w, avg_pool_grad_range);
    td_stage_end(&sdx);
    td_stage_end(&sdy);
}

/* ---- with batch normalisation ---- */

/* Items of whole rows. */
static int64_t row_piece(int64_t elements, int64_t channels)
{
    int64_t rows = elements / channels;
    return (rows > 0 ? rows : 1) * channels;
}

void td_pool_normalized(td_tensor *y, td_tensor *index, const td_tensor *x, const void *x_data,
                        const td_pool2d_params *params, const td_norm_constants *constants)
{
    td_staged sy, sindex;
    pool_job job = describe(x, y, params);
    job.from = x_data;
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    job.index = td_stage_out(&sindex, index, TD_IMAGE, false);
    job.channels = x->shape[1];
    job.constants = constants;
    job.piece = row_piece(PIECE, job.channels);
    run_pool(&job, td_device_of(y), job.oh * job.ow, max_pool_range);
    td_stage_end(&sindex);
    td_stage_end(&sy);
}

void td_pool_grad_and_sums(void *g, const td_tensor *dy, const td_tensor *index, const td_tensor *x,
                           const void *x_data, const td_pool2d_params *params,
                           const td_norm_constants *constants, double *sums)
{
    td_device device = td_device_of(x);
    td_staged sdy, sindex;
    pool_job job = describe(x, dy, params);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = g;
    td_stage_in(&sindex, index, TD_IMAGE);
    job.index = td_ptr(sindex.tensor);
    job.channels = x->shape[1];
    job.constants = constants;
    job.x = x_data;
    job.piece = row_piece(4 * PIECE, job.channels);
    int64_t items = job.h * job.w * ((job.run + job.piece - 1) / job.piece), count = job.channels;
    job.sums = td_scratch(device, (size_t)(items * 4 * count) * sizeof *job.sums);
    run_pool(&job, device, job.h * job.w, max_pool_grad_range);
    memset(sums, 0, (size_t)(2 * count) * sizeof *sums);
    for (int64_t i = 0; i < items; i++) {
        for (int64_t c = 0; c < 2 * count; c++) {
            sums[c] += job.sums[i * 4 * count + c];
        }
    }
    td_scratch_free(device, job.sums);
    td_stage_end(&sindex);
    td_stage_end(&sdy);
}
