/* Cases of batch normalization: shapes, tensors, and values in double. */
#include "tests/tensor/norm_case.h"

#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>

const norm_case norm_cases[NORM_CASES] = {
    { { 4, { 4, 3, 5, 6 } }, TD_IMAGE, 0, false, false, true, true, false, false },
    { { 4, { 4, 3, 5, 6 } }, TD_ROW_MAJOR, 0, true, true, true, true, true, false },
    { { 4, { 3, 20, 9, 2 } }, TD_IMAGE, 0, true, true, true, true, false, true },
    { { 4, { 5, 64, 11, 12 } }, TD_IMAGE, 0, true, true, true, true, false, false },
    { { 4, { 9, 97, 8, 8 } }, TD_IMAGE, 0, true, false, true, true, true, false },
    { { 4, { 9, 97, 8, 8 } }, TD_IMAGE, 0, false, true, false, true, false, false },
    /* long rows, of which few are added up at a time */
    { { 4, { 3, 1100, 3, 3 } }, TD_IMAGE, 0, true, false, true, true, false, false },
    { { 4, { 3, 1100, 3, 3 } }, TD_IMAGE, 0, true, true, false, true, false, false },
    { { 2, { 27, 1100 } }, TD_IMAGE, 0, false, false, true, true, true, false },
    { { 2, { 130, 7 } }, TD_ROW_MAJOR, 0, true, false, true, true, false, false },
    { { 2, { 40, 130 } }, TD_ROW_MAJOR, 0, false, false, true, true, true, false },
    { { 4, { 4, 17, 5, 6 } }, TD_IMAGE, 0, true, true, true, false, true, false },
    { { 4, { 4, 17, 5, 6 } }, TD_IMAGE, 0, false, false, false, false, false, false },
    { { 4, { 0, 3, 2, 2 } }, TD_IMAGE, 0, true, true, false, false, false, false },
};

td_dtype norm_per_channel(td_dtype dtype)
{
    return td_is_half(dtype) ? TD_F32 : dtype;
}

int64_t norm_channel(const norm_data *d, int64_t i)
{
    return i / d->inner % d->channels;
}

td_tensor *norm_input(const norm_case *c, td_dtype dtype, uint64_t seed, double offset)
{
    td_tensor *t = ref_tensor(c->shape, dtype, c->layout, seed);
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] += offset;
    }
    td_write(t, values, TD_F64);
    free(values);
    return c->scattered ? ref_scattered(t) : t;
}

td_tensor *norm_filled(const norm_case *c, td_shape shape, td_dtype dtype)
{
    td_tensor *t = ref_filled(shape, dtype, shape.ndim > 1 ? c->layout : TD_ROW_MAJOR, 0.5);
    return c->scattered && shape.ndim > 1 ? ref_scattered(t) : t;
}

static void batch_statistics(norm_data *d)
{
    double rows = (double)(d->n / d->channels);
    for (int round = 0; round < 2; round++) { /* the second finds what rounding left of the first */
        double *rest = ref_zeros(d->channels);
        for (int64_t i = 0; i < d->n; i++) {
            rest[norm_channel(d, i)] += d->xv[i] - d->batch_mean[norm_channel(d, i)];
        }
        for (int64_t i = 0; i < d->channels && d->n > 0; i++) {
            d->batch_mean[i] += rest[i] / rows;
        }
        free(rest);
    }
    for (int64_t i = 0; i < d->n; i++) {
        double off = d->xv[i] - d->batch_mean[norm_channel(d, i)];
        d->batch_var[norm_channel(d, i)] += off * off / rows;
    }
}

void norm_make(norm_data *d, const norm_case *c, td_dtype dtype)
{
    *d = (norm_data){ .channels = c->shape.dim[1], .n = td_shape_numel(c->shape) };
    d->inner = c->shape.ndim == 4 ? c->shape.dim[2] * c->shape.dim[3] : 1;
    td_shape per = TD_SHAPE(d->channels);
    d->x = norm_input(c, dtype, 1, c->offset);
    d->add = c->add ? norm_input(c, dtype, 2, 0.0) : NULL;
    d->weight = c->affine ? ref_tensor(per, norm_per_channel(dtype), TD_ROW_MAJOR, 3) : NULL;
    d->bias = c->affine ? ref_tensor(per, norm_per_channel(dtype), TD_ROW_MAJOR, 4) : NULL;
    d->mean = ref_tensor(per, norm_per_channel(dtype), TD_ROW_MAJOR, 5);
    d->var = ref_filled(per, norm_per_channel(dtype), TD_ROW_MAJOR, 0.75);
    d->xv = ref_values(d->x);
    d->addv = c->add ? ref_values(d->add) : NULL;
    d->weightv = c->affine ? ref_values(d->weight) : NULL;
    d->biasv = c->affine ? ref_values(d->bias) : NULL;
    d->meanv = ref_values(d->mean);
    d->varv = ref_values(d->var);
    d->batch_mean = ref_zeros(d->channels);
    d->batch_var = ref_zeros(d->channels);
    d->used_mean = ref_zeros(d->channels);
    d->inv_std = ref_zeros(d->channels);
    d->y = ref_zeros(d->n);
    batch_statistics(d);
    for (int64_t i = 0; i < d->channels; i++) {
        d->used_mean[i] = c->training ? d->batch_mean[i] : d->meanv[i];
        d->inv_std[i] = 1.0 / sqrt((c->training ? d->batch_var[i] : d->varv[i]) + 1e-5);
    }
}

void norm_free(norm_data *d)
{
    td_tensor *tensors[] = { d->x, d->add, d->weight, d->bias, d->mean, d->var };
    double *values[] = { d->xv,         d->addv,      d->weightv,   d->biasv,   d->meanv, d->varv,
                         d->batch_mean, d->batch_var, d->used_mean, d->inv_std, d->y };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        td_free(tensors[i]);
    }
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        free(values[i]);
    }
}
