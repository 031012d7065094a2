/* Checkpoints of sharded models: they do not depend on the number of ranks or on what is sharded, a
 * killed save leaves the old file or the new one, and failures are told to all ranks. */
#include "nn/io/records.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/clock.h"
#include "tests/comm/dist_faults.h"
#include "tests/help/dist_procs.h"
#include "tests/help/entry_data.h"
#include "tests/dist/shard_run.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
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
    bool apart; /* the other ranks do not see rank 0's files */
    bool background;
    char from[512], to[512];
} save_case;

static void load(shard_run *r, const save_case *c)
{
    td_fill_(td_params_flat(td_parameters(r->job.net)), 0.5);
    REQUIRE_OK(td_checkpoint_load(c->from, r->job.net, .optim = r->job.optim, .ema = r->ema));
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

static bool is_same_file(const char *a, const char *b)
{
    size_t na, nb;
    char *fa = temp_read(a, &na), *fb = temp_read(b, &nb);
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
        void *of_x = entry_data(fa, x), *of_y = entry_data(fb, y);
        if (memcmp(of_x, of_y, x->bytes) != 0) {
            fail_msg("'%s' differs", x->name);
        }
        free(of_x);
        free(of_y);
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
    char *bytes = temp_read(from, &size);
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

/* Rank 0 writes what the others send it, so hosts need no common file system. */
static void test_hosts_apart(void **state)
{
    (void)state;
    save(1, TD_SHARD_NONE, 3, NULL, temp_path("measure"));
    save_case c = { .rule = ADAMW_GROUPS, .shard = TD_SHARD_OPTIMIZER, .steps = 3, .apart = true };
    snprintf(c.to, sizeof c.to, "%s", temp_path("saved"));
    procs_succeed(2, limit, run_save, &c);
    assert_same_tensors(temp_path("saved"), temp_path("measure"));
}

/* Rank 0 cannot write: all are told, and the file stays as it was. */
static void save_with_a_limit(shard_run *r, int rank, const char *path, bool background)
{
    td_saving *saving = NULL;
    enum { FEW = 64 }; /* bytes: less than the header */
    struct rlimit usual, few;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    few = (struct rlimit){ .rlim_cur = FEW, .rlim_max = usual.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, rank == 0 ? &few : &usual) == 0);
    REQUIRE(td_checkpoint_save(path, r->job.net, .optim = r->job.optim,
                               .background = background ? &saving : NULL) == TD_E_IO);
    REQUIRE(saving == NULL);
    REQUIRE(strstr(td_last_error(), "rank 0: cannot save") && strstr(td_last_error(), "ulimit -f"));
    REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
    signal(SIGXFSZ, handler);
    REQUIRE(access(path, F_OK) != 0);
}

static bool renaming_fails;

/* In the place of the C library's. */
int rename(const char *from, const char *to)
{
    errno = EIO;
    return renaming_fails ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* What fails in the background, here the renaming, is told to all by the next save. */
static void save_that_fails_late(shard_run *r, const char *path)
{
    td_saving *saving = NULL;
    char target[1024], pattern[1100];
    glob_t found;
    snprintf(target, sizeof target, "%s.late", path);
    snprintf(pattern, sizeof pattern, "%s*", target);
    renaming_fails = true;
    td_status status =
        td_checkpoint_save(target, r->job.net, .optim = r->job.optim, .background = &saving);
    REQUIRE_OK(status);
    status = td_checkpoint_save(target, r->job.net, .background = &saving);
    renaming_fails = false;
    REQUIRE(status == TD_E_IO && saving == NULL);
    REQUIRE(strstr(td_last_error(), "rank 0: cannot save") && strstr(td_last_error(), "renaming"));
    REQUIRE(glob(pattern, 0, NULL, &found) == GLOB_NOMATCH);
}

/* A save whose outcome no rank asks for: the file is complete, and nothing lies next to it. */
static void cancel_save(shard_run *r, const char *path)
{
    char pattern[1024];
    glob_t found;
    td_saving *saving = NULL;
    REQUIRE_OK(td_checkpoint_save(path, r->job.net, .optim = r->job.optim, .background = &saving));
    td_saving_cancel(&saving);
    REQUIRE(saving == NULL);
    REQUIRE_OK(td_barrier(NULL));
    snprintf(pattern, sizeof pattern, "%s.tmp*", path);
    REQUIRE(glob(pattern, 0, NULL, &found) == GLOB_NOMATCH);
    REQUIRE_OK(td_checkpoint_load(path, r->job.net, .optim = r->job.optim));
}

/* Rank 0 cannot write: all ranks are told, and go on. */
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
    save_that_fails_late(&r, arg);
    cancel_save(&r, arg);
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

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_checkpoints_do_not_depend_on_the_layout),
        IN_FOLDER(test_checkpoints_in_the_background),
        IN_FOLDER(test_checkpoints_of_packed_averages),
        IN_FOLDER(test_a_killed_save_leaves_the_old_file_or_the_new),
        IN_FOLDER(test_a_failing_save_is_told_to_all),
        IN_FOLDER(test_a_failing_load_is_told_to_all),
        IN_FOLDER(test_hosts_apart),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
