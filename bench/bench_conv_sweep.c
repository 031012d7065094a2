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
#include "bench/sweep_conv.h"

#include "tensor/cpu/cpus.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 3000 };

static const double MAX_FLOPS = 6e8, MAX_ELEMENTS = 1.2e7, ERROR_LIMIT = 1e-6,
                    WINOGRAD_LIMIT = 1e-5;
/* ---- shapes ---- */

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
    } while (!sweep_conv_finish(&d) || sweep_conv_flops(&d) > MAX_FLOPS ||
             sweep_conv_flops(&d) < 1e5 || elements > MAX_ELEMENTS);
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
            if (sweep_conv_finish(d)) {
                return true;
            }
        }
    }
    return false;
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
    for (int i = 0; i < shapes && count + SWEEP_PASSES <= MAX_ROWS; i++) {
        if (file && !read_shape(file, batch, &d, &weight)) {
            break;
        }
        d = file ? d : random_shape(&seed);
        d.winograd = winograd;
        for (int pass = 0; pass < SWEEP_PASSES; pass++) {
            rows[count] = sweep_conv_measure(&d, (td_conv2d_pass)pass, pool, ms, seed);
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
