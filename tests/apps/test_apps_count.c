/* Counting right answers (top-1, top-k), and the noise that stands for pictures. */
#include "apps/tools/train_net/classify.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>

#include <cmocka.h>

enum { ROWS = 6, CLASSES = 4 };

static const float rows[ROWS][CLASSES] = {
    { 3, 1, 2, 0 },   /* label 0: first */
    { 3, 1, 2, 0 },   /* label 2: second */
    { 3, 1, 2, 0 },   /* label 3: last */
    { 1, 1, 1, 1 },   /* label 1: of equals the first counts; second */
    { 1, 1, 1, 1 },   /* label 0: first */
    { 0, 0, NAN, 0 }, /* label 2: NaN is never right */
};
static const int64_t labels[ROWS] = { 0, 2, 3, 1, 0, 2 };

static void check(int64_t k, int64_t expected, int64_t expected_k)
{
    td_tensor *logits = td_from(rows, TD_SHAPE(ROWS, CLASSES), TD_F32, TD_CPU);
    td_tensor *y = td_from(labels, TD_SHAPE(ROWS), TD_I64, TD_CPU);
    td_step_begin();
    assert_true(td_item(td_count_top(logits, y, 1)) == (double)expected);
    assert_true(td_item(td_count_top(logits, y, k)) == (double)expected_k);
    td_step_end();
    td_free(logits);
    td_free(y);
}

static void test_top_k(void **state)
{
    (void)state;
    check(1, 2, 2);
    check(2, 2, 4);
    check(3, 2, 4);
    check(4, 2, 5);
}

static void fetch_two(const td_dataset *data, float *x, int64_t *y)
{
    const int64_t index[] = { 1, 4 };
    td_tensor *pictures = td_new_layout(TD_SHAPE(2, 3, 8, 8), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *numbers = td_zeros(TD_SHAPE(2), TD_I64, TD_CPU);
    assert_int_equal(data->vtable->fetch(data, index, 2, 0, pictures, numbers), TD_OK);
    td_read(pictures, x, TD_F32);
    td_read(numbers, y, TD_I64);
    td_free(pictures);
    td_free(numbers);
}

static void test_noise(void **state)
{
    (void)state;
    enum { EACH = 3 * 8 * 8 };
    float x[2 * EACH], again[2 * EACH];
    int64_t y[2];
    td_dataset *data;
    assert_int_equal(noise_open(5, 8, 3, &data), TD_OK);
    assert_true(data->synthetic && data->length == 5 && data->classes == 3);
    fetch_two(data, x, y);
    fetch_two(data, again, y);
    assert_memory_equal(x, again, sizeof x);
    assert_int_equal(y[0], 1);
    assert_int_equal(y[1], 1);
    assert_memory_not_equal(x, x + EACH, sizeof x / 2);
    double sum = 0, squares = 0;
    for (int i = 0; i < 2 * EACH; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    assert_true(fabs(sum / (2 * EACH)) < 0.25 && fabs(squares / (2 * EACH) - 1) < 0.4);
    td_dataset_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
