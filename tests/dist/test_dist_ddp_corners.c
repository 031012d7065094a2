/* DistributedDataParallel: what is rare. Models that differ by a name or a layer, a parameter whose
 * output the loss does not use, DataParallel beside SyncBatchNorm, buckets in the timeline. */
#include "tensor/clock.h"
#include "nn/internal.h"
#include "nn/params.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/golden.h"
#include "tests/help/sanitized.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "autograd/hooks.h"
#include "dist/trace.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static const double limit = 60.0;

/* ---- two branches, the second of which the loss may leave out ---- */

typedef struct fork_state {
    bool used;
} fork_state;

static td_tensor *fork_forward(td_module *self, td_tensor *x, td_site at)
{
    td_tensor *y = td_forward_at(self->children[0], x, at);
    td_tensor *side = td_forward_at(self->children[1], x, at); /* always computed */
    return ((fork_state *)self->state)->used ? td_add_at(y, side, at) : y;
}

static const td_module_type fork_type = { .name = "Fork", .forward = fork_forward };

static td_module *fork_net(const char *second)
{
    td_manual_seed(2);
    td_module *m = td_module_new(&fork_type, sizeof(fork_state));
    td_module_add(m, "base", td_nn_linear(13, 5));
    td_module_add(m, second, td_nn_linear(13, 5));
    return td_module_finish(m);
}

/* What the loss does not reach anywhere keeps what its gradient holds, to the bit. */
static int run_unreached(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = fork_net("side");
    fork_state *state = net->state;
    ddp_job job = { .net = td_ddp(net, .find_unused_parameters = true, .bucket_cap_mb = 1.0) };
    REQUIRE(job.net != NULL);
    job_data(&job, JOB_MLP, TD_F32, rank * 4, rank * 4 + 4);
    td_tensor *weight = td_module_find(job.net, "side")->tensors[0].tensor;
    state->used = false;
    job_backward(&job, 1.0);
    REQUIRE(td_grad(weight) == NULL);
    state->used = true;
    job_backward(&job, 1.0);
    float before[65], after[65];
    td_read(td_grad(weight), before, TD_F32);
    state->used = false;
    for (int i = 0; i < 3; i++) {
        job_backward(&job, 1.0);
    }
    td_read(td_grad(weight), after, TD_F32);
    REQUIRE(memcmp(before, after, sizeof before) == 0);
    td_module_free(job.net);
    td_free(job.x);
    td_free(job.y);
    td_dist_destroy();
    return 0;
}

static void test_an_output_that_the_loss_leaves_out(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_unreached, NULL);
    procs_succeed(3, limit, run_unreached, NULL);
}

/* ---- a model of two inputs ---- */

static td_tensor *two_forward(td_module *self, td_tensor *a, td_tensor *b, td_site at)
{
    (void)at;
    return td_add(td_forward(self->children[0], a), td_forward(self->children[1], b));
}

static const td_module_type two_type = { .name = "Two", .forward2 = two_forward };

/* The gradient of the sum of W x is x in each row of W: the mean of the ranks' x, to the bit. */
static void require_gradient(const td_module *layer, float wanted)
{
    float gradient[3 * 2];
    td_read(td_grad(layer->tensors[0].tensor), gradient, TD_F32);
    for (int i = 0; i < 3 * 2; i++) {
        REQUIRE(gradient[i] == wanted);
    }
}

static int run_two_inputs(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *m = td_module_new(&two_type, 0);
    td_module_add(m, "first", td_nn_linear(2, 3));
    td_module_add(m, "second", td_nn_linear(2, 3));
    td_module *net = td_ddp(td_module_finish(m));
    REQUIRE(net != NULL);
    td_tensor *a = td_full(TD_SHAPE(1, 2), rank, TD_F32, TD_CPU);
    td_tensor *b = td_full(TD_SHAPE(1, 2), 8.0 * rank, TD_F32, TD_CPU);
    TD_STEP {
        td_backward(td_sum(td_forward2(net, a, b)));
    }
    require_gradient(m->children[0], 0.5f);
    require_gradient(m->children[1], 4.0f);
    td_no_grad_begin();
    TD_STEP {
        td_tensor *y = td_forward2(net, a, b);
        REQUIRE(y->ndim == 2 && y->shape[1] == 3);
    }
    td_no_grad_end();
    td_module_free(net);
    td_free(a);
    td_free(b);
    td_dist_destroy();
    return 0;
}

static void test_a_model_of_two_inputs(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_two_inputs, NULL);
}

/* ---- models that differ ---- */

static int run_differ(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    bool odd = rank == size - 1;
    REQUIRE(td_ddp(fork_net(odd ? "aside" : "side")) == NULL);
    REQUIRE(strstr(td_last_error(), "'aside.weight'") != NULL);
    REQUIRE(strstr(td_last_error(), "where rank 0 has the parameter 'side.weight'") != NULL);
    td_module *net = odd ? td_nn_sequential(td_nn_linear(3, 2), td_nn_linear(2, 2))
                         : td_nn_sequential(td_nn_linear(3, 2));
    REQUIRE(td_ddp(net) == NULL);
    REQUIRE(strstr(td_last_error(), "'1.weight'") != NULL);
    REQUIRE(strstr(td_last_error(), "where rank 0 has nothing more") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_names_and_counts_that_differ(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_differ, NULL);
    procs_succeed(4, limit, run_differ, NULL);
}

/* ---- a rank without memory ---- */

static bool no_stream; /* for the next open_memstream */

/* In the place of the C library's. */
FILE *open_memstream(char **text, size_t *size)
{
    FILE *(*usual)(char **, size_t *) = NULL;
    *(void **)&usual = dlsym(RTLD_NEXT, "open_memstream");
    FILE *stream = no_stream || usual == NULL ? NULL : usual(text, size);
    no_stream = false;
    return stream;
}

/* The others do not wait for it, and the group works on. */
static int run_without_memory(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 2 * limit);
    no_stream = rank == 1;
    REQUIRE(td_ddp(td_nn_linear(3, 2)) == NULL);
    REQUIRE(strstr(td_last_error(), "rank 1: no memory to describe a model") != NULL);
    td_module *net = td_nn_linear(2048, 8192); /* 64 MiB */
    struct rlimit usual, less;
    REQUIRE(getrlimit(RLIMIT_AS, &usual) == 0);
    less = usual;
    less.rlim_cur = (rlim_t)shard_process_bytes("status", "VmSize:") + (48 << 20); /* for others */
    if (!TD_SANITIZED) { /* which has its own addresses */
        REQUIRE(rank != 1 || setrlimit(RLIMIT_AS, &less) == 0);
        REQUIRE(td_ddp(net) == NULL);
        REQUIRE(setrlimit(RLIMIT_AS, &usual) == 0);
        REQUIRE(strstr(td_last_error(), "rank 1: no memory to lay out") != NULL);
        net = td_nn_linear(3, 2);
    }
    net = td_ddp(net);
    REQUIRE(net != NULL);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_a_rank_without_memory(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_without_memory, NULL);
}

/* ---- the model stays the same module ---- */

static int run_same_module(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = job_net(JOB_BATCH_NORM, 1, TD_F32);
    const char *name = td_params_get(td_parameters(net), 0)->name;
    REQUIRE(!td_is_ddp(net));
    REQUIRE(td_ddp(net) == net && td_is_ddp(net));
    REQUIRE(strcmp(name, "0.weight") == 0);
    REQUIRE(td_params_get(td_parameters(net), 0)->name == name);
    td_module *copy = td_module_clone(net);
    REQUIRE(copy != NULL && !td_is_ddp(copy));
    td_module_free(copy);
    td_tensor *leaf = td_module_find(net, "0")->tensors[0].tensor;
    td_requires_grad(leaf, false); /* its hook is gone when DDP ends */
    td_module_free(net);
    REQUIRE(td_ddp(td_nn_relu()) == NULL); /* no parameters: ends at once, and works on */
    REQUIRE(strstr(td_last_error(), "no parameter that takes gradients") != NULL);
    td_dist_destroy();
    return 0;
}

/* Recomputation is inside DDP, also if it is asked for later: buffers are broadcast once a step. */
static int run_recomputed(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    ddp_job plain, again;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&plain, JOB_BATCH_NORM, TD_F32, &options, rank * 4, rank * 4 + 4);
    job_open(&again, JOB_BATCH_NORM, TD_F32, &options, rank * 4, rank * 4 + 4);
    td_recompute(again.net, true);
    for (int i = 0; i < 3; i++) {
        job_step(&plain);
        job_step(&again);
        REQUIRE(job_distance(again.net, plain.net, true) == 0.0);
    }
    job_close(&plain);
    job_close(&again);
    td_dist_destroy();
    return 0;
}

static void test_the_model_stays_the_same_module(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_same_module, NULL);
    procs_succeed(2, limit, run_recomputed, NULL);
}

/* ---- DataParallel is one process: no SyncBatchNorm, no DDP inside ---- */

static int run_data_parallel(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    const td_device devices[] = { { TD_DEVICE_CPU, 0 }, { TD_DEVICE_CPU, 1 } };
    td_module *net = td_convert_sync_batch_norm(job_net(JOB_BATCH_NORM, 1, TD_F32), NULL);
    REQUIRE(td_data_parallel(net, devices, 2) == NULL);
    REQUIRE(strstr(td_last_error(), "use td_ddp") != NULL);
    net = td_data_parallel(job_net(JOB_BATCH_NORM, 1, TD_F32), devices, 2);
    REQUIRE(td_convert_sync_batch_norm(net, NULL) == NULL);
    REQUIRE(strstr(td_last_error(), "use td_ddp") != NULL);
    net = td_ddp(job_net(JOB_BATCH_NORM, 1, TD_F32));
    REQUIRE(td_data_parallel(net, devices, 2) == NULL);
    REQUIRE(strstr(td_last_error(), "went through td_ddp already") != NULL);
    net = td_nn_sequential(td_nn_relu(), td_data_parallel(td_nn_linear(2, 2), devices, 2));
    REQUIRE(td_data_parallel(net, devices, 2) == NULL);
    REQUIRE(strstr(td_last_error(), "went through td_data_parallel already") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_sync_batch_norm_and_data_parallel(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_data_parallel, NULL);
}

/* ---- the timeline ---- */

/* Backward takes its time, so that communication begins beside it also where cores are short. */
static void linger(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
    td_sleep(0.005);
}

static int run_trace(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    ddp_job job;
    td_ddp_options options = { .bucket_cap_mb = 0.001 };
    job_open(&job, JOB_CONV, TD_F32, &options, rank * 8, rank * 8 + 8);
    td_params *params = td_parameters(job.net);
    for (int i = 0; i < td_params_count(params); i++) {
        REQUIRE(td_on_grad_ready(td_params_get(params, i)->tensor, linger, NULL) > 0);
    }
    REQUIRE_OK(td_trace_open(arg));
    for (int i = 0; i < 5; i++) {
        job_step(&job);
    }
    REQUIRE_OK(td_trace_close());
    job_close(&job);
    td_dist_destroy();
    return 0;
}

typedef struct span {
    double begin, end;
} span;

static bool is_span(const cJSON *event, int rank, const char *name, span *s)
{
    if (golden_get(event, "pid")->valueint != rank ||
        strcmp(golden_get(event, "ph")->valuestring, "X") != 0 ||
        strncmp(golden_get(event, "name")->valuestring, name, strlen(name)) != 0) {
        return false;
    }
    s->begin = golden_number(event, "ts");
    s->end = s->begin + golden_number(event, "dur");
    return true;
}

/* Buckets of a rank that began before its backward was over. */
static int count_overlaps(const cJSON *events, int rank)
{
    const cJSON *a, *b;
    int count = 0;
    cJSON_ArrayForEach(a, events)
    {
        span bucket, backward;
        if (!is_span(a, rank, "bucket ", &bucket)) {
            continue;
        }
        assert_true(golden_number(golden_get(a, "args"), "bytes") > 0.0);
        cJSON_ArrayForEach(b, events)
        {
            count += is_span(b, rank, "backward", &backward) && backward.begin < bucket.begin &&
                     bucket.begin < backward.end;
        }
    }
    return count;
}

static int count_lanes(const cJSON *events, int rank, const char *lane)
{
    const cJSON *event;
    int count = 0;
    cJSON_ArrayForEach(event, events)
    {
        count += golden_get(event, "pid")->valueint == rank &&
                 strcmp(golden_get(event, "name")->valuestring, "thread_name") == 0 &&
                 strcmp(golden_get(golden_get(event, "args"), "name")->valuestring, lane) == 0;
    }
    return count;
}

static void test_buckets_overlap_backward_in_the_trace(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("trace.json"));
    procs_succeed(2, limit, run_trace, path);
    if (!procs_would_run(2)) {
        return;
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t room = 0;
    assert_true(getdelim(&text, &room, '\0', file) > 0);
    fclose(file);
    cJSON *trace = cJSON_Parse(text);
    assert_non_null(trace);
    const cJSON *events = golden_get(trace, "traceEvents");
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(count_lanes(events, rank, "compute"), 1);
        assert_int_equal(count_lanes(events, rank, "communication"), 1);
        assert_true(count_overlaps(events, rank) > 0);
    }
    cJSON_Delete(trace);
    free(text);
}

static void test_the_whole_model_is_asked_for(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_linear(2, 2), td_nn_relu());
    expect_fatal("'0' is a part of a larger model", td_ddp(net->children[0]));
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_of_two_inputs),
        cmocka_unit_test(test_an_output_that_the_loss_leaves_out),
        cmocka_unit_test(test_names_and_counts_that_differ),
        cmocka_unit_test(test_a_rank_without_memory),
        cmocka_unit_test(test_the_model_stays_the_same_module),
        cmocka_unit_test(test_sync_batch_norm_and_data_parallel),
        cmocka_unit_test_setup_teardown(test_buckets_overlap_backward_in_the_trace,
                                        temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_the_whole_model_is_asked_for), /* last: it starts threads */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
