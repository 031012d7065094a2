/* Convolution in bf16: prepares images for the kernels, and plans and runs each pass. */
#include "tensor/cpu/conv_bf16.h"

#include <string.h>

enum {
    ROWS_MAX_CHANNELS = 8, /* up to this many input channels, the taps of a row are one */
    MIN_CHANNELS = 8,      /* of a group: below, most of a tile would be empty */
    MAX_TAPS = 64,         /* terms of a sum that is rounded once */
};

bool td_bf16_uses_rows(const td_conv2d_desc *d)
{
    return d->groups == 1 && d->ic <= ROWS_MAX_CHANNELS && d->kw > 1;
}

bool td_conv2d_takes_bf16(const td_conv2d_desc *d)
{
    if (!td_bf16_kernels_now() || d->kh * d->kw > MAX_TAPS) {
        return false;
    }
    if (d->n == 0 || d->oc == 0 || d->ic == 0) {
        return false;
    }
    bool narrow = d->ic / d->groups < MIN_CHANNELS || d->oc / d->groups < MIN_CHANNELS;
    return d->groups == 1 || !narrow;
}

td_conv_problem td_bf16_problem(const td_conv2d_desc *d, bool rows)
{
    td_conv_problem p = td_conv_problem_of(d);
    if (rows) {
        p.ic = d->kw * d->ic;
        p.w = (td_conv_axis){ d->ow, d->ow, 1, 1, 0, 1 };
    }
    return p;
}

/* ---- pictures ---- */

static void take_copy(td_bf16_pictures *p, td_conv_space *space)
{
    int64_t pixel = p->groups * p->steps * p->depth;
    int64_t count = p->height * p->width * p->images * pixel;
    p->at = (td_conv_strides){ p->width * p->images * pixel, p->images * pixel, pixel };
    p->low = p->dtype == TD_F32 ? td_divide_up(count, 32) * 32 : 0;
    p->copy = td_conv_take(space, (count + p->low) * (int64_t)sizeof *p->copy);
    p->data = p->copy;
}

/* Steps for channels of a copy, which may be padded. */
static void cut_steps(td_bf16_pictures *p)
{
    p->depth = td_bf16_depth(p->channels);
    if (p->depth == 0) {
        int64_t channels = p->channels > 0 ? p->channels : 1;
        int64_t steps = td_divide_up(channels, TD_BF16_BLOCK);
        p->depth = (int)(td_divide_up(td_divide_up(channels, steps), 2) * 2);
    }
    p->steps = td_divide_up(p->channels, p->depth);
}

td_bf16_pictures td_bf16_pictures_plan(const void *from, td_dtype dtype, int64_t groups,
                                       int64_t channels, int64_t height, int64_t width,
                                       int64_t images, td_conv_space *space)
{
    td_bf16_pictures p = { .from = from,
                           .dtype = dtype,
                           .groups = groups,
                           .channels = channels,
                           .height = height,
                           .width = width,
                           .images = images };
    cut_steps(&p);
    if (dtype == TD_BF16 && p.steps * p.depth == channels) {
        int64_t pixel = groups * channels;
        p.at = (td_conv_strides){ width * images * pixel, images * pixel, pixel };
        p.data = from;
    } else {
        take_copy(&p, space);
    }
    return p;
}

td_bf16_pictures td_bf16_rows_plan(const void *x, const td_conv2d_desc *d, td_conv_space *space)
{
    td_bf16_pictures p = { .from = x,
                           .dtype = d->dtype,
                           .rows = d,
                           .groups = 1,
                           .channels = d->kw * d->ic,
                           .height = d->ih,
                           .width = d->ow,
                           .images = d->n };
    if (td_bf16_full_steps()) {
        p.depth = TD_BF16_BLOCK;
        p.steps = td_divide_up(p.channels, p.depth);
    } else {
        cut_steps(&p);
    }
    take_copy(&p, space);
    return p;
}

/* The taps of a row that pixel w of the copy meets: pixels of x, and where they go. */
typedef struct row_taps {
    int count;
    const char *from[MAX_TAPS]; /* of image 0 */
    int64_t to[MAX_TAPS];       /* bytes */
} row_taps;

static row_taps bf16_find_taps(const td_bf16_pictures *p, int64_t h, int64_t w)
{
    const td_conv2d_desc *d = p->rows;
    int64_t bytes = d->ic * (int64_t)td_dtype_size(p->dtype);
    row_taps taps = { .count = 0 };
    for (int kw = 0; kw < d->kw; kw++) {
        int64_t from = w * d->stride_w - d->pad_w + (int64_t)kw * d->dil_w;
        if (from >= 0 && from < d->iw) {
            taps.from[taps.count] = (const char *)p->from + (h * d->iw + from) * d->n * bytes;
            taps.to[taps.count++] = kw * bytes;
        }
    }
    return taps;
}

/* The row of one image. */
static void fill_row(char *row, const row_taps *taps, int64_t image, int64_t bytes)
{
    for (int t = 0; t < taps->count; t++) {
        memcpy(row + taps->to[t], taps->from[t] + image * bytes, (size_t)bytes);
    }
}

/* The same in words of 8 bytes. Up to 7 bytes too many are read, and that many zeros written, so
 * the taps must come in order, and something must follow in memory on both sides. */
static inline void fill_row_words(char *row, const row_taps *taps, int64_t image, int64_t bytes,
                                  uint64_t last_mask)
{
    for (int t = 0; t < taps->count; t++) {
        const char *from = taps->from[t] + image * bytes;
        char *to = row + taps->to[t];
        uint64_t word;
        for (int64_t i = 8; i < bytes; i += 8, from += 8, to += 8) {
            memcpy(&word, from, 8);
            memcpy(to, &word, 8);
        }
        memcpy(&word, from, 8);
        word &= last_mask;
        memcpy(to, &word, 8);
    }
}

/* One pixel of all images as rows: the taps side by side, zeros where the picture has ended. */
static void rows_task(void *ctx, int64_t task)
{
    const td_bf16_pictures *p = ctx;
    row_taps taps = bf16_find_taps(p, task / p->width, task % p->width);
    int64_t bytes = p->rows->ic * (int64_t)td_dtype_size(p->dtype);
    int64_t padded = p->steps * p->depth;
    bool split = p->dtype == TD_F32;
    float values[ROWS_MAX_CHANNELS * MAX_TAPS + 2] = { 0 };
    uint64_t last_mask = bytes % 8 ? ((uint64_t)1 << bytes % 8 * 8) - 1 : ~(uint64_t)0;
    td_bf16 *to = p->copy + task * p->at.column;
    for (int64_t i = 0; i < p->images; i++, to += p->at.image) {
        char *row = split ? (char *)values : (char *)to;
        if (!split) {
            memset(row, 0, (size_t)(padded * (int64_t)sizeof *to));
        }
        if (i + 8 < p->images) { /* 8 pictures are more than 7 bytes; the zeros go to later rows */
            fill_row_words(row, &taps, i, bytes, last_mask);
        } else {
            fill_row(row, &taps, i, bytes);
        }
        if (split) {
            td_bf16_pack_row(to, p->low, values, TD_F32, p->channels, padded);
        }
    }
}

/* One pixel of all images, padded and split as need be. */
static void pixel_task(void *ctx, int64_t task)
{
    const td_bf16_pictures *p = ctx;
    int64_t size = (int64_t)td_dtype_size(p->dtype), padded = p->steps * p->depth;
    td_bf16 *to = p->copy + task * p->at.column;
    for (int64_t i = 0; i < p->images; i++, to += p->at.image) {
        const char *from =
            (const char *)p->from + (task * p->images + i) * p->groups * p->channels * size;
        for (int64_t g = 0; g < p->groups; g++) {
            td_bf16_pack_row(to + g * padded, p->low, from + g * p->channels * size, p->dtype,
                             p->channels, padded);
        }
    }
}

void td_bf16_pictures_run(td_pool *pool, const td_bf16_pictures *p)
{
    if (p->copy) {
        td_bf16_pictures pictures = *p;
        td_pool_run(pool, p->height * p->width, p->rows ? rows_task : pixel_task, &pictures);
    }
}

/* ---- forward and backward-data ---- */

/* What the plan of all convolutions (conv_apply.h) gets of one in bf16. */
typedef struct job {
    td_conv_problem problem;
    td_bf16_pictures source;
    td_conv_mixed mixed;
    td_conv_apply apply;
} job;

static void make_job(job *j, const td_conv2d_call *call, td_conv_space *space)
{
    const td_conv2d_desc *d = call->desc;
    bool back = call->pass == TD_CONV2D_BACKWARD_DATA, rows = !back && td_bf16_uses_rows(d);
    td_conv_problem p = td_bf16_problem(d, rows);
    j->source =
        rows ? td_bf16_rows_plan(call->x, d, space)
        : back
            ? td_bf16_pictures_plan(call->y, d->dtype, d->groups, p.oc, d->oh, d->ow, d->n, space)
            : td_bf16_pictures_plan(call->x, d->dtype, d->groups, p.ic, d->ih, d->iw, d->n, space);
    *(back ? &p.y : &p.x) = j->source.at;
    j->problem = p;
    j->mixed = (td_conv_mixed){ .depth = j->source.steps * j->source.depth,
                                .low = j->source.low,
                                .weights = d->weight_dtype,
                                .result = d->dtype };
    j->apply = (td_conv_apply){ .problem = &j->problem,
                                .backward = back,
                                .source = j->source.data,
                                .weights = call->w,
                                .bias = back ? NULL : call->bias,
                                .result = (void *)(back ? call->x : call->y),
                                .accumulate = back && call->accumulate,
                                .mixed = &j->mixed };
}

void td_conv_bf16_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space)
{
    if (call->pass == TD_CONV2D_BACKWARD_WEIGHTS) {
        td_conv_bf16_reduce_run(pool, call, space);
        return;
    }
    job j;
    make_job(&j, call, space);
    if (space->base) {
        td_bf16_pictures_run(pool, &j.source);
    }
    td_conv_apply_run(pool, &j.apply, space);
}
