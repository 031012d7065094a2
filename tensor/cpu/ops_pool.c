/* Pooling of images in the CPU's layout: a pixel of all pictures and channels is one run of memory,
 * and a window is a handful of such runs (its taps). The gradient goes the other way round: a pixel
 * of the input gathers from the windows that it lies in, so nothing is written twice. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_norm.h"

#include <string.h>

enum {
    MAX_TAPS = 255, /* that are passed to a loop at once */
    PIECE = 4096,   /* elements of a run that are one item of work */
};

typedef struct pool_job {
    const td_loops *loops;
    td_pool2d_params p;
    int64_t size;  /* bytes of an element */
    bool gradient; /* `to` has the images' pixels, `from` the pooled ones; else the reverse */
    int64_t size_x[2], size_y[2]; /* height and width of the images, and of the pooled ones */
    int64_t run;                  /* elements of a pixel: pictures x channels */
    int64_t piece;                /* elements of a run that are one item of work */
    int64_t pieces;               /* of a run */
    int64_t items, chunk;         /* of work; those of a task */
    char *to;                     /* y or dx */
    const char *from;             /* x or dy */
    uint8_t *index;               /* max pooling */
    bool accumulate;
    /* with batch normalisation */
    int64_t channels;
    const td_norm_constants *constants;
    const char *x;
    double *sums; /* [tasks][4][channels]: g, g (x - mean), and one block's */
} pool_job;

/* The taps of one piece of a run. */
typedef struct tap_list {
    td_taps taps;
    const void *row[MAX_TAPS];
    const uint8_t *index[MAX_TAPS];
    uint8_t place[MAX_TAPS];
    double weight[MAX_TAPS];
} tap_list;

/* What an item of work is: a pixel (of the output) and a piece of its run. */
typedef struct item {
    int64_t y, x;     /* the pixel */
    int64_t first, n; /* elements of the run */
    int64_t at;       /* offset of the first in `to` */
} item;

static item item_of(const pool_job *job, int64_t number)
{
    int64_t pixel = number / job->pieces, piece = number % job->pieces;
    int64_t width = job->gradient ? job->size_x[1] : job->size_y[1];
    item it = { .y = pixel / width, .x = pixel % width, .first = piece * job->piece };
    it.n = job->run - it.first < job->piece ? job->run - it.first : job->piece;
    it.at = pixel * job->run + it.first;
    return it;
}

/* piece: elements of a run that are one item of work. */
static void pooling_cut(pool_job *job, int64_t piece)
{
    const int64_t *to = job->gradient ? job->size_x : job->size_y;
    job->piece = piece;
    job->pieces = (job->run + piece - 1) / piece;
    job->items = to[0] * to[1] * job->pieces;
    int64_t cost = job->run < piece ? job->run : piece, strides = 1;
    for (int k = 0; k < 2; k++) { /* a window has no more taps than the image has pixels */
        cost *= job->p.kernel[k] < job->size_x[k] ? job->p.kernel[k] : job->size_x[k];
        strides *= job->p.stride[k];
    }
    cost /= strides;
    job->chunk = td_item_chunk(job->items, cost > 0 ? cost : 1);
}

/* ---- taps ---- */

/* The part [begin, end) of a window along side k that lies in the image, padding of `beyond` places
 * included: pixels of the image. */
static void window_of(const pool_job *job, int k, int64_t out, int64_t beyond, int64_t *begin,
                      int64_t *end)
{
    int64_t first = out * job->p.stride[k] - job->p.pad[k], last = first + job->p.kernel[k];
    int64_t size = job->size_x[k] + beyond;
    *begin = first < -beyond ? -beyond : first;
    *end = last < size ? last : size;
}

/* The windows [begin, end) along side k that a pixel of the image lies in. */
static void windows_of(const pool_job *job, int k, int64_t pixel, int64_t *begin, int64_t *end)
{
    int64_t stride = job->p.stride[k], last = pixel + job->p.pad[k];
    int64_t from = last - job->p.kernel[k] + 1; /* the first place a window with it may start at */
    *begin = from <= 0 ? 0 : (from + stride - 1) / stride;
    *end = last / stride + 1 < job->size_y[k] ? last / stride + 1 : job->size_y[k];
}

/* The place of a pixel in a window, along side k. */
static int64_t place_of(const pool_job *job, int k, int64_t out, int64_t pixel)
{
    return pixel + job->p.pad[k] - out * job->p.stride[k];
}

/* How many places of a window an average divides by. */
static double average_over(const pool_job *job, int64_t oy, int64_t ox)
{
    int64_t out[2] = { oy, ox };
    double places = 1.0;
    for (int k = 0; k < 2; k++) {
        int64_t begin, end;
        /* PyTorch's rule: padding counts, but not what the last window has beyond it. */
        window_of(job, k, out[k], job->p.count_include_pad ? job->p.pad[k] : 0, &begin, &end);
        places *= (double)(end - begin);
    }
    return places;
}

/* sum = or += the weighted taps; of floats, unless the images are f64. */
static void pooling_add_taps(const pool_job *job, const item *it, tap_list *list, double *sum,
                             bool more)
{
    job->loops->tap_sum(it->n, sum, &list->taps, list->weight, more);
    list->taps.count = 0;
}

/* The taps of an item: of an output pixel the places of its window that lie in the image, of an
 * input pixel (`gradient`) the windows that it lies in. For averages they are also added up, as
 * windows may have any number of places; max pooling (sum NULL) has MAX_TAPS at most. */
static void gather(const pool_job *job, const item *it, tap_list *list, double *sum)
{
    const bool gradient = job->gradient;
    const int64_t at[2] = { it->y, it->x }, width = gradient ? job->size_y[1] : job->size_x[1];
    int64_t begin[2], end[2];
    bool more = false;
    double weight = sum && !gradient ? 1.0 / average_over(job, it->y, it->x) : 0.0;
    for (int k = 0; k < 2; k++) {
        if (gradient) {
            windows_of(job, k, at[k], &begin[k], &end[k]);
        } else {
            window_of(job, k, at[k], 0, &begin[k], &end[k]);
        }
    }
    list->taps = (td_taps){ 0, list->row, list->index, list->place };
    for (int64_t h = begin[0]; h < end[0]; h++) {
        for (int64_t w = begin[1]; w < end[1]; w++) {
            int64_t oy = gradient ? h : it->y, ox = gradient ? w : it->x;
            int64_t y = gradient ? it->y : h, x = gradient ? it->x : w;
            int64_t pixel = (h * width + w) * job->run + it->first;
            if (list->taps.count == MAX_TAPS) {
                pooling_add_taps(job, it, list, sum, more);
                more = true;
            }
            int t = list->taps.count++;
            list->row[t] = job->from + pixel * job->size;
            list->index[t] = gradient && job->index ? job->index + pixel : NULL;
            list->place[t] =
                (uint8_t)(place_of(job, 0, oy, y) * job->p.kernel[1] + place_of(job, 1, ox, x));
            list->weight[t] = sum && gradient ? 1.0 / average_over(job, oy, ox) : weight;
        }
    }
    if (sum) {
        pooling_add_taps(job, it, list, sum, more);
    }
}

/* ---- pieces of the result ---- */

static void max_pool_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    tap_list list;
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i);
        gather(job, &it, &list, NULL);
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

/* Averages, and their gradient. 16 bits are added up in f32, and rounded once. */
static void avg_pool_range(void *ctx, int64_t begin, int64_t end)
{
    const pool_job *job = ctx;
    tap_list list;
    double sum[PIECE];
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i);
        gather(job, &it, &list, sum);
        job->loops->put_sum(it.n, job->to + it.at * job->size, sum, job->accumulate);
    }
}

/* Adds what batch normalisation's gradient wants of an item, while it is in the cache. */
static void add_sums(const pool_job *job, const item *it, double *sums)
{
    int64_t channels = job->channels, row = channels * job->size;
    double *block = sums + 2 * channels;
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
    double *sums = job->sums ? job->sums + begin / job->chunk * 4 * job->channels : NULL;
    if (sums) {
        memset(sums, 0, (size_t)(2 * job->channels) * sizeof *sums);
    }
    for (int64_t i = begin; i < end; i++) {
        item it = item_of(job, i);
        gather(job, &it, &list, NULL);
        job->loops->max_pool_grad(it.n, job->to + it.at * job->size, &list.taps, job->accumulate);
        if (sums) {
            add_sums(job, &it, sums);
        }
    }
}

static void run_pool(pool_job *job, td_device device, td_range_fn fn)
{
    td_parallel_chunks(device, job->items, job->chunk, fn, job);
}

/* ---- the kernels ---- */

/* x: the images, y: the pooled ones; or their gradients, the job then being to find x's. */
static pool_job pooling_describe(const td_tensor *x, const td_tensor *y,
                                 const td_pool2d_params *params, bool gradient)
{
    pool_job job = {
        .loops = td_loops_of(x->dtype),
        .p = *params,
        .gradient = gradient,
        .size = (int64_t)td_dtype_size(x->dtype),
        .size_x = { x->shape[2], x->shape[3] },
        .size_y = { y->shape[2], y->shape[3] },
        .run = x->shape[0] * x->shape[1],
    };
    pooling_cut(&job, PIECE);
    return job;
}

void td_cpu_max_pool2d(td_tensor *y, td_tensor *index, const td_tensor *x,
                       const td_pool2d_params *params)
{
    td_staged sy, sindex, sx;
    pool_job job = pooling_describe(x, y, params, false);
    job.from = td_stage_in(&sx, x, TD_IMAGE);
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    job.index = td_stage_out(&sindex, index, TD_IMAGE, false);
    run_pool(&job, td_device_of(y), max_pool_range);
    td_stage_end(&sindex, &sy, &sx);
}

void td_cpu_max_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                            const td_pool2d_params *params, bool accumulate)
{
    td_staged sdx, sdy, sindex;
    pool_job job = pooling_describe(dx, dy, params, true);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    td_stage_in(&sindex, index, TD_IMAGE);
    job.index = td_ptr(sindex.tensor);
    job.accumulate = accumulate;
    run_pool(&job, td_device_of(dx), max_pool_grad_range);
    td_stage_end(&sindex, &sdx, &sdy);
}

void td_cpu_avg_pool2d(td_tensor *y, const td_tensor *x, const td_pool2d_params *params)
{
    td_staged sy, sx;
    pool_job job = pooling_describe(x, y, params, false);
    job.from = td_stage_in(&sx, x, TD_IMAGE);
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    run_pool(&job, td_device_of(y), avg_pool_range);
    td_stage_end(&sy, &sx);
}

void td_cpu_avg_pool2d_grad(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                            bool accumulate)
{
    td_staged sdx, sdy;
    pool_job job = pooling_describe(dx, dy, params, true);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    job.accumulate = accumulate;
    run_pool(&job, td_device_of(dx), avg_pool_range);
    td_stage_end(&sdx, &sdy);
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
    pool_job job = pooling_describe(x, y, params, false);
    job.from = x_data;
    job.to = td_stage_out(&sy, y, TD_IMAGE, false);
    job.index = td_stage_out(&sindex, index, TD_IMAGE, false);
    job.channels = x->shape[1];
    job.constants = constants;
    pooling_cut(&job, row_piece(PIECE, job.channels));
    run_pool(&job, td_device_of(y), max_pool_range);
    td_stage_end(&sindex, &sy);
}

void td_pool_grad_and_sums(void *g, const td_tensor *dy, const td_tensor *index, const td_tensor *x,
                           const void *x_data, const td_pool2d_params *params,
                           const td_norm_constants *constants, double *sums)
{
    td_device device = td_device_of(x);
    td_staged sdy, sindex;
    pool_job job = pooling_describe(x, dy, params, true);
    job.from = td_stage_in(&sdy, dy, TD_IMAGE);
    job.to = g;
    td_stage_in(&sindex, index, TD_IMAGE);
    job.index = td_ptr(sindex.tensor);
    job.channels = x->shape[1];
    job.constants = constants;
    job.x = x_data;
    pooling_cut(&job, row_piece(4 * PIECE, job.channels));
    int64_t tasks = (job.items + job.chunk - 1) / job.chunk, count = job.channels;
    job.sums = td_scratch(device, (size_t)(tasks * 4 * count) * sizeof *job.sums);
    run_pool(&job, device, max_pool_grad_range);
    memset(sums, 0, (size_t)(2 * count) * sizeof *sums);
    for (int64_t i = 0; i < tasks; i++) {
        for (int64_t c = 0; c < 2 * count; c++) {
            sums[c] += job.sums[i * 4 * count + c];
        }
    }
    td_scratch_free(device, job.sums);
    td_stage_end(&sindex, &sdy);
}
