/*
 * Convolutions of many shapes, all three passes: that they are right (some elements against sums in
 * double precision), and how fast beside oneDNN, if that is there. The table has the worst first.
 *
 *     bench_conv_sweep [shapes] [seed] [ms per measurement]     random shapes
 *     bench_conv_sweep FILE [ms per measurement] [batch]        one shape a line: n ic ih iw oc
 *                                                               kernel stride pad groups [count]
 *
 * A batch takes the place of every n. The sum of the times has a shape as often as its count says.
 * With TANDEM_BENCH_WINOGRAD=1 in the environment Winograd's transform is allowed.
 */
#include "bench/sweep.h"

#include "tensor/cpu/cpus.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PASSES = 3,
    MAX_ROWS = 3000,
    CHECKS = 24, /* elements of a result */
};

static const double MAX_FLOPS = 6e8, MAX_ELEMENTS = 1.2e7, ERROR_LIMIT = 1e-6,
                    WINOGRAD_LIMIT = 1e-5;
static const char *const pass_names[PASSES] = { "forward", "backward-data", "backward-weights" };

typedef struct job {
    td_conv2d_desc desc;
    td_conv2d_pass pass;
    td_pool *pool;
    float *x, *w, *y; /* operands, and the result of the pass */
    int64_t nx, nw, ny;
    void *workspace;
} job;

/* ---- shapes ---- */

static bool finish(td_conv2d_desc *d)
{
    int64_t h = d->ih + 2 * d->pad_h - (int64_t)d->dil_h * (d->kh - 1) - 1;
    int64_t w = d->iw + 2 * d->pad_w - (int64_t)d->dil_w * (d->kw - 1) - 1;
    d->oh = h < 0 ? 0 : h / d->stride_h + 1;
    d->ow = w < 0 ? 0 : w / d->stride_w + 1;
    return d->oh > 0 && d->ow > 0;
}

/* Multiply-adds that do not meet padding, times two. */
static double useful_flops(const td_conv2d_desc *d)
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

static td_conv2d_desc square(int64_t n, int64_t ic, int64_t ih, int64_t iw, int64_t oc, int kernel,
                             int stride, int pad, int64_t groups)
{
    return (td_conv2d_desc){ .dtype = TD_F32,
                             .n = n,
                             .ic = ic,
                             .ih = ih,
                             .iw = iw,
                             .oc = oc,
                             .kh = kernel,
                             .kw = kernel,
                             .stride_h = stride,
                             .stride_w = stride,
                             .pad_h = pad,
                             .pad_w = pad,
                             .dil_h = 1,
                             .dil_w = 1,
                             .groups = groups };
}

static int64_t pick_channels(uint64_t *seed)
{
    static const int usual[] = { 1, 3, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512 };
    enum { USUAL = sizeof usual / sizeof usual[0] };
    return sweep_random(seed) < 0.6 ? usual[(int)(sweep_random(seed) * USUAL)]
                                    : sweep_pick(seed, 1, 512);
}

static td_conv2d_desc random_shape(uint64_t *seed)
{
    static const int kernels[] = { 1, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7 };
    td_conv2d_desc d;
    double elements;
    do {
        int kernel = kernels[(int)(sweep_random(seed) * 12)];
        int64_t ih = sweep_pick(seed, 1, 64);
        int64_t iw = sweep_random(seed) < 0.7 ? ih : sweep_pick(seed, 1, 64);
        d = square(sweep_pick(seed, 1, 256), pick_channels(seed), ih, iw, pick_channels(seed),
                   kernel, sweep_random(seed) < 0.6 ? 1 : (int)sweep_pick(seed, 2, 3),
                   sweep_random(seed) < 0.7 ? kernel / 2 : 0, 1);
        if (sweep_random(seed) < 0.25) { /* groups: any number, or depthwise */
            d.groups = sweep_random(seed) < 0.3 ? d.ic : sweep_pick(seed, 2, 32);
            d.ic = td_divide_up(d.ic, d.groups) * d.groups;
            d.oc = d.groups == d.ic ? d.ic : td_divide_up(d.oc, d.groups) * d.groups;
        }
        elements = (double)d.n * fmax((double)(d.ih * d.iw * d.ic), (double)(ih * iw * d.oc));
    } while (!finish(&d) || useful_flops(&d) > MAX_FLOPS || useful_flops(&d) < 1e5 ||
             elements > MAX_ELEMENTS);
    return d;
}

/* batch: instead of the line's, unless 0. */
static bool read_shape(FILE *file, int64_t batch, td_conv2d_desc *d, double *count)
{
    char line[256];
    while (fgets(line, sizeof line, file)) {
        long long v[9];
        *count = 1;
        if (sscanf(line, "%lld %lld %lld %lld %lld %lld %lld %lld %lld %lf", &v[0], &v[1], &v[2],
                   &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], count) >= 9) {
            *d = square(batch > 0 ? batch : v[0], v[1], v[2], v[3], v[4], (int)v[5], (int)v[6],
                        (int)v[7], v[8]);
            if (finish(d)) {
                return true;
            }
        }
    }
    return false;
}

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
    const int64_t counts[PASSES] = { j->ny, j->nx, j->nw };
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
    switch (j->pass) {
    case TD_CONV2D_FORWARD:
        td_conv2d_forward(j->pool, &j->desc, j->x, j->w, NULL, j->y, j->workspace);
        break;
    case TD_CONV2D_BACKWARD_DATA:
        td_conv2d_backward_data(j->pool, &j->desc, j->y, j->w, j->x, false, j->workspace);
        break;
    default:
        td_conv2d_backward_weights(j->pool, &j->desc, j->x, j->y, j->w, false, j->workspace);
        break;
    }
}

static sweep_row measure(const td_conv2d_desc *d, int pass, td_pool *pool, double ms, uint64_t seed)
{
    sweep_row row = { .flops = useful_flops(d) };
    job j = { .desc = *d, .pass = (td_conv2d_pass)pass, .pool = pool };
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

int main(int argc, char **argv)
{
    static sweep_row rows[MAX_ROWS];
    onednn_prepare(argv);
    const char *allowed = getenv("TANDEM_BENCH_WINOGRAD"); /* 1: with Winograd's transform */
    bool winograd = allowed && strcmp(allowed, "1") == 0;
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
    int shapes = file ? MAX_ROWS : argc > 1 ? atoi(argv[1]) : 200;
    uint64_t seed = !file && argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int at_ms = file ? 2 : 3;
    double ms = argc > at_ms ? atof(argv[at_ms]) : 20, weight = 1;
    int64_t batch = file && argc > 3 ? atoll(argv[3]) : 0;
    td_pool *pool = td_pool_new(td_default_threads());
    if (!pool || shapes <= 0 || !(ms > 0)) {
        fprintf(stderr, "usage: bench_conv_sweep [shapes] [seed] [ms] | FILE [ms] [batch]\n");
        return 2;
    }
    printf("%d threads, %s\n", td_pool_threads(pool), td_isa_name(td_isa_current()));
    int count = 0;
    td_conv2d_desc d;
    for (int i = 0; i < shapes && count + PASSES <= MAX_ROWS; i++) {
        if (file && !read_shape(file, batch, &d, &weight)) {
            break;
        }
        d = file ? d : random_shape(&seed);
        d.winograd = winograd;
        for (int pass = 0; pass < PASSES; pass++) {
            rows[count] = measure(&d, pass, pool, ms, seed);
            rows[count++].count = weight;
        }
    }
    bool right = sweep_report(rows, count, winograd ? WINOGRAD_LIMIT : ERROR_LIMIT);
    td_pool_free(pool);
    if (file) {
        fclose(file);
    }
    return right ? 0 : 1;
}
