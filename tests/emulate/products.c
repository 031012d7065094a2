/* The emulated GPU's cuDNN and cuBLASLt: what tensor/cuda/products.h promises, by plain loops over
 * f32 copies of the operands, put on the stream like everything else.
 *
 * TANDEM_EMULATED_REFUSES=bias makes both refuse to add a bias, so that the other way is tested.
 *
 * Convolutions have several engines, whose results differ in the last bits: number 0, which the
 * rules take, and what TANDEM_EMULATED_FASTEST=n says that timing would find (1). */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/products.h"
#include "tensor/kernels/element.h"
#include "tensor/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refuses_bias(void)
{
    const char *what = getenv("TANDEM_EMULATED_REFUSES");
    return what != NULL && strcmp(what, "bias") == 0;
}

/* n elements as double. */
static double *load(const void *memory, td_dtype dtype, int64_t n)
{
    double *values = malloc((size_t)n * sizeof *values + 1);
    TD_REQUIRE(values != NULL, TD_HERE, "emulated GPU: out of memory");
    for (int64_t i = 0; i < n; i++) {
        values[i] = td_load_element(memory, dtype, i);
    }
    return values;
}

/* ---- engines ---- */

static char *choose_engine(const void *problem, size_t *bytes, bool *timed)
{
    (void)problem;
    const char *fastest = getenv("TANDEM_EMULATED_FASTEST");
    char *text = strdup(fastest != NULL ? fastest : "1");
    *bytes = text != NULL ? strlen(text) : 0;
    *timed = true;
    return text;
}

static int engine_of(const td_cuda_conv *c)
{
    if (!td_autotune()) {
        return 0;
    }
    char key[160];
    snprintf(key, sizeof key, "emulated conv %d %s x%lldx%lldx%lldx%lld y%lldx%lldx%lld k%dx%d",
             (int)c->pass, td_dtype_name(c->dtype), (long long)c->n, (long long)c->ic,
             (long long)c->ih, (long long)c->iw, (long long)c->oc, (long long)c->oh,
             (long long)c->ow, c->kh, c->kw);
    size_t bytes;
    char *text = td_autotune_choice(key, &bytes, choose_engine, "", 1);
    int engine = text != NULL ? (int)strtol(text, NULL, 10) : 0;
    free(text);
    return engine;
}

/* ---- convolutions ---- */

typedef struct conv_call {
    td_cuda_conv c;
    int engine;
    void *x, *w, *y;
    const void *bias;
} conv_call;

/* What a pass adds to for every pair of an output pixel and a tap that meets a pixel: rows of
 * channels. NHWC and OHWI. */
typedef struct conv_data {
    const td_cuda_conv *c;
    double *x, *w, *y;
} conv_data;

static void tap(const conv_data *d, int64_t x_pixel, int64_t y_pixel, int64_t at)
{
    const td_cuda_conv *c = d->c;
    int64_t in = c->ic / c->groups, out = c->oc / c->groups;
    for (int64_t o = 0; o < c->oc; o++) {
        double *x = d->x + x_pixel * c->ic + o / out * in;
        double *w = d->w + (o * c->kh * c->kw + at) * in;
        double *y = d->y + y_pixel * c->oc + o;
        switch (c->pass) {
        case TD_CUDA_CONV_FORWARD:
            for (int64_t i = 0; i < in; i++) {
                *y += x[i] * w[i];
            }
            break;
        case TD_CUDA_CONV_BACKWARD_DATA:
            for (int64_t i = 0; i < in; i++) {
                x[i] += *y * w[i];
            }
            break;
        case TD_CUDA_CONV_BACKWARD_WEIGHTS:
            for (int64_t i = 0; i < in; i++) {
                w[i] += *y * x[i];
            }
            break;
        }
    }
}

static void output_pixel(const conv_data *d, int64_t n, int64_t oh, int64_t ow)
{
    const td_cuda_conv *c = d->c;
    for (int kh = 0; kh < c->kh; kh++) {
        for (int kw = 0; kw < c->kw; kw++) {
            int64_t h = oh * c->stride[0] - c->pad[0] + kh * c->dilation[0];
            int64_t w = ow * c->stride[1] - c->pad[1] + kw * c->dilation[1];
            if (h >= 0 && h < c->ih && w >= 0 && w < c->iw) {
                tap(d, (n * c->ih + h) * c->iw + w, (n * c->oh + oh) * c->ow + ow,
                    (int64_t)kh * c->kw + kw);
            }
        }
    }
}

static void run_conv(void *arguments)
{
    conv_call *call = arguments;
    const td_cuda_conv *c = &call->c;
    int64_t x_count = c->n * c->ih * c->iw * c->ic, y_count = c->n * c->oh * c->ow * c->oc;
    int64_t w_count = c->oc * c->kh * c->kw * (c->ic / c->groups);
    conv_data d = { .c = c,
                    .x = load(call->x, c->dtype, x_count),
                    .w = load(call->w, c->dtype, w_count),
                    .y = load(call->y, c->dtype, y_count) };
    struct {
        void *memory;
        double *values;
        int64_t count;
    } made[] = { [TD_CUDA_CONV_FORWARD] = { call->y, d.y, y_count },
                 [TD_CUDA_CONV_BACKWARD_DATA] = { call->x, d.x, x_count },
                 [TD_CUDA_CONV_BACKWARD_WEIGHTS] = { call->w, d.w, w_count } };
    double *values = made[c->pass].values;
    for (int64_t i = 0; i < made[c->pass].count; i++) {
        values[i] = c->bias         ? td_load_element(call->bias, c->dtype, i % c->oc)
                    : c->accumulate ? td_load_element(made[c->pass].memory, c->dtype, i)
                                    : 0.0;
    }
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t oh = 0; oh < c->oh; oh++) {
            for (int64_t ow = 0; ow < c->ow; ow++) {
                output_pixel(&d, n, oh, ow);
            }
        }
    }
    for (int64_t i = 0; i < made[c->pass].count; i++) {
        values[i] *= 1.0 + call->engine * 0x1p-22;
        td_store_element(made[c->pass].memory, c->dtype, i, values[i]);
    }
    free(d.x);
    free(d.w);
    free(d.y);
}

bool td_cuda_vendor_conv(td_device device, const td_cuda_conv *conv, void *x, void *w, void *y,
                         const void *bias)
{
    TD_REQUIRE(conv->n * conv->ic * conv->ih * conv->iw * conv->oc * conv->oh * conv->ow > 0,
               TD_HERE, "emulated cuDNN: something is empty");
    if (conv->bias && refuses_bias()) {
        return false;
    }
    TD_REQUIRE(((uintptr_t)x | (uintptr_t)w | (uintptr_t)y | (uintptr_t)bias) % 16 == 0, TD_HERE,
               "emulated cuDNN: memory that is not aligned to 16 bytes");
    conv_call call = { *conv, engine_of(conv), x, w, y, bias };
    td_emulate_enqueue(td_cuda_of(device)->stream, run_conv, &call, sizeof call);
    return true;
}

/* ---- matrix products ---- */

typedef struct matmul_call {
    td_cuda_product p;
    void *c;
    const void *add, *a, *b, *bias;
} matmul_call;

static const void *at(const void *base, td_dtype dtype, int64_t elements)
{
    return (const char *)base + elements * (int64_t)td_dtype_size(dtype);
}

/* A matrix of rows x columns as a dense row-major copy. */
static double *load_matrix(const void *base, td_dtype dtype, int64_t rows, int64_t columns,
                           int64_t ld, bool transposed)
{
    double *values = malloc((size_t)(rows * columns) * sizeof *values + 1);
    TD_REQUIRE(values != NULL, TD_HERE, "emulated GPU: out of memory");
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            values[r * columns + c] =
                td_load_element(base, dtype, transposed ? c * ld + r : r * ld + c);
        }
    }
    return values;
}

static void run_matmul(void *arguments)
{
    const matmul_call *call = arguments;
    const td_cuda_product *p = &call->p;
    double *row = malloc((size_t)p->n * sizeof *row + 1);
    TD_REQUIRE(row != NULL, TD_HERE, "emulated GPU: out of memory");
    for (int64_t batch = 0; batch < p->batch; batch++) {
        double *a = load_matrix(at(call->a, p->ab_dtype, batch * p->a_batch), p->ab_dtype, p->m,
                                p->k, p->a_ld, p->a_t);
        double *b = load_matrix(at(call->b, p->ab_dtype, batch * p->b_batch), p->ab_dtype, p->k,
                                p->n, p->b_ld, p->b_t);
        for (int64_t m = 0; m < p->m; m++) {
            int64_t first = batch * p->c_batch + m * p->c_ld;
            for (int64_t n = 0; n < p->n; n++) {
                row[n] = call->bias != NULL ? td_load_element(call->bias, p->c_dtype, n) : 0.0;
                row[n] += p->adds ? td_load_element(call->add, p->c_dtype, first + n) : 0.0;
            }
            for (int64_t k = 0; k < p->k; k++) {
                for (int64_t n = 0; n < p->n; n++) {
                    row[n] += a[m * p->k + k] * b[k * p->n + n];
                }
            }
            for (int64_t n = 0; n < p->n; n++) {
                td_store_element(call->c, p->c_dtype, first + n, row[n]);
            }
        }
        free(a);
        free(b);
    }
    free(row);
}

bool td_cuda_vendor_matmul(td_device device, const td_cuda_product *product, void *c,
                           const void *add, const void *a, const void *b, const void *bias)
{
    const td_cuda_product *p = product;
    TD_REQUIRE(p->m * p->n * p->k * p->batch > 0, TD_HERE, "emulated cuBLASLt: something is empty");
    if (bias != NULL && refuses_bias()) {
        return false;
    }
    TD_REQUIRE(p->a_ld >= (p->a_t ? p->m : p->k) && p->b_ld >= (p->b_t ? p->k : p->n) &&
                   p->c_ld >= p->n,
               TD_HERE, "emulated cuBLASLt: a leading dimension is smaller than a row");
    TD_REQUIRE(p->adds == (add != NULL), TD_HERE, "emulated cuBLASLt: what is added?");
    uintptr_t all = (uintptr_t)c | (uintptr_t)add | (uintptr_t)a | (uintptr_t)b;
    TD_REQUIRE((uintptr_t)bias % 16 == 0 && (!p->aligned || all % 16 == 0), TD_HERE,
               "emulated cuBLASLt: memory that is not aligned to 16 bytes");
    matmul_call call = { *product, c, add, a, b, bias };
    td_emulate_enqueue(td_cuda_of(device)->stream, run_matmul, &call, sizeof call);
    return true;
}
