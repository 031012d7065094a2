#include "tensor/cpu/conv_bf16_internal.h"

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

bool td_conv_bf16_takes(const td_conv_bf16_desc *desc, td_conv2d_pass pass)
{
    const td_conv2d_desc *d = &desc->conv;
    if (!td_bf16_kernels_now() || pass == TD_CONV2D_BACKWARD_BIAS || d->kh * d->kw > MAX_TAPS) {
        return false;
    }
    if (d->n == 0 || d->oc == 0 || d->ic == 0) {
        return false;
    }
    bool narrow = d->ic / d->groups < MIN_CHANNELS || d->oc / d->groups < MIN_CHANNELS;
    return d->groups == 1 || !narrow;
}

int td_bf16_depth(int64_t channels)
{
    int64_t least = td_divide_up(channels, TD_BF16_BLOCK);
    for (int64_t steps = least; steps <= least + least / 3; steps++) {
        if (channels % (2 * steps) == 0) {
            return (int)(channels / steps);
        }
    }
    return 0;
}

td_conv_problem td_bf16_problem(const td_conv2d_desc *d, bool rows)
{
    td_conv_problem p = {
        .dtype = d->dtype,
        .n = d->n,
        .groups = d->groups,
        .ic = d->ic / d->groups,
        .oc = d->oc / d->groups,
        .oc_all = d->oc,
        .h = { d->ih, d->oh, d->kh, d->stride_h, d->pad_h, d->dil_h },
        .w = { d->iw, d->ow, d->kw, d->stride_w, d->pad_w, d->dil_w },
        .x = { d->iw * d->n * d->ic, d->n * d->ic, d->ic },
        .y = { d->ow * d->n * d->oc, d->n * d->oc, d->oc },
    };
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
        int64_t steps = td_divide_up(p->channels, TD_BF16_BLOCK);
        p->depth = (int)(td_divide_up(td_divide_up(p->channels, steps), 2) * 2);
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
                           .images = d->n,
                           .depth = TD_BF16_BLOCK };
    p.steps = td_divide_up(p.channels, p.depth);
    take_copy(&p, space);
    return p;
}

/* The channels of one image of one pixel of the copy: the taps of a row, with their padding. */
static void fill_taps(const td_bf16_pictures *p, td_bf16 *to, int64_t h, int64_t w, int64_t image)
{
    const td_conv2d_desc *d = p->rows;
    size_t size = td_dtype_size(p->dtype);
    float values[ROWS_MAX_CHANNELS * MAX_TAPS] = { 0 };
    for (int kw = 0; kw < d->kw; kw++) {
        int64_t from = w * d->stride_w - d->pad_w + (int64_t)kw * d->dil_w;
        if (from >= 0 && from < d->iw) {
            int64_t at = ((h * d->iw + from) * d->n + image) * d->ic;
            memcpy((char *)values + (size_t)(kw * d->ic) * size,
                   (const char *)p->from + (size_t)at * size, (size_t)d->ic * size);
        }
    }
    td_bf16_pack_row(to, p->low, values, p->dtype, p->channels, p->steps * p->depth);
}

/* One pixel of all images. */
static void pixel_task(void *ctx, int64_t task)
{
    const td_bf16_pictures *p = ctx;
    int64_t size = (int64_t)td_dtype_size(p->dtype), padded = p->steps * p->depth;
    td_bf16 *to = p->copy + task * p->at.column;
    for (int64_t i = 0; i < p->images; i++, to += p->at.image) {
        if (p->rows) {
            fill_taps(p, to, task / p->width, task % p->width, i);
            continue;
        }
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
        td_pool_run(pool, p->height * p->width, pixel_task, &pictures);
    }
}

size_t td_conv_bf16_workspace(const td_conv_bf16_desc *desc, td_conv2d_pass pass)
{
    if (pass == TD_CONV2D_BACKWARD_WEIGHTS) {
        return (size_t)td_conv_bf16_reduce_workspace(desc);
    }
    return (size_t)td_conv_bf16_apply_workspace(desc, pass == TD_CONV2D_BACKWARD_DATA);
}
