/* The trace: valid JSON with every rank's lanes. And what it shows of a sharded model's transfers
 * when they take long: they run while units compute. */
#include "autograd/hooks.h"
#include "dist/comm/collectives.h"
#include "dist/comm/group.h"
#include "dist/trace.h"
#include "nn/around.h"
#include "nn/module.h"
#include "tensor/clock.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/golden.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static cJSON *parse(const char *path)
{
    size_t size;
    char *text = temp_read(path, &size);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    free(text);
    return json;
}

/* The events of a process whose name begins so. phase "X": spans. */
static int count_events(const cJSON *trace, int rank, const char *phase, const char *name)
{
    int count = 0;
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        count += golden_get(event, "pid")->valueint == rank &&
                 strcmp(golden_get(event, "ph")->valuestring, phase) == 0 &&
                 strncmp(golden_get(event, "name")->valuestring, name, strlen(name)) == 0;
    }
    return count;
}

static void test_spans_nest(void **state)
{
    (void)state;
    const char *path = temp_path("one.json");
    td_trace_begin("before it is on"); /* counts for nothing */
    td_trace_end();
    assert_int_equal(td_trace_open(path), TD_OK);
    td_trace_begin("outer");
    td_trace_begin("in\"ner\\ \n");
    td_trace_end();
    td_trace_end();
    td_trace_communication("bucket 0", 1.0, 1.5, 4096);
    assert_int_equal(td_trace_close(), TD_OK);
    assert_false(td_trace_on());

    cJSON *trace = parse(path);
    assert_int_equal(cJSON_GetArraySize(golden_get(trace, "traceEvents")), 6);
    assert_int_equal(count_events(trace, 0, "X", "outer"), 1);
    assert_int_equal(count_events(trace, 0, "X", "in\"ner\\ \n"), 1);
    const cJSON *event = NULL, *outer = NULL, *inner = NULL, *bucket = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        const char *name = golden_get(event, "name")->valuestring;
        outer = strcmp(name, "outer") == 0 ? event : outer;
        inner = strncmp(name, "in", 2) == 0 ? event : inner;
        bucket = strcmp(name, "bucket 0") == 0 ? event : bucket;
    }
    double begin = golden_number(outer, "ts"), end = begin + golden_number(outer, "dur");
    double inside = golden_number(inner, "ts");
    assert_true(begin <= inside && inside + golden_number(inner, "dur") <= end + 0.01);
    assert_true(golden_number(bucket, "dur") == 500000.0);
    assert_int_equal(golden_get(golden_get(bucket, "args"), "bytes")->valueint, 4096);
    cJSON_Delete(trace);
}

static void test_off_and_failing(void **state)
{
    (void)state;
    assert_int_equal(td_trace_open(NULL), TD_OK);
    assert_false(td_trace_on());
    assert_int_equal(td_trace_close(), TD_OK);
    assert_int_equal(td_trace_open(temp_path("no/such/folder.json")), TD_E_IO);
    assert_error_says("folder.json", "cannot be written", NULL);
}

static int run_ranks(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    REQUIRE_OK(td_trace_open(arg));
    ddp_job job;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_MLP, TD_F32, &options, rank * 4, rank * 4 + 4);
    for (int i = 0; i < 3; i++) {
        job_step(&job);
    }
    job_close(&job);
    REQUIRE_OK(td_trace_close());
    td_dist_destroy();
    return 0;
}

/* Whether all events of a rank whose name begins so are of the category; false: there are none. */
static bool are_of(const cJSON *trace, int rank, const char *name, const char *category)
{
    int count = 0, right = 0;
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        const cJSON *cat = cJSON_GetObjectItem(event, "cat");
        bool named = strncmp(golden_get(event, "name")->valuestring, name, strlen(name)) == 0;
        if (named && cat != NULL && golden_get(event, "pid")->valueint == rank) {
            count++;
            right += strcmp(cat->valuestring, category) == 0;
        }
    }
    return count > 0 && right == count;
}

/* The most bytes of a rank's counters of memory. */
static double most_memory(const cJSON *trace, int rank)
{
    double most = 0;
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        if (golden_get(event, "pid")->valueint == rank &&
            strcmp(golden_get(event, "ph")->valuestring, "C") == 0) {
            most = fmax(most, golden_number(golden_get(event, "args"), "step"));
        }
    }
    return most;
}

/* What ranks trace that run `run` with the path of a file. */
static cJSON *trace_of(int ranks, int (*run)(int, int, void *), const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path(name));
    procs_succeed(ranks, 60.0, run, path);
    return parse(path);
}

static void test_ranks_are_put_together(void **state)
{
    (void)state;
    cJSON *trace = trace_of(3, run_ranks, "all.json");
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(count_events(trace, rank, "M", "process_name"), 1);
        assert_int_equal(count_events(trace, rank, "M", "thread_name"), 2);
        assert_int_equal(count_events(trace, rank, "X", "forward"), 3);
        assert_int_equal(count_events(trace, rank, "X", "backward"), 3);
        assert_true(count_events(trace, rank, "X", "bucket") >= 3);
        assert_true(are_of(trace, rank, "forward", "part"));
        assert_true(are_of(trace, rank, "bucket", "message"));
        assert_true(are_of(trace, rank, "wait for buckets", "span"));
        assert_true(are_of(trace, rank, "unary_grad", "backward"));
        assert_true(are_of(trace, rank, "sgd", "optimizer"));
        assert_true(count_events(trace, rank, "C", "memory") > 6);
        assert_true(most_memory(trace, rank) >= 64);
    }
    cJSON_Delete(trace);
    assert_int_equal(access(temp_path("all.rank1.json"), F_OK), -1);
}

/* Rank 1 cannot write its file: the others do not wait for it. */
static int run_full(int rank, int size, void *path)
{
    procs_init(rank, size, 20.0);
    REQUIRE_OK(td_trace_open(path));
    if (rank == 1) {
        signal(SIGXFSZ, SIG_IGN);
        REQUIRE(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 64, 64 }) == 0);
    }
    td_trace_begin("a span");
    td_trace_end();
    td_status status = td_trace_close();
    REQUIRE(rank == 1 ? status == TD_E_IO && strstr(td_last_error(), "full.rank1.json") != NULL
                      : status == TD_OK);
    td_dist_destroy();
    return 0;
}

static void test_a_rank_that_cannot_write(void **state)
{
    (void)state;
    cJSON *trace = trace_of(3, run_full, "full.json");
    assert_int_equal(count_events(trace, 0, "X", "a span"), 1);
    assert_int_equal(count_events(trace, 2, "X", "a span"), 1);
    cJSON_Delete(trace);
}

/* Rank 1 cannot open its file: no rank traces, and nobody waits at the end. */
static int run_without_folder(int rank, int size, void *folder)
{
    char path[600];
    procs_init(rank, size, 20.0);
    snprintf(path, sizeof path, "%s%s/all.json", (const char *)folder, rank == 1 ? "/none" : "");
    REQUIRE(td_trace_open(path) == TD_E_IO && strstr(td_last_error(), "none/all.rank1.json"));
    REQUIRE(!td_trace_on());
    REQUIRE_OK(td_trace_close());
    REQUIRE_OK(td_barrier(NULL));
    snprintf(path, sizeof path, "%s/all.rank%d.json", (const char *)folder, rank);
    REQUIRE(access(path, F_OK) != 0);
    td_dist_destroy();
    return 0;
}

static void test_a_rank_that_cannot_open(void **state)
{
    (void)state;
    char folder[512];
    snprintf(folder, sizeof folder, "%s", temp_path("."));
    procs_succeed(3, 60.0, run_without_folder, folder);
}

/* ---- slow transfers ---- */

enum { UNITS = 8, STEPS = 4 };
/* Seconds: of a transfer; the same in the first step, in which all gathers are waited for, so that
 * a busy machine's delays are small next to it; until a test gives up. */
static const double DELAY = 5e-3, FIRST_DELAY = 50e-3, PATIENCE = 20.0;

static td_status (*quick_run)(void *engine, const td_collective *c);
/* Of the step that runs. The last three are written by who drives the engine. */
static int step;
static double gathering; /* seconds of its gathers so far */
static atomic_int gathered, scattered;

static td_status slow_run(void *engine, const td_collective *c)
{
    double begin = td_clock();
    td_sleep(step > 0 ? DELAY : FIRST_DELAY);
    td_status status = quick_run(engine, c);
    if (c->kind == TD_COLLECTIVE_ALL_GATHER) {
        gathering += td_clock() - begin;
        atomic_fetch_add(&gathered, 1);
    }
    if (c->kind == TD_COLLECTIVE_REDUCE_SCATTER) {
        atomic_fetch_add(&scattered, 1);
    }
    return status;
}

/* Every collective of the world takes that much longer. */
static void slow_down(void)
{
    static td_engine_type slow;
    slow = *td_dist_world()->engine_type;
    quick_run = slow.run;
    slow.run = slow_run;
    td_dist_world()->engine_type = &slow;
}

/* A unit computes as long as it takes that so many of the step's gathers have ended, and, in
 * backward, averages: its own values are here then, those of the next unit have been asked for, and
 * the gradients of the units before have been sent. */
static void compute_until(int gathers, int scatters)
{
    double end = td_clock() + PATIENCE;
    while ((atomic_load(&gathered) < gathers || atomic_load(&scattered) < scatters) &&
           td_clock() < end) {
        td_sleep(1e-3);
    }
    REQUIRE(atomic_load(&gathered) == gathers && atomic_load(&scattered) >= scatters);
}

static td_tensor *work_forward(const td_around_rest *rest, td_tensor *x, void *user)
{
    int number = atoi((const char *)user + strlen("unit ")), last = number == UNITS - 1;
    td_trace_begin(user);
    compute_until(number + 1 + (step > 0 && !last), 0); /* the first step knows of no next */
    td_tensor *y = td_run_rest(rest, x);
    td_trace_end();
    return y;
}

/* The last unit's values have stayed from its forward. */
static void work_backward(td_tensor *leaf, void *user)
{
    (void)leaf;
    int number = atoi((const char *)user + strlen("unit "));
    compute_until(2 * UNITS - (number > 0 ? number : 1), UNITS - 1 - number);
}

static td_module *slow_units(void)
{
    static char names[UNITS][16];
    td_module *list[UNITS];
    for (int i = 0; i < UNITS; i++) {
        list[i] = td_nn_sequential(td_nn_linear(8, 8), td_nn_gelu());
    }
    td_module *net = td_ddp(td_nn_sequential_list(list, UNITS),
                            .strategy = td_zero(TD_SHARD_PARAMETERS, .gathers = true));
    REQUIRE(net != NULL && td_ddp_shard_stats(net).units == UNITS);
    for (int i = 0; i < UNITS; i++) {
        snprintf(names[i], sizeof names[i], "unit %d", i);
        td_around around = { .run = work_forward, .user = names[i], .inside = true };
        REQUIRE_OK(td_module_surround(net->children[i], &around));
        td_tensor *weight = net->children[i]->children[0]->tensors[0].tensor;
        REQUIRE(td_on_grad_ready(weight, work_backward, names[i]) >= 0);
    }
    return net;
}

/* The first forward does not know which unit comes next, so it asks for none ahead, and waits for
 * all. Later steps ask ahead. */
static int run_slow(int rank, int size, void *path)
{
    procs_init(rank, size, 20.0);
    REQUIRE_OK(td_trace_open(path));
    slow_down();
    td_module *net = slow_units();
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1);
    td_tensor *x = td_full(TD_SHAPE(4, 8), 0.5, TD_F32, TD_CPU);
    double best = 1.0; /* the least share of the gathers that a step has waited for */
    for (step = 0; step < STEPS; step++) {
        gathering = 0.0;
        atomic_store(&gathered, 0);
        atomic_store(&scattered, 0);
        td_step_begin();
        td_tensor *y = td_forward(net, x);
        double waited = td_ddp_shard_stats(net).gather;
        REQUIRE(step > 0 || (gathering >= UNITS * FIRST_DELAY && waited > 0.8 * gathering));
        td_zero_grad(optim);
        td_backward(td_mean(y));
        waited = td_ddp_shard_stats(net).gather;
        REQUIRE(step == 0 || gathering >= (2 * UNITS - 1) * DELAY);
        best = step > 0 ? fmin(best, waited / gathering) : best;
        td_optim_step(optim);
        td_step_end();
    }
    REQUIRE(best < 0.2);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    REQUIRE_OK(td_trace_close());
    td_dist_destroy();
    return 0;
}

/* When a rank's k-th event of that name begins and ends: microseconds. */
static void find_span(const cJSON *trace, int rank, const char *name, int k, double span[2])
{
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, golden_get(trace, "traceEvents"))
    {
        if (golden_get(event, "pid")->valueint == rank &&
            strncmp(golden_get(event, "name")->valuestring, name, strlen(name)) == 0 && k-- == 0) {
            span[0] = golden_number(event, "ts");
            span[1] = span[0] + golden_number(event, "dur");
            return;
        }
    }
    fail_msg("rank %d has too few events '%s'", rank, name);
}

/* In the last step each unit's values come while the unit before computes. */
static void test_slow_transfers_are_hidden(void **state)
{
    (void)state;
    cJSON *trace = trace_of(2, run_slow, "slow.json");
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(count_events(trace, rank, "X", "values of "), STEPS * (2 * UNITS - 1));
        for (int k = 1; k < UNITS; k++) {
            char values[32], before[16];
            double gather[2], unit[2];
            int each = k < UNITS - 1 ? 2 : 1; /* of a step: the last unit's stay for backward */
            snprintf(values, sizeof values, "values of %d ", k);
            snprintf(before, sizeof before, "unit %d", k - 1);
            find_span(trace, rank, values, (STEPS - 1) * each, gather);
            find_span(trace, rank, before, STEPS - 1, unit);
            assert_true(gather[1] - gather[0] >= 1e6 * DELAY);
            assert_true(gather[0] < unit[1] && gather[1] > unit[0] && gather[1] < unit[1]);
        }
    }
    cJSON_Delete(trace);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_spans_nest),
        IN_FOLDER(test_off_and_failing),
        IN_FOLDER(test_ranks_are_put_together),
        IN_FOLDER(test_a_rank_that_cannot_write),
        IN_FOLDER(test_a_rank_that_cannot_open),
        IN_FOLDER(test_slow_transfers_are_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
