/* For tests: ResNet-18 runs held against golden_resnet18.json. */
#pragma once

#include "tandem.h"

typedef struct golden_row {
    const char *key; /* in the file */
    td_dtype dtype;
    int64_t side, batch;            /* of the pictures */
    bool hashed;                    /* which of the file's two formulas gives the pictures */
    double second_loss, third_loss; /* relative tolerances; 0: not checked */
} golden_row;

/* Three steps of SGD from seed 0. Step 1: loss, logits, gradients, running statistics; then the
 * losses of steps 2 and 3 as the row says.
 *
 * f64 rows are the ones that show that the arithmetic is right: all agree to 1e-9. In f32 one value
 * in a million lies so near to zero that rounding decides whether a ReLU passes it. In the last
 * stage, where pictures are 1x1 or 2x2, a single such flip moves the norm of some parameter's
 * gradient by 1e-3 and the third loss by 1e-2; PyTorch's own f32 and f64 runs differ by 1.4e-2 in
 * the third loss of the first row. So the later losses are checked only for the two rows where
 * PyTorch's own agree, and these tests hold for the instruction sets with FMA. */
void golden_check_row(const golden_row *row);

/* Runs a table of rows as tests of one cmocka group; returns its result. */
int golden_run_rows(const char *group, const golden_row *rows, int count);
