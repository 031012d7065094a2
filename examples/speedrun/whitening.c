/* A first convolution that whitens: eigenvectors by Jacobi's method, and filters made of them. */
#include "examples/speedrun/whitening.h"
#include "nn/internal.h"
#include "tensor/extend.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- eigenvectors: the cyclic Jacobi method (Jacobi 1846; Golub and Van Loan, Matrix
 * Computations, 8.5) ---- */

enum { MOST_SWEEPS = 60 }; /* it converges quadratically: six to ten are usual */

typedef struct rotation {
    double c, s;
} rotation;

/* The rotation of rows and columns p and q after which a[p][q] is 0; of the two angles the one
 * below 45 degrees. */
static rotation annihilate(double app, double aqq, double apq)
{
    double tau = (aqq - app) / (2.0 * apq);
    double t = (tau >= 0.0 ? 1.0 : -1.0) / (fabs(tau) + sqrt(1.0 + tau * tau));
    double c = 1.0 / sqrt(1.0 + t * t);
    return (rotation){ c, t * c };
}

/* x, y = c x - s y, s x + c y, over n elements that lie `step` apart. */
static void rotate(double *x, double *y, int n, int step, rotation r)
{
    for (int i = 0; i < n; i++, x += step, y += step) {
        double old = *x;
        *x = r.c * old - r.s * *y;
        *y = r.s * old + r.c * *y;
    }
}

/* One sweep over all pairs; false: everything off the diagonal was 0 to rounding. */
static bool sweep(double *a, int n, double *vectors)
{
    bool changed = false;
    for (int p = 0; p < n; p++) {
        for (int q = p + 1; q < n; q++) {
            double apq = a[p * n + q];
            if (fabs(apq) <= DBL_EPSILON * sqrt(fabs(a[p * n + p] * a[q * n + q])) ||
                fabs(apq) <= DBL_MIN) {
                continue;
            }
            rotation r = annihilate(a[p * n + p], a[q * n + q], apq);
            rotate(a + p * n, a + q * n, n, 1, r); /* rows */
            rotate(a + p, a + q, n, n, r);         /* columns */
            a[p * n + q] = a[q * n + p] = 0.0;
            rotate(vectors + p * n, vectors + q * n, n, 1, r);
            changed = true;
        }
    }
    return changed;
}

static void swap_rows(double *a, double *b, int n)
{
    for (int i = 0; i < n; i++) {
        double old = a[i];
        a[i] = b[i];
        b[i] = old;
    }
}

static void sort(double *values, double *vectors, int n)
{
    for (int k = 0; k < n; k++) {
        int largest = k;
        for (int i = k + 1; i < n; i++) {
            largest = values[i] > values[largest] ? i : largest;
        }
        swap_rows(&values[k], &values[largest], 1);
        swap_rows(vectors + k * n, vectors + largest * n, n);
    }
}

/* Components that are equal but for rounding count as equal. */
static void point_up(double *vector, int n)
{
    int largest = 0;
    for (int i = 1; i < n; i++) {
        largest = fabs(vector[i]) > fabs(vector[largest]) * (1.0 + 1e-9) ? i : largest;
    }
    for (int i = 0; i < n && vector[largest] < 0.0; i++) {
        vector[i] = i == largest ? vector[i] : -vector[i];
    }
    vector[largest] = fabs(vector[largest]);
}

void symmetric_eigen(double *a, int n, double *values, double *vectors)
{
    for (int i = 0; i < n * n; i++) {
        vectors[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
    }
    for (int round = 0; round < MOST_SWEEPS && sweep(a, n, vectors); round++) {
    }
    for (int k = 0; k < n; k++) {
        values[k] = a[k * n + k];
    }
    sort(values, vectors, n);
    for (int k = 0; k < n; k++) {
        point_up(vectors + k * n, n);
    }
}

/* ---- the convolution ---- */

/* The covariance (about 0, not about the mean) of all patches [I,KH,KW] of images [N,I,H,W]:
 * covariance [d,d], d = I KH KW. values: the images, row-major. */
static void patch_covariance(const float *values, const td_tensor *images, const td_tensor *weight,
                             double *patch, double *covariance)
{
    int64_t channels = images->shape[1], height = images->shape[2], width = images->shape[3];
    int64_t kh = weight->shape[2], kw = weight->shape[3], d = channels * kh * kw;
    int64_t places = 0;
    for (int64_t n = 0; n < images->shape[0]; n++) {
        for (int64_t at = 0; at < (height - kh + 1) * (width - kw + 1); at++, places++) {
            int64_t top = at / (width - kw + 1), left = at % (width - kw + 1);
            for (int64_t i = 0; i < d; i++) {
                int64_t c = i / (kh * kw), row = top + i / kw % kh, column = left + i % kw;
                patch[i] = values[((n * channels + c) * height + row) * width + column];
            }
            for (int64_t i = 0; i < d; i++) {
                for (int64_t j = 0; j <= i; j++) {
                    covariance[i * d + j] += patch[i] * patch[j];
                }
            }
        }
    }
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j <= i; j++) {
            covariance[i * d + j] /= (double)places;
            covariance[j * d + i] = covariance[i * d + j];
        }
    }
}

/* Filter k is vector k over sqrt(value k + eps), filter d + k its negative. */
static void write_filters(td_tensor *weight, const double *values, const double *vectors,
                          double *filters, double eps)
{
    int64_t d = td_numel(weight) / weight->shape[0];
    for (int64_t k = 0; k < d; k++) {
        double value = values[k] > 0.0 ? values[k] : 0.0; /* below 0 by rounding */
        for (int64_t i = 0; i < d; i++) {
            filters[k * d + i] = vectors[k * d + i] / sqrt(value + eps);
            filters[(d + k) * d + i] = -filters[k * d + i];
        }
    }
    td_write(weight, filters, TD_F64);
}

static void check(const td_tensor *weight, const td_tensor *images, double eps)
{
    TD_REQUIRE(weight->ndim == 4 &&
                   weight->shape[0] == 2 * weight->shape[1] * weight->shape[2] * weight->shape[3],
               TD_HERE,
               "whitening_init: the weight is %s; it needs two filters for each element of a "
               "patch, [2 I KH KW, I, KH, KW]",
               td_describe(weight));
    TD_REQUIRE(images->ndim == 4 && images->shape[0] > 0 && images->shape[1] == weight->shape[1] &&
                   images->shape[2] >= weight->shape[2] && images->shape[3] >= weight->shape[3],
               TD_HERE, "whitening_init: images %s do not go with filters %s", td_describe(images),
               td_describe(weight));
    TD_REQUIRE(eps > 0.0, TD_HERE, "whitening_init: eps is %g; it must be positive", eps);
    td_check_alive(weight, TD_HERE); /* not deferred */
}

td_status whitening_init(td_tensor *weight, const td_tensor *images, double eps)
{
    check(weight, images, eps);
    size_t d = (size_t)(td_numel(weight) / weight->shape[0]);
    float *pictures = malloc((size_t)td_numel(images) * sizeof *pictures);
    double *work = calloc(2 * d + 4 * d * d, sizeof *work);
    td_status status = TD_OK;
    if (pictures == NULL || work == NULL) {
        status = td_fail(TD_E_NOMEM, "no memory to whiten %s", td_describe(images));
    } else {
        double *patch = work, *values = patch + d, *covariance = values + d;
        double *vectors = covariance + d * d, *filters = vectors + d * d;
        td_read(images, pictures, TD_F32);
        patch_covariance(pictures, images, weight, patch, covariance);
        symmetric_eigen(covariance, (int)d, values, vectors);
        write_filters(weight, values, vectors, filters, eps);
    }
    free(pictures);
    free(work);
    return status;
}
