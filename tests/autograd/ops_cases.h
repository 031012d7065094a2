/* For tests: the cases of operations (tests/autograd/ops_cases.def), and inputs for them. */
#pragma once

#include "autograd/autograd.h"
#include "autograd/gradcheck.h"

enum { OPS_MAX_INPUTS = 8 };

typedef struct ops_case {
    const char *op;   /* "conv2d" */
    const char *name; /* "conv2d", or "conv2d/stride" */
    const char *inputs;
    td_grad_check_fn fn;
} ops_case;

extern const ops_case ops_cases[];
extern const int ops_case_count;

/* Makes a case's inputs, always of the same values; float ones of the given dtype (f32, f64), in
 * f64 with the values that f32 has. Leaves, unless the case says otherwise. Returns their number.
 * A mistake in the table ends the program. */
int ops_case_inputs(const ops_case *c, td_dtype dtype, td_tensor *inputs[OPS_MAX_INPUTS]);
/* The same on a device, in its order. */
int ops_case_inputs_on(const ops_case *c, td_dtype dtype, td_device device,
                       td_tensor *inputs[OPS_MAX_INPUTS]);
void ops_case_free(td_tensor *const *inputs, int count);

/* What a case computes: its value, and behind it the gradient of each input that is a leaf. */
typedef struct ops_outcome {
    td_device device; /* of the value */
    td_dtype dtype[OPS_MAX_INPUTS + 1];
    int64_t count[OPS_MAX_INPUTS + 1];
    double *values[OPS_MAX_INPUTS + 1]; /* NULL: there is none */
} ops_outcome;

/* Runs a case in a step of its own. The gradient that goes into backward has the same values in
 * all runs; in_eighths: such as 16-bit floats have, too. For ops_outcome_free. */
ops_outcome ops_case_outcome(const ops_case *c, td_tensor *const *inputs, int count,
                             bool in_eighths);
void ops_outcome_free(ops_outcome *o);

/* Runs `extra` tests (cmocka's struct CMUnitTest) and then `test` once for each case, whose initial
 * state is that case. Returns how many failed. */
struct CMUnitTest;
int ops_cases_run(const char *group, const struct CMUnitTest *others, size_t extra,
                  void (*test)(void **state));

/* |a - b| / |b| in the Euclidean norm over n values; |a| where b is zero. */
double relative_l2(const double *a, const double *b, int64_t n);

/* A small deterministic generator for test data: uniform in [-1, 1), exact in float. */
double test_uniform(uint64_t *state);
