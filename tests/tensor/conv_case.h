/* One convolution of any shape, all its passes, by any method: against plain loops in double
 * precision, with workspace of the exact size full of NaN, and the same bits for 1, 2, 3 and 7
 * threads. Operands are random; so is whether there is a bias, and whether results are added to. */
#pragma once

#include "tensor/cpu/conv.h"
#include "tests/help/sanitized.h"

/* A pass writes what it is named after: y, x, w, or the bias. */
typedef struct conv_operands {
    void *x, *w, *bias, *y;
    bool accumulate;
} conv_operands;

/* The same as the convolution is called. */
td_conv2d_call conv_call(const td_conv2d_desc *desc, td_conv2d_pass pass,
                         const conv_operands *operands);

typedef struct conv_method {
    size_t (*workspace)(const td_conv2d_desc *desc, td_conv2d_pass pass);
    void (*run)(td_pool *pool, const td_conv2d_desc *desc, td_conv2d_pass pass,
                const conv_operands *operands, void *workspace);
    bool bf16;       /* operands are values that bf16 has; an f32 result may be rounded to it */
    double of_terms; /* the error allowed to an element, relative to the sum of its terms'
                        magnitudes; 0: what its dtype leaves */
    double relative; /* instead, unless 0: the error allowed relative to the result's length */
} conv_method;

void conv_check(const conv_method *method, const td_conv2d_desc *desc);

/* Random numbers for shapes and operands alike. */
void conv_seed(uint64_t value);
uint64_t conv_random(void);

/* How many random shapes to check: under sanitizers, which make this slow, only make test-long
 * checks all. */
static inline uint64_t conv_shapes(uint64_t all, uint64_t sanitized)
{
    return checks_part() ? sanitized : all;
}

/* Fills in the output's size; false if there is none. */
bool conv_finish(td_conv2d_desc *desc);

/* Set-up and tear-down of a cmocka group. */
int conv_make_pools(void **state);
int conv_free_pools(void **state);
