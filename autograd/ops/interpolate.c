/* Adaptive pooling, and resizing: rows and columns of the result are weighted sums of rows and
 * columns, so each side is a product with a small matrix. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

#include <math.h>

/* ---- a side by a matrix ---- */

/* Adds weights[to][from] of one side, which are 0; scale: elements of x for one of the result. */
typedef void (*side_fn)(double *weights, int64_t to, int64_t from, double scale);

static td_tensor *matrix_of(const td_tensor *x, side_fn side, int64_t to, int64_t from,
                            double scale, td_site at)
{
    double *weights = td_step_bytes((size_t)(to * from) * sizeof *weights);
    side(weights, to, from, scale);
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *m = td_op_new(TD_SHAPE(to, from), dtype, x, at);
    td_write_at(m, weights, TD_F64, at);
    return td_is_half(x->dtype) ? td_cast_at(m, x->dtype, at) : m;
}

/* x [N,C,H,W], of which rows and columns are replaced; images lie channels last, as they do. */
static td_tensor *by_matrices(td_tensor *x, td_tensor *rows, td_tensor *columns, td_site at)
{
    int64_t n = x->shape[0], c = x->shape[1], h = rows->shape[0], w = columns->shape[0];
    td_tensor *last = td_permute_at(x, (int[]){ 0, 2, 3, 1 }, at); /* [N,H,W,C] */
    last = td_reshape_at(last, TD_SHAPE(n, x->shape[2], x->shape[3] * c), at);
    td_tensor *y = td_matmul_at(rows, last, at); /* [N,h,W C] */
    y = td_matmul_at(columns, td_reshape_at(y, TD_SHAPE(n * h, x->shape[3], c), at), at);
    return td_permute_at(td_reshape_at(y, TD_SHAPE(n, h, w, c), at), (int[]){ 0, 3, 1, 2 }, at);
}

static void check_image(const td_tensor *x, const char *op, td_site at)
{
    TD_REQUIRE(x->ndim == 4 && x->shape[2] > 0 && x->shape[3] > 0, at,
               "%s: x%s must be [N,C,H,W] with H and W at least 1", op, TD_SHAPE_TEXT(x));
}

/* ---- adaptive pooling ---- */

static int64_t window_begin(int64_t i, int64_t to, int64_t from)
{
    return i * from / to;
}

static int64_t window_end(int64_t i, int64_t to, int64_t from)
{
    return ((i + 1) * from + to - 1) / to;
}

static void side_of_means(double *weights, int64_t to, int64_t from, double scale)
{
    (void)scale;
    for (int64_t i = 0; i < to; i++) {
        int64_t begin = window_begin(i, to, from), end = window_end(i, to, from);
        for (int64_t j = begin; j < end; j++) {
            weights[i * from + j] = 1.0 / (double)(end - begin);
        }
    }
}

/* Checks and casts x. Where the windows have one size and do not overlap, returns the pooling by
 * them; otherwise NULL. */
static td_tensor *regular(const char *op, td_rule rule, td_tensor **x, int64_t height,
                          int64_t width, td_tensor *(*pool)(td_pool2d_options, td_site), td_site at)
{
    *x = td_op_input(*x, op, "x", rule, at);
    check_image(*x, op, at);
    TD_REQUIRE(height > 0 && width > 0, at, "%s: the result's size is %lld by %lld; give both", op,
               (long long)height, (long long)width);
    int64_t h = (*x)->shape[2], w = (*x)->shape[3];
    td_pool2d_options options = { .x = *x, .kernel_hw = { (int)(h / height), (int)(w / width) } };
    return h % height == 0 && w % width == 0 ? pool(options, at) : NULL;
}

td_tensor *td_adaptive_avg_pool2d_at(td_tensor *x, int64_t height, int64_t width, td_site at)
{
    td_tensor *y = regular("adaptive_avg_pool2d", TD_RULE_OF(adaptive_avg_pool2d), &x, height,
                           width, td_avg_pool2d_at, at);
    return y != NULL ? y
                     : by_matrices(x, matrix_of(x, side_of_means, height, x->shape[2], 0.0, at),
                                   matrix_of(x, side_of_means, width, x->shape[3], 0.0, at), at);
}

static td_tensor *maxima_along(td_tensor *x, int dim, int64_t to, td_site at)
{
    td_tensor **parts = td_step_bytes((size_t)to * sizeof *parts);
    for (int64_t i = 0; i < to; i++) {
        int64_t begin = window_begin(i, to, x->shape[dim]), end = window_end(i, to, x->shape[dim]);
        parts[i] = td_max_dim_at(td_slice_at(x, dim, begin, end, 1, at), dim, true, at);
    }
    return td_cat_at(parts, (int)to, dim, at);
}

td_tensor *td_adaptive_max_pool2d_at(td_tensor *x, int64_t height, int64_t width, td_site at)
{
    td_tensor *y = regular("adaptive_max_pool2d", TD_RULE_OF(adaptive_max_pool2d), &x, height,
                           width, td_max_pool2d_at, at);
    return y != NULL ? y
                     : td_cast_at(maxima_along(maxima_along(x, 3, width, at), 2, height, at),
                                  x->dtype, at);
}

/* ---- resizing ---- */

static void side_of_nearest(double *weights, int64_t to, int64_t from, double scale)
{
    for (int64_t i = 0; i < to; i++) {
        int64_t j = (int64_t)((double)i * scale);
        weights[i * from + (j < from ? j : from - 1)] = 1.0;
    }
}

static void put_line(double *weights, int64_t i, int64_t from, double place)
{
    int64_t j = (int64_t)place, next = j + 1 < from ? j + 1 : j;
    weights[i * from + j] += 1.0 - (place - (double)j);
    weights[i * from + next] += place - (double)j;
}

static void side_of_lines(double *weights, int64_t to, int64_t from, double scale)
{
    for (int64_t i = 0; i < to; i++) {
        double place = ((double)i + 0.5) * scale - 0.5;
        place = place < 0.0 ? 0.0 : place;
        put_line(weights, i, from, place < (double)(from - 1) ? place : (double)(from - 1));
    }
}

static void side_of_corners(double *weights, int64_t to, int64_t from, double scale)
{
    scale = to > 1 ? (double)(from - 1) / (double)(to - 1) : 0.0;
    for (int64_t i = 0; i < to; i++) {
        put_line(weights, i, from, fmin((double)i * scale, (double)(from - 1)));
    }
}

/* A triangle over all that one element of the result covers (PIL, torchvision). */
static void side_of_triangles(double *weights, int64_t to, int64_t from, double scale)
{
    double wide = scale > 1.0 ? scale : 1.0;
    for (int64_t i = 0; i < to; i++) {
        double centre = scale * ((double)i + 0.5), sum = 0.0;
        int64_t begin = (int64_t)fmax(centre - wide + 0.5, 0.0);
        int64_t end = (int64_t)fmin(centre + wide + 0.5, (double)from);
        for (int64_t j = begin; j < end; j++) {
            double weight = 1.0 - fabs((double)j - centre + 0.5) / wide;
            weights[i * from + j] = weight > 0.0 ? weight : 0.0;
            sum += weights[i * from + j];
        }
        for (int64_t j = begin; j < end; j++) {
            weights[i * from + j] /= sum;
        }
    }
}

td_tensor *td_interpolate_at(td_interpolate_options o, td_site at)
{
    td_tensor *x = td_op_input(o.x, "interpolate", "x", TD_RULE_OF(interpolate), at), *m[2];
    check_image(x, "interpolate", at);
    TD_REQUIRE(o.mode == TD_BILINEAR || (!o.align_corners && !o.antialias), at,
               "interpolate: align_corners and antialias are for TD_BILINEAR");
    TD_REQUIRE(!(o.align_corners && o.antialias), at,
               "interpolate: align_corners and antialias do not go together");
    side_fn side = o.mode == TD_NEAREST ? side_of_nearest
                   : o.align_corners    ? side_of_corners
                   : o.antialias        ? side_of_triangles
                                        : side_of_lines;
    for (int d = 0; d < 2; d++) {
        int64_t from = x->shape[2 + d], to = o.size != 0 ? o.size : o.size_hw[d];
        double by = o.scale != 0.0 ? o.scale : o.scale_hw[d];
        TD_REQUIRE((to > 0) != (by > 0.0) && to >= 0 && by >= 0.0, at,
                   "interpolate: give .size or .scale, both sides of it, and positive");
        to = to > 0 ? to : (int64_t)((double)from * by);
        TD_REQUIRE(to > 0, at, "interpolate: x%s by %g leaves nothing", TD_SHAPE_TEXT(x), by);
        m[d] = matrix_of(x, side, to, from, by > 0.0 ? 1.0 / by : (double)from / (double)to, at);
    }
    return by_matrices(x, m[0], m[1], at);
}
