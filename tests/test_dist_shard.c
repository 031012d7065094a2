/* Sharding: the weights are those of td_ddp without it, bit for bit; the bytes are those of the
 * formula; checkpoints do not depend on the number of ranks; faults are told to all. */
#include "dist/ddp_extra.h"
#include "nn/extra/ema.h"
#include "nn/extra/inspect.h"
#include "nn/extra/muon.h"
#include "nn/extra/scaler.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "dist/clock.h"
#include "tests/ddp_job.h"
#include "tests/dist_faults.h"
#include "tests/dist_procs.h"
#include "tests/expect_fatal.h"
#include "tests/temp_folder.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;
enum { EACH = 4, STEPS = 20, MOST_RANKS = 4 };

/* ---- the same weights ---- */

typedef enum optim_rule { SGD, MOMENTUM, ADAM, ADAMW_GROUPS, RULES } optim_rule;

typedef struct shard_case {
    job_kind kind;
    td_dtype dtype;
    optim_rule rule;
    bool clips, accumulates, averages, scales;
    td_ddp_options options;
} shard_case;

typedef struct shard_run {
    ddp_job job;
    td_ema *ema;
    td_scaler *scaler;
} shard_run;

static bool is_vector(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim == 1;
}

static td_optim *make_optim(optim_rule rule, td_params *params)
{
    switch (rule) {
    case SGD:
        return td_sgd(params, .lr = 0.05);
    case MOMENTUM:
        return td_sgd(params, .lr = 0.05, .momentum = 0.9, .nesterov = true);
    case ADAM:
        return td_adam(params, .lr = 0.01);
    default: {
        td_optim *o = td_adamw(params, .lr = 0.01, .weight_decay = 0.1);
        td_optim_group(o, is_vector, NULL, 0.5, 0.0);
        return o;
    }
    }
}

static void open_run(shard_run *r, const shard_case *c, td_shard shard, int rank)
{
    td_ddp_options options = c->options;
    options.shard = shard;
    options.bucket_cap_mb = 0.001;
    *r = (shard_run){ .ema = NULL };
    job_open(&r->job, c->kind, c->dtype, &options, rank * EACH, (rank + 1) * EACH);
    td_optim_free(r->job.optim);
    r->job.optim = make_optim(c->rule, td_parameters(r->job.net));
    REQUIRE(r->job.optim != NULL);
    if (c->averages) {
        r->ema = td_ema_new(r->job.net, .decay = 0.9);
        REQUIRE(r->ema != NULL);
    }
    if (c->scales) { /* which overflows at first, so that steps are skipped */
        r->scaler = td_scaler_new(.scale = 0x1p120, .backoff = 0x1p-60);
    }
}

static void close_run(shard_run *r)
{
    td_ema_free(r->ema);
    td_scaler_free(r->scaler);
    job_close(&r->job);
}

static void backward(shard_run *r)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(r->job.net, r->job.x), r->job.y);
    td_backward(td_scaler_loss(r->scaler, loss));
    td_step_end();
}

static void step(shard_run *r, const shard_case *c)
{
    td_params *params = td_parameters(r->job.net);
    td_zero_grad(r->job.optim);
    if (c->accumulates) {
        td_ddp_no_sync_begin(r->job.net);
        backward(r);
        td_ddp_no_sync_end(r->job.net);
        backward(r);
    }
    backward(r); /* a second reduction of the same gradients, if they are accumulated */
    if (td_scaler_unscale(r->scaler, params)) {
        if (c->clips) {
            td_clip_grad_norm(params, 0.3);
        }
        td_optim_step(r->job.optim);
    }
    if (r->ema != NULL) {
        td_ema_update(r->ema);
    }
}

static uint64_t hash_of(shard_run *r)
{
    uint64_t hash = job_hash(r->job.net);
    if (r->ema != NULL) {
        td_ema_swap(r->ema);
        hash = hash * 31 + job_hash(r->job.net);
        td_ema_swap(r->ema);
    }
    return hash;
}

static int run_same(int rank, int size, void *arg)
{
    const shard_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_run whole, sharded;
    open_run(&whole, c, TD_SHARD_NONE, rank);
    open_run(&sharded, c, TD_SHARD_OPTIMIZER, rank);
    uint64_t before = hash_of(&sharded);
    for (int i = 0; i < STEPS; i++) {
        step(&whole, c);
        step(&sharded, c);
        REQUIRE(hash_of(&whole) == hash_of(&sharded));
        REQUIRE(job_all_same(hash_of(&sharded)));
    }
    REQUIRE(hash_of(&sharded) != before);
    close_run(&whole);
    close_run(&sharded);
    td_dist_destroy();
    return 0;
}

static void run_everywhere(shard_case c)
{
    for (int size = 2; size <= MOST_RANKS; size++) {
        procs_succeed(size, limit, run_same, &c);
    }
}

static void test_weights_are_those_without_sharding(void **state)
{
    (void)state;
    for (optim_rule rule = SGD; rule < RULES; rule++) {
        run_everywhere((shard_case){ .kind = JOB_MLP, .dtype = TD_F32, .rule = rule });
        run_everywhere((shard_case){ .kind = JOB_BATCH_NORM, .dtype = TD_F64, .rule = rule });
    }
}

static void test_with_what_else_a_step_does(void **state)
{
    (void)state;
    run_everywhere((shard_case){ .rule = ADAM, .clips = true });
    run_everywhere((shard_case){ .rule = MOMENTUM, .accumulates = true });
    run_everywhere((shard_case){ .rule = ADAMW_GROUPS, .averages = true, .clips = true });
    run_everywhere((shard_case){ .rule = MOMENTUM, .scales = true });
    run_everywhere((shard_case){ .rule = ADAM, .options.comm_hook = "bf16" });
    run_everywhere((shard_case){ .rule = ADAM, .options.find_unused_parameters = true });
    procs_succeed(1, limit, run_same, &(shard_case){ .rule = ADAM });
}

/* ---- bytes ---- */

/* N': the parameters, each rounded up to 64 bytes, and all of them to W times 64. */
static int64_t padded_count(td_params *params, int world, int64_t size)
{
    int64_t line = 64 / size, sum = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        sum += (td_params_get(params, i)->count + line - 1) / line * line;
    }
    return (sum + world * line - 1) / (world * line) * world * line;
}

static int run_bytes(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    static const int64_t arrays[RULES] = { 0, 1, 2, 2 };
    for (optim_rule rule = SGD; rule < RULES; rule++) {
        for (int k = 0; k < 2 * 3; k++) {
            shard_case c = { .kind = (job_kind)(k / 2),
                             .dtype = k % 2 ? TD_F64 : TD_F32,
                             .rule = rule };
            shard_run r;
            open_run(&r, &c, TD_SHARD_OPTIMIZER, rank);
            int64_t width = (int64_t)td_dtype_size(c.dtype);
            int64_t n = padded_count(td_parameters(r.job.net), size, width);
            td_shard_stats stats = td_ddp_shard_stats(r.job.net);
            REQUIRE(stats.values == (size_t)(width * n) && stats.gradients == stats.values);
            REQUIRE(stats.state == (size_t)(arrays[rule] * width * n / size));
            REQUIRE(td_optim_state_bytes(r.job.optim) == stats.state);
            step(&r, &c);
            REQUIRE(td_ddp_shard_stats(r.job.net).gather > 0.0);
            close_run(&r);
        }
    }
    td_dist_destroy();
    return 0;
}

static void test_bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        procs_succeed(sizes[i], limit, run_bytes, NULL);
    }
}

/* ---- checkpoints ---- */

typedef struct save_case {
    td_shard shard;
    int steps; /* before saving */
    char from[512], to[512];
} save_case;

/* Loads a checkpoint, makes some steps, saves another. */
static int run_save(int rank, int size, void *arg)
{
    const save_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_BATCH_NORM, .rule = ADAMW_GROUPS, .averages = true };
    shard_run r;
    open_run(&r, &what, c->shard, 0); /* all ranks have the same data */
    if (c->from[0] != '\0') {
        td_fill_(td_params_flat(td_parameters(r.job.net)), 0.5);
        REQUIRE_OK(td_checkpoint_load(c->from, r.job.net, .optim = r.job.optim, .ema = r.ema));
    }
    for (int i = 0; i < c->steps; i++) {
        step(&r, &what);
    }
    if (rank == 0 || c->shard != TD_SHARD_NONE) {
        REQUIRE_OK(td_checkpoint_save(c->to, r.job.net, .optim = r.job.optim, .ema = r.ema));
    }
    close_run(&r);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void save(int size, td_shard shard, int steps, const char *from, const char *to)
{
    save_case c = { .shard = shard, .steps = steps };
    snprintf(c.from, sizeof c.from, "%s", from != NULL ? from : "");
    snprintf(c.to, sizeof c.to, "%s", to);
    procs_succeed(size, limit, run_save, &c);
}

static void assert_same_tensors(const char *a, const char *b)
{
    td_safetensors *fa, *fb;
    assert_int_equal(td_safetensors_open(a, &fa), TD_OK);
    assert_int_equal(td_safetensors_open(b, &fb), TD_OK);
    assert_int_equal(td_safetensors_count(fa), td_safetensors_count(fb));
    for (int i = 0; i < td_safetensors_count(fa); i++) {
        const td_safetensors_entry *x = td_safetensors_get(fa, i);
        const td_safetensors_entry *y = td_safetensors_find(fb, x->name);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        if (memcmp(x->data, y->data, x->bytes) != 0) {
            fail_msg("'%s' differs", x->name);
        }
    }
    td_safetensors_close(fa);
    td_safetensors_close(fb);
}

/* Two and four ranks that have the same data have the gradients of one, whose file is the measure:
 * what each layout saves, what each layout makes of what another has saved, and its next step. */
static void test_checkpoints_do_not_depend_on_the_layout(void **state)
{
    (void)state;
    static const struct {
        int size;
        td_shard shard;
    } layouts[] = {
        { 1, TD_SHARD_NONE },      { 2, TD_SHARD_NONE },      { 1, TD_SHARD_OPTIMIZER },
        { 2, TD_SHARD_OPTIMIZER }, { 3, TD_SHARD_OPTIMIZER }, { 4, TD_SHARD_OPTIMIZER }
    };
    enum { LAYOUTS = sizeof layouts / sizeof *layouts };
    save(1, TD_SHARD_NONE, 0, NULL, temp_path("fresh")); /* no state yet */
    save(1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save(1, TD_SHARD_NONE, 2, temp_path("measure"), temp_path("later"));
    for (int i = 0; i < LAYOUTS; i++) {
        int size = layouts[i].size;
        save(size, layouts[i].shard, 0, NULL, temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("fresh"));
        save(size, layouts[i].shard, 0, temp_path("measure"), temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("measure"));
        if (size != 3) { /* a third of a gradient, three times, is another number */
            save(size, layouts[i].shard, 3, temp_path("fresh"), temp_path("saved"));
            assert_same_tensors(temp_path("saved"), temp_path("measure"));
            save(size, layouts[i].shard, 2, temp_path("saved"), temp_path("on"));
            assert_same_tensors(temp_path("on"), temp_path("later"));
        }
    }
}

/* One rank has no file, or that of another model: all ranks are told, nothing has changed, and they
 * go on. Without agreement the others would wait for it in the next step, with other state. */
static int run_failing_load(int rank, int size, void *arg)
{
    const save_case *c = arg;
    const char *const wrong[] = { "/no/such/file", c->to };
    procs_init(rank, size, 20.0);
    shard_case what = { .rule = ADAM };
    shard_run r;
    open_run(&r, &what, TD_SHARD_OPTIMIZER, rank);
    step(&r, &what);
    REQUIRE_OK(td_checkpoint_save(c->from, r.job.net, .optim = r.job.optim));
    step(&r, &what);
    uint64_t before = job_hash(r.job.net);
    for (int i = 0; i < 2; i++) {
        double begin = td_clock();
        td_status status =
            td_checkpoint_load(rank == 1 ? wrong[i] : c->from, r.job.net, .optim = r.job.optim);
        REQUIRE(status == (i == 0 ? TD_E_NOTFOUND : TD_E_MISMATCH));
        REQUIRE(strstr(td_last_error(), "rank 1: ") && strstr(td_last_error(), wrong[i]));
        REQUIRE(td_clock() - begin < fault_patience() && job_hash(r.job.net) == before);
    }
    step(&r, &what);
    REQUIRE(job_all_same(job_hash(r.job.net)));
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void test_a_failing_load_is_told_to_all(void **state)
{
    (void)state;
    save_case c = { .steps = 0 };
    snprintf(c.from, sizeof c.from, "%s", temp_path("right"));
    snprintf(c.to, sizeof c.to, "%s", temp_path("other"));
    save(1, TD_SHARD_NONE, 0, NULL, c.to); /* batch norm, AdamW */
    procs_succeed(3, limit, run_failing_load, &c);
}

/* Rank 0 cannot write: all ranks are told, and go on. */
static int run_failing_save(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .rule = ADAM };
    shard_run r;
    open_run(&r, &c, TD_SHARD_OPTIMIZER, rank);
    step(&r, &c);
    REQUIRE(td_checkpoint_save("/no/such/folder/file", r.job.net, .optim = r.job.optim) == TD_E_IO);
    REQUIRE(strstr(td_last_error(), "rank 0: "));
    REQUIRE(strstr(td_last_error(), "create the folder first"));
    step(&r, &c);
    REQUIRE(job_all_same(job_hash(r.job.net)));
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void test_a_failing_save_is_told_to_all(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_failing_save, NULL);
}

/* ---- what is refused ---- */

static int run_refusals(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    td_module *net = job_net(JOB_MLP, 1, TD_F32);
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    REQUIRE(td_ddp(td_module_clone(net), .shard = (td_shard)(TD_SHARD_OPTIMIZER * (rank == 0))) ==
            NULL);
    REQUIRE(strstr(td_last_error(), "shard optimizer") != NULL); /* on one rank only */
    td_optim_free(early);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_another_setting_on_one_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_refusals, NULL);
}

static void test_what_cannot_be_combined(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_module *net = td_ddp(job_net(JOB_MLP, 1, TD_F32), .shard = TD_SHARD_OPTIMIZER);
    assert_non_null(net);
    expect_fatal("use td_sgd, td_adam or td_adamw", td_muon(td_parameters(net), .lr = 0.1));
    expect_fatal("or td_ddp without .shard", td_ddp_join_begin(net, false));
    td_module_free(net);
    net = job_net(JOB_MLP, 1, TD_F32);
    expect_fatal("there is no way of sharding 7", td_ddp(net, .shard = (td_shard)7));
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    expect_fatal("are made after td_ddp", td_ddp(net, .shard = TD_SHARD_OPTIMIZER));
    td_optim_free(early);
    td_module_free(net);
    td_dist_destroy();
}

/* ---- faults ---- */

static void note_failure(td_status status, const char *message, void *user)
{
    (void)message;
    *(td_status *)user = status;
}

/* A rank dies after backward: the others wait for its window. */
static int run_death(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_MLP, .rule = ADAM };
    shard_run r;
    td_status told = TD_OK;
    open_run(&r, &c, TD_SHARD_OPTIMIZER, rank);
    td_ddp_on_error(r.job.net, note_failure, &told);
    step(&r, &c);
    td_zero_grad(r.job.optim);
    backward(&r);
    if (rank == size - 1) {
        kill(getpid(), SIGKILL);
    }
    *fault_at = td_clock();
    td_optim_step(r.job.optim);
    REQUIRE(told != TD_OK);
    char reason[512];
    snprintf(reason, sizeof reason, "%s", td_last_error());
    close_run(&r);
    td_fail(told, "%s", reason);
    return fault_report(told);
}

static void test_a_death_in_the_gather_is_told_to_all(void **state)
{
    (void)state;
    static procs_end ends[3];
    fault_run(3, limit, run_death, NULL, ends);
    for (int rank = 0; rank < 2; rank++) {
        assert_survived(ends, rank);
        procs_assert_says(ends, rank, "rank 2 (pid ");
    }
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_without_sharding),
        cmocka_unit_test(test_with_what_else_a_step_does),
        cmocka_unit_test(test_bytes_are_those_of_the_formula),
        IN_FOLDER(test_checkpoints_do_not_depend_on_the_layout),
        cmocka_unit_test(test_a_failing_save_is_told_to_all),
        IN_FOLDER(test_a_failing_load_is_told_to_all),
        cmocka_unit_test(test_another_setting_on_one_rank),
        cmocka_unit_test(test_a_death_in_the_gather_is_told_to_all),
        IN_FOLDER(test_what_cannot_be_combined), /* last: it makes this process a rank */
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
