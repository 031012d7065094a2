/* Sharding: the weights are those of td_ddp without it, bit for bit; the bytes are those of the
 * formula; checkpoints do not depend on the number of ranks; faults are told to all. */
#include "autograd/hooks.h"
#include "dist/ddp_extra.h"
#include "nn/extra/compact.h"
#include "nn/extra/ema.h"
#include "nn/extra/inspect.h"
#include "nn/extra/muon.h"
#include "nn/extra/scaler.h"
#include "nn/io/safetensors.h"
#include "nn/module.h"
#include "tensor/clock.h"
#include "tests/ddp_job.h"
#include "tests/dist_faults.h"
#include "tests/dist_procs.h"
#include "tests/expect_fatal.h"
#include "tests/temp_folder.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

static const double limit = 60.0;
enum { EACH = 4, STEPS = 20, MOST_RANKS = 4 };

/* ---- the same weights ---- */

typedef enum optim_rule { SGD, MOMENTUM, ADAM, ADAMW_GROUPS, RULES, ADAM_8, ADAFACTOR } optim_rule;

typedef struct shard_case {
    job_kind kind;
    td_dtype dtype;
    optim_rule rule;
    bool clips, accumulates, averages, scales;
    double norm;     /* clipping's; 0: 2 */
    bool again;      /* a second reduction of the same gradients */
    bool recomputes; /* the model's children */
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
    case ADAFACTOR:
        return td_adafactor(params, .lr = 0.05, .weight_decay = 0.1);
    case ADAM_8:
        return td_adam_compact(params, .lr = 0.01, .weight_decay = 0.1, .decoupled = true);
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
    for (int i = 0; c->recomputes && i < r->job.net->child_count; i++) {
        td_recompute(r->job.net->children[i], true);
    }
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
    }
    backward(r);
    if (c->again) {
        backward(r);
    }
    if (td_scaler_unscale(r->scaler, params)) {
        if (c->clips) {
            td_clip_grad_norm(params, 0.3, .norm_type = c->norm);
            td_clip_grad_value(params, 0.1);
        }
        td_optim_step(r->job.optim);
    }
    if (r->ema != NULL) {
        td_ema_update(r->ema);
    }
}

static uint64_t hash_of_values(shard_run *r)
{
    REQUIRE_OK(td_unshard(r->job.net));
    uint64_t hash = job_hash(r->job.net);
    td_reshard(r->job.net);
    return hash;
}

static uint64_t hash_of(shard_run *r)
{
    uint64_t hash = hash_of_values(r);
    if (r->ema != NULL) {
        td_ema_swap(r->ema);
        hash = hash * 31 + hash_of_values(r);
        td_ema_swap(r->ema);
    }
    return hash;
}

/* All ways of sharding that a case is for, next to none. */
static int run_same(int rank, int size, void *arg)
{
    const shard_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_run runs[TD_SHARD_PARAMETERS + 1];
    int ways = c->again || c->options.comm_hook != NULL ? TD_SHARD_OPTIMIZER : TD_SHARD_PARAMETERS;
    for (int way = TD_SHARD_NONE; way <= ways; way++) {
        open_run(&runs[way], c, (td_shard)way, rank);
    }
    uint64_t before = hash_of(&runs[0]), hash = 0;
    for (int i = 0; i < STEPS; i++) {
        for (int way = TD_SHARD_NONE; way <= ways; way++) {
            step(&runs[way], c);
            uint64_t mine = hash_of(&runs[way]);
            hash = way == TD_SHARD_NONE ? mine : hash;
            REQUIRE(mine == hash);
        }
        REQUIRE(job_all_same(hash));
    }
    REQUIRE(hash != before);
    size_t state = td_ddp_shard_stats(runs[0].job.net).state;
    for (int way = TD_SHARD_NONE; way <= ways; way++) {
        size_t mine = td_ddp_shard_stats(runs[way].job.net).state;
        REQUIRE(way == TD_SHARD_NONE || size == 1 || state == 0 || mine < state);
        close_run(&runs[way]);
    }
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
        run_everywhere((shard_case){ .kind = JOB_BLOCKS, .dtype = TD_F32, .rule = rule });
        run_everywhere((shard_case){ .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = rule });
    }
    run_everywhere((shard_case){ .kind = JOB_MLP, .rule = ADAM }); /* no block: one unit */
    run_everywhere((shard_case){ .kind = JOB_CONV_BLOCKS, .rule = ADAM_8 });
}

/* Each layer is a unit. */
static bool is_linear(const td_module *m, const char *path, void *user)
{
    (void)user;
    return *path != '\0' && strcmp(m->type->name, "Linear") == 0;
}

static void test_with_what_else_a_step_does(void **state)
{
    (void)state;
    job_kind kind = JOB_BLOCKS;
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .clips = true });
    run_everywhere((shard_case){ .kind = kind, .rule = SGD, .clips = true, .norm = INFINITY });
    run_everywhere((shard_case){ .kind = kind, .rule = MOMENTUM, .accumulates = true });
    run_everywhere((shard_case){ .rule = MOMENTUM, .accumulates = true, .again = true });
    run_everywhere(
        (shard_case){ .kind = kind, .rule = ADAMW_GROUPS, .averages = true, .clips = true });
    run_everywhere((shard_case){ .kind = kind, .rule = MOMENTUM, .scales = true });
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .recomputes = true });
    run_everywhere((shard_case){ .rule = ADAM, .options.comm_hook = "bf16" });
    run_everywhere((shard_case){ .rule = ADAM, .options.comm_hook = "powersgd" });
    run_everywhere(
        (shard_case){ .kind = kind, .rule = ADAM, .options.find_unused_parameters = true });
    run_everywhere((shard_case){ .kind = kind, .rule = ADAM, .options.unit = is_linear });
    procs_succeed(1, limit, run_same, &(shard_case){ .kind = kind, .rule = ADAM });
}

/* A second reduction of the same gradients adds to their average, which rounds in another order. */
static int run_again(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAM, .clips = true };
    c.again = true;
    c.norm = 3.0;
    for (int way = TD_SHARD_GRADIENTS; way <= TD_SHARD_PARAMETERS; way++) {
        shard_run whole, sharded;
        open_run(&whole, &c, TD_SHARD_NONE, rank);
        open_run(&sharded, &c, (td_shard)way, rank);
        for (int i = 0; i < STEPS; i++) {
            step(&whole, &c);
            step(&sharded, &c);
        }
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, whole.job.net, true) < 1e-12);
        close_run(&whole);
        close_run(&sharded);
    }
    td_dist_destroy();
    return 0;
}

static void test_gradients_are_added_to_their_average(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_again, NULL);
}

/* Adafactor adds up rows and columns in another order, where ranks have parts of them. (Not with
 * biases in front of batch normalisation: their gradients are rounding errors, which an update
 * makes as large as any other.) */
static int run_adafactor(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .dtype = TD_F64, .rule = ADAFACTOR };
    for (int way = TD_SHARD_OPTIMIZER; way <= TD_SHARD_PARAMETERS; way++) {
        shard_run whole, sharded;
        open_run(&whole, &c, TD_SHARD_NONE, rank);
        open_run(&sharded, &c, (td_shard)way, rank);
        for (int i = 0; i < STEPS; i++) {
            step(&whole, &c);
            step(&sharded, &c);
        }
        REQUIRE(job_all_same(hash_of(&sharded)));
        REQUIRE_OK(td_unshard(sharded.job.net));
        REQUIRE(job_distance(sharded.job.net, whole.job.net, true) < 1e-12);
        close_run(&whole);
        close_run(&sharded);
    }
    td_dist_destroy();
    return 0;
}

static void test_adafactor_on_parts_of_matrices(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_adafactor, NULL);
}

/* ---- other models ---- */

/* One layer runs twice, one not in every step; the weight of the last is used outside of it, too,
 * by the module around all, so it belongs to no layer. */
typedef struct routed {
    td_module *twice, *sometimes, *last;
    td_tensor *tied;
    bool skips, turns; /* turns: the other way round */
} routed;

static td_tensor *routed_forward(td_module *self, td_tensor *x, td_site at)
{
    routed *r = self->state;
    x = r->turns ? td_forward_at(r->last, x, at) : x;
    x = td_gelu(td_forward_at(r->twice, x, at));
    x = r->skips ? x : td_forward_at(r->sometimes, x, at);
    x = td_gelu(td_forward_at(r->twice, x, at));
    x = td_forward_at(r->last, td_linear(x, r->tied, NULL), at);
    return x;
}

static const td_module_type routed_type = { .name = "Routed", .forward = routed_forward };

static td_module *new_routed(void)
{
    td_manual_seed(5);
    td_module *m = td_module_new(&routed_type, sizeof(routed));
    routed *r = m->state;
    r->twice = td_module_add(m, "twice", td_nn_linear(13, 13));
    r->sometimes = td_module_add(m, "sometimes", td_nn_linear(13, 13));
    r->last = td_module_add(m, "last", td_nn_linear(13, 13));
    r->tied = td_module_parameter(m, "tied", r->last->tensors[0].tensor);
    return td_module_finish(m);
}

static void open_routed(shard_run *r, td_shard shard, int rank)
{
    *r = (shard_run){ .ema = NULL };
    r->job.net =
        td_ddp(new_routed(), .shard = shard, .unit = is_linear, .find_unused_parameters = true);
    REQUIRE(r->job.net != NULL);
    r->job.optim = make_optim(MOMENTUM, td_parameters(r->job.net));
    job_data(&r->job, JOB_MLP, TD_F32, rank * EACH, (rank + 1) * EACH);
}

/* Which ranks skip the layer: all in the first two steps, then none, one, all, none, ... With
 * TD_SHARD_PARAMETERS all ranks run the same units. */
static int run_routed(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_GRADIENTS; way <= TD_SHARD_PARAMETERS; way++) {
        shard_run runs[2];
        open_routed(&runs[0], TD_SHARD_NONE, rank);
        open_routed(&runs[1], (td_shard)way, rank);
        for (int i = 0; i < STEPS; i++) {
            bool alone = way == TD_SHARD_GRADIENTS && i % 3 == 0 && rank == size - 1;
            for (int k = 0; k < 2; k++) {
                ((routed *)runs[k].job.net->state)->skips = i < 2 || i % 3 == 1 || alone;
                step(&runs[k], &(shard_case){ .rule = MOMENTUM });
            }
            REQUIRE(hash_of(&runs[0]) == hash_of(&runs[1]));
        }
        REQUIRE(td_ddp_shard_stats(runs[1].job.net).units == 4);
        close_run(&runs[0]);
        close_run(&runs[1]);
    }
    td_dist_destroy();
    return 0;
}

static void note_message(td_status status, const char *message, void *user)
{
    (void)status;
    snprintf(user, 512, "%s", message);
}

/* One rank runs another unit first. */
static int run_another_order(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    shard_run r;
    char told[512] = "";
    open_routed(&r, TD_SHARD_PARAMETERS, rank);
    td_ddp_on_error(r.job.net, note_message, told);
    step(&r, &(shard_case){ .rule = MOMENTUM });
    ((routed *)r.job.net->state)->turns = rank == 1;
    backward(&r);
    REQUIRE(strstr(told, "the ranks do not do the same: rank ") != NULL);
    REQUIRE(strstr(told, ", unit 1)") != NULL && strstr(told, ", unit 2)") != NULL);
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void test_another_order_on_one_rank(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_another_order, NULL);
}

static void test_unused_shared_and_repeated_layers(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_routed, NULL);
    procs_succeed(3, limit, run_routed, NULL);
}

/* ---- bytes ---- */

/* What the formulas are made of, in elements: the model's units in the order of children, the
 * children that are none together, each parameter rounded up to 64 bytes and each unit to W times
 * 64. Without units all is one. */
typedef struct extent {
    int64_t all, largest, root;
} extent;

static extent extent_of(const td_module *net, bool units, int world, int64_t size)
{
    int64_t line = 64 / size, sums[16] = { 0 };
    td_state_list state = td_module_state(net);
    for (int i = 0; i < state.count; i++) {
        int child = units ? atoi(state.items[i].name) : 0;
        bool block = units && net->children[child]->child_count > 0;
        if (!state.items[i].buffer) {
            sums[block ? child + 1 : 0] +=
                (td_numel(state.items[i].tensor) + line - 1) / line * line;
        }
    }
    td_state_list_free(&state);
    extent e = { 0 };
    for (int i = 0; i < 16; i++) {
        int64_t padded = (sums[i] + world * line - 1) / (world * line) * world * line;
        e.all += padded;
        e.largest = i > 0 && padded > e.largest ? padded : e.largest;
        e.root = i == 0 ? padded : e.root;
    }
    return e;
}

/* What one rank keeps, in elements, with `arrays` of state. docs/sharding.md has the formulas. */
static td_shard_stats formula(td_shard shard, extent e, int64_t arrays, int64_t world)
{
    bool own_values = shard == TD_SHARD_PARAMETERS, own_grads = shard >= TD_SHARD_GRADIENTS;
    return (td_shard_stats){
        .values = (size_t)(own_values ? e.all / world : e.all),
        .gradients = (size_t)(own_grads ? e.all / world : e.all),
        .state = (size_t)(arrays * e.all / world),
        .slots = (size_t)(own_values  ? 4 * e.largest + 2 * e.root
                          : own_grads ? 2 * e.largest + e.root
                                      : 0),
    };
}

static void check_bytes(const td_module *net, td_shard_stats want, size_t width)
{
    td_shard_stats got = td_ddp_shard_stats(net);
    REQUIRE(got.values == width * want.values);
    REQUIRE(got.gradients == width * want.gradients);
    REQUIRE(got.state == width * want.state);
    REQUIRE(got.slots == width * want.slots);
}

static int run_bytes(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20.0);
    static const int64_t arrays[RULES] = { 0, 1, 2, 2 };
    static const job_kind kinds[] = { JOB_MLP, JOB_CONV, JOB_BATCH_NORM, JOB_BLOCKS,
                                      JOB_CONV_BLOCKS };
    for (int k = 0; k < 5 * 2 * TD_SHARD_PARAMETERS; k++) {
        td_shard shard = (td_shard)(TD_SHARD_OPTIMIZER + k / 10);
        shard_case c = { .kind = kinds[k % 5],
                         .dtype = k / 5 % 2 ? TD_F64 : TD_F32,
                         .rule = (optim_rule)(k % RULES) };
        shard_run r;
        open_run(&r, &c, shard, rank);
        size_t width = td_dtype_size(c.dtype);
        extent e = extent_of(r.job.net, shard >= TD_SHARD_GRADIENTS, size, (int64_t)width);
        td_shard_stats want = formula(shard, e, arrays[c.rule], size);
        check_bytes(r.job.net, want, width);
        REQUIRE(td_optim_state_bytes(r.job.optim) == width * want.state);
        for (int i = 0; i < 3; i++) { /* steps add nothing */
            step(&r, &c);
        }
        check_bytes(r.job.net, want, width);
        REQUIRE(td_ddp_shard_stats(r.job.net).gather > 0.0);
        close_run(&r);
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
    optim_rule rule;
    td_shard shard;
    int steps;  /* before saving */
    bool apart; /* the other ranks do not see the first one's files */
    char from[512], to[512];
} save_case;

/* Loads a checkpoint, makes some steps, saves another. */
static int run_save(int rank, int size, void *arg)
{
    const save_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_CONV_BLOCKS, .rule = c->rule, .averages = true };
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
        const char *to = c->to;
        if (c->apart) {
            REQUIRE(chdir(rank == 0 ? temp_folder() : "/") == 0);
            to = strrchr(to, '/') + 1;
        }
        REQUIRE_OK(td_checkpoint_save(to, r.job.net, .optim = r.job.optim, .ema = r.ema));
    }
    close_run(&r);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void save_as(optim_rule rule, int size, td_shard shard, int steps, const char *from,
                    const char *to)
{
    save_case c = { .rule = rule, .shard = shard, .steps = steps };
    snprintf(c.from, sizeof c.from, "%s", from != NULL ? from : "");
    snprintf(c.to, sizeof c.to, "%s", to);
    procs_succeed(size, limit, run_save, &c);
}

static void save(int size, td_shard shard, int steps, const char *from, const char *to)
{
    save_as(ADAMW_GROUPS, size, shard, steps, from, to);
}

static char *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void assert_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *fa = read_all(a, &na), *fb = read_all(b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(fa, fb, na);
    free(fa);
    free(fb);
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
        { 1, TD_SHARD_NONE },       { 2, TD_SHARD_NONE },       { 1, TD_SHARD_OPTIMIZER },
        { 2, TD_SHARD_OPTIMIZER },  { 3, TD_SHARD_OPTIMIZER },  { 4, TD_SHARD_OPTIMIZER },
        { 2, TD_SHARD_GRADIENTS },  { 4, TD_SHARD_GRADIENTS },  { 1, TD_SHARD_PARAMETERS },
        { 2, TD_SHARD_PARAMETERS }, { 3, TD_SHARD_PARAMETERS }, { 4, TD_SHARD_PARAMETERS },
    };
    enum { LAYOUTS = sizeof layouts / sizeof *layouts };
    save(1, TD_SHARD_NONE, 0, NULL, temp_path("fresh")); /* no state yet */
    save(1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save(1, TD_SHARD_NONE, 2, temp_path("measure"), temp_path("later"));
    save(1, TD_SHARD_OPTIMIZER, 0, temp_path("measure"), temp_path("one"));
    for (int i = 0; i < LAYOUTS; i++) {
        int size = layouts[i].size;
        save(size, layouts[i].shard, 0, NULL, temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("fresh"));
        save(size, layouts[i].shard, 0, temp_path("measure"), temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("measure"));
        if (layouts[i].shard != TD_SHARD_NONE) { /* a file of none says how memory is ordered */
            assert_same_file(temp_path("saved"), temp_path("one"));
        }
        if (size != 3) { /* a third of a gradient, three times, is another number */
            save(size, layouts[i].shard, 3, temp_path("fresh"), temp_path("saved"));
            assert_same_tensors(temp_path("saved"), temp_path("measure"));
            save(size, layouts[i].shard, 2, temp_path("saved"), temp_path("on"));
            assert_same_tensors(temp_path("on"), temp_path("later"));
        }
    }
}

/* The files of packed averages are of f32, and no layout loses anything on the way through them. */
static void test_checkpoints_of_packed_averages(void **state)
{
    (void)state;
    save_as(ADAM_8, 1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save_as(ADAM_8, 1, TD_SHARD_NONE, 2, temp_path("measure"), temp_path("later"));
    for (int way = TD_SHARD_NONE; way <= TD_SHARD_PARAMETERS; way++) {
        int size = way == TD_SHARD_PARAMETERS ? 4 : 2;
        save_as(ADAM_8, size, (td_shard)way, 0, temp_path("measure"), temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("measure"));
        save_as(ADAM_8, size, (td_shard)way, 2, temp_path("saved"), temp_path("on"));
        assert_same_tensors(temp_path("on"), temp_path("later"));
    }
}

/* Every rank has all of Adafactor's state. */
static void test_checkpoints_of_adafactor(void **state)
{
    (void)state;
    save_as(ADAFACTOR, 1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    for (int way = TD_SHARD_OPTIMIZER; way <= TD_SHARD_PARAMETERS; way++) {
        save_as(ADAFACTOR, 3, (td_shard)way, 0, temp_path("measure"), temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("measure"));
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

/* ---- a rank is killed in the course of a save ---- */

enum { MOMENTS = 8 };

typedef struct killed_save {
    td_shard shard;
    int victim, moment;
    char from[512], to[512], other[512];
} killed_save;

static void kill_myself(int number)
{
    (void)number;
    (void)kill(getpid(), SIGKILL);
}

/* Saves twice: to see how long it takes, and with a death on the way. */
static int run_killed_save(int rank, int size, void *arg)
{
    const killed_save *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_CONV_BLOCKS, .rule = ADAMW_GROUPS, .averages = true };
    shard_run r;
    open_run(&r, &what, c->shard, 0);
    REQUIRE_OK(td_checkpoint_load(c->from, r.job.net, .optim = r.job.optim, .ema = r.ema));
    double begin = td_clock();
    REQUIRE_OK(td_checkpoint_save(c->other, r.job.net, .optim = r.job.optim, .ema = r.ema));
    double seconds = (td_clock() - begin) * (c->moment + 0.5) / MOMENTS;
    REQUIRE_OK(td_barrier(NULL));
    if (rank == c->victim) {
        REQUIRE(signal(SIGALRM, kill_myself) != SIG_ERR);
        struct itimerval when = { .it_value = { .tv_sec = (time_t)seconds,
                                                .tv_usec =
                                                    (suseconds_t)(seconds * 1e6) % 1000000 } };
        REQUIRE(setitimer(ITIMER_REAL, &when, NULL) == 0);
    }
    (void)td_checkpoint_save(c->to, r.job.net, .optim = r.job.optim, .ema = r.ema);
    _exit(0); /* without a word to the others, as if killed */
}

static void copy_file(const char *from, const char *to)
{
    size_t size;
    char *bytes = read_all(from, &size);
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

static bool is_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *fa = read_all(a, &na), *fb = read_all(b, &nb);
    bool same = na == nb && memcmp(fa, fb, na) == 0;
    free(fa);
    free(fb);
    return same;
}

/* Whatever the moment, and whoever dies: the file is the old one or the new one, and the next save
 * works. */
static void test_a_killed_save_leaves_the_old_file_or_the_new(void **state)
{
    (void)state;
    static procs_end ends[2];
    const char *target = temp_path("target");
    save(1, TD_SHARD_OPTIMIZER, 3, NULL, temp_path("old"));
    save(1, TD_SHARD_OPTIMIZER, 2, temp_path("old"), temp_path("new"));
    int stayed = 0;
    for (int i = 0; i < 2 * MOMENTS; i++) {
        killed_save c = { .shard = i % 4 < 2 ? TD_SHARD_OPTIMIZER : TD_SHARD_PARAMETERS,
                          .victim = i % 2,
                          .moment = i / 2 };
        snprintf(c.from, sizeof c.from, "%s", temp_path("new"));
        snprintf(c.to, sizeof c.to, "%s", target);
        snprintf(c.other, sizeof c.other, "%s", temp_path("other"));
        copy_file(temp_path("old"), target);
        procs_run(2, limit, run_killed_save, &c, ends);
        bool old = is_same_file(target, temp_path("old"));
        assert_true(old || is_same_file(target, temp_path("new")));
        stayed += old;
    }
    printf("# killed in %d saves: the old file stayed in %d\n", 2 * MOMENTS, stayed);
    assert_true(stayed > 0);
    save(2, TD_SHARD_PARAMETERS, 0, temp_path("new"), target);
    assert_same_file(target, temp_path("new"));
}

/* On hosts without a common file system the first rank writes what the others send it. */
static void test_the_first_rank_writes_for_hosts_apart(void **state)
{
    (void)state;
    save(1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save_case c = { .rule = ADAMW_GROUPS, .shard = TD_SHARD_OPTIMIZER, .steps = 3, .apart = true };
    snprintf(c.to, sizeof c.to, "%s", temp_path("saved"));
    procs_succeed(2, limit, run_save, &c);
    assert_same_tensors(temp_path("saved"), temp_path("measure"));
}

/* A rank cannot write its part: the file stays as it was. */
static void save_with_a_limit(shard_run *r, int rank, const char *path)
{
    enum { FEW = 64, LAST = 2 }; /* bytes: less than the header; the rank */
    struct rlimit usual, few;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    few = (struct rlimit){ .rlim_cur = FEW, .rlim_max = usual.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, rank == LAST ? &few : &usual) == 0);
    REQUIRE(td_checkpoint_save(path, r->job.net, .optim = r->job.optim) == TD_E_IO);
    REQUIRE(strstr(td_last_error(), "rank 2: cannot save") && strstr(td_last_error(), "ulimit -f"));
    REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
    signal(SIGXFSZ, handler);
    REQUIRE(access(path, F_OK) != 0);
}

/* Rank 0 or another one cannot write: all ranks are told, and go on. */
static int run_failing_save(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    shard_case c = { .rule = ADAM };
    shard_run r;
    open_run(&r, &c, TD_SHARD_OPTIMIZER, rank);
    step(&r, &c);
    REQUIRE(td_checkpoint_save("/no/such/folder/file", r.job.net, .optim = r.job.optim) == TD_E_IO);
    REQUIRE(strstr(td_last_error(), "rank 0: "));
    REQUIRE(strstr(td_last_error(), "create the folder first"));
    save_with_a_limit(&r, rank, arg);
    step(&r, &c);
    REQUIRE(job_all_same(job_hash(r.job.net)));
    close_run(&r);
    td_dist_destroy();
    return 0;
}

static void test_a_failing_save_is_told_to_all(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_failing_save, (void *)(uintptr_t)temp_path("saved"));
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
    expect_fatal("use TD_SHARD_OPTIMIZER, or no hook",
                 td_ddp(net, .shard = TD_SHARD_GRADIENTS, .comm_hook = "bf16"));
    expect_fatal("there is no way of sharding 7", td_ddp(net, .shard = (td_shard)7));
    td_optim *early = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    expect_fatal("are made after td_ddp", td_ddp(net, .shard = TD_SHARD_OPTIMIZER));
    td_optim_free(early);
    td_module_free(net);
    td_dist_destroy();
}

/* Memory that is not there is named when it is used. */
static void test_used_while_away(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
    shard_run r;
    open_run(&r, &c, TD_SHARD_PARAMETERS, 0);
    td_module *net = r.job.net, *layer = td_module_find(net, "2.3");
    td_tensor *weight = layer->tensors[0].tensor;
    td_tensor *x = td_zeros(TD_SHAPE(4, 24), TD_F32, TD_CPU);
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_clone(weight));
    td_step_begin();
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_forward(layer, x));
    td_step_abandon();
    td_free(x);
    step(&r, &c);
    expect_fatal("'2.3.weight' f32[16,24] cpu:0 is away", td_clone(td_grad(weight)));
    assert_int_equal(td_unshard(net), TD_OK);
    td_tensor *copy = td_clone(weight);
    td_reshard(net);
    expect_fatal("is away", td_clone(weight));
    td_free(copy);
    close_run(&r);
    td_dist_destroy();
}

/* ---- faults ---- */

static void note_failure(td_status status, const char *message, void *user)
{
    (void)message;
    *(td_status *)user = status;
}

typedef enum death_place { IN_FORWARD, IN_BACKWARD, IN_OPTIM, IN_SAVE } death_place;
typedef struct death {
    td_shard shard;
    death_place place;
} death;

static void die(void)
{
    kill(getpid(), SIGKILL);
}

static void die_at(td_tensor *leaf, void *user)
{
    (void)leaf, (void)user;
    die();
}

/* A rank dies; the others wait for what it has of all, and are told. */
static int run_death(int rank, int size, void *arg)
{
    const death *d = arg;
    procs_init(rank, size, 20.0);
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
    shard_run r;
    td_status told = TD_OK;
    bool dies = rank == size - 1;
    open_run(&r, &c, d->shard, rank);
    td_ddp_on_error(r.job.net, note_failure, &told);
    step(&r, &c);
    td_zero_grad(r.job.optim);
    if (dies && d->place == IN_FORWARD) {
        die();
    }
    if (dies && d->place == IN_BACKWARD) { /* when two blocks have their gradients */
        td_on_grad_ready(td_module_find(r.job.net, "2.4")->tensors[0].tensor, die_at, NULL);
    }
    *fault_at = td_clock();
    backward(&r);
    if (told == TD_OK && d->place >= IN_OPTIM) {
        *fault_at = td_clock();
        if (dies) {
            die();
        }
        if (d->place == IN_OPTIM) {
            td_optim_step(r.job.optim);
        } else {
            told = td_checkpoint_save("/no/such/folder/file", r.job.net, .optim = r.job.optim);
        }
    }
    REQUIRE(told != TD_OK);
    char reason[512];
    snprintf(reason, sizeof reason, "%s", td_last_error());
    close_run(&r);
    td_fail(told, "%s", reason);
    return fault_report(told);
}

static void test_a_death_is_told_to_all(void **state)
{
    (void)state;
    static procs_end ends[3];
    static const death deaths[] = {
        { TD_SHARD_OPTIMIZER, IN_OPTIM },    { TD_SHARD_GRADIENTS, IN_BACKWARD },
        { TD_SHARD_GRADIENTS, IN_OPTIM },    { TD_SHARD_GRADIENTS, IN_SAVE },
        { TD_SHARD_PARAMETERS, IN_FORWARD }, { TD_SHARD_PARAMETERS, IN_BACKWARD },
        { TD_SHARD_PARAMETERS, IN_SAVE },
    };
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        fault_run(3, limit, run_death, (void *)(uintptr_t)&deaths[i], ends);
        for (int rank = 0; rank < 2; rank++) {
            assert_survived(ends, rank);
            procs_assert_says(ends, rank, "rank 2 (pid ");
        }
    }
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_those_without_sharding),
        cmocka_unit_test(test_with_what_else_a_step_does),
        cmocka_unit_test(test_gradients_are_added_to_their_average),
        cmocka_unit_test(test_adafactor_on_parts_of_matrices),
        cmocka_unit_test(test_unused_shared_and_repeated_layers),
        cmocka_unit_test(test_another_order_on_one_rank),
        cmocka_unit_test(test_bytes_are_those_of_the_formula),
        IN_FOLDER(test_checkpoints_do_not_depend_on_the_layout),
        IN_FOLDER(test_checkpoints_of_packed_averages),
        IN_FOLDER(test_checkpoints_of_adafactor),
        IN_FOLDER(test_a_killed_save_leaves_the_old_file_or_the_new),
        IN_FOLDER(test_a_failing_save_is_told_to_all),
        IN_FOLDER(test_a_failing_load_is_told_to_all),
        IN_FOLDER(test_the_first_rank_writes_for_hosts_apart),
        cmocka_unit_test(test_another_setting_on_one_rank),
        cmocka_unit_test(test_a_death_is_told_to_all),
        IN_FOLDER(test_what_cannot_be_combined), /* the last two make this process a rank */
        IN_FOLDER(test_used_while_away),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
