/* make gpu-check: each operation on the GPU against the CPU in f64. */
#include "tests/gpu/check.h"
#include "tests/gpu/extra_cases.h"
#include "autograd/tape.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ---- */

typedef struct setting {
    td_device device;
    td_precision precision;
    td_dtype activations; /* what a mixed run's activations are */
    double bound;         /* of relative L2 errors */
} setting;

/* Weights, biases and statistics stay f32. */
static bool is_parameter(const char *op, int i, const td_tensor *t)
{
    if (strncmp(op, "batch_norm", 10) == 0) {
        return i > 0 && t->ndim == 1;
    }
    return i > 0 && (strncmp(op, "conv2d", 6) == 0 || strcmp(op, "linear") == 0 ||
                     strcmp(op, "layer_norm") == 0 || strcmp(op, "embedding") == 0);
}

/* The case's inputs in f64 on the CPU with values that the narrow ones on the device have. */
static int make_inputs(const ops_case *c, const setting *s, td_tensor **wide, td_tensor **narrow)
{
    int count = ops_case_inputs(c, TD_F64, wide);
    for (int i = 0; i < count; i++) {
        if (!td_is_float(wide[i]->dtype)) {
            narrow[i] = td_clone_as(wide[i], wide[i]->dtype, s->device);
            continue;
        }
        td_dtype dtype = is_parameter(c->op, i, wide[i]) ? TD_F32 : s->activations;
        bool leaf = td_is_leaf(wide[i]);
        td_requires_grad(wide[i], false);
        narrow[i] = td_clone_as(wide[i], dtype, s->device);
        td_copy_(wide[i], narrow[i]); /* rounded */
        td_requires_grad(wide[i], leaf);
        td_requires_grad(narrow[i], leaf);
    }
    return count;
}

/* ---- running ---- */

/* Fills step memory with NaN: what an operation forgets to write is seen. */
static void poison(td_device device)
{
    td_step_begin();
    td_tensor *all = td_step_new(TD_SHAPE(1 << 20), TD_F32, TD_ROW_MAJOR, device, TD_HERE);
    td_fill_(all, 0.0 / 0.0);
    td_step_end();
}

static ops_outcome run(const ops_case *c, td_tensor **inputs, int count)
{
    poison(td_device_of(inputs[0]));
    return ops_case_outcome(c, inputs, count, true);
}

/* ---- comparing ---- */

typedef struct worst {
    double error, bound; /* the largest share of its bound */
    char where[96];
} worst;

static bool compare(const ops_case *c, const setting *s, const ops_outcome *got,
                    const ops_outcome *want, worst *w)
{
    bool good = true;
    /* A sum that cancels, of results whose bias was rounded to 16 bits, as libraries do. */
    bool cancels = strcmp(c->name, "linear/summed") == 0 && s->activations != TD_F32;
    double bound = cancels ? 2.0 * s->bound : s->bound;
    for (int k = 0; k <= OPS_MAX_INPUTS; k++) {
        double error = got->count[k] == want->count[k]
                           ? relative_l2(got->values[k], want->values[k], want->count[k])
                           : 1e9;
        if (!(error <= bound)) {
            printf("FAIL %s: %s %d is off by %.2e (relative L2), more than %.0e\n", c->name,
                   k == 0 ? "value" : "gradient of input", k == 0 ? 0 : k - 1, error, bound);
            good = false;
        }
        if (!(error / bound <= w->error / w->bound)) {
            w->error = error;
            w->bound = bound;
            snprintf(w->where, sizeof w->where, "%s", c->name);
        }
    }
    return good;
}

static jmp_buf after_fatal;

static void on_fatal(const char *message, void *user)
{
    printf("FAIL %s: %s\n", (const char *)user, message);
    longjmp(after_fatal, 1);
}

static bool check_case(const ops_case *c, const setting *s, worst *w)
{
    td_tensor *wide[OPS_MAX_INPUTS], *narrow[OPS_MAX_INPUTS];
    td_set_fatal_handler(on_fatal, (void *)(uintptr_t)c->name);
    if (setjmp(after_fatal) != 0) { /* what the case has made is left behind */
        td_step_abandon();
        td_set_fatal_handler(NULL, NULL);
        return false;
    }
    int count = make_inputs(c, s, wide, narrow);
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    ops_outcome want = run(c, wide, count);
    td_set_math((td_math){ .precision = s->precision });
    ops_outcome got = run(c, narrow, count);
    bool good = compare(c, s, &got, &want, w);
    ops_outcome_free(&want);
    ops_outcome_free(&got);
    ops_case_free(wide, count);
    ops_case_free(narrow, count);
    td_set_fatal_handler(NULL, NULL);
    return good;
}

/* Whether an operation's name is in a list with commas. */
static bool is_named(const char *op, const char *list)
{
    size_t length = strlen(op);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, op, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return list == NULL;
}

bool check_ops(td_device device, td_precision precision, const char *named)
{
    setting s = { .device = device, .precision = precision };
    s.activations = td_precision_dtype(precision);
    s.bound = precision == TD_PRECISION_TF32   ? 1e-3
              : precision == TD_PRECISION_FP16 ? 3e-3
              : precision == TD_PRECISION_BF16 ? 1e-2
                                               : 1e-5;
    worst w = { .error = 0.0, .bound = s.bound };
    int failed = 0, ran = 0, all = ops_case_count + EXTRAS;
    for (int i = 0; i < all; i++) {
        const ops_case *c = i < ops_case_count ? &ops_cases[i] : &extras[i - ops_case_count];
        /* The case `to` computes on a CPU, which has no f16. */
        bool can = precision != TD_PRECISION_FP16 || strcmp(c->op, "to") != 0;
        if (can && is_named(c->op, named)) {
            failed += !check_case(c, &s, &w);
            ran++;
        }
    }
    printf("%d cases in %s, %d failed; worst %.1e of %.0e: %s\n", ran, td_precision_name(precision),
           failed, w.error, w.bound, w.where);
    return failed == 0 && ran > 0;
}
