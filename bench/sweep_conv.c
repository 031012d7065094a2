/* Checks and times one pass of a convolution. */
#include "bench/sweep_conv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHECKS = 24 }; /* elements of a result */

static const char *const pass_names[SWEEP_PASSES] = { "forward", "backward-data",
                                                      "backward-weights" };

bool sweep_conv_finish(td_conv2d_desc *d)
{
    int64_t h = d->ih + 2 * d->pad_h - (int64_t)d->dil_h * (d->kh - 1) - 1;
    int64_t w = d->iw + 2 * d->pad_w - (int64_t)d->dil_w * (d->kw - 1) - 1;
    d->oh = h < 0 ? 0 : h / d->stride_h + 1;
    d->ow = w < 0 ? 0 : w / d->stride_w + 1;
    return d->oh > 0 && d->ow > 0;
}

double sweep_conv_flops(const td_conv2d_desc *d)
{
    double met_h = 0, met_w = 0;
    for (int64_t tap = 0; tap < d->kh; tap++) {
        for (int64_t o = 0; o < d->oh; o++) {
            int64_t in = o * d->stride_h - d->pad_h + tap * d->dil_h;
            met_h += in >= 0 && in < d->ih;
        }
    }
    for (int64_t tap = 0; tap < d->kw; tap++) {
        for (int64_t o = 0; o < d->ow; o++) {
            int64_t in = o * d->stride_w - d->pad_w + tap * d->dil_w;
            met_w += in >= 0 && in < d->iw;
        }
    }
    return 2 * (double)d->n * (double)d->oc * (double)(d->ic / d->groups) * met_h * met_w;
}

typedef struct job {
    td_conv2d_desc desc;
    td_conv2d_pass pass;
    td_pool *pool;
    float *x, *w, *y; /* operands, and the result of the pass */
    int64_t nx, nw, ny;
    void *workspace;
} job;

/* ---- the check ---- */

static double x_at(const job *j, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const td_conv2d_desc *d = &j->desc;
    return j->x[((h * d->iw + w) * d->n + n) * d->ic + c];
}

static double y_at(const job *j, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const td_conv2d_desc *d = &j->desc;
    return j->y[((h * d->ow + w) * d->n + n) * d->oc + c];
}

static double w_at(const job *j, int64_t oc, int64_t ic, int64_t kh, int64_t kw)
{
    const td_conv2d_desc *d = &j->desc;
    return j->w[((kh * d->kw + kw) * (d->ic / d->groups) + ic) * d->oc + oc];
}

typedef struct exact_sum {
    double sum, scale;
} exact_sum;

static void add(exact_sum *s, double term)
{
    s->sum += term;
    s->scale += fabs(term);
}

static exact_sum exact_y(const job *j, int64_t n, int64_t oc, int64_t oh, int64_t ow)
{
    const td_conv2d_desc *d = &j->desc;
    int64_t icg = d->ic / d->groups, first = oc / (d->oc / d->groups) * icg;
    exact_sum s = { 0, 0 };
    for (int64_t kh = 0; kh < d->kh; kh++) {
        for (int64_t kw = 0; kw < d->kw; kw++) {
            int64_t ih = oh * d->stride_h - d->pad_h + kh, iw = ow * d->stride_w - d->pad_w + kw;
            for (int64_t c = 0; ih >= 0 && ih < d->ih && iw >= 0 && iw < d->iw && c < icg; c++) {
                add(&s, x_at(j, n, first + c, ih, iw) * w_at(j, oc, c, kh, kw));
            }
        }
    }
    return s;
}

static exact_sum exact_x(const job *j, int64_t n, int64_t ic, int64_t ih, int64_t iw)
{
    const td_conv2d_desc *d = &j->desc;
    int64_t icg = d->ic / d->groups, ocg = d->oc / d->groups, first = ic / icg * ocg;
    exact_sum s = { 0, 0 };
    for (int64_t kh = 0; kh < d->kh; kh++) {
        for (int64_t kw = 0; kw < d->kw; kw++) {
            int64_t h = ih + d->pad_h - kh, w = iw + d->pad_w - kw;
            if (h < 0 || w < 0 || h % d->stride_h || w % d->stride_w || h / d->stride_h >= d->oh ||
                w / d->stride_w >= d->ow) {
                continue;
            }
            for (int64_t c = 0; c < ocg; c++) {
                add(&s, y_at(j, n, first + c, h / d->stride_h, w / d->stride_w) *
                            w_at(j, first + c, ic % icg, kh, kw));
            }
        }
    }
    return s;
}

static exact_sum exact_w(const job *j, int64_t oc, int64_t ic, int64_t kh, int64_t kw)
{
    const td_conv2d_desc *d = &j->desc;
    int64_t first = oc / (d->oc / d->groups) * (d->ic / d->groups);
    exact_sum s = { 0, 0 };
    for (int64_t oh = 0; oh < d->oh; oh++) {
        for (int64_t ow = 0; ow < d->ow; ow++) {
            int64_t ih = oh * d->stride_h - d->pad_h + kh, iw = ow * d->stride_w - d->pad_w + kw;
            for (int64_t n = 0; ih >= 0 && ih < d->ih && iw >= 0 && iw < d->iw && n < d->n; n++) {
                add(&s, x_at(j, n, first + ic, ih, iw) * y_at(j, n, oc, oh, ow));
            }
        }
    }
    return s;
}

/* Element `i` of the pass's result, and what it should be. */
static exact_sum exact_at(const job *j, int64_t i, double *value)
{
    const td_conv2d_desc *d = &j->desc;
    int64_t icg = d->ic / d->groups;
    switch (j->pass) {
    case TD_CONV2D_FORWARD:
        *value = j->y[i];
        return exact_y(j, i / d->oc % d->n, i % d->oc, i / d->oc / d->n / d->ow,
                       i / d->oc / d->n % d->ow);
    case TD_CONV2D_BACKWARD_DATA:
        *value = j->x[i];
        return exact_x(j, i / d->ic % d->n, i % d->ic, i / d->ic / d->n / d->iw,
                       i / d->ic / d->n % d->iw);
    default:
        *value = j->w[i];
        return exact_w(j, i % d->oc, i / d->oc % icg, i / d->oc / icg / d->kw,
                       i / d->oc / icg % d->kw);
    }
}

static double largest_error(const job *j, uint64_t *seed)
{
    const int64_t counts[SWEEP_PASSES] = { j->ny, j->nx, j->nw };
    double worst = 0;
    for (int i = 0; i < CHECKS; i++) {
        double value;
        exact_sum s = exact_at(j, (int64_t)(sweep_random(seed) * (double)counts[j->pass]), &value);
        double error = fabs(value - s.sum) / (s.scale > 0 ? s.scale : 1);
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    return worst;
}

/* ---- a measurement ---- */

static void run_pass(void *user)
{
    job *j = user;
    td_conv2d_run(
        j->pool,
        &(td_conv2d_call){ .desc = &j->desc, .pass = j->pass, .x = j->x, .w = j->w, .y = j->y },
        j->workspace);
}

sweep_row sweep_conv_measure(const td_conv2d_desc *d, td_conv2d_pass pass, td_pool *pool, double ms,
                             uint64_t seed)
{
    sweep_row row = { .flops = sweep_conv_flops(d) };
    job j = { .desc = *d, .pass = pass, .pool = pool };
    j.nx = d->n * d->ih * d->iw * d->ic;
    j.ny = d->n * d->oh * d->ow * d->oc;
    j.nw = d->oc * (d->ic / d->groups) * d->kh * d->kw;
    j.x = sweep_make(j.nx, &seed);
    j.y = sweep_make(j.ny, &seed);
    j.w = sweep_make(j.nw, &seed);
    j.workspace = sweep_make((int64_t)td_conv2d_workspace(d, j.pass) / 4 + 1, &seed);
    snprintf(row.name, sizeof row.name,
             "%-16s n%lld %lldx%lldx%lld->%lldx%lldx%lld k%d s%d p%d g%lld", pass_names[pass],
             (long long)d->n, (long long)d->ic, (long long)d->ih, (long long)d->iw,
             (long long)d->oc, (long long)d->oh, (long long)d->ow, d->kh, d->stride_h, d->pad_h,
             (long long)d->groups);
    onednn *peer = onednn_conv(d, j.pass);
    sweep_measure(&row, ms, run_pass, &j, peer);
    row.error = largest_error(&j, &seed);
    onednn_free(peer);
    free(j.x);
    free(j.y);
    free(j.w);
    free(j.workspace);
    return row;
}
