/* Matrix products against a plain double-precision loop, at every instruction set of the machine.
 */
#include "tensor/cpu/gemm.h"
#include "tensor/cpu/gemm_few.h"
#include "tensor/cpu/isa.h"
#include "tensor/f16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static uint64_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static int64_t pick(const int *from, int count)
{
    return from[random_bits() % (uint64_t)count];
}

static size_t type_size(td_dtype dtype)
{
    return dtype == TD_F32 ? sizeof(float) : sizeof(double);
}

/* One operand: values in [-1, 1), kept as f32 or f64 and as double. */
typedef struct operand {
    int64_t count;
    void *data;
    double *exact;
} operand;

static operand make_operand(td_dtype dtype, int64_t count)
{
    operand o = { count, malloc((size_t)(count + 1) * 8), malloc((size_t)(count + 1) * 8) };
    assert_non_null(o.data);
    assert_non_null(o.exact);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)random_bits() / (float)(1u << 30) - 1;
        if (dtype == TD_F32) {
            ((float *)o.data)[i] = value;
        } else {
            ((double *)o.data)[i] = value;
        }
        o.exact[i] = value;
    }
    return o;
}

static void free_operand(operand *o)
{
    free(o->data);
    free(o->exact);
}

static double value_at(td_dtype dtype, const void *data, int64_t i)
{
    return dtype == TD_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

typedef struct product {
    td_gemm_desc desc;
    operand a, b, c, bias;
} product;

/* Strides of a rows x cols matrix: rows dense, columns dense, or both apart. */
static int64_t choose_strides(int64_t rows, int64_t cols, int64_t *row, int64_t *col)
{
    int64_t gap = (int64_t)(random_bits() % 3);
    switch (random_bits() % 3) {
    case 0:
        *row = cols + gap;
        *col = 1;
        break;
    case 1:
        *row = 1;
        *col = rows + gap;
        break;
    default:
        *row = 2 * cols + gap;
        *col = 2;
        break;
    }
    return rows * *row + cols * *col + 1;
}

static product make_product(td_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t batch)
{
    product p;
    td_gemm_desc *d = &p.desc;
    *d = (td_gemm_desc){ .dtype = dtype, .m = m, .n = n, .k = k, .batch.count = batch };
    d->batch.a = choose_strides(m, k, &d->a_row, &d->a_col);
    d->batch.b = choose_strides(k, n, &d->b_row, &d->b_col);
    d->c_row = n + (int64_t)(random_bits() % 4);
    d->batch.c = m * d->c_row + 3;
    p.a = make_operand(dtype, d->batch.a * (batch + 1));
    p.b = make_operand(dtype, d->batch.b * (batch + 1));
    p.c = make_operand(dtype, d->batch.c * (batch + 1));
    p.bias = make_operand(dtype, n);
    if (batch > 1 && random_bits() % 3 == 0) {
        d->batch.a = 0;
    }
    if (batch > 1 && random_bits() % 3 == 0) {
        d->batch.b = 0;
    }
    d->a = p.a.data;
    d->b = p.b.data;
    d->bias = random_bits() % 2 ? p.bias.data : NULL;
    d->accumulate = random_bits() % 2;
    return p;
}

static void free_product(product *p)
{
    free_operand(&p->a);
    free_operand(&p->b);
    free_operand(&p->c);
    free_operand(&p->bias);
}

/* Computes into a fresh copy of C, which it returns. The workspace is of the exact size, so that
 * the sanitizer sees a step beyond it. */
static void *compute(td_pool *pool, product *p)
{
    size_t bytes = (size_t)p->c.count * type_size(p->desc.dtype);
    void *c = malloc(bytes + 1);
    assert_non_null(c);
    memcpy(c, p->c.data, bytes);
    p->desc.c = c;
    void *workspace = malloc(td_gemm_workspace(&p->desc) + 1);
    assert_non_null(workspace);
    memset(workspace, 0xff, td_gemm_workspace(&p->desc)); /* NaN: nothing stale may be used */
    td_gemm(pool, &p->desc, workspace);
    free(workspace);
    return c;
}

static void check_element(const product *p, const void *c, int64_t t, int64_t i, int64_t j)
{
    const td_gemm_desc *d = &p->desc;
    int64_t at = t * d->batch.c + i * d->c_row + j;
    double sum = 0, scale = 0;
    for (int64_t q = 0; q < d->k; q++) {
        double term = p->a.exact[t * d->batch.a + i * d->a_row + q * d->a_col] *
                      p->b.exact[t * d->batch.b + q * d->b_row + j * d->b_col];
        sum += term;
        scale += fabs(term);
    }
    if (d->accumulate) {
        sum += p->c.exact[at];
        scale += fabs(p->c.exact[at]);
    }
    if (d->bias) {
        sum += p->bias.exact[j];
        scale += fabs(p->bias.exact[j]);
    }
    double limit = (d->dtype == TD_F32 ? 1e-6 : 1e-12) * scale;
    double error = fabs(value_at(d->dtype, c, at) - sum);
    if (!(error <= limit)) {
        fail_msg("%s m %d n %d k %d, element %d,%d of product %d: off by %g, %g allowed",
                 td_isa_name(td_isa_current()), (int)d->m, (int)d->n, (int)d->k, (int)i, (int)j,
                 (int)t, error, limit);
    }
}

/* Every element of C against the reference, and what lies between the rows untouched. */
static void check_product(const product *p, const void *c)
{
    const td_gemm_desc *d = &p->desc;
    for (int64_t i = 0; i < p->c.count; i++) {
        int64_t t = i / d->batch.c, row = i % d->batch.c / (d->c_row ? d->c_row : 1);
        int64_t col = d->c_row ? i % d->batch.c % d->c_row : 0;
        if (t < d->batch.count && row < d->m && col < d->n) {
            check_element(p, c, t, row, col);
        } else {
            assert_true(value_at(d->dtype, c, i) == p->c.exact[i]);
        }
    }
}

static void check_shape(td_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t batch)
{
    static const int threads[] = { 2, 3, 8 };
    product p = make_product(dtype, m, n, k, batch);
    void *alone = compute(NULL, &p);
    check_product(&p, alone);
    for (int i = 0; i < 3; i++) {
        td_pool *pool = td_pool_new(threads[i]);
        void *together = compute(pool, &p);
        assert_memory_equal(alone, together, (size_t)p.c.count * type_size(dtype));
        free(together);
        td_pool_free(pool);
    }
    free(alone);
    free_product(&p);
}

static void random_shapes(td_dtype dtype)
{
    static const int sizes[] = { 0,  1,  2,  3,  5,  6,  7,  8,  9,  13, 15,
                                 16, 17, 31, 33, 48, 63, 64, 65, 80, 97, 130 };
    static const int depths[] = { 0, 1, 2, 3, 16, 63, 127, 128, 129, 300 };
    static const int batches[] = { 1, 1, 1, 2, 5 };
    for (int i = 0; i < 120; i++) {
        int64_t m = pick(sizes, 22), n = pick(sizes, 22), k = pick(depths, 10);
        check_shape(dtype, m, n, k, pick(batches, 5));
    }
    check_shape(dtype, 250, 130, 70, 1);  /* enough rows for packing a dense B */
    check_shape(dtype, 32, 64, 13, 0);    /* no products at all */
    check_shape(dtype, 4, 70, 1100, 1);   /* several packing tasks */
    for (int64_t m = 1; m <= 9; m += 2) { /* few rows, each layout of B */
        check_shape(dtype, m, 1031, 300, 1);
        check_shape(dtype, m, 277, 1003, 1);
    }
}

static void test_f32(void **state)
{
    (void)state;
    for (int isa = TD_ISA_PORTABLE; isa <= TD_ISA_VECTORS; isa++) {
        if (td_isa_force((td_isa)isa) == (td_isa)isa) {
            random_shapes(TD_F32);
        }
    }
}

static void test_f64(void **state)
{
    (void)state;
    random_shapes(TD_F64);
}

/* By B in bf16, which holds the same values: the same bits. */
static void rows_by_bf16(td_pool *pool, td_gemm_desc d, const float *c, const td_bf16 *b,
                         const float *expected)
{
    size_t bytes = (size_t)(d.m * d.n) * sizeof *c;
    float *part = malloc(bytes);
    assert_non_null(part);
    memcpy(part, c, bytes);
    d.b = b;
    d.b_dtype = TD_BF16;
    d.c = part;
    td_gemm_few(pool, &d);
    assert_memory_equal(part, expected, bytes);
    free(part);
}

/* A row has the same bits alone, among few and among many, with B in either order. */
static void rows_of_few(td_isa isa)
{
    enum { M = 200, N = 1037, K_ = 389 };
    if (td_isa_force(isa) != isa) {
        return;
    }
    operand a = make_operand(TD_F32, M * K_), b = make_operand(TD_F32, K_ * N);
    operand c = make_operand(TD_F32, M * N), bias = make_operand(TD_F32, N);
    td_bf16 *narrow = malloc(sizeof *narrow * K_ * N);
    assert_non_null(narrow);
    for (int64_t i = 0; i < K_ * N; i++) {
        narrow[i] = td_f32_to_bf16(((float *)b.data)[i]);
        ((float *)b.data)[i] = td_bf16_to_f32(narrow[i]);
        b.exact[i] = ((float *)b.data)[i];
    }
    td_gemm_desc d = { .dtype = TD_F32,
                       .m = M,
                       .n = N,
                       .k = K_,
                       .a = a.data,
                       .a_row = K_,
                       .a_col = 1,
                       .b = b.data,
                       .b_row = N,
                       .b_col = 1,
                       .c_row = N,
                       .bias = bias.data,
                       .accumulate = true,
                       .batch.count = 1 };
    for (int turned = 0; turned < 2; turned++) {
        d.b_row = turned ? 1 : N;
        d.b_col = turned ? K_ : 1;
        product many = { d, a, b, c, bias };
        float *whole = compute(NULL, &many);
        for (int64_t m = 1; m <= 9; m++) {
            product few = many;
            td_pool *pool = td_pool_new((int)m);
            few.desc.m = m;
            few.desc.a = (const float *)a.data + 7 * K_;
            few.c = (operand){ m * N, (float *)c.data + 7 * N, NULL };
            float *part = compute(pool, &few);
            assert_memory_equal(part, whole + 7 * N, (size_t)(m * N) * sizeof *part);
            if (m <= TD_FEW_ROWS) {
                rows_by_bf16(pool, few.desc, few.c.data, narrow, part);
            }
            free(part);
            td_pool_free(pool);
        }
        free(whole);
    }
    operand *all[] = { &a, &b, &c, &bias };
    for (int i = 0; i < 4; i++) {
        free_operand(all[i]);
    }
    free(narrow);
}

static void test_a_row_alone(void **state)
{
    (void)state;
    for (int isa = TD_ISA_PORTABLE; isa <= TD_ISA_VECTORS; isa++) {
        rows_of_few((td_isa)isa);
    }
    td_isa_force(td_isa_detect());
}

/* Layout, packing and row blocks do not change a bit of an element. */
static void test_layout_does_not_matter(void **state)
{
    (void)state;
    enum { M = 200, N = 70, K_ = 150 };
    td_isa_force(td_isa_detect());
    operand a = make_operand(TD_F32, M * K_), b = make_operand(TD_F32, K_ * N);
    float *bt = malloc(sizeof(float) * K_ * N), *c = malloc(sizeof(float) * M * N),
          *one = malloc(sizeof(float) * N);
    for (int q = 0; q < K_; q++) {
        for (int j = 0; j < N; j++) {
            bt[j * K_ + q] = ((float *)b.data)[q * N + j];
        }
    }
    td_gemm_desc d = { .dtype = TD_F32,
                       .m = M,
                       .n = N,
                       .k = K_,
                       .a = a.data,
                       .a_row = K_,
                       .a_col = 1,
                       .b = bt,
                       .b_row = 1,
                       .b_col = K_,
                       .c = c,
                       .c_row = N,
                       .batch.count = 1 };
    void *workspace = malloc(td_gemm_workspace(&d));
    td_gemm(NULL, &d, workspace);
    d.b = b.data;
    d.b_row = N;
    d.b_col = 1;
    d.m = 1;
    assert_int_equal(td_gemm_workspace(&d), 0);
    for (int i = 0; i < M; i++) {
        d.a = (float *)a.data + i * K_;
        d.c = one;
        td_gemm(NULL, &d, NULL);
        assert_memory_equal(one, c + i * N, sizeof(float) * N);
    }
    /* Few rows of A. */
    d.b = bt;
    d.b_row = 1;
    d.b_col = K_;
    d.m = 7;
    d.a = a.data;
    float *few = malloc(sizeof(float) * 7 * N);
    d.c = few;
    td_gemm(NULL, &d, workspace);
    assert_memory_equal(few, c, sizeof(float) * 7 * N);
    free(few);
    free(workspace);
    free(bt);
    free(c);
    free(one);
    free_operand(&a);
    free_operand(&b);
}

/* Transposed matrices of long rows, parts of which are copied, give the bits of plain ones; with
 * several panels in a task, the last of which is narrow. */
static void check_far_columns(td_dtype dtype, bool accumulate)
{
    enum { M = 389, N = 1031, K_ = 150, BATCH = 2, FAR = 400 };
    size_t size = type_size(dtype);
    operand a = make_operand(dtype, BATCH * M * K_), b = make_operand(dtype, K_ * N);
    operand c = make_operand(dtype, BATCH * M * N), bias = make_operand(dtype, N);
    char *turned = calloc(BATCH * K_ * FAR, size);
    assert_non_null(turned);
    for (int64_t i = 0; i < BATCH * M * K_; i++) {
        int64_t t = i / M / K_, row = i / K_ % M, q = i % K_;
        memcpy(turned + ((t * K_ + q) * FAR + row) * (int64_t)size,
               (char *)a.data + i * (int64_t)size, size);
    }
    td_gemm_desc d = { .dtype = dtype,
                       .m = M,
                       .n = N,
                       .k = K_,
                       .a = a.data,
                       .a_row = K_,
                       .a_col = 1,
                       .b = b.data,
                       .b_row = N,
                       .b_col = 1,
                       .c_row = N,
                       .bias = bias.data,
                       .batch.count = BATCH,
                       .batch.a = M * K_,
                       .batch.b = 0,
                       .batch.c = M * N,
                       .accumulate = accumulate };
    product plain = { d, a, b, c, bias }, far = plain;
    far.desc.a = turned;
    far.desc.a_row = 1;
    far.desc.a_col = FAR;
    far.desc.batch.a = K_ * FAR;
    td_pool *pool = td_pool_new(3);
    void *expected = compute(NULL, &plain), *alone = compute(NULL, &far);
    void *together = compute(pool, &far);
    assert_memory_equal(alone, expected, BATCH * M * N * size);
    assert_memory_equal(together, expected, BATCH * M * N * size);
    td_pool_free(pool);
    operand *all[] = { &a, &b, &c, &bias };
    for (int i = 0; i < 4; i++) {
        free_operand(all[i]);
    }
    free(turned);
    free(expected);
    free(alone);
    free(together);
}

static void test_far_columns(void **state)
{
    (void)state;
    for (int isa = TD_ISA_PORTABLE; isa <= TD_ISA_VECTORS; isa++) {
        if (td_isa_force((td_isa)isa) == (td_isa)isa) {
            check_far_columns(TD_F32, true);
            check_far_columns(TD_F64, false);
        }
    }
    td_isa_force(td_isa_detect());
}

static void test_isa(void **state)
{
    (void)state;
    td_isa best = td_isa_detect();
    assert_int_equal(td_isa_force(TD_ISA_BEST), best);
    assert_int_equal(td_isa_force(TD_ISA_PORTABLE), TD_ISA_PORTABLE);
    assert_int_equal(td_isa_current(), TD_ISA_PORTABLE);
    assert_string_equal(td_isa_name(TD_ISA_PORTABLE), TD_NEON ? "neon" : "portable");
    assert_string_equal(td_isa_name(TD_ISA_VECTORS), TD_NEON ? "neon" : "avx512");
}

/* Of all tasks each is another block and panel, and each thread's part comes block by block. */
static void test_turns(void **state)
{
    (void)state;
    enum { MOST = 9 };
    for (int64_t i = 0; i < 2 * MOST * MOST * MOST; i++) {
        int64_t blocks = 1 + i / 2 % MOST, panels = 1 + i / 2 / MOST % MOST;
        int threads = (int)(1 + i / 2 / MOST / MOST);
        td_turns turns = td_turns_make(blocks, panels, i % 2 ? 1000 : 1, 10, threads);
        bool seen[MOST][MOST] = { { false } };
        for (int64_t task = 0; task < blocks * panels; task++) {
            int64_t block = -1, panel = -1;
            td_turn(&turns, task, &block, &panel);
            assert_in_range(block, 0, blocks - 1);
            assert_in_range(panel, 0, panels - 1);
            assert_false(seen[block][panel]);
            seen[block][panel] = true;
            int64_t end_of_part = blocks / threads * panels; /* whose shares are equal */
            if (i % 2 == 0 && blocks % threads == 0) {
                assert_int_equal(block / (blocks / threads), task / end_of_part);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),         cmocka_unit_test(test_f64),
        cmocka_unit_test(test_a_row_alone), cmocka_unit_test(test_layout_does_not_matter),
        cmocka_unit_test(test_far_columns), cmocka_unit_test(test_isa),
        cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
