/* The optimizers' passes over flat memory, step by step against the formulas. */
#include "tests/tensor/reference.h"

#include "tensor/cpu/isa.h"
#include "tensor/kernels/kernels.h"
#include "tensor/kernels/packed.h"
#include "tensor/storage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    /* Settled on the device: one after the other, in the same memory of a block. */
    td_tensor *scale = td_zeros(TD_SHAPE(TD_SCALE_NUMBERS), TD_F64, ref_device());
    sgd_steps(dtype, (td_optim_slice){ .lr = 0.1, .momentum = 0.9, .device.scale = td_ptr(scale) },
              true);
    td_free(scale);
}

static void test_sgd(void **state)
{
    (void)state;
    ref_run(sgd_cases);
}

/* ---- the formulas of tensor/kernels/updates.def ---- */

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
#include "tensor/kernels/updates.def"
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

/* ---- packed averages ---- */

/* The largest distance that rounding may bring between an average and what is kept of it. */
static double packed_error(td_dtype packed, double value, double largest)
{
    double part = fabs(value) / largest, root = pow(part, 0.25);
    return packed == TD_BF16 ? fabs(value) * 0x1p-7
                             : largest * (pow(root + 1.0 / 127.0, 4.0) - part) + 1e-6 * largest;
}

/* Averages of blocks with and without signs; the second half of the last block is 0. */
static void make_averages(float *values, int count)
{
    for (int i = 0; i < count; i++) {
        double size = pow(10.0, 4.0 * ref_random(5, i) - 6.0);
        values[i] = i % TD_PACK >= 8 && i / TD_PACK == count / TD_PACK - 1
                        ? 0.0f
                        : (float)(i / TD_PACK % 2 ? size : size * ref_random(6, i));
    }
}

static void check_packing(td_dtype packed)
{
    enum { BLOCKS = 64, COUNT = BLOCKS * TD_PACK, DRAWS = 1024 };
    static float values[COUNT], back[COUNT];
    static double sum[COUNT];
    uint8_t block[2 * TD_PACK], other[2 * TD_PACK];
    make_averages(values, COUNT);
    memset(sum, 0, sizeof sum);
    for (int b = 0; b < COUNT; b += TD_PACK) {
        double largest = 1e-30, off = 0.0;
        for (int i = b; i < b + TD_PACK; i++) {
            largest = fmax(largest, fabs((double)values[i]));
        }
        for (int d = 0; d < DRAWS; d++) {
            uint32_t draw[TD_PACK];
            for (int i = 0; i < TD_PACK; i += 4) {
                td_philox_words(3, (uint64_t)d, (uint64_t)(b + i), draw + i);
            }
            int shift = d % 2 * 16;
            td_packed_put(packed, block, values + b, draw, shift);
            td_packed_get(packed, back + b, block);
            td_packed_put(packed, other, back + b, draw, 16 - shift);
            assert_memory_equal(block, other, (size_t)td_packed_bytes(packed)); /* no loss */
            for (int i = b; i < b + TD_PACK; i++) {
                double error = packed_error(packed, values[i], largest);
                assert_true(fabs((double)back[i] - values[i]) <= error);
                sum[i] += ((double)back[i] - values[i]) / (error + 1e-300);
            }
        }
        for (int i = b; i < b + TD_PACK; i++) {
            off += fabs(sum[i]) / DRAWS;
        }
        assert_true(off / TD_PACK < 0.04); /* the mean stays: a 1/sqrt(DRAWS)-th of the error */
    }
}

static void test_packing(void **state)
{
    (void)state;
    check_packing(TD_BF16);
    check_packing(TD_U8);
    uint32_t draw[TD_PACK] = { 0 };
    float odd[TD_PACK] = { NAN, INFINITY, -INFINITY, 1.0f }, back[TD_PACK];
    uint8_t block[2 * TD_PACK];
    td_packed_put(TD_BF16, block, odd, draw, 0);
    td_packed_get(TD_BF16, back, block);
    assert_true(isnan(back[0]) && back[1] == INFINITY && back[2] == -INFINITY && back[3] == 1.0f);
    td_packed_put(TD_U8, block, odd, draw, 0); /* as large as can be, without undefined behaviour */
    td_packed_get(TD_U8, back, block);
    assert_true(back[1] == INFINITY && back[2] == -INFINITY);
}

/* Slices of whole blocks, but for their ends; one starts in the middle of a parameter. */
static const int64_t packed_begins[] = { 0, 1008, 2048, 20000 };
static const int64_t packed_counts[] = { 1001, 1, 16, 29999 };
enum { PACKED_SLICES = 4 };

static td_tensor *packed_state(td_dtype packed, td_device device)
{
    int64_t blocks = (LENGTH + TD_PACK - 1) / TD_PACK;
    return td_zeros(TD_SHAPE(blocks * td_packed_bytes(packed) / (packed == TD_U8 ? 1 : 2)), packed,
                    device);
}

static void place_packed(td_optim_slice *s, int step)
{
    for (int i = 0; i < PACKED_SLICES; i++) {
        s[i] = (td_optim_slice){ .begin = packed_begins[i],
                                 .count = packed_counts[i],
                                 .lr = 1e-3 * (i + 1),
                                 .weight_decay = 0.05,
                                 .beta1 = 0.9,
                                 .beta2 = 0.97,
                                 .eps = 0.1,
                                 .step = step + 1,
                                 .bias1 = 1.0 - pow(0.9, step + 1),
                                 .bias2 = 1.0 - pow(0.97, step + 1),
                                 .decoupled = i % 2 == 0,
                                 .rounding.key = 77 + (uint64_t)i,
                                 .rounding.element = i == 3 ? 4096 : 0 };
    }
}

static void unpack_all(const td_tensor *state, double *values)
{
    uint8_t *bytes = malloc((size_t)td_numel(state) * td_dtype_size(state->dtype));
    td_read(state, bytes, state->dtype);
    for (int64_t i = 0; i < LENGTH; i += TD_PACK) {
        float some[TD_PACK];
        td_packed_get(state->dtype, some, bytes + i / TD_PACK * td_packed_bytes(state->dtype));
        for (int64_t k = 0; k < TD_PACK && i + k < LENGTH; k++) {
            values[i + k] = some[k];
        }
    }
    free(bytes);
}

/* The kernel's next averages are those of the formula, packed by the numbers of key, step and
 * element; the parameters are those of the formula, from the averages before they are packed. */
static void check_packed_steps(td_dtype packed)
{
    memory t;
    make_memory(&t, TD_F32);
    td_tensor *state[] = { packed_state(packed, ref_device()), packed_state(packed, ref_device()),
                           NULL };
    double *was = ref_zeros(LENGTH);
    for (int step = 0; step < STEPS; step++) {
        td_optim_slice s[PACKED_SLICES];
        place_packed(s, step);
        next_gradient(&t, (uint64_t)step + 10);
        for (int i = 0; i < PACKED_SLICES; i++) {
            update_reference(TD_UPDATE_ADAM, &t, &s[i]);
        }
        k()->update(TD_UPDATE_ADAM, t.p, t.g, state, s, PACKED_SLICES);
        double *formula[] = { t.av, t.bv };
        for (int n = 0; n < 2; n++) {
            unpack_all(state[n], was);
            for (int64_t b = 0; b < LENGTH; b += TD_PACK) {
                double largest = 1e-30;
                for (int64_t i = b; i < b + TD_PACK && i < LENGTH; i++) {
                    largest = fmax(largest, fabs(formula[n][i]));
                }
                for (int64_t i = b; i < b + TD_PACK && i < LENGTH; i++) {
                    double most = packed_error(packed, formula[n][i], largest) + 1e-6 * largest;
                    assert_true(fabs(formula[n][i] - was[i]) <= most);
                    formula[n][i] = was[i]; /* the next step's reference goes on from there */
                }
            }
        }
        td_write(t.a, t.av, TD_F64);
        td_write(t.b, t.bv, TD_F64);
        check_memory(&t, "packed");
    }
    free(was);
    td_free(state[0]);
    td_free(state[1]);
    free_memory(&t);
}

static void test_packed_updates(void **state)
{
    (void)state;
    check_packed_steps(TD_BF16);
    check_packed_steps(TD_U8);
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

static void check_same_packed_bits(td_dtype packed)
{
    flat host = make_flat(TD_F32, TD_CPU), other = make_flat(TD_F32, ref_device());
    flat *both[2] = { &host, &other };
    for (int d = 0; d < 2; d++) {
        for (int n = 0; n < 2; n++) {
            td_free(both[d]->state[n]);
            both[d]->state[n] = packed_state(packed, td_device_of(both[d]->p));
        }
    }
    double *a = ref_zeros(LENGTH + TD_PACK), *b = ref_zeros(LENGTH + TD_PACK);
    for (int step = 0; step < STEPS; step++) {
        td_optim_slice s[PACKED_SLICES];
        place_packed(s, step);
        for (int d = 0; d < 2; d++) {
            td_kernels_of(td_device_of(both[d]->p))
                ->update(TD_UPDATE_ADAM, both[d]->p, both[d]->g,
                         (td_tensor *[]){ both[d]->state[0], both[d]->state[1], NULL }, s,
                         PACKED_SLICES);
        }
        same_bits(host.p, other.p);
        for (int n = 0; n < 2; n++) {
            unpack_all(host.state[n], a);
            unpack_all(other.state[n], b);
            assert_memory_equal(a, b, LENGTH * sizeof *a);
        }
    }
    free(a);
    free(b);
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
    check_same_packed_bits(TD_BF16);
    check_same_packed_bits(TD_U8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_packed_updates),
        cmocka_unit_test(test_same_bits_as_cpu),
    };
    return cmocka_run_group_tests_name("kernels: optimizers", tests, NULL, NULL);
}
