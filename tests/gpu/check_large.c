/* make gpu-check: what only a real GPU shows. Tensors of more than 2^31 elements, where 32-bit
 * places and counts overflow; and blocks that run at once. */
#include "tests/gpu/check.h"

#include "tensor/backend.h"
#include "tensor/extend.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDE = 1 << 16, ROWS = (1 << 15) + 16 }; /* 2^31 + 2^20 elements */

static bool expect_at(const td_tensor *t, int64_t row, int64_t column, double wanted,
                      const char *what)
{
    double found = td_get(t, (int64_t[]){ row, column });
    if (found != wanted) {
        printf("FAIL %s: element [%lld,%lld] is %g, not %g\n", what, (long long)row,
               (long long)column, found, wanted);
    }
    return found == wanted;
}

/* The first, the last and one in the middle; x has 1 in its first row, 2 in its last, 0 elsewhere.
 */
static bool expect_ends(const td_tensor *t, double factor, const char *what)
{
    return expect_at(t, 0, 3, factor, what) && expect_at(t, ROWS - 1, WIDE - 1, 2 * factor, what) &&
           expect_at(t, ROWS / 2, 7, 0, what);
}

static bool large_operations(td_tensor *x, td_tensor *y, td_tensor *wide)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    td_device device = td_device_of(x);
    kernels->copy(wide, x);
    bool good = expect_ends(wide, 1, "convert to f32");
    kernels->copy(y, wide);
    good = expect_ends(y, 1, "convert to bf16") && good;
    kernels->binary(TD_BINARY_add, y, x, x);
    good = expect_ends(y, 2, "add") && good;
    kernels->copy(y, x);
    good = expect_ends(y, 1, "copy") && good;
    td_step_begin();
    double sum = td_item(td_sum_dims(td_sum_dim(wide, 0, false), TD_ALL_DIMS, false));
    if (sum != 3.0 * WIDE) {
        printf("FAIL sum: %g, not %g\n", sum, 3.0 * WIDE);
        good = false;
    }
    td_tensor *last = td_from((int64_t[]){ ROWS - 1, 0 }, TD_SHAPE(2), TD_I64, device);
    td_tensor *rows = td_index_select(x, 0, last);
    good = expect_at(rows, 0, 5, 2, "gather") && expect_at(rows, 1, 5, 1, "gather") && good;
    td_tensor *images = td_reshape(x, TD_SHAPE(ROWS, WIDE / 16, 4, 4));
    td_tensor *pooled = td_reshape(td_max_pool2d(images, 2), TD_SHAPE(ROWS, WIDE / 4));
    good = expect_at(pooled, ROWS - 1, WIDE / 4 - 1, 2, "max_pool2d") && good;
    td_step_end();
    td_free(last);
    return good;
}

static bool check_sizes(td_device device)
{
    td_shape shape = TD_SHAPE(ROWS, WIDE);
    td_tensor *x = td_zeros(shape, TD_BF16, device);
    td_tensor *y = td_zeros(shape, TD_BF16, device), *wide = td_zeros(shape, TD_F32, device);
    if (x == NULL || y == NULL || wide == NULL) {
        printf("not here: %s\n", td_last_error());
        exit(77);
    }
    td_tensor *first = td_slice_of_storage(x, 0, TD_SHAPE(1, WIDE), (int64_t[]){ WIDE, 1 });
    td_tensor *last = td_slice_of_storage(x, (int64_t)(ROWS - 1) * WIDE, TD_SHAPE(1, WIDE),
                                          (int64_t[]){ WIDE, 1 });
    td_fill_(first, 1.0);
    td_fill_(last, 2.0);
    bool good = large_operations(x, y, wide);
    td_tensor *all[] = { first, last, x, y, wide };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
    return good;
}

static bool check_races(td_device device, int times)
{
    enum { N = 37, C = 67, SIDE = 13 };
    td_tensor *x = td_new_layout(TD_SHAPE(N, C, SIDE, SIDE), TD_F32, TD_IMAGE, device);
    td_tensor *weight = td_full(TD_SHAPE(C), 1.0, TD_F32, device);
    td_tensor *bias = td_zeros(TD_SHAPE(C), TD_F32, device);
    td_normal_(x, 1, 2, td_default_generator());
    double first = 0;
    int other = 0;
    for (int i = 0; i < times; i++) {
        td_step_begin();
        td_tensor *y = td_batch_norm(x, weight, bias, NULL, NULL, .training = true);
        double sum = td_item(td_sum(td_mul(y, y)));
        first = i == 0 ? sum : first;
        other += sum != first;
        td_step_end();
    }
    td_tensor *all[] = { x, weight, bias };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
    if (other > 0) {
        printf("FAIL batch_norm: %d of %d times other bits\n", other, times);
    }
    return other == 0;
}

bool check_large(td_device device, int times)
{
    bool good = check_races(device, times);
    good = check_sizes(device) && good;
    printf("operations on %lld elements, and %d times the same bits: %s\n", (long long)ROWS * WIDE,
           times, good ? "right" : "WRONG");
    return good;
}
