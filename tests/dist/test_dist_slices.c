/* Tensor slices: models on 1, 2, 4 and 8 ranks next to one process. */
// run: waits
#include "tests/dist/slices_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"
#include "nn/io/fingerprint.h"
#include "nn/module.h"
#include "nn/shared/slices.h"

#include <math.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
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

/* What rank 0 tells of a model at the end. */
static void tell(slices_job *job, double loss, slices_result *result)
{
    int64_t count = slices_weights(job->net, NULL), extra = 0;
    double *weights = calloc(MOST, sizeof *weights);
    REQUIRE(weights != NULL);
    slices_weights(job->net, weights);
    if (job->c->kind != SLICES_MLP) { /* and the logits, whole on all ranks */
        td_no_grad_begin();
        TD_STEP {
            td_tensor *logits = td_forward(job->net, job->x);
            extra = td_numel(logits);
            REQUIRE(count + extra <= MOST);
            td_read(logits, weights + count, TD_F64);
        }
        td_no_grad_end();
    }
    if (td_dist_rank() == 0) {
        result->loss = loss;
        result->count = count + extra;
        memcpy(result->weights, weights, MOST * sizeof *weights);
    }
    free(weights);
}

static int run_steps(int rank, int size, void *arg)
{
    const slices_run *r = arg;
    slices_job job;
    procs_init(rank, size, 30.0);
    slices_open(&job, &r->c);
    double loss = 0.0;
    for (int i = 0; i < r->c.steps; i++) {
        loss = slices_step(&job);
    }
    if (r->c.save != NULL && (rank == 0 || td_saves_together(job.net))) {
        REQUIRE_OK(td_checkpoint_save(r->c.save, job.net, .optim = job.optim, .ema = job.ema,
                                      .with_random = true));
        td_fingerprints f;
        char here[32], there[32];
        REQUIRE_OK(
            td_fingerprint(&f, job.net, .optim = job.optim, .ema = job.ema, .with_random = true));
        snprintf(here, sizeof here, "%016" PRIx64, f.all);
        if (rank == 0) {
            REQUIRE_OK(td_checkpoint_metadata(r->c.save, TD_KEY_FINGERPRINT, there, sizeof there));
            REQUIRE(strcmp(here, there) == 0);
        }
        td_fingerprints_free(&f);
    }
    if (r->result != NULL) {
        REQUIRE_OK(td_tensor_parallel_check(job.net));
        tell(&job, loss, r->result);
    }
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
    procs_succeed(c->tp * (c->dp > 0 ? c->dp : 1), limit, run_steps, &run);
}

/* Eight ranks of gloo on two cores take long to say the same. */
static int most_ranks(void)
{
    return procs_are_over("gloo") || checks_part() ? 4 : 8;
}

/* How many steps a run has; in a part of the checks a quarter. */
static int steps(int all)
{
    return checks_part() ? all / 4 : all;
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
    for (int k = SLICES_MLP; k <= SLICES_LLAMA + 1; k++) { /* the last one: by logits */
        slices_kind kind = k <= SLICES_LLAMA ? (slices_kind)k : SLICES_GPT;
        slices_case c = { kind, TD_F64, .tp = 1, .steps = steps(20), .logits = k > SLICES_LLAMA };
        run_case(&c, one);
        for (c.tp = 1; c.tp <= 4; c.tp *= 2) {
            c.slices = c.tp;
            run_case(&c, many);
            double d = furthest(many, one);
            if (!(d <= 1e-12)) {
                fail_msg("kind %d, tp %d: %g from one process", k, c.tp, d);
            }
        }
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* One rank and many end with the same bits. */
static void assert_same_bits(slices_case c, slices_result *one, slices_result *many)
{
    c.tp = 1;
    run_case(&c, one);
    for (c.tp = 2; c.tp <= most_ranks(); c.tp *= 2) {
        run_case(&c, many);
        if (memcmp(many, one, sizeof *one) != 0) {
            fail_msg("kind %d, tp %d: %g from the bits of one rank", (int)c.kind, c.tp,
                     furthest(many, one));
        }
    }
}

static void test_same_bits(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    for (slices_kind kind = SLICES_MLP; kind <= SLICES_LLAMA; kind++) {
        assert_same_bits((slices_case){ kind, TD_F32, .slices = 8, .steps = 3 }, one, many);
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* ---- plans that do not fit ---- */

typedef struct bad_plan {
    slices_kind kind;
    const td_tp_rule *rules;
    int count, slices;
    const char *says;
    enum { WHOLE, CUT, LAID_OUT } before;
} bad_plan;

static int run_bad_plan(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    const bad_plan *p = arg;
    td_module *net = slices_net(p->kind, TD_F32, 0.0);
    if (p->before == CUT) {
        net = td_tensor_parallel(net, p->rules, p->count);
    } else if (p->before == LAID_OUT) {
        td_parameters(net);
    }
    td_tensor_parallel(net, p->rules, p->count, .slices = p->slices);
    return 0;
}

/* In processes of their own, as a fatal error frees nothing. */
static void test_bad_plans(void **state)
{
    (void)state;
    const td_tp_rule nothing[] = { { "*.1", .style = TD_TP_COLUMN },
                                   { "*.f", .style = TD_TP_ROW } };
    const td_tp_rule twice[] = { { "0.1*", .style = TD_TP_COLUMN }, { "*.1", .style = TD_TP_ROW } };
    const td_tp_rule norm[] = { { "0.0", .style = TD_TP_COLUMN } };
    const td_tp_rule row[] = { { "0.4", .style = TD_TP_ROW } };
    const td_tp_rule heads[] = { { "*.c_attn", .style = TD_TP_COLUMN, .parts = { 16, 8, 8 } } };
    const td_tp_rule tie[] = { { "*.wte", .style = TD_TP_VOCAB } };
    const td_tp_rule words[] = { { "*.c_fc", .style = TD_TP_VOCAB } };
    const td_tp_rule head[] = { { "lm_head", .style = TD_TP_VOCAB } };
    const td_tp_rule parts[] = { { "*.c_attn", .style = TD_TP_COLUMN, .parts = { 7, 7, 7 } } };
    const bad_plan plans[] = {
        { SLICES_MLP, nothing, 2, 2, "\"*.f\", matches no module", WHOLE },
        { SLICES_MLP, twice, 2, 2, "'0.1 (Linear)' matches two rules, \"0.1*\" and \"*.1\"",
          WHOLE },
        { SLICES_MLP, norm, 1, 2, "'0.0 (Gain)'", WHOLE },
        { SLICES_MLP, row, 1, 3,
          "'0.4 (Linear)' (rule \"0.4\"): 128 inputs are not divisible by 3 slices", WHOLE },
        { SLICES_LLAMA, heads, 1, 16,
          "'transformer.h.0.attn.c_attn (Linear)' (rule \"*.c_attn\"): 8 heads are not "
          "divisible by 16 slices",
          WHOLE },
        { SLICES_LLAMA, parts, 1, 1, "no 21 parts of one size", WHOLE },
        { SLICES_GPT, tie, 1, 2, "'lm_head (Head)' uses 'transformer.wte.weight'", WHOLE },
        { SLICES_GPT, head, 1, 2, "uses none of a module before it", WHOLE },
        { SLICES_LLAMA, words, 1, 2, "is no embedding or head", WHOLE },
        { SLICES_LLAMA, tie, 1, 5, "32 words are not divisible by 5 slices", WHOLE },
        { SLICES_MLP, row, 1, 1, "went through td_tensor_parallel already", CUT },
        { SLICES_MLP, row, 1, 1, "laid out flat already", LAID_OUT },
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        static procs_end end;
        procs_run(1, limit, run_bad_plan, (void *)(uintptr_t)&plans[i], &end);
        if (end.signal != SIGABRT || strstr(end.output, plans[i].says) == NULL) {
            fail_msg("plan %zu: signal %d, said '%s'", i, end.signal, end.output);
        }
    }
}

static int run_after_ddp(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 30.0);
    td_module *net = td_ddp(slices_net(SLICES_MLP, TD_F32, 0.0));
    int count;
    const td_tp_rule *rules = slices_plan(SLICES_MLP, false, &count);
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

/* td_ddp of the world would average slices that have nothing in common. */
static int run_ddp_of_all(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 30.0);
    int count;
    const td_tp_rule *rules = slices_plan(SLICES_MLP, false, &count);
    td_module *net = td_tensor_parallel(slices_net(SLICES_MLP, TD_F32, 0.0), rules, count);
    REQUIRE(td_ddp(net) == NULL);
    REQUIRE(strstr(td_last_error(), "slice 1 of 2") != NULL);
    REQUIRE(strstr(td_last_error(), ".mesh") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_ddp_of_all(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_ddp_of_all, NULL);
}

/* ---- parameters that must be equal ---- */

/* Other seeds; and a bit that turns later. */
static int run_different(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 30.0);
    int count;
    const td_tp_rule *rules = slices_plan(SLICES_MLP, false, &count);
    td_module *net = slices_net(SLICES_MLP, TD_F32, 0.0);
    td_tensor *w = td_module_find(net, "1.1")->tensors[0].tensor;
    td_set(w, (int64_t[]){ 127, 31 }, rank == 2 ? 0.25 : 0.5);
    REQUIRE(td_tensor_parallel(net, rules, count) == NULL);
    REQUIRE(strstr(td_last_error(), "'1.1.weight' differs") != NULL);
    REQUIRE(strstr(td_last_error(), "rank 2") != NULL);

    net = td_tensor_parallel(slices_net(SLICES_MLP, TD_F32, 0.0), rules, count);
    REQUIRE_OK(td_tensor_parallel_check(net));
    td_tensor *bias = td_module_find(net, "2.4")->tensors[1].tensor;
    td_set(bias, (int64_t[]){ 5 }, td_get(bias, (int64_t[]){ 5 }) * (rank == 1 ? 1.0000001 : 1.0));
    REQUIRE(td_tensor_parallel_check(net) == TD_E_MISMATCH);
    REQUIRE(strstr(td_last_error(), "'2.4.bias' differs") != NULL);
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
    slices_case c = { SLICES_LLAMA, TD_F32, .tp = 1, .slices = 4, .steps = steps(50) };
    run_case(&c, one);
    c.tp = 4;
    c.deferred = true;
    run_case(&c, many);
    assert_memory_equal(many, one, sizeof *one);
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* ---- clipping, dropout, checkpoints ---- */

static bool same_files(const char *a, const char *b)
{
    char command[2400];
    snprintf(command, sizeof command, "cmp '%s' '%s'", a, b);
    return system(command) == 0;
}

/* The norm, of what is cut and what is not, next to one process; with dropout. */
static void test_clip_and_dropout(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    for (slices_kind kind = SLICES_MLP; kind <= SLICES_GPT; kind += SLICES_GPT) {
        slices_case c = { kind, TD_F64, .tp = 1, .steps = steps(20), .clip = true, .dropout = 0.2 };
        run_case(&c, one);
        for (c.tp = 1; c.tp <= 4; c.tp *= 2) {
            c.slices = c.tp;
            run_case(&c, many);
            assert_true(furthest(many, one) <= 1e-12);
        }
        c.dtype = TD_F32;
        c.slices = 8;
        c.tp = 1;
        run_case(&c, one);
        for (c.tp = 2; c.tp <= most_ranks(); c.tp *= 2) {
            run_case(&c, many);
            assert_memory_equal(many, one, sizeof *one);
        }
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* Rows spread over ranks, norms' and biases' gradients summed; the same masks of dropout. */
static void test_sequence(void **state)
{
    (void)state;
    slices_result *one = new_result(), *many = new_result();
    const slices_kind kinds[] = { SLICES_MLP, SLICES_GPT, SLICES_LLAMA };
    for (int k = 0; k < 3; k++) {
        slices_kind kind = kinds[k];
        slices_case c = { kind, TD_F64, .tp = 1, .steps = steps(20), .clip = true, .dropout = 0.2 };
        run_case(&c, one);
        c.sequence = true;
        for (c.tp = 1; c.tp <= 4; c.tp *= 2) {
            c.slices = c.tp;
            run_case(&c, many);
            double d = furthest(many, one);
            if (!(d <= 1e-12)) {
                fail_msg("kind %d, tp %d: %g from one process", (int)kind, c.tp, d);
            }
        }
        c.dtype = TD_F32;
        c.steps = 3;
        c.slices = 8;
        assert_same_bits(c, one, many);
    }
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}

/* A file is that of one process, byte for byte, whoever has saved it. */
static void test_files(void **state)
{
    (void)state;
    char base[1024], path[1024];
    snprintf(base, sizeof base, "%s", temp_path("one"));
    snprintf(path, sizeof path, "%s", temp_path("many"));
    slices_case c = { SLICES_LLAMA, TD_F32, .tp = 1, .steps = 2, .dropout = 0.1, .ema = true };
    c.save = base;
    run_case(&c, NULL);
    c.load = base;
    c.save = path;
    c.steps = 0;
    c.slices = 4;
    for (c.tp = 1; c.tp <= 4; c.tp *= 2) {
        run_case(&c, NULL);
        assert_true(same_files(base, path));
    }
    c.tp = c.dp = 2;
    for (c.shard = TD_SHARD_OPTIMIZER; c.shard <= TD_SHARD_PARAMETERS; c.shard++) {
        run_case(&c, NULL);
        assert_true(same_files(base, path));
    }
}

/* A run goes on on any number of ranks. */
static void test_resume(void **state)
{
    (void)state;
    static const int from[] = { 1, 4, 2, 4 }, to[] = { 4, 1, 4, 2 };
    char path[1024], end[1024], other[1024];
    snprintf(path, sizeof path, "%s", temp_path("begin"));
    snprintf(end, sizeof end, "%s", temp_path("end"));
    snprintf(other, sizeof other, "%s", temp_path("other"));
    slices_case c = { SLICES_GPT, TD_F32, .tp = 1, .slices = 4, .steps = 4, .dropout = 0.1 };
    c.ema = true;
    c.save = end;
    run_case(&c, NULL);
    c.steps = 2;
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        c.load = NULL;
        c.save = path;
        c.tp = from[i];
        run_case(&c, NULL);
        c.load = path;
        c.save = other;
        c.tp = to[i];
        run_case(&c, NULL);
        assert_true(same_files(end, other));
    }
}

/* ---- a rank dies in a step ---- */

enum { VICTIM = 2 };

static void die(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
    if (td_dist_rank() == VICTIM) {
        raise(SIGKILL);
    }
}

/* Before the first sum of a forward, or, in backward, before a COLUMN layer's. */
static int run_death(int rank, int size, void *arg)
{
    slices_case c = { SLICES_GPT, TD_F32, .tp = size, .slices = size };
    slices_job job;
    procs_init(rank, size, 20.0);
    slices_open(&job, &c);
    slices_step(&job);
    td_tensor *weight = td_module_find(job.net, "transformer.h.1.mlp.c_proj")->tensors[0].tensor;
    if (*(const bool *)arg) {
        REQUIRE(td_on_grad_ready(weight, die, NULL) > 0);
    } else {
        die(weight, NULL);
    }
    slices_step(&job);
    return 0; /* not reached */
}

static void test_a_death_is_told_to_all(void **state)
{
    (void)state;
    static procs_end ends[4];
    for (int backward = 0; backward < 2; backward++) {
        procs_run(4, limit, run_death, &(bool){ backward != 0 }, ends);
        for (int rank = 0; rank < 4; rank++) {
            if (rank != VICTIM) {
                procs_assert_says(ends, rank, "tensor slices, rank ");
                procs_assert_says(ends, rank, "rank 2 (pid ");
                assert_int_not_equal(ends[rank].code, 0);
            }
        }
        procs_assert_nothing_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process),      cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_long_run),         cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_after_ddp),        cmocka_unit_test(test_ddp_of_all),
        cmocka_unit_test(test_equal_parameters), cmocka_unit_test(test_clip_and_dropout),
        cmocka_unit_test(test_sequence),         cmocka_unit_test(test_files),
        cmocka_unit_test(test_resume),           cmocka_unit_test(test_a_death_is_told_to_all),
    };
    return cmocka_run_group_tests(tests, temp_folder_setup, temp_folder_teardown);
}
