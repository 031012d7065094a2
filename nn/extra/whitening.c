/* A first convolution that whitens: what comes out of it for patches of the given images is
 * uncorrelated and of variance 1. */
#include "nn/internal.h"
#include "nn/extra/symmetric_eigen.h"

#include <math.h>
#include <stdlib.h>

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
               "td_init_whitening_: the weight is %s; it needs two filters for each element of a "
               "patch, [2 I KH KW, I, KH, KW]",
               td_describe(weight));
    TD_REQUIRE(images->ndim == 4 && images->shape[0] > 0 && images->shape[1] == weight->shape[1] &&
                   images->shape[2] >= weight->shape[2] && images->shape[3] >= weight->shape[3],
               TD_HERE, "td_init_whitening_: images %s do not go with filters %s",
               td_describe(images), td_describe(weight));
    TD_REQUIRE(eps > 0.0, TD_HERE, "td_init_whitening_: eps is %g; it must be positive", eps);
}

td_status td_init_whitening_(td_tensor *weight, const td_tensor *images, double eps)
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
        td_symmetric_eigen(covariance, (int)d, values, vectors);
        write_filters(weight, values, vectors, filters, eps);
    }
    free(pictures);
    free(work);
    return status;
}
