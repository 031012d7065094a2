/* Slow operations in double precision: convolutions, pooling, normalization. */
#include "tests/autograd/ops_reference.h"
#include "tensor/extend.h"

#include <math.h>

static double at2(const ref *r, int64_t i, int64_t j)
{
    return r->v[i * r->shape.dim[1] + j];
}

static double at4(const ref *r, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return r->v[ref_place(r->shape, (int64_t[]){ n, c, h, w })];
}

/* ---- products ---- */

ref ref_matmul(ref a, ref b)
{
    /* Batch dimensions: those of the wider operand, the other's aligned at the end. */
    td_shape shape = a.shape.ndim >= b.shape.ndim ? a.shape : b.shape;
    int batch = shape.ndim - 2;
    int64_t m = a.shape.dim[a.shape.ndim - 2], k = a.shape.dim[a.shape.ndim - 1];
    int64_t n = b.shape.dim[b.shape.ndim - 1];
    for (int d = 0; d < batch; d++) {
        int in_a = d - batch + a.shape.ndim - 2, in_b = d - batch + b.shape.ndim - 2;
        int64_t size_a = in_a >= 0 ? a.shape.dim[in_a] : 1;
        int64_t size_b = in_b >= 0 ? b.shape.dim[in_b] : 1;
        shape.dim[d] = size_a == 1 ? size_b : size_a;
    }
    shape.dim[batch] = m;
    shape.dim[batch + 1] = n;
    td_shape wide_a = shape, wide_b = shape;
    wide_a.dim[batch + 1] = wide_b.dim[batch] = k;
    ref aw = ref_expand(a, wide_a), bw = ref_expand(b, wide_b), y = ref_new(shape, true);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t stack = i / (m * n), row = i / n % m, column = i % n;
        for (int64_t j = 0; j < k; j++) {
            double term = aw.v[(stack * m + row) * k + j] * bw.v[(stack * k + j) * n + column];
            y.v[i] += term;
            y.terms[i] += fabs(term);
        }
    }
    return y;
}

ref ref_linear(ref x, ref w, const ref *b)
{
    td_shape shape = x.shape;
    int64_t in = w.shape.dim[1], out = w.shape.dim[0];
    shape.dim[shape.ndim - 1] = out;
    ref y = ref_new(shape, true);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t row = i / out, o = i % out;
        y.v[i] = b != NULL ? b->v[o] : 0.0;
        y.terms[i] = fabs(y.v[i]);
        for (int64_t j = 0; j < in; j++) {
            double term = x.v[row * in + j] * at2(&w, o, j);
            y.v[i] += term;
            y.terms[i] += fabs(term);
        }
    }
    return y;
}

/* ---- windows ---- */

static td_shape window_shape(ref x, int64_t channels, ref_window win)
{
    td_shape shape = TD_SHAPE(x.shape.dim[0], channels, 0, 0);
    for (int d = 0; d < 2; d++) {
        int64_t covered = (int64_t)win.dilation[d] * (win.kernel[d] - 1) + 1;
        shape.dim[2 + d] =
            (x.shape.dim[2 + d] + 2 * (int64_t)win.pad[d] - covered) / win.stride[d] + 1;
    }
    return shape;
}

/* The place of the image that window position (oh, ow) sees at (kh, kw); false: in the padding. */
static bool see(ref x, ref_window win, const int64_t *out, int kh, int kw, int64_t *h, int64_t *w)
{
    *h = out[2] * win.stride[0] - win.pad[0] + (int64_t)kh * win.dilation[0];
    *w = out[3] * win.stride[1] - win.pad[1] + (int64_t)kw * win.dilation[1];
    return *h >= 0 && *h < x.shape.dim[2] && *w >= 0 && *w < x.shape.dim[3];
}

static void conv_element(ref x, ref w, ref_window win, int64_t groups, const int64_t *out,
                         double *value, double *terms)
{
    int64_t per_group = w.shape.dim[1], o = out[1];
    int64_t first = o / (w.shape.dim[0] / groups) * per_group;
    for (int64_t c = 0; c < per_group; c++) {
        for (int kh = 0; kh < win.kernel[0]; kh++) {
            for (int kw = 0; kw < win.kernel[1]; kw++) {
                int64_t ih, iw;
                if (see(x, win, out, kh, kw, &ih, &iw)) {
                    double term = at4(&x, out[0], first + c, ih, iw) * at4(&w, o, c, kh, kw);
                    *value += term;
                    *terms += fabs(term);
                }
            }
        }
    }
}

ref ref_conv2d(ref x, ref w, const ref *b, ref_window window, int64_t groups)
{
    ref y = ref_new(window_shape(x, w.shape.dim[0], window), true);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t out[TD_MAX_DIMS];
        ref_index(y.shape, i, out);
        y.v[i] = b != NULL ? b->v[out[1]] : 0.0;
        y.terms[i] = fabs(y.v[i]);
        conv_element(x, w, window, groups, out, &y.v[i], &y.terms[i]);
    }
    return y;
}

ref ref_max_pool2d(ref x, ref_window window)
{
    ref y = ref_new(window_shape(x, x.shape.dim[1], window), false);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t out[TD_MAX_DIMS], h, w;
        ref_index(y.shape, i, out);
        y.v[i] = -INFINITY;
        for (int k = 0; k < window.kernel[0] * window.kernel[1]; k++) {
            if (see(x, window, out, k / window.kernel[1], k % window.kernel[1], &h, &w)) {
                y.v[i] = fmax(y.v[i], at4(&x, out[0], out[1], h, w));
            }
        }
    }
    return y;
}

ref ref_avg_pool2d(ref x, ref_window window, bool count_pad)
{
    ref y = ref_new(window_shape(x, x.shape.dim[1], window), true);
    int places = window.kernel[0] * window.kernel[1];
    for (int64_t i = 0; i < y.n; i++) {
        int64_t out[TD_MAX_DIMS], h, w;
        ref_index(y.shape, i, out);
        int inside = 0;
        for (int k = 0; k < places; k++) {
            if (see(x, window, out, k / window.kernel[1], k % window.kernel[1], &h, &w)) {
                y.v[i] += at4(&x, out[0], out[1], h, w);
                y.terms[i] += fabs(at4(&x, out[0], out[1], h, w));
                inside++;
            }
        }
        y.v[i] /= count_pad ? places : inside;
        y.terms[i] /= count_pad ? places : inside;
    }
    return y;
}

/* ---- normalisation ---- */

void ref_channel_stats(ref x, ref *mean, ref *var)
{
    int64_t channels = x.shape.dim[1], inner = 1;
    for (int d = 2; d < x.shape.ndim; d++) {
        inner *= x.shape.dim[d];
    }
    double n = (double)(x.n / channels);
    *mean = ref_new(TD_SHAPE(channels), false);
    *var = ref_new(TD_SHAPE(channels), false);
    for (int64_t i = 0; i < x.n; i++) {
        mean->v[i / inner % channels] += x.v[i] / n;
    }
    for (int64_t i = 0; i < x.n; i++) {
        double d = x.v[i] - mean->v[i / inner % channels];
        var->v[i / inner % channels] += d * d / n;
    }
}

ref ref_batch_norm(ref x, const ref *w, const ref *b, ref mean, ref var, double eps, const ref *add,
                   bool relu)
{
    int64_t channels = x.shape.dim[1], inner = 1;
    for (int d = 2; d < x.shape.ndim; d++) {
        inner *= x.shape.dim[d];
    }
    ref y = ref_new(x.shape, false);
    for (int64_t i = 0; i < x.n; i++) {
        int64_t c = i / inner % channels;
        double v = (x.v[i] - mean.v[c]) / sqrt(var.v[c] + eps);
        v = v * (w != NULL ? w->v[c] : 1.0) + (b != NULL ? b->v[c] : 0.0);
        v += add != NULL ? add->v[i] : 0.0;
        y.v[i] = relu && v < 0.0 ? 0.0 : v;
    }
    return y;
}

ref ref_layer_norm(ref x, const ref *w, const ref *b, double eps)
{
    int64_t d = x.shape.dim[x.shape.ndim - 1];
    ref y = ref_new(x.shape, false);
    for (int64_t row = 0; row < x.n / d; row++) {
        const double *v = x.v + row * d;
        double mean = 0.0, var = 0.0;
        for (int64_t j = 0; j < d; j++) {
            mean += v[j] / (double)d;
        }
        for (int64_t j = 0; j < d; j++) {
            var += (v[j] - mean) * (v[j] - mean) / (double)d;
        }
        for (int64_t j = 0; j < d; j++) {
            double hat = (v[j] - mean) / sqrt(var + eps);
            y.v[row * d + j] = hat * (w != NULL ? w->v[j] : 1.0) + (b != NULL ? b->v[j] : 0.0);
        }
    }
    return y;
}

/* ---- softmax, losses, the rest ---- */

ref ref_softmax(ref x, int dim, bool log_of_it)
{
    ref y = ref_new(x.shape, false);
    int64_t size = x.shape.dim[dim], inner = 1;
    for (int d = dim + 1; d < x.shape.ndim; d++) {
        inner *= x.shape.dim[d];
    }
    for (int64_t i = 0; i < x.n; i++) {
        const double *line = x.v + i / (size * inner) * size * inner + i % inner;
        double largest = -INFINITY, sum = 0.0;
        for (int64_t j = 0; j < size; j++) {
            largest = fmax(largest, line[j * inner]);
        }
        for (int64_t j = 0; j < size; j++) {
            sum += exp(line[j * inner] - largest);
        }
        double log_p = x.v[i] - largest - log(sum);
        y.v[i] = log_of_it ? log_p : exp(log_p);
    }
    return y;
}

ref ref_cross_entropy(ref logits, ref labels, double smoothing)
{
    ref log_p = ref_softmax(logits, 1, true), loss = ref_new(TD_SCALAR, false);
    int64_t n = logits.shape.dim[0], k = logits.shape.dim[1];
    for (int64_t i = 0; i < n; i++) {
        double nll = -at2(&log_p, i, (int64_t)labels.v[i]), all = 0.0;
        for (int64_t j = 0; j < k; j++) {
            all -= at2(&log_p, i, j);
        }
        loss.v[0] += ((1.0 - smoothing) * nll + smoothing / (double)k * all) / (double)n;
    }
    return loss;
}

ref ref_dropout(ref x, double p, td_philox_key key, uint64_t counter)
{
    ref y = ref_new(x.shape, false);
    for (int64_t i = 0; i < x.n; i++) {
        uint32_t words[4];
        td_philox(key, counter, (uint64_t)i / 4, words);
        y.v[i] = (double)words[i % 4] >= p * 0x1p32 ? x.v[i] / (1.0 - p) : 0.0;
    }
    return y;
}

ref ref_embedding(ref index, ref table)
{
    td_shape shape = index.shape;
    int64_t d = table.shape.dim[1];
    shape.dim[shape.ndim++] = d;
    ref y = ref_new(shape, false);
    for (int64_t i = 0; i < y.n; i++) {
        y.v[i] = at2(&table, (int64_t)index.v[i / d], i % d);
    }
    return y;
}
