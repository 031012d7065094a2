/* Checkpoints of sharded models: they do not depend on the number of ranks or on what is sharded, a
 * killed save leaves the old file or the new one, and failures are told to all ranks. And deferred
 * models: their values, and how much memory a rank needs for them. */
#include "nn/io/records.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/clock.h"
#include "tests/dist_faults.h"
#include "tests/dist_procs.h"
#include "tests/expect_fatal.h"
#include "tests/sanitized.h"
#include "tests/shard_run.h"
#include "tests/temp_folder.h"
#include "tensor/extend.h"

#include <dirent.h>
#include <malloc.h>
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

typedef struct save_case {
    optim_rule rule;
    int shard;  /* td_shard or SHARD_GATHERED */
    int steps;  /* before saving */
    bool apart; /* the other ranks do not see the first one's files */
    bool background;
    char from[512], to[512];
} save_case;

/* Bytes of a rank's part: f32 values, and as many for each average and moment. */
static int64_t bytes_of_part(const shard_run *r, int shard)
{
    const td_params *params = td_parameters(r->job.net);
    int64_t own = 0, all = 0, buffers = 0;
    for (int i = 0; i < td_params_count(params); i++) {
        own += td_params_here(params, i).count;
        all += td_params_get(params, i)->count;
    }
    td_state_list state = td_module_state(r->job.net);
    for (int i = 0; i < state.count; i++) {
        buffers += td_numel(state.items[i].tensor);
    }
    td_state_list_free(&state);
    buffers -= all; /* whole on every rank, and so are their averages */
    int64_t values = shard >= TD_SHARD_PARAMETERS ? own : all;
    return (int64_t)sizeof(float) * (2 * values + 2 * own + 2 * buffers);
}

/* Loads, and reads of the file what the rank keeps, and nothing else. */
static void load(shard_run *r, const save_case *c)
{
    int64_t bytes = 0;
    const td_checkpoint_options what = {
        .path = c->from, .model = r->job.net, .optim = r->job.optim, .ema = r->ema
    };
    td_fill_(td_params_flat(td_parameters(r->job.net)), 0.5);
    REQUIRE_OK(td_checkpoint_load_model(&what, false, &bytes, TD_HERE));
    bool has_state = c->rule == ADAMW_GROUPS && strstr(c->from, "fresh") == NULL;
    REQUIRE(!has_state || bytes == bytes_of_part(r, c->shard));
}

/* In the background: while the next steps are made, and twice. */
static void save_run(shard_run *r, const shard_case *what, const save_case *c, const char *to)
{
    td_saving *saving = NULL;
    for (int i = 0; i < (c->background ? 2 : 1); i++) {
        REQUIRE_OK(td_checkpoint_save(to, r->job.net, .optim = r->job.optim, .ema = r->ema,
                                      .background = c->background ? &saving : NULL));
    }
    if (c->background) {
        REQUIRE(saving != NULL);
        shard_step(r, what);
    }
    REQUIRE_OK(td_saving_wait(&saving));
    REQUIRE(saving == NULL);
}

/* Loads a checkpoint, makes some steps, saves another. */
static int run_save(int rank, int size, void *arg)
{
    const save_case *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_CONV_BLOCKS, .rule = c->rule, .averages = true };
    shard_run r;
    shard_open(&r, &what, c->shard, 0); /* all ranks have the same data */
    if (c->from[0] != '\0') {
        load(&r, c);
    }
    for (int i = 0; i < c->steps; i++) {
        shard_step(&r, &what);
    }
    if (rank == 0 || c->shard != TD_SHARD_NONE) {
        const char *to = c->to;
        if (c->apart) {
            REQUIRE(chdir(rank == 0 ? temp_folder() : "/") == 0);
            to = strrchr(to, '/') + 1;
        }
        save_run(&r, &what, c, to);
    } else if (c->background) { /* the others make the steps along */
        shard_step(&r, &what);
    }
    shard_close(&r);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void save_as(optim_rule rule, int size, int shard, int steps, const char *from,
                    const char *to)
{
    save_case c = { .rule = rule, .shard = shard, .steps = steps };
    snprintf(c.from, sizeof c.from, "%s", from != NULL ? from : "");
    snprintf(c.to, sizeof c.to, "%s", to);
    procs_succeed(size, limit, run_save, &c);
}

static void save(int size, int shard, int steps, const char *from, const char *to)
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

static bool is_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *fa = read_all(a, &na), *fb = read_all(b, &nb);
    bool same = na == nb && memcmp(fa, fb, na) == 0;
    free(fa);
    free(fb);
    return same;
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

/* The same bytes, whatever the steps that are made beside. */
static void test_checkpoints_in_the_background(void **state)
{
    (void)state;
    save(1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save(1, TD_SHARD_OPTIMIZER, 0, temp_path("measure"), temp_path("one"));
    for (int way = TD_SHARD_NONE; way <= TD_SHARD_PARAMETERS; way++) {
        for (int apart = 0; apart < (way == TD_SHARD_OPTIMIZER ? 2 : 1); apart++) {
            save_case c = { .rule = ADAMW_GROUPS,
                            .shard = (td_shard)way,
                            .background = true,
                            .apart = apart != 0 };
            snprintf(c.from, sizeof c.from, "%s", temp_path("measure"));
            snprintf(c.to, sizeof c.to, "%s", temp_path("saved"));
            procs_succeed(2, limit, run_save, &c);
            assert_same_tensors(temp_path("saved"), temp_path("measure"));
            if (way != TD_SHARD_NONE) {
                assert_true(is_same_file(temp_path("saved"), temp_path("one")));
            }
            assert_int_equal(unlink(temp_path("saved")), 0);
        }
    }
}

/* Two and four ranks that have the same data have the gradients of one, whose file is the measure:
 * what each layout saves, what each layout makes of what another has saved, and its next step. */
static void test_checkpoints_do_not_depend_on_the_layout(void **state)
{
    (void)state;
    static const struct {
        int size, shard;
    } layouts[] = {
        { 1, TD_SHARD_NONE },       { 2, TD_SHARD_NONE },       { 1, TD_SHARD_OPTIMIZER },
        { 2, TD_SHARD_OPTIMIZER },  { 3, TD_SHARD_OPTIMIZER },  { 4, TD_SHARD_OPTIMIZER },
        { 2, TD_SHARD_GRADIENTS },  { 4, TD_SHARD_GRADIENTS },  { 1, TD_SHARD_PARAMETERS },
        { 2, TD_SHARD_PARAMETERS }, { 3, TD_SHARD_PARAMETERS }, { 4, TD_SHARD_PARAMETERS },
        { 2, SHARD_GATHERED },      { 3, SHARD_GATHERED },      { 4, SHARD_GATHERED },
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
            assert_true(is_same_file(temp_path("saved"), temp_path("one")));
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
    for (int way = TD_SHARD_NONE; way < SHARD_WAYS; way++) {
        int size = way >= TD_SHARD_PARAMETERS ? 4 : 2;
        save_as(ADAM_8, size, way, 0, temp_path("measure"), temp_path("saved"));
        assert_same_tensors(temp_path("saved"), temp_path("measure"));
        save_as(ADAM_8, size, way, 2, temp_path("saved"), temp_path("on"));
        assert_same_tensors(temp_path("on"), temp_path("later"));
    }
}

/* Every rank has all of Adafactor's state. */
static void test_checkpoints_of_adafactor(void **state)
{
    (void)state;
    save_as(ADAFACTOR, 1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    for (int way = TD_SHARD_OPTIMIZER; way < SHARD_WAYS; way++) {
        save_as(ADAFACTOR, 3, way, 0, temp_path("measure"), temp_path("saved"));
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
    shard_open(&r, &what, TD_SHARD_OPTIMIZER, rank);
    shard_step(&r, &what);
    REQUIRE_OK(td_checkpoint_save(c->from, r.job.net, .optim = r.job.optim));
    shard_step(&r, &what);
    uint64_t before = job_hash(r.job.net);
    for (int i = 0; i < 2; i++) {
        double begin = td_clock();
        td_status status =
            td_checkpoint_load(rank == 1 ? wrong[i] : c->from, r.job.net, .optim = r.job.optim);
        REQUIRE(status == (i == 0 ? TD_E_NOTFOUND : TD_E_MISMATCH));
        REQUIRE(strstr(td_last_error(), "rank 1: ") && strstr(td_last_error(), wrong[i]));
        REQUIRE(td_clock() - begin < fault_patience() && job_hash(r.job.net) == before);
    }
    shard_step(&r, &what);
    REQUIRE(job_all_same(job_hash(r.job.net)));
    shard_close(&r);
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
    bool background;
    char from[512], to[512], other[512];
} killed_save;

static void kill_myself(int number)
{
    (void)number;
    (void)kill(getpid(), SIGKILL);
}

static void save_killed(const killed_save *c, shard_run *r, const char *path)
{
    td_saving *saving = NULL;
    td_status status = td_checkpoint_save(path, r->job.net, .optim = r->job.optim, .ema = r->ema,
                                          .background = c->background ? &saving : NULL);
    status = status == TD_OK ? td_saving_wait(&saving) : status;
    REQUIRE(path == c->to || status == TD_OK);
}

/* Saves twice: to see how long it takes, and with a death on the way. */
static int run_killed_save(int rank, int size, void *arg)
{
    const killed_save *c = arg;
    procs_init(rank, size, 20.0);
    shard_case what = { .kind = JOB_CONV_BLOCKS, .rule = ADAMW_GROUPS, .averages = true };
    shard_run r;
    shard_open(&r, &what, c->shard, 0);
    REQUIRE_OK(td_checkpoint_load(c->from, r.job.net, .optim = r.job.optim, .ema = r.ema));
    double begin = td_clock();
    save_killed(c, &r, c->other);
    double seconds = (td_clock() - begin) * (c->moment + 0.5) / MOMENTS;
    REQUIRE_OK(td_barrier(NULL));
    if (rank == c->victim) {
        REQUIRE(signal(SIGALRM, kill_myself) != SIG_ERR);
        struct itimerval when = { .it_value = { .tv_sec = (time_t)seconds,
                                                .tv_usec =
                                                    (suseconds_t)(seconds * 1e6) % 1000000 } };
        REQUIRE(setitimer(ITIMER_REAL, &when, NULL) == 0);
    }
    save_killed(c, &r, c->to);
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
    for (int i = 0; i < 4 * MOMENTS; i++) {
        killed_save c = { .shard = i % 4 < 2 ? TD_SHARD_OPTIMIZER : TD_SHARD_PARAMETERS,
                          .background = i >= 2 * MOMENTS,
                          .victim = i % 2,
                          .moment = i / 2 % MOMENTS };
        snprintf(c.from, sizeof c.from, "%s", temp_path("new"));
        snprintf(c.to, sizeof c.to, "%s", target);
        snprintf(c.other, sizeof c.other, "%s", temp_path("other"));
        copy_file(temp_path("old"), target);
        procs_run(2, limit, run_killed_save, &c, ends);
        bool old = is_same_file(target, temp_path("old"));
        assert_true(old || is_same_file(target, temp_path("new")));
        stayed += old;
    }
    printf("# killed in %d saves: the old file stayed in %d\n", 4 * MOMENTS, stayed);
    assert_true(stayed > 0);
    save(2, TD_SHARD_PARAMETERS, 0, temp_path("new"), target);
    assert_true(is_same_file(target, temp_path("new")));
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
static void save_with_a_limit(shard_run *r, int rank, const char *path, bool background)
{
    td_saving *saving = NULL;
    enum { FEW = 64, LAST = 2 }; /* bytes: less than the header; the rank */
    struct rlimit usual, few;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    few = (struct rlimit){ .rlim_cur = FEW, .rlim_max = usual.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, rank == LAST ? &few : &usual) == 0);
    td_status status = td_checkpoint_save(path, r->job.net, .optim = r->job.optim,
                                          .background = background ? &saving : NULL);
    REQUIRE(status == (background ? TD_OK : TD_E_IO));
    if (background) { /* the next save says what has become of this one */
        REQUIRE(td_checkpoint_save(path, r->job.net, .background = &saving) == TD_E_IO);
        REQUIRE(saving == NULL);
    }
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
    shard_open(&r, &c, TD_SHARD_OPTIMIZER, rank);
    shard_step(&r, &c);
    REQUIRE(td_checkpoint_save("/no/such/folder/file", r.job.net, .optim = r.job.optim) == TD_E_IO);
    REQUIRE(strstr(td_last_error(), "rank 0: "));
    REQUIRE(strstr(td_last_error(), "create the folder first"));
    save_with_a_limit(&r, rank, arg, false);
    save_with_a_limit(&r, rank, arg, true);
    shard_step(&r, &c);
    REQUIRE(job_all_same(job_hash(r.job.net)));
    shard_close(&r);
    td_dist_destroy();
    return 0;
}

static void test_a_failing_save_is_told_to_all(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_failing_save, (void *)(uintptr_t)temp_path("saved"));
}

/* ---- deferred models ---- */

/* Draws of all kinds: a model to look at, not to run. */
static td_module *odd_net(uint64_t seed)
{
    td_manual_seed(seed);
    td_module *net = td_nn_sequential(
        td_nn_embedding(5, 3, .has_padding = true, .padding_idx = 2), /* an odd number below 16 */
        td_nn_embedding(3, 3), td_nn_embedding(7, 7), td_nn_linear(7, 300),
        td_nn_conv2d(3, 20, .kernel = 3), td_nn_sequential(td_nn_linear(2, 2), td_nn_relu()),
        td_nn_sequential(td_nn_embedding(40, 16), td_nn_layer_norm(16)));
    td_init_kaiming_normal_fan_out_(net->children[4]->tensors[0].tensor); /* a second time */
    return net;
}

/* Each rank has another seed; rank 0's counts. */
static int run_odd_draws(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    td_module *first = odd_net(7), *own = odd_net(7 + (uint64_t)rank);
    td_generator after = *td_default_generator();
    uint64_t hash = job_hash(first);
    REQUIRE(!td_defer_init(true));
    td_module *net = odd_net(7 + (uint64_t)rank);
    REQUIRE(td_defer_init(false));
    REQUIRE(memcmp(&after, td_default_generator(), sizeof after) == 0);
    net = td_ddp(net, .shard = TD_SHARD_PARAMETERS, .gathers = arg != NULL);
    REQUIRE(net != NULL && td_params_length(td_parameters(net)) > 0);
    REQUIRE_OK(td_unshard(net));
    REQUIRE(job_hash(net) == hash && (rank == 0 || job_hash(own) != hash));
    td_reshard(net);
    REQUIRE(memcmp(&after, td_default_generator(), sizeof after) == 0);
    td_module_free(net);
    td_defer_init(rank == 0);
    REQUIRE(td_ddp(odd_net(7), .shard = TD_SHARD_PARAMETERS) == NULL);
    td_defer_init(false);
    REQUIRE(strstr(td_last_error(), "different models: rank 1 has the parameter '0.weight'"));
    REQUIRE(strstr(td_last_error(), "rank 0 has (td_defer_init) the parameter '0.weight'"));
    td_module_free(first);
    td_module_free(own);
    td_dist_destroy();
    return 0;
}

/* A model trains as it would have without td_defer_init. */
static int run_deferred(int rank, int size, void *arg)
{
    shard_case at_once = *(const shard_case *)arg, deferred = at_once;
    deferred.defers = true;
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_PARAMETERS; way < SHARD_WAYS; way++) {
        shard_run a, b;
        shard_open(&a, &at_once, TD_SHARD_NONE, rank);
        shard_open(&b, &deferred, way, rank);
        REQUIRE(shard_hash(&a) == shard_hash(&b));
        for (int i = 0; i < 3; i++) {
            shard_step(&a, &at_once);
            shard_step(&b, &deferred);
        }
        REQUIRE(shard_hash(&a) == shard_hash(&b));
        shard_close(&a);
        shard_close(&b);
    }
    td_dist_destroy();
    return 0;
}

static void test_deferred_models_begin_and_train_alike(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        procs_succeed(size, limit, run_odd_draws, NULL);
        procs_succeed(size, limit, run_odd_draws, "gathered");
        procs_succeed(size, limit, run_deferred, &(shard_case){ .kind = JOB_BLOCKS, .rule = ADAM });
        procs_succeed(size, limit, run_deferred,
                      &(shard_case){ .kind = JOB_CONV_BLOCKS, .dtype = TD_F64, .rule = MOMENTUM });
    }
}

/* A value of /proc/self/status, in bytes. */
static double status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kib = -1.0;
    REQUIRE(file != NULL);
    while (kib < 0.0 && fgets(line, sizeof line, file) != NULL) {
        kib = strncmp(line, name, strlen(name)) == 0 ? strtod(line + strlen(name), NULL) : -1.0;
    }
    fclose(file);
    REQUIRE(kib >= 0.0);
    return 1024.0 * kib;
}

enum { WIDTH = 512, BLOCKS = 6, BLOCK_BYTES = 4 * (8 * WIDTH + 5) * WIDTH }; /* 8 MiB each */

static td_module *large_net(void)
{
    td_module *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = td_nn_sequential(td_nn_linear(WIDTH, 4 * WIDTH), td_nn_gelu(),
                                     td_nn_linear(4 * WIDTH, WIDTH));
    }
    return td_nn_sequential_list(blocks, BLOCKS);
}

/* The most memory that a process has until td_ddp returns: its window, slots, and less than a unit.
 * The shm engine writes zeros to all ranks' windows and slots, which count in each process. */
static int run_first_peak(int rank, int size, void *arg)
{
    const bool *defers = arg;
    procs_init(rank, size, 20.0);
    double before = status_bytes("VmRSS:");
    td_defer_init(*defers);
    td_module *net = large_net();
    td_defer_init(false);
    net = td_ddp(net, .shard = TD_SHARD_PARAMETERS);
    REQUIRE(net != NULL);
    double peak = status_bytes("VmHWM:") - before;
    td_shard_stats stats = td_ddp_shard_stats(net);
    double window = (double)stats.values;
    double share = procs_are_over("gloo") ? window : size * (double)(stats.values + stats.slots);
    REQUIRE(window >= BLOCKS * BLOCK_BYTES / size && window < (BLOCKS + 0.1) * BLOCK_BYTES / size);
    if (*defers != (peak < share + BLOCK_BYTES)) {
        fprintf(stderr, "%s: peak %.1f MiB, share %.1f MiB\n", *defers ? "deferred" : "at once",
                peak / (1 << 20), share / (1 << 20));
    }
    REQUIRE(TD_SANITIZED || *defers == (peak < share + BLOCK_BYTES));
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

static void test_no_rank_ever_has_a_whole_deferred_model(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) {
        procs_succeed(size, limit, run_first_peak, &(bool){ true });
        procs_succeed(size, limit, run_first_peak, &(bool){ false });
    }
}

/* A deferred model that is to be loaded draws nothing. */
static int run_deferred_load(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    for (int way = TD_SHARD_PARAMETERS; way < SHARD_WAYS; way++) {
        shard_case c = { .kind = JOB_BLOCKS, .rule = ADAM };
        shard_run saved, loaded;
        shard_open(&saved, &c, TD_SHARD_PARAMETERS, rank);
        shard_step(&saved, &c);
        REQUIRE_OK(
            td_checkpoint_save(arg, saved.job.net, .optim = saved.job.optim, .with_random = true));
        c.defers = c.blank = true;
        shard_open(&loaded, &c, way, rank);
        td_generator fresh;
        td_generator_seed(&fresh, 1);
        REQUIRE(memcmp(&fresh, td_default_generator(), sizeof fresh) == 0);
        REQUIRE_OK(td_checkpoint_load(arg, loaded.job.net, .optim = loaded.job.optim,
                                      .with_random = true));
        REQUIRE(shard_hash(&saved) == shard_hash(&loaded));
        shard_step(&saved, &c);
        shard_step(&loaded, &c);
        REQUIRE(shard_hash(&saved) == shard_hash(&loaded));
        shard_close(&saved);
        shard_close(&loaded);
    }
    td_dist_destroy();
    return 0;
}

static void test_a_deferred_model_is_loaded(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_deferred_load, (void *)(uintptr_t)temp_path("saved"));
    procs_succeed(3, limit, run_deferred_load, (void *)(uintptr_t)temp_path("saved"));
}

static void test_deferred_values_are_not_there(void **state)
{
    (void)state;
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    assert_int_equal(td_dist_init(.init_method = url, .world_size = 1), TD_OK);
    td_defer_init(true);
    td_module *net = job_net(JOB_BLOCKS, 1, TD_F32), *other = job_net(JOB_MLP, 1, TD_F32);
    td_defer_init(false);
    td_tensor *weight = td_module_find(net, "2.3")->tensors[0].tensor;
    td_tensor *x = td_zeros(TD_SHAPE(4, 13), TD_F32, TD_CPU);
    const char *message = "'2.3.weight' f32[16,24] cpu:0 has no values yet: it was made after "
                          "td_defer_init(true)";
    expect_fatal(message, td_clone(weight));
    expect_fatal(message, td_fill_(weight, 1.0));
    td_step_begin();
    expect_fatal("'0.weight' f32[16,13] cpu:0 has no values yet", td_forward(net, x));
    td_step_abandon();
    td_requires_grad(weight, false);
    expect_fatal("'2.3.weight' takes no gradient", td_parameters(net));
    td_module_free(net);
    td_free(x);
    assert_null(td_ddp(other, .shard = TD_SHARD_GRADIENTS));
    assert_error_says("td_defer_init(true), which is for .shard = TD_SHARD_PARAMETERS", NULL);
    td_dist_destroy();
}

/* ---- windows in files ---- */

/* The bits are those of windows in memory. */
static int run_offloaded(int rank, int size, void *arg)
{
    shard_case c = { .kind = JOB_BLOCKS, .rule = ADAMW_GROUPS, .averages = true, .clips = true };
    shard_case files = c, deferred;
    files.options.offload = arg;
    deferred = files;
    deferred.defers = true;
    const shard_case *cases[] = { &c, &files, &deferred };
    procs_init(rank, size, 20.0);
    shard_run runs[3];
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        shard_open(&runs[i], cases[i], i == 0 ? TD_SHARD_NONE : TD_SHARD_PARAMETERS, rank);
        for (int k = 0; k < 5; k++) {
            shard_step(&runs[i], cases[i]);
        }
        uint64_t hash = shard_hash(&runs[i]);
        first = i == 0 ? hash : first;
        REQUIRE(hash == first);
    }
    for (int i = 0; i < 3; i++) {
        shard_close(&runs[i]);
    }
    td_dist_destroy();
    return 0;
}

/* Anonymous memory after a step. */
static double anonymous_bytes(const char *folder, td_shard_stats *stats)
{
    td_manual_seed(1);
    td_module *net =
        td_ddp(large_net(), .shard = TD_SHARD_PARAMETERS, .gathers = true, .offload = folder);
    REQUIRE(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_tensor *x = td_full(TD_SHAPE(2, WIDTH), 0.5, TD_F32, TD_CPU);
    REQUIRE(optim != NULL && x != NULL);
    TD_STEP {
        td_backward(td_mse_loss(td_forward(net, x), x));
        td_optim_step(optim);
    }
    *stats = td_ddp_shard_stats(net);
    malloc_trim(0);
    double bytes = status_bytes("RssAnon:");
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    return bytes;
}

static int run_offloaded_bytes(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    td_shard_stats stats;
    anonymous_bytes(NULL, &stats); /* what a first time leaves is there */
    double less = anonymous_bytes(NULL, &stats) - anonymous_bytes(arg, &stats);
    bool shared = size > 1 && !procs_are_over("gloo"); /* without files values are not anonymous */
    double windows = (double)(stats.gradients + stats.state + (shared ? 0 : stats.values));
    double tolerance = TD_SANITIZED ? INFINITY : 2 << 20;
    if (!(fabs(less - windows) < tolerance)) {
        fprintf(stderr, "%.1f MiB less, windows %.1f\n", less / (1 << 20), windows / (1 << 20));
    }
    REQUIRE(fabs(less - windows) < tolerance && windows >= 3.0 * BLOCKS * BLOCK_BYTES / size);
    td_dist_destroy();
    return 0;
}

static int count_files(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        count += e->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

/* Rank 1 cannot write: all are told. */
static int run_without_space(int rank, int size, void *arg)
{
    procs_init(rank, size, 20.0);
    REQUIRE(td_ddp(job_net(JOB_BLOCKS, 1, TD_F32), .shard = TD_SHARD_PARAMETERS,
                   .offload = rank == 1 ? "/no/such/folder" : arg) == NULL);
    REQUIRE(strstr(td_last_error(), "rank 1: td_ddp: .offload '/no/such/folder': cannot make a "
                                    "file of") != NULL);
    REQUIRE(strstr(td_last_error(), "create the folder first") != NULL);
    struct rlimit usual, few;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    few = (struct rlimit){ .rlim_cur = 100, .rlim_max = usual.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, rank == 1 ? &few : &usual) == 0);
    REQUIRE(td_ddp(job_net(JOB_BLOCKS, 1, TD_F32), .shard = TD_SHARD_PARAMETERS, .offload = arg) ==
            NULL);
    REQUIRE(strstr(td_last_error(), "rank 1: td_ddp: .offload '") != NULL);
    REQUIRE(strstr(td_last_error(), "File too large") != NULL);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
    td_dist_destroy();
    return 0;
}

static void test_windows_in_files(void **state)
{
    (void)state;
    void *folder = (void *)(uintptr_t)temp_folder();
    for (int size = 1; size <= 3; size++) {
        procs_succeed(size, limit, run_offloaded, folder);
    }
    procs_succeed(1, limit, run_offloaded_bytes, folder);
    procs_succeed(2, limit, run_offloaded_bytes, folder);
    procs_succeed(2, limit, run_without_space, folder);
    assert_int_equal(count_files(folder), 0);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_checkpoints_do_not_depend_on_the_layout),
        IN_FOLDER(test_checkpoints_in_the_background),
        IN_FOLDER(test_checkpoints_of_packed_averages),
        IN_FOLDER(test_checkpoints_of_adafactor),
        IN_FOLDER(test_a_killed_save_leaves_the_old_file_or_the_new),
        IN_FOLDER(test_a_failing_save_is_told_to_all),
        IN_FOLDER(test_a_failing_load_is_told_to_all),
        IN_FOLDER(test_the_first_rank_writes_for_hosts_apart),
        IN_FOLDER(test_deferred_models_begin_and_train_alike),
        IN_FOLDER(test_no_rank_ever_has_a_whole_deferred_model),
        IN_FOLDER(test_a_deferred_model_is_loaded),
        IN_FOLDER(test_windows_in_files),
        IN_FOLDER(test_deferred_values_are_not_there), /* makes this process a rank */
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
