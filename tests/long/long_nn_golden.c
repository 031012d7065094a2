/* Against PyTorch, number by number: the rows that take longer than those of test_nn_golden.c. */
#include "tests/nn/golden_resnet.h"

static const golden_row rows[] = {
    { "f64_64", TD_F64, 64, 16, false, 1e-9, 1e-9 },
    { "hash_f64_32_b64", TD_F64, 32, 64, true, 1e-9, 1e-9 },
    { "hash_f64_64_b16", TD_F64, 64, 16, true, 1e-9, 1e-9 },
    { "f32_224", TD_F32, 224, 16, false, 0.0, 0.0 },
};

int main(void)
{
    return golden_run_rows("training", rows, sizeof rows / sizeof *rows);
}
