/* Tensor slices: models on 1, 2, 4 and 8 ranks next to one process. */
// run: waits
#include "tests/dist/slices_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "nn/shared/slices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static const double limit = 120.0;

/* What rank 0 tells the parent, in memory that both have. */
enum { MOST = 1 << 20 };
typedef struct slices_result {
    double loss;
    int64_t count;
    double weights[MOST];
} slices_result;

typedef struct slices_run {
    slices_case c;
    slices_result *result;
} slices_run;

static int run_steps(int rank, int size, void *arg)
{
    const slices_run *r = arg;
    slices_job job;
    procs_init(rank, size, 30.0);
    slices_open(&job, &r->c, NULL);
    double loss = 0.0;
    for (int i = 0; i < r->c.steps; i++) {
        loss = slices_step(&job);
    }
    REQUIRE_OK(td_tensor_parallel_check(job.net));
    int64_t count = slices_weights(job.net, NULL);
    double *weights = calloc((size_t)count, sizeof *weights);
    REQUIRE(weights != NULL && count <= MOST);
    slices_weights(job.net, weights);
    if (rank == 0) {
        r->result->loss = loss;
        r->result->count = count;
        memcpy(r->result->weights, weights, (size_t)count * sizeof *weights);
    }
    free(weights);
    slices_close(&job);
    td_dist_destroy();
    return 0;
}

static slices_result *new_result(void)
{
    void *memory = mmap(NULL, sizeof(slices_result), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static void run_case(const slices_case *c, slices_result *result)
{
    slices_run run = { *c, result };
    procs_succeed(c->tp, limit, run_steps, &run);
}

static double furthest(const slices_result *a, const slices_result *b)
{
    double most = fabs(a->loss - b->loss);
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        double d = fabs(a->weights[i] - b->weights[i]);
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

static void test_one_process(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    for (slices_kind kind = SLICES_MLP; kind <= SLICES_LLAMA; kind++) {
        slices_case c = { kind, TD_F64, .tp = 1, .steps = 20 };
        run_case(&c, one);
        for (c.tp = 1; c.tp <= 4; c.tp *= 2) {
            c.slices = c.tp;
            run_case(&c, many);
            double d = furthest(many, one);
            if (!(d <= 1e-12)) {
                fail_msg("kind %d, tp %d: %g from one process", (int)kind, c.tp, d);
            }
        }
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

static void test_same_bits(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    for (slices_kind kind = SLICES_MLP; kind <= SLICES_LLAMA; kind++) {
        slices_case c = { kind, TD_F32, .tp = 1, .slices = 8, .steps = 3 };
        run_case(&c, one);
        for (c.tp = 2; c.tp <= 8; c.tp *= 2) {
            run_case(&c, many);
            if (memcmp(many, one, sizeof *one) != 0) {
                fail_msg("kind %d, tp %d: %g from the bits of one rank", (int)kind, c.tp,
                         furthest(many, one));
            }
        }
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* ---- plans that do not fit ---- */

static void expect_bad(td_module *net, const td_tp_rule *rules, int count, int slices,
                       const char *part)
{
    expect_fatal(part, td_tensor_parallel(net, rules, count, .slices = slices));
    td_module_free(net);
}

static void test_bad_plans(void **state)
{
    (void)state;
    const td_tp_rule nothing[] = { { "*.1", .style = TD_TP_COLUMN },
                                   { "*.f", .style = TD_TP_ROW } };
    const td_tp_rule twice[] = { { "0.1*", .style = TD_TP_COLUMN }, { "*.1", .style = TD_TP_ROW } };
    const td_tp_rule norm[] = { { "0.0", .style = TD_TP_COLUMN } };
    const td_tp_rule row[] = { { "0.3", .style = TD_TP_ROW } };
    const td_tp_rule heads[] = { { "*.c_attn", .style = TD_TP_COLUMN, .parts = { 16, 8, 8 } } };
    const td_tp_rule parts[] = { { "*.c_attn", .style = TD_TP_COLUMN, .parts = { 7, 7, 7 } } };
    expect_bad(slices_net(SLICES_MLP, TD_F32), nothing, 2, 2, "\"*.f\", matches no module");
    expect_bad(slices_net(SLICES_MLP, TD_F32), twice, 2, 2,
               "'0.1 (Linear)' matches two rules, \"0.1*\" and \"*.1\"");
    expect_bad(slices_net(SLICES_MLP, TD_F32), norm, 1, 2, "'0.0 (LayerNorm)'");
    expect_bad(slices_net(SLICES_MLP, TD_F32), row, 1, 3,
               "'0.3 (Linear)' (rule \"0.3\"): 128 inputs are not divisible by 3 slices");
    expect_bad(slices_net(SLICES_LLAMA, TD_F32), heads, 1, 16,
               "'transformer.h.0.attn.c_attn (Linear)' (rule \"*.c_attn\"): 8 heads are not "
               "divisible by 16 slices");
    expect_bad(slices_net(SLICES_LLAMA, TD_F32), parts, 1, 1, "no 21 parts of one size");
    expect_bad(td_tensor_parallel(slices_net(SLICES_MLP, TD_F32), row, 1), row, 1, 1,
               "went through td_tensor_parallel already");
    td_module *net = slices_net(SLICES_MLP, TD_F32);
    td_parameters(net);
    expect_bad(net, row, 1, 1, "laid out flat already");
}

static int run_after_ddp(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 30.0);
    td_module *net = td_ddp(slices_net(SLICES_MLP, TD_F32));
    int count;
    const td_tp_rule *rules = slices_plan(SLICES_MLP, &count);
    (void)td_tensor_parallel(net, rules, count);
    return 0;
}

static void test_after_ddp(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, limit, run_after_ddp, NULL, ends);
    procs_assert_says(ends, 0, "the model went through td_ddp already");
}

/* ---- parameters that must be equal ---- */

/* Other seeds; and a bit that turns later. */
static int run_different(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 30.0);
    int count;
    const td_tp_rule *rules = slices_plan(SLICES_MLP, &count);
    td_module *net = slices_net(SLICES_MLP, TD_F32);
    td_tensor *w = td_module_find(net, "1.1")->tensors[0].tensor;
    td_set(w, (int64_t[]){ 127, 31 }, rank == 2 ? 0.25 : 0.5);
    REQUIRE(td_tensor_parallel(net, rules, count) == NULL);
    REQUIRE(strstr(td_last_error(), "'1.1.weight' differs") != NULL);
    REQUIRE(strstr(td_last_error(), "rank 2") != NULL);

    net = td_tensor_parallel(slices_net(SLICES_MLP, TD_F32), rules, count);
    REQUIRE_OK(td_tensor_parallel_check(net));
    td_tensor *bias = td_module_find(net, "2.3")->tensors[1].tensor;
    td_set(bias, (int64_t[]){ 5 }, td_get(bias, (int64_t[]){ 5 }) * (rank == 1 ? 1.0000001 : 1.0));
    REQUIRE(td_tensor_parallel_check(net) == TD_E_MISMATCH);
    REQUIRE(strstr(td_last_error(), "'2.3.bias' differs") != NULL);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_equal_parameters(void **state)
{
    (void)state;
    procs_succeed(4, limit, run_different, NULL);
}

/* Deferred weights are drawn as they would have been, and replicated ones stay equal for long. */
static void test_long_run(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    slices_case c = { SLICES_LLAMA, TD_F32, .tp = 1, .slices = 4, .steps = 50 };
    run_case(&c, one);
    c.tp = 4;
    c.deferred = true;
    run_case(&c, many);
    assert_memory_equal(many, one, sizeof *one);
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_long_run),    cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_after_ddp),   cmocka_unit_test(test_equal_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
