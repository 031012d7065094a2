/* The passes of the convolution against plain double-precision loops, at every instruction set of
 * the machine, on odd shapes; and the same bits for any number of threads. TANDEM_CONV_SHAPES is
 * how many random shapes each instruction set gets, and nothing else then, TANDEM_CONV_SEED where
 * they begin: for long runs, and for slow machines. */
#include "tensor/cpu/isa.h"
#include "tests/tensor/conv_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int pick(const int *from, int count)
{
    return from[conv_random() % (uint64_t)count];
}

static void run(td_pool *pool, const td_conv2d_desc *d, td_conv2d_pass pass, const conv_operands *o,
                void *workspace)
{
    td_conv2d_call call = conv_call(d, pass, o);
    td_conv2d_run(pool, &call, workspace);
}

static const conv_method method = { .workspace = td_conv2d_workspace, .run = run };

/* ---- shapes ---- */

static double work(const td_conv2d_desc *d)
{
    return (double)(d->n * d->oh * d->ow * d->oc) * (double)(d->ic / d->groups * d->kh * d->kw);
}

static td_conv2d_desc random_shape(td_dtype dtype)
{
    static const int channels[] = { 1, 2, 3, 5, 17, 33, 64, 65, 100, 130 };
    static const int batches[] = { 1, 1, 2, 7, 16, 33, 80 };
    td_conv2d_desc d;
    do {
        d = (td_conv2d_desc){ .dtype = dtype, .n = pick(batches, 7), .groups = 1 };
        d.ic = pick(channels, 10);
        d.oc = pick(channels, 10);
        switch (conv_random() % 6) {
        case 0:
            d.groups = d.oc = d.ic;
            break;
        case 1:
            d.groups = 1 + (int64_t)(conv_random() % 4);
            d.ic = d.groups * (1 + (int64_t)(conv_random() % 20));
            d.oc = d.groups * (1 + (int64_t)(conv_random() % 20));
            break;
        case 3: /* few channels of x */
            d.ic = 1 + (int64_t)(conv_random() % 5);
            break;
        case 2: /* so few channels that groups share a vector; the last one may not be full */
            d.groups = 2 + (int64_t)(conv_random() % 40);
            d.ic = d.groups * (1 + (int64_t)(conv_random() % 6));
            d.oc = d.groups * (1 + (int64_t)(conv_random() % 6));
            break;
        default:
            break;
        }
        d.ih = 1 + (int64_t)(conv_random() % 12);
        d.iw = 1 + (int64_t)(conv_random() % 12);
        d.kh = 1 + (int)(conv_random() % 7);
        d.kw = conv_random() % 3 ? d.kh : 1 + (int)(conv_random() % 7);
        d.stride_h = 1 + (int)(conv_random() % 3);
        d.stride_w = conv_random() % 2 ? d.stride_h : 1 + (int)(conv_random() % 3);
        d.pad_h = (int)(conv_random() % 4);
        d.pad_w = conv_random() % 2 ? d.pad_h : (int)(conv_random() % 4);
        d.dil_h = conv_random() % 4 ? 1 : 1 + (int)(conv_random() % 3);
        d.dil_w = conv_random() % 4 ? 1 : 1 + (int)(conv_random() % 3);
    } while (!conv_finish(&d) || work(&d) > 2e6);
    return d;
}

/* Shapes of real networks, and odd ones, small: from the first one, in steps. */
static void known_shapes(td_dtype dtype, size_t first, size_t step)
{
    static const struct {
        int n, ic, size, oc, k, stride, pad, groups;
    } shapes[] = {
        { 3, 3, 16, 64, 7, 2, 3, 1 }, /* the first convolution */
        { 1, 3, 20, 64, 7, 2, 3, 1 },
        { 33, 64, 4, 64, 3, 1, 1, 1 },   /* one panel of 64: weights in place */
        { 7, 64, 5, 128, 3, 2, 1, 1 },   /* odd size, two strides */
        { 16, 64, 4, 128, 1, 2, 0, 1 },  /* pixels that meet no tap */
        { 80, 130, 1, 130, 3, 1, 1, 1 }, /* only the central tap meets anything */
        { 260, 4, 5, 10, 3, 1, 1, 1 },   /* enough rows for several partial results */
        { 2, 17, 15, 5, 3, 1, 1, 1 },
        { 150, 5, 3, 5, 3, 1, 1, 5 }, /* depthwise, several blocks of pictures */
        { 2, 33, 9, 140, 3, 2, 1, 1 },
        { 1, 24, 7, 70, 3, 1, 1, 1 },
        { 3, 64, 5, 64, 3, 2, 1, 4 },
        { 4, 16, 21, 24, 3, 3, 0, 1 },
        { 5, 32, 6, 70, 4, 3, 2, 1 },
        { 11, 24, 10, 66, 2, 3, 1, 3 },
        { 9, 48, 13, 11, 4, 2, 0, 1 },
        { 4, 48, 10, 130, 1, 3, 0, 1 },
        { 4, 54, 8, 0, 2, 2, 2, 1 }, /* nothing to sum */
        { 5, 0, 5, 36, 1, 3, 0, 1 },
        { 5, 0, 3, 50, 7, 1, 2, 1 },
        { 2, 30, 40, 100, 3, 2, 1, 1 },
        { 1, 32, 24, 77, 3, 1, 1, 1 },
        { 3, 96, 4, 70, 7, 2, 3, 1 },  /* taps of which few meet anything, and few tiles */
        { 7, 50, 2, 192, 1, 1, 0, 1 }, /* panels of 48 columns, so that there are four */
        { 1, 40, 30, 40, 3, 2, 1, 1 },
        { 3, 20, 40, 70, 3, 2, 1, 1 },
        { 2, 2, 40, 20, 3, 2, 1, 1 },
        { 1, 150, 3, 140, 3, 1, 1, 1 },
        { 5, 20, 8, 2, 3, 1, 1, 1 },
        { 70, 2, 6, 30, 3, 2, 1, 1 },
        { 3, 64, 6, 1, 5, 1, 2, 1 },
        { 7, 40, 9, 40, 3, 2, 1, 40 }, /* depthwise, one by one and all together */
        { 9, 3, 11, 3, 3, 1, 1, 3 },
        { 3, 130, 7, 130, 9, 1, 4, 130 }, /* more taps than fit into a call */
        { 2, 14, 9, 14, 5, 1, 2, 14 },    /* few channels, taken several times over */
        { 40, 12, 8, 12, 3, 1, 1, 12 },
        { 3, 100, 12, 100, 7, 1, 3, 100 },
        { 5, 64, 12, 64, 3, 1, 1, 64 }, /* the taps of a row of the kernel together */
        { 7, 12, 13, 12, 5, 1, 2, 12 }, /* the same, and pictures that make no whole row */
        { 2, 72, 9, 72, 7, 1, 3, 72 },
        { 5, 40, 10, 40, 2, 1, 0, 40 }, /* the taps of some rows of the kernel together */
        { 11, 18, 9, 18, 4, 2, 1, 18 },
        { 3, 200, 6, 200, 1, 1, 0, 200 },
        { 2, 4, 0, 5, 3, 1, 2, 1 }, /* pictures without pixels: all is padding */
        { 3, 5, 0, 5, 3, 1, 2, 5 },
        { 2, 8, 0, 24, 3, 1, 2, 2 },
        { 2, 40, 0, 2, 3, 1, 2, 1 },
        { 3, 40, 7, 3, 3, 2, 1, 1 },
        { 1, 70, 3, 110, 3, 1, 1, 1 },
        { 5, 3, 9, 1, 5, 1, 2, 1 },
        { 1, 33, 5, 300, 2, 2, 0, 1 },
        { 6, 8, 5, 150, 3, 1, 1, 2 },
        { 17, 128, 5, 128, 3, 1, 1, 32 }, /* groups that share a vector */
        { 3, 58, 11, 116, 3, 2, 1, 29 },  /* the same, the last vector not full */
        { 9, 21, 6, 6, 1, 1, 0, 3 },
        { 1, 80, 13, 40, 1, 1, 0, 5 },
        { 40, 12, 9, 33, 1, 1, 0, 3 },
        { 11, 60, 10, 140, 1, 1, 0, 2 },
        { 52, 305, 15, 61, 1, 1, 0, 61 },
        { 101, 36, 34, 12, 2, 2, 0, 12 },
        { 43, 64, 32, 32, 1, 1, 0, 4 },
        { 100, 40, 32, 20, 1, 1, 0, 5 },
        { 4, 16, 9, 16, 3, 1, 1, 2 }, /* the same in a vector that groups share */
        { 5, 14, 7, 14, 3, 1, 1, 2 },
        { 3, 24, 10, 40, 3, 1, 1, 1 },
        { 4, 96, 7, 96, 3, 1, 1, 12 },
        { 2, 66, 9, 33, 5, 2, 2, 11 },
        { 2, 64, 7, 70, 5, 1, 2, 1 },
        { 11, 40, 5, 130, 5, 1, 2, 1 },
        { 1, 140, 9, 30, 5, 1, 2, 1 },
        { 3, 50, 9, 66, 5, 2, 2, 1 },
        { 9, 50, 3, 66, 3, 2, 1, 1 },
        { 2, 96, 7, 80, 3, 1, 1, 2 },
        { 40, 140, 16, 70, 1, 1, 0, 1 },
        { 8, 280, 17, 270, 1, 1, 0, 1 }, /* backward-weights in two stages, and several spans */
        { 1, 40, 145, 72, 1, 1, 0, 1 },
        { 22, 130, 28, 66, 2, 2, 0, 1 },
        { 4, 60, 8, 70, 1, 3, 0, 1 },
        { 5, 33, 6, 70, 1, 1, 0, 1 },
        { 5, 3, 15, 96, 3, 3, 1, 1 }, /* few channels of x: all taps are rows of one product */
        { 3, 8, 8, 20, 7, 1, 3, 1 },
        { 1, 1, 17, 130, 5, 1, 2, 1 },  /* one picture */
        { 130, 1, 3, 165, 2, 1, 1, 1 }, /* blocks of pictures */
        { 2, 2, 4, 7, 7, 2, 3, 1 },     /* no pixel meets all taps */
        { 4, 1, 3, 33, 2, 3, 3, 1 },    /* some meet none */
        { 6, 7, 12, 7, 4, 1, 1, 1 },
        { 8, 3, 17, 1, 5, 1, 2, 1 }, /* few channels of y */
        { 5, 32, 9, 3, 7, 2, 3, 1 },
        { 2, 256, 9, 2, 1, 1, 0, 1 },
        { 70, 17, 3, 8, 3, 1, 1, 1 },
        { 3, 300, 5, 1, 3, 3, 3, 1 },
        { 40, 9, 1, 4, 3, 2, 1, 1 },
        { 2, 20, 12, 20, 9, 1, 4, 20 }, /* depthwise, more taps met than fit into a call */
        { 32, 48, 5, 48, 3, 1, 1, 48 }, /* backward-weights patch by patch */
        { 64, 136, 6, 136, 3, 2, 0, 136 },
        { 8, 64, 15, 64, 3, 2, 2, 64 },
        { 256, 200, 3, 200, 3, 1, 1, 200 }, /* more pictures than are taken at once */
        { 8, 256, 1, 256, 3, 1, 1, 256 },
        { 2000, 20, 1, 20, 3, 1, 1, 1 },  /* dead taps, and several partial results */
        { 101, 60, 34, 12, 1, 2, 0, 12 }, /* vectors along pixels, some of which meet nothing */
        { 0, 17, 6, 5, 3, 1, 1, 1 },      /* no pictures */
        { 0, 3, 6, 40, 3, 1, 1, 1 },
        { 0, 6, 6, 6, 3, 1, 1, 6 },
    };
    for (size_t i = first; i < sizeof shapes / sizeof shapes[0]; i += step) {
        td_conv2d_desc d = { .dtype = dtype,
                             .n = shapes[i].n,
                             .ic = shapes[i].ic,
                             .ih = shapes[i].size,
                             .iw = shapes[i].size,
                             .oc = shapes[i].oc,
                             .kh = shapes[i].k,
                             .kw = shapes[i].k,
                             .stride_h = shapes[i].stride,
                             .stride_w = shapes[i].stride,
                             .pad_h = shapes[i].pad,
                             .pad_w = shapes[i].pad,
                             .dil_h = 1,
                             .dil_w = 1,
                             .groups = shapes[i].groups };
        assert_true(conv_finish(&d));
        conv_check(&method, &d);
    }
}

/* One picture, so wide that a line is cut in two; and a depthwise kernel as wide. */
static void wide_shapes(td_dtype dtype)
{
    td_conv2d_desc d = { .dtype = dtype, .n = 1, .ic = 30, .ih = 2, .iw = 70, .oc = 66 };
    d.kh = d.kw = 3;
    d.pad_h = d.pad_w = d.stride_h = d.stride_w = d.dil_h = d.dil_w = 1;
    d.groups = 1;
    assert_true(conv_finish(&d));
    conv_check(&method, &d);
    d.groups = d.ic = d.oc = 5;
    d.ih = 4;
    d.iw = 80;
    d.kw = 70;
    d.pad_w = 35;
    assert_true(conv_finish(&d));
    conv_check(&method, &d);
}

/* The first row of the result meets odd rows only, the next one even ones: both are copied. */
static void far_dilated(td_dtype dtype, int n, int size, int pad_h)
{
    td_conv2d_desc d = { .dtype = dtype, .n = n, .ic = 64, .ih = size, .iw = size, .oc = 64 };
    d.groups = 64;
    d.kh = d.kw = 5;
    d.stride_h = d.stride_w = 1;
    d.dil_h = d.dil_w = 2;
    d.pad_h = pad_h;
    d.pad_w = 4;
    assert_true(conv_finish(&d));
    conv_check(&method, &d);
}

/* Depthwise with large kernels, and pixels a multiple of 2048 bytes apart: rows are copied. */
static void far_pixels(td_dtype dtype)
{
    static const int64_t channels[] = { 16, 32, 64, 40 }, pictures[] = { 32, 16, 24, 64 };
    for (uint64_t i = conv_shapes(40, 10); i > 0; i--) {
        td_conv2d_desc d = { .dtype = dtype };
        do {
            size_t which = conv_random() % 4;
            d.groups = d.ic = d.oc = channels[which];
            d.n = pictures[which];
            d.ih = 1 + (int64_t)(conv_random() % 12);
            d.iw = 1 + (int64_t)(conv_random() % 16);
            d.kh = 5 + (int)(conv_random() % 3);
            d.kw = 1 + (int)(conv_random() % 7);
            d.stride_h = 1 + (int)(conv_random() % 3);
            d.stride_w = 1 + (int)(conv_random() % 3);
            d.pad_h = (int)(conv_random() % 5);
            d.pad_w = (int)(conv_random() % 5);
            d.dil_h = 1 + (conv_random() % 4 == 0);
            d.dil_w = 1 + (conv_random() % 4 == 0);
        } while (!conv_finish(&d) || work(&d) > 2e6);
        conv_check(&method, &d);
    }
    far_dilated(dtype, 32, 12, 3);
    far_dilated(dtype, 8, 9, 4);
}

/* ---- results that do not fit in the caches: how they are written must not be seen ---- */

/* The pass on a result `shift` elements behind a multiple of 64 bytes; returns what holds it. */
static float *large_result(const td_conv2d_desc *d, td_conv2d_pass pass, const float *from,
                           const float *w, const float *bias, int64_t count, int shift,
                           bool accumulate)
{
    float *memory = aligned_alloc(64, (size_t)(count * 4 + 128) / 64 * 64);
    float *workspace = malloc(td_conv2d_workspace(d, pass) + 64);
    assert_non_null(memory);
    assert_non_null(workspace);
    for (int64_t i = 0; i < count + shift; i++) {
        memory[i] = accumulate ? 1 : NAN;
    }
    td_pool *pool = td_pool_new(2);
    assert_non_null(pool);
    conv_operands o = { .w = (void *)(uintptr_t)w, .accumulate = accumulate };
    if (pass == TD_CONV2D_FORWARD) {
        o.x = (void *)(uintptr_t)from;
        o.bias = (void *)(uintptr_t)bias;
        o.y = memory + shift;
    } else {
        o.y = (void *)(uintptr_t)from;
        o.x = memory + shift;
    }
    run(pool, d, pass, &o, workspace);
    td_pool_free(pool);
    free(workspace);
    return memory;
}

/* 1x1 taps: `from` channels become `to`. Rows repeat, so that few are computed here, and all
 * compared. */
static void check_large(int size, int64_t from, int64_t to, bool backward, bool accumulate)
{
    enum { ROWS = 61 };
    td_conv2d_desc d = { .dtype = TD_F32, .n = 1, .ih = size, .iw = size, .groups = 1 };
    d.ic = backward ? to : from;
    d.oc = backward ? from : to;
    d.kh = d.kw = d.stride_h = d.stride_w = d.dil_h = d.dil_w = 1;
    assert_true(conv_finish(&d));
    int64_t rows = (int64_t)size * size;
    float *a = malloc((size_t)(rows * from) * 4), *w = malloc((size_t)(from * to) * 4);
    float *bias = malloc((size_t)to * 4), *expected = malloc((size_t)(ROWS * to) * 4);
    assert_true(a && w && bias && expected);
    for (int64_t i = 0; i < rows * from; i++) {
        a[i] = i < ROWS * from ? (float)(conv_random() % 64) - 32 : a[i - ROWS * from];
    }
    for (int64_t i = 0; i < from * to; i++) {
        w[i] = (float)(conv_random() % 64) - 32;
    }
    for (int64_t i = 0; i < to; i++) {
        bias[i] = (float)i;
    }
    for (int64_t i = 0; i < ROWS * to; i++) { /* whole numbers, so exact */
        int64_t row = i / to, c = i % to;
        expected[i] = accumulate ? 1 : backward ? 0 : bias[c];
        for (int64_t k = 0; k < from; k++) {
            expected[i] += a[row * from + k] * (backward ? w[c * from + k] : w[k * to + c]);
        }
    }
    td_conv2d_pass pass = backward ? TD_CONV2D_BACKWARD_DATA : TD_CONV2D_FORWARD;
    for (int shift = 0; shift < 2; shift++) {
        float *memory = large_result(&d, pass, a, w, bias, rows * to, shift, accumulate);
        bool same = true;
        for (int64_t i = 0; i < rows * to; i++) {
            same = same && memory[shift + i] == expected[i % (ROWS * to)];
        }
        assert_true(same);
        free(memory);
    }
    free(expected);
    free(a);
    free(w);
    free(bias);
}

static void large_results(void)
{
    check_large(223, 9, 128, false, false); /* past the caches, where rows begin lines */
    check_large(223, 9, 128, true, false);
    check_large(223, 9, 128, true, true);
    check_large(223, 9, 100, false, false); /* rows that begin anywhere */
    check_large(223, 9, 100, true, true);
    check_large(223, 150, 128, true, false); /* in two sums */
}

/* A part of the checks has each known shape at every other instruction set, and large results at
 * the best one. */
static void all_shapes(td_dtype dtype, td_isa isa)
{
    conv_seed(setting("TANDEM_CONV_SEED", 1));
    if (getenv("TANDEM_CONV_SHAPES") == NULL) {
        if (dtype == TD_F32 && (!checks_part() || isa == td_isa_detect())) {
            large_results();
        }
        known_shapes(dtype, checks_part() ? isa % 2 : 0, checks_part() ? 2 : 1);
        far_pixels(dtype);
        wide_shapes(dtype);
    }
    for (uint64_t i = setting("TANDEM_CONV_SHAPES", conv_shapes(70, 10)); i > 0; i--) {
        td_conv2d_desc d = random_shape(dtype);
        conv_check(&method, &d);
    }
}

static void test_f32(void **state)
{
    (void)state;
    for (int isa = TD_ISA_PORTABLE; isa <= TD_ISA_VECTORS; isa++) {
        if (td_isa_force((td_isa)isa) == (td_isa)isa) {
            all_shapes(TD_F32, (td_isa)isa);
        }
    }
}

static void test_f64(void **state)
{
    (void)state;
    all_shapes(TD_F64, td_isa_current());
}

/* Taps that meet only padding: their gradient is zero to the bit, whatever was there before, and as
 * it was where gradients are added to. */
static void test_dead_taps_are_zero(void **state)
{
    (void)state;
    enum { CHANNELS = 70, N = 9, OF_TAP = CHANNELS * CHANNELS, COUNT = 9 * OF_TAP };
    /* How many elements hold other bits than zero, and which: NaN, -0, and a few here and there. */
    static const struct before {
        uint32_t bits;
        int every;
    } before[] = {
        { 0xffffffff, 1 }, { 0x80000000, 1 }, { 0, 1 }, { 1, 1021 }, { 0x01000000, 997 }
    };
    td_isa_force(td_isa_detect());
    td_conv2d_desc d = { .dtype = TD_F32, .n = N, .ic = CHANNELS, .oc = CHANNELS, .groups = 1 };
    d.ih = d.iw = d.pad_h = d.pad_w = d.stride_h = d.stride_w = d.dil_h = d.dil_w = 1;
    d.kh = d.kw = 3;
    assert_true(conv_finish(&d));
    float x[N * CHANNELS], dy[N * CHANNELS], *dw = malloc(COUNT * sizeof *dw);
    assert_non_null(dw);
    assert_int_equal(td_conv2d_workspace(&d, TD_CONV2D_BACKWARD_WEIGHTS) % 64, 0);
    void *workspace = aligned_alloc(64, td_conv2d_workspace(&d, TD_CONV2D_BACKWARD_WEIGHTS));
    assert_non_null(workspace);
    for (int i = 0; i < N * CHANNELS; i++) {
        x[i] = 1 + (float)(conv_random() % 100);
        dy[i] = 1 + (float)(conv_random() % 100);
    }
    for (size_t k = 0; k < 2 * sizeof before / sizeof *before; k++) {
        const struct before *b = &before[k / 2];
        td_conv2d_call call = { .desc = &d, .x = x, .w = dw, .y = dy, .accumulate = k % 2 };
        call.pass = TD_CONV2D_BACKWARD_WEIGHTS;
        for (int i = 0; i < COUNT; i++) {
            memcpy(&dw[i], &(uint32_t){ i % b->every == 0 ? b->bits : 0 }, sizeof *dw);
        }
        td_conv2d_run(NULL, &call, workspace);
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits, kept = call.accumulate && i % b->every == 0 ? b->bits : 0;
            memcpy(&bits, &dw[i], sizeof bits);
            assert_true(i / OF_TAP == 4 ? dw[i] != 0 : bits == kept);
        }
    }
    free(workspace);
    free(dw);
}

/* Depthwise 3x3 backward-weights, x and dy of one value each; the caller frees the result. */
static float *depthwise_gradient(int64_t n, int64_t channels, int ih, int iw, float x, float dy)
{
    td_conv2d_desc d = { .dtype = TD_F32, .n = n, .ic = channels, .ih = ih, .iw = iw };
    d.oc = d.groups = d.ic;
    d.kh = d.kw = 3;
    d.pad_h = d.pad_w = d.stride_h = d.stride_w = d.dil_h = d.dil_w = 1;
    assert_true(conv_finish(&d));
    size_t count = (size_t)(n * channels * ih * iw);
    float *values = malloc(2 * count * sizeof *values);
    float *dw = malloc((size_t)(9 * channels) * sizeof *dw);
    void *workspace = aligned_alloc(64, td_conv2d_workspace(&d, TD_CONV2D_BACKWARD_WEIGHTS));
    assert_true(values != NULL && dw != NULL && workspace != NULL);
    for (size_t i = 0; i < 2 * count; i++) {
        values[i] = i < count ? x : dy;
    }
    td_conv2d_run(NULL,
                  &(td_conv2d_call){ .desc = &d,
                                     .pass = TD_CONV2D_BACKWARD_WEIGHTS,
                                     .x = values,
                                     .w = dw,
                                     .y = values + count },
                  workspace);
    free(workspace);
    free(values);
    return dw;
}

/* Sums of equal sign do not grow beyond the element type's precision, however wide the picture. */
static void test_wide_sums(void **state)
{
    (void)state;
    enum { N = 16, CHANNELS = 64, HEIGHT = 8, WIDTH = 2000 };
    td_isa_force(TD_ISA_BEST);
    float *dw = depthwise_gradient(N, CHANNELS, HEIGHT, WIDTH, 0.1f, 0.1f);
    for (int tap = 0; tap < 9; tap++) {
        double rows = HEIGHT - (tap / 3 != 1), columns = WIDTH - (tap % 3 != 1);
        double sum = rows * columns * N * (double)0.1f * (double)0.1f;
        for (int c = 0; c < CHANNELS; c++) {
            assert_true(fabs((double)dw[tap * CHANNELS + c] - sum) <= 2e-6 * sum);
        }
    }
    free(dw);
}

/* Dead taps are zero also where what the others meet is infinite. */
static void test_dead_taps_of_infinities(void **state)
{
    (void)state;
    enum { CHANNELS = 256 };
    td_isa_force(TD_ISA_BEST);
    float *dw = depthwise_gradient(8, CHANNELS, 1, 1, 1.0f, INFINITY);
    for (int i = 0; i < 9 * CHANNELS; i++) {
        assert_true(i / CHANNELS == 4 ? isinf(dw[i]) : dw[i] == 0.0f);
    }
    free(dw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_sums),
        cmocka_unit_test(test_dead_taps_of_infinities),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_dead_taps_are_zero),
    };
    return cmocka_run_group_tests(tests, conv_make_pools, conv_free_pools);
}
