/*
 * Backward-weights of depthwise convolutions with 3x3 taps, patch by patch. Along a row of pixels
 * (`window`, conv_depthwise_reduce.c) each vector lies a whole pixel of all pictures from the last
 * one. Where that is a multiple of some KiB, all fall into a few places of the caches, and each is
 * waited for. Here the pictures of a patch of pixels follow each other, some channels apart.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    TAPS = TD_DEPTHWISE_PATCH_TAPS,
    DY = TD_DEPTHWISE_PATCH_DY,
    LEAST_PICTURES = 4,
    FAR_BYTES = 2048,       /* pixels that collide are a multiple of so many bytes apart */
    PICTURES_BYTES = 65536, /* of one pixel, at a time */
    MOST_PICTURES = 128,    /* the same */
    LONG_SUM = 512,         /* products that are added in the element type before a double */
};

/* In the place of pixels that do not exist. */
static _Alignas(64) char nowhere[PICTURES_BYTES];

bool td_depthwise_patches_win(const td_depthwise_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)p->kernels->size, stride = problem->w.stride;
    bool made = p->kernels->patch != NULL && problem->h.kernel == TAPS &&
                problem->w.kernel == TAPS && (stride == 1 || stride == 2) &&
                problem->h.stride == stride && problem->h.dilation == 1 && problem->w.dilation == 1;
    bool collide = problem->x.column * size % FAR_BYTES == 0;
    return made && collide && p->replicas == 1 && problem->n >= LEAST_PICTURES &&
           p->channels * size <= PICTURES_BYTES;
}

/* Where a pixel of x or dy lies, or nowhere. */
static const void *pixel_at(const void *base, const td_conv_strides *at, int64_t h, int64_t end_h,
                            int64_t w, int64_t end_w, int64_t offset, int64_t size)
{
    bool there = h >= 0 && h < end_h && w >= 0 && w < end_w;
    return there ? (const char *)base + (h * at->row + w * at->column + offset) * size : nowhere;
}

/* The patch whose first pixel of dy is (row, q); `offset`: of the first picture and column. */
static void find_pixels(td_depthwise_patch *patch, const td_depthwise_patches *p, int64_t row,
                        int64_t q, int64_t offset)
{
    const td_conv_problem *problem = p->plan->problem;
    const td_conv_axis *h = &problem->h, *w = &problem->w;
    int64_t size = (int64_t)p->plan->kernels->size;
    int64_t side = (DY - 1) * patch->stride + TAPS;
    for (int64_t i = 0; i < side; i++) {
        for (int64_t j = 0; j < side; j++) {
            patch->x[i][j] = pixel_at(p->x, &problem->x, row * h->stride - h->pad + i, h->in,
                                      q * w->stride - w->pad + j, w->in, offset, size);
        }
    }
    for (int64_t i = 0; i < DY; i++) {
        for (int64_t j = 0; j < DY; j++) {
            patch->dy[i][j] =
                pixel_at(p->dy, &problem->y, row + i, p->end, q + j, w->out, offset, size);
        }
    }
}

/* Adds the sums of all taps to the totals, and clears them. A tap that meets no pixel has met
 * `nowhere` alone, which gives NaN where dy is not finite: nothing is added for it. */
static void flush(const td_depthwise_patches *p, double *total, float *sum)
{
    const td_depthwise_plan *plan = p->plan;
    for (int64_t tap = 0; tap < TAPS * TAPS; tap++) {
        bool alive = plan->h.rank[tap / TAPS] >= 0 && plan->w.rank[tap % TAPS] >= 0;
        for (int64_t i = 0; alive && i < p->columns; i++) {
            total[tap * plan->channels + i] += (double)sum[tap * TD_DEPTHWISE_COLUMNS + i];
        }
    }
    memset(sum, 0, TAPS * TAPS * TD_DEPTHWISE_COLUMNS * sizeof *sum);
}

void td_depthwise_sum_patches(const td_depthwise_patches *p, double *total)
{
    const td_depthwise_plan *plan = p->plan;
    const td_conv_problem *problem = plan->problem;
    int64_t fit = PICTURES_BYTES / (plan->channels * (int64_t)plan->kernels->size);
    td_depthwise_patch patch = { .stride = problem->w.stride, .step = plan->channels };
    patch.columns = p->columns;
    float sum[TAPS * TAPS * TD_DEPTHWISE_COLUMNS] = { 0 };
    for (int64_t image = 0; image < problem->n; image += patch.pictures) {
        patch.pictures = td_min64(td_min64(fit, MOST_PICTURES), problem->n - image);
        int64_t added = 0;
        for (int64_t row = p->row; row < p->end; row += DY) {
            for (int64_t q = 0; q < problem->w.out; q += DY) {
                find_pixels(&patch, p, row, q, image * plan->channels + p->column);
                plan->kernels->patch(sum, &patch);
                added += DY * DY * patch.pictures;
                if (added >= LONG_SUM) {
                    flush(p, total, sum);
                    added = 0;
                }
            }
        }
        flush(p, total, sum);
    }
}
