/* The optimizers' passes over flat memory, step by step against the formulas. */
#include "tests/reference.h"

#include "tensor/cpu/isa.h"
#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

enum { LENGTH = 50000, STEPS = 3 };

/* Parameters, gradient and state, beside the same in double. */
typedef struct memory {
    td_tensor *p, *g, *a, *b, *c; /* a: momentum; or a, b, c: averages */
    double *pv, *gv, *av, *bv, *cv;
} memory;

static void make_memory(memory *t, td_dtype dtype)
{
    t->p = ref_tensor(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 1);
    t->g = ref_tensor(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 2);
    t->a = ref_filled(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 0.0);
    t->b = ref_filled(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 0.0);
    t->c = ref_filled(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 0.0);
    t->pv = ref_values(t->p);
    t->gv = ref_values(t->g);
    t->av = ref_values(t->a);
    t->bv = ref_values(t->b);
    t->cv = ref_values(t->c);
}

static void next_gradient(memory *t, uint64_t seed)
{
    for (int64_t i = 0; i < LENGTH; i++) {
        t->gv[i] = ref_random(seed, i);
    }
    td_write(t->g, t->gv, TD_F64);
}

/* Parameters are at most about 2, state at most about 10: errors are measured against that. */
static void check_memory(const memory *t, const char *what)
{
    double *terms = ref_zeros(LENGTH);
    const td_tensor *tensors[] = { t->p, t->a, t->b, t->c };
    const double *values[] = { t->pv, t->av, t->bv, t->cv };
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < LENGTH; i++) {
            terms[i] = 1.0 + fabs(values[k][i]);
        }
        ref_close(tensors[k], values[k], terms, ref_tolerance(t->p->dtype), what);
    }
    free(terms);
}

static void free_memory(memory *t)
{
    td_free(t->p);
    td_free(t->g);
    td_free(t->a);
    td_free(t->b);
    td_free(t->c);
    free(t->pv);
    free(t->gv);
    free(t->av);
    free(t->bv);
    free(t->cv);
}

/* Slices with gaps, a skipped one, an empty one, and one over several chunks. */
static const int64_t begins[] = { 3, 1000, 1700, 2500, 2500, 49999 };
static const int64_t counts[] = { 900, 700, 1, 0, 46000, 1 };
enum { SLICES = 6, SKIPPED = 1 };

static void place(td_optim_slice *s)
{
    for (int i = 0; i < SLICES; i++) {
        s[i].begin = begins[i];
        s[i].count = counts[i];
        s[i].skip = i == SKIPPED;
    }
}

/* ---- SGD ---- */

static void sgd_reference(memory *t, const td_optim_slice *s)
{
    for (int64_t i = s->begin; i < s->begin + s->count && !s->skip; i++) {
        double shrink = s->decoupled ? 1.0 - s->lr * s->weight_decay : 1.0;
        t->pv[i] *= shrink;
        double d = t->gv[i] + (s->decoupled ? 0.0 : s->weight_decay * t->pv[i]);
        if (s->momentum != 0.0) {
            t->av[i] = s->first ? d : s->momentum * t->av[i] + (1.0 - s->dampening) * d;
            d = s->nesterov ? d + s->momentum * t->av[i] : t->av[i];
        }
        t->pv[i] -= s->lr * d;
    }
}

static void sgd_steps(td_dtype dtype, td_optim_slice common, bool has_momentum)
{
    memory t;
    make_memory(&t, dtype);
    for (int step = 0; step < STEPS; step++) {
        td_optim_slice s[SLICES];
        for (int i = 0; i < SLICES; i++) {
            s[i] = common;
            s[i].first = step == 0 && has_momentum;
            s[i].lr = common.lr * (i + 1);
        }
        place(s);
        next_gradient(&t, (uint64_t)step + 10);
        if (step == 0 && has_momentum) { /* the first step must not look at what is there */
            td_set(t.a, (int64_t[]){ begins[0] }, NAN);
        }
        for (int i = 0; i < SLICES; i++) {
            sgd_reference(&t, &s[i]);
        }
        k()->sgd(t.p, t.g, has_momentum ? t.a : NULL, s, SLICES);
        check_memory(&t, "sgd");
    }
    free_memory(&t);
}

static void sgd_cases(td_dtype dtype)
{
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1 }, false);
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1, .weight_decay = 0.05 }, false);
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4 }, true);
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1, .momentum = 0.9, .dampening = 0.25 }, true);
    sgd_steps(
        dtype,
        (td_optim_slice){ .lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true },
        true);
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1, .weight_decay = 0.05, .decoupled = true }, false);
    sgd_steps(
        dtype,
        (td_optim_slice){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .decoupled = true },
        true);
}

static void test_sgd(void **state)
{
    (void)state;
    ref_run(sgd_cases);
}

/* ---- the formulas of tensor/updates.def ---- */

static double averaged(double average, double beta, double x)
{
    return beta * average + (1.0 - beta) * x;
}

/* One element: p with coupled or decoupled decay done already; the return value is the step. */
static double update_direction(td_update_op op, const td_optim_slice *s, double g, double *a,
                               double *b, double *c)
{
    switch (op) {
    case TD_UPDATE_ADAM:
    case TD_UPDATE_AMSGRAD:
        *a = averaged(*a, s->beta1, g);
        *b = averaged(*b, s->beta2, g * g);
        *c = op == TD_UPDATE_AMSGRAD ? fmax(*c, *b) : 0.0;
        return *a / s->bias1 / (sqrt(op == TD_UPDATE_AMSGRAD ? *c : *b) / sqrt(s->bias2) + s->eps);
    case TD_UPDATE_RMSPROP:
    case TD_UPDATE_RMSPROP_MOMENTUM:
        *a = averaged(*a, s->beta2, g * g);
        g /= sqrt(*a) + s->eps;
        return op == TD_UPDATE_RMSPROP ? g : (*b = s->momentum * *b + g);
    case TD_UPDATE_RMSPROP_CENTERED:
    case TD_UPDATE_RMSPROP_CENTERED_MOMENTUM:
        *a = averaged(*a, s->beta2, g * g);
        *b = averaged(*b, s->beta2, g);
        g /= sqrt(*a - *b * *b) + s->eps;
        return op == TD_UPDATE_RMSPROP_CENTERED ? g : (*c = s->momentum * *c + g);
    case TD_UPDATE_ADAGRAD:
        *a += g * g;
        return g / (sqrt(*a) + s->eps);
    case TD_UPDATE_LION: {
        double mean = averaged(*a, s->beta1, g);
        *a = averaged(*a, s->beta2, g);
        return mean > 0.0 ? 1.0 : mean < 0.0 ? -1.0 : 0.0;
    }
    case TD_UPDATE_COUNT:
        break;
    }
    return 0.0;
}

static void update_reference(td_update_op op, memory *t, const td_optim_slice *s)
{
    for (int64_t i = s->begin; i < s->begin + s->count && !s->skip; i++) {
        double p = t->pv[i], g = t->gv[i];
        if (s->decoupled) {
            p *= 1.0 - s->lr * s->weight_decay;
        } else {
            g += s->weight_decay * p;
        }
        t->pv[i] = p - s->lr * update_direction(op, s, g, &t->av[i], &t->bv[i], &t->cv[i]);
    }
}

static const int update_states[] = {
#define TD_UPDATE(name, states, ...) states,
#include "tensor/updates.def"
};

static void update_steps(td_update_op op, td_dtype dtype, bool decoupled)
{
    memory t;
    make_memory(&t, dtype);
    td_tensor *state[] = { t.a, update_states[op] > 1 ? t.b : NULL,
                           update_states[op] > 2 ? t.c : NULL };
    for (int step = 0; step < STEPS; step++) {
        td_optim_slice s[SLICES];
        for (int i = 0; i < SLICES; i++) {
            s[i] = (td_optim_slice){ .lr = 1e-3 * (i + 1),
                                     .weight_decay = 0.05,
                                     .momentum = 0.7,
                                     .beta1 = 0.9,
                                     .beta2 = 0.97,
                                     .eps = 0.1,
                                     .bias1 = 1.0 - pow(0.9, step + 1),
                                     .bias2 = 1.0 - pow(0.97, step + 1),
                                     .decoupled = decoupled };
        }
        place(s);
        next_gradient(&t, (uint64_t)step + 10);
        for (int i = 0; i < SLICES; i++) {
            update_reference(op, &t, &s[i]);
        }
        k()->update(op, t.p, t.g, state, s, SLICES);
        check_memory(&t, "update");
    }
    free_memory(&t);
}

static void update_cases(td_dtype dtype)
{
    for (int op = 0; op < TD_UPDATE_COUNT; op++) {
        update_steps((td_update_op)op, dtype, false);
        update_steps((td_update_op)op, dtype, true);
    }
}

static void test_updates(void **state)
{
    (void)state;
    ref_run(update_cases);
}

/* ---- another device: the CPU's bits, where the CPU multiplies and adds in one instruction ---- */

typedef struct flat {
    td_tensor *p, *g, *state[TD_UPDATE_STATES];
} flat;

static flat make_flat(td_dtype dtype, td_device device)
{
    td_tensor *p = ref_tensor(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 1);
    td_tensor *g = ref_tensor(TD_SHAPE(LENGTH), dtype, TD_ROW_MAJOR, 2);
    flat f = { .p = td_clone_as(p, dtype, device), .g = td_clone_as(g, dtype, device) };
    for (int k = 0; k < TD_UPDATE_STATES; k++) {
        f.state[k] = td_zeros(TD_SHAPE(LENGTH), dtype, device);
    }
    td_free(p);
    td_free(g);
    return f;
}

static void free_flat(flat *f)
{
    td_free(f->p);
    td_free(f->g);
    for (int k = 0; k < TD_UPDATE_STATES; k++) {
        td_free(f->state[k]);
    }
}

static void same_bits(const td_tensor *a, const td_tensor *b)
{
    double *x = ref_values(a), *y = ref_values(b);
    assert_memory_equal(x, y, LENGTH * sizeof *x);
    free(x);
    free(y);
}

/* op TD_UPDATE_COUNT: SGD. */
static void check_same_bits(td_dtype dtype, td_update_op op)
{
    flat host = make_flat(dtype, TD_CPU), other = make_flat(dtype, ref_device());
    for (int step = 0; step < STEPS; step++) {
        td_optim_slice s[SLICES];
        for (int i = 0; i < SLICES; i++) {
            s[i] = (td_optim_slice){ .lr = 0.013 * (i + 1),
                                     .weight_decay = 0.007,
                                     .momentum = i % 2 ? 0.9 : 0.0,
                                     .dampening = i == 1 ? 0.1 : 0.0,
                                     .nesterov = i == 3,
                                     .first = step == 0,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .eps = 1e-8,
                                     .bias1 = 1.0 - pow(0.9, step + 1),
                                     .bias2 = 1.0 - pow(0.999, step + 1),
                                     .decoupled = i >= 2 };
        }
        place(s);
        flat *both[2] = { &host, &other };
        for (int d = 0; d < 2; d++) {
            const td_kernels *kernels = td_kernels_of(td_device_of(both[d]->p));
            if (op == TD_UPDATE_COUNT) {
                kernels->sgd(both[d]->p, both[d]->g, both[d]->state[0], s, SLICES);
            } else {
                kernels->update(op, both[d]->p, both[d]->g, both[d]->state, s, SLICES);
            }
        }
        same_bits(host.p, other.p);
        for (int k = 0; k < TD_UPDATE_STATES; k++) {
            same_bits(host.state[k], other.state[k]);
        }
    }
    free_flat(&host);
    free_flat(&other);
}

static void test_same_bits_as_cpu(void **state)
{
    (void)state;
    if (ref_device().type == TD_DEVICE_CPU || td_isa_current() == TD_ISA_PORTABLE) {
        skip();
    }
    for (int op = 0; op <= TD_UPDATE_COUNT; op++) {
        check_same_bits(TD_F32, (td_update_op)op);
        check_same_bits(TD_F64, (td_update_op)op);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_same_bits_as_cpu),
    };
    return cmocka_run_group_tests_name("kernels: optimizers", tests, NULL, NULL);
}
