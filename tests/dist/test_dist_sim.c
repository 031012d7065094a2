/* Simulated jobs: the bits of processes, clocks that are the same in every run, and failures that
 * do not depend on luck. */
#include "dist/comm/collectives.h"
#include "dist/comm/engines/sim/internal.h"
#include "tensor/extend.h"
#include "tensor/observe/profile.h"
#include "tests/dist/sim_run.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static const double LATENCY = 5e-6, BANDWIDTH = 1e9;

static td_sim_options world_of(int ranks)
{
    return (
        td_sim_options){ .ranks = ranks, .latency = LATENCY, .bandwidth = BANDWIDTH, .killed = -1 };
}

static td_sim_result simulate(int ranks, int (*fn)(int, void *), void *arg)
{
    td_sim_result result;
    td_sim_options options = world_of(ranks);
    if (td_sim_run(&options, fn, arg, &result) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    return result;
}

/* ---- training ---- */

static int train_in_process(int rank, int size, void *arg)
{
    procs_init(rank, size, 60.0);
    sim_train(rank, arg);
    td_dist_destroy();
    return 0;
}

static void test_hash_of_processes(void **state)
{
    (void)state;
    sim_case *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int shard = 0; shard <= 3; shard++) {
        for (int ranks = 2; ranks <= 8; ranks += 3) {
            *shared = (sim_case){ .steps = 3, .shard = shard };
            sim_case c = *shared;
            procs_succeed(ranks, 120.0, train_in_process, shared);
            simulate(ranks, sim_rank, &c);
            assert_true(c.hash != 0);
            assert_true(c.hash == shared->hash);
        }
    }
    munmap(shared, sizeof *shared);
}

static void test_the_same_time_twice(void **state)
{
    (void)state;
    for (int shard = 0; shard <= 3; shard++) {
        sim_case a = { .steps = 4, .shard = shard }, b = a;
        td_sim_result one = simulate(64, sim_rank, &a), two = simulate(64, sim_rank, &b);
        assert_int_equal(one.steps, 4);
        assert_true(one.step.clock > 0.0 && one.step.waited > 0.0 && one.step.bytes > 0.0);
        assert_memory_equal(&one, &two, sizeof one);
        assert_true(a.hash == b.hash);
    }
}

/* ---- the clock ---- */

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

/* What the model of docs/simulation.md says, of 8 ranks and 1000 f32. */
static int watch_clock(int rank, void *unused)
{
    (void)unused;
    enum { COUNT = 1000, SIZE = 8, STEPS = 3 };
    const double piece = 4.0 * COUNT / BANDWIDTH;
    td_work *work;
    REQUIRE_OK(td_dist_init());
    REQUIRE(td_sim_clock() == 0.0);
    td_tensor *t = td_zeros(TD_SHAPE(COUNT), TD_F32, TD_CPU);
    td_tensor *all = td_zeros(TD_SHAPE(SIZE, COUNT), TD_F32, TD_CPU);
    double begin = td_sim_clock(), reduced = 2 * STEPS * LATENCY + piece * 2 * (SIZE - 1) / SIZE;
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    REQUIRE(near(td_sim_clock() - begin, reduced));
    begin = td_sim_clock();
    REQUIRE_OK(td_all_gather(NULL, all, t, NULL));
    REQUIRE(near(td_sim_clock() - begin, STEPS * LATENCY + piece * (SIZE - 1)));
    begin = td_sim_clock();
    REQUIRE_OK(td_broadcast(NULL, t, 3, NULL));
    REQUIRE(near(td_sim_clock() - begin, STEPS * LATENCY + piece));
    begin = td_sim_clock();
    REQUIRE_OK(td_barrier(NULL));
    REQUIRE(near(td_sim_clock() - begin, STEPS * LATENCY));

    begin = td_sim_clock(); /* hidden behind kernels, but for what is longer than they */
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
    td_fill_(all, 1.0);
    double computed = td_sim_clock() - begin;
    REQUIRE(computed > 0.0 && computed < reduced);
    REQUIRE_OK(td_work_wait(work, 0.0));
    REQUIRE(near(td_sim_clock() - begin, reduced));

    begin = td_sim_clock(); /* two collectives, one after the other; the latest rank decides */
    if (rank == 5) {
        td_fill_(all, 2.0);
    }
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    REQUIRE_OK(td_work_wait(work, 0.0));
    REQUIRE(near(td_sim_clock() - begin, 2 * reduced + computed));

    begin = td_sim_clock(); /* two messages share a link */
    if (rank == 0) {
        REQUIRE_OK(td_send(NULL, t, 1, NULL));
        REQUIRE_OK(td_send(NULL, t, 2, NULL));
        REQUIRE(td_sim_clock() == begin);
    } else if (rank <= 2) {
        REQUIRE_OK(td_recv(NULL, t, 0, NULL));
        REQUIRE(near(td_sim_clock() - begin, rank * piece + LATENCY));
    }
    td_free(t);
    td_free(all);
    return 0; /* td_dist_destroy is missing, as it may be in a process */
}

static void test_clock(void **state)
{
    (void)state;
    simulate(8, watch_clock, NULL);
}

/* A file of kernels' costs replaces what is assumed. */
static int fill_once(int rank, void *seconds)
{
    td_tensor *t = td_zeros(TD_SHAPE(1 << 20), TD_F32, TD_CPU);
    double begin = td_sim_clock();
    td_fill_(t, 1.0);
    ((double *)seconds)[rank] = td_sim_clock() - begin;
    td_free(t);
    return 0;
}

static void test_costs_of_kernels(void **state)
{
    (void)state;
    static const char good[] = "limits 1e9 1e9 4e9\nrest 0 0 0\nfill/fwd 10 3 1\n";
    static const char *const bad[] = {
        "",
        "limits 1e9 1e9 1e9\nrest 0 0 0\n",
        "limits 1e9 1e9 0\nrest 0 0 0\nfill/fwd 1 1 1\n",
        "limits 1e9 1e9 1e9\nrest 0 0 0\nfill/fwd 0 1 1\n",
        "limits 1e9 1e9 1e9\nrest 0 0 0\nfill/fwd 1 1 nan\n",
        "limits 1e9 1e9 1e9\nrest 0 0 0\nfill/fwd 1 1\n",
        "limits 1e9 1e9 1e9\nrest 0 0 0\nfill/fwd 1 1 1 1\n",
    };
    const char *path = temp_path("kernels");
    double seconds[4];
    td_sim_result result;
    td_sim_options o = world_of(4);
    o.kernels = path;
    temp_write("kernels", good, strlen(good));
    assert_int_equal(td_sim_run(&o, fill_once, seconds, &result), TD_OK);
    for (int rank = 0; rank < 4; rank++) {
        assert_true(near(seconds[rank], 3 * 4.0 * (1 << 20) / 4e9));
    }
    assert_true(result.assumed == 0.0);
    o.cores = 2;
    assert_int_equal(td_sim_run(&o, fill_once, seconds, &result), TD_OK);
    assert_true(near(seconds[3], 2 * 3 * 4.0 * (1 << 20) / 4e9));

    assert_int_equal(td_profile_start(&(td_profile_options){ 1e9, 1e9, 1e9, TD_CPU }), TD_OK);
    td_tensor *t = td_zeros(TD_SHAPE(1 << 16), TD_F32, TD_CPU);
    td_fill_(t, 1.0);
    td_free(t);
    td_profile_stop();
    assert_int_equal(td_sim_write_kernels(path), TD_OK);
    assert_int_equal(td_sim_run(&o, fill_once, seconds, &result), TD_OK);
    assert_true(seconds[0] > 0.0 && result.assumed == 0.0);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        temp_write("kernels", bad[i], strlen(bad[i]));
        assert_int_equal(td_sim_run(&o, fill_once, seconds, &result), TD_E_FORMAT);
        assert_non_null(strstr(td_last_error(), "--profile-kernels FILE writes them"));
    }
    o.kernels = temp_folder();
    assert_int_not_equal(td_sim_run(&o, fill_once, seconds, &result), TD_OK);
}

/* ---- all kinds of collectives ---- */

static int call_all_kinds(int rank, void *unused)
{
    (void)unused;
    REQUIRE_OK(td_dist_init());
    int size = td_dist_world_size();
    td_tensor *one = td_new(TD_SHAPE(2), TD_F32, TD_CPU);
    td_tensor *all = td_new(TD_SHAPE(size, 2), TD_F32, TD_CPU),
              *other = td_new(TD_SHAPE(size, 2), TD_F32, TD_CPU);
    float *v = td_data_rw(one), *a = td_data_rw(all), *b = td_data_rw(other);
    v[0] = (float)rank, v[1] = 1;
    REQUIRE_OK(td_all_gather(NULL, all, one, NULL));
    for (int r = 0; r < size; r++) {
        REQUIRE(a[2 * r] == (float)r && a[2 * r + 1] == 1.0f);
        a[2 * r] = (float)(10 * rank + r), a[2 * r + 1] = -1;
    }
    REQUIRE_OK(td_all_to_all(NULL, other, all, NULL));
    REQUIRE_OK(td_reduce_scatter(NULL, one, all, TD_SUM, NULL));
    REQUIRE(v[0] == (float)(10 * size * (size - 1) / 2 + size * rank) && v[1] == (float)-size);
    for (int r = 0; r < size; r++) {
        REQUIRE(b[2 * r] == (float)(10 * r + rank) && b[2 * r + 1] == -1.0f);
    }
    v[0] = (float)rank;
    REQUIRE_OK(td_reduce(NULL, one, TD_MAX, 1, NULL));
    REQUIRE(v[0] == (float)(rank == 1 ? size - 1 : rank));
    v[0] = (float)rank;
    REQUIRE_OK(td_gather(NULL, rank == 2 ? all : NULL, one, 2, NULL));
    REQUIRE(rank != 2 || a[2 * (size - 1)] == (float)(size - 1));
    REQUIRE_OK(td_scatter(NULL, one, rank == 2 ? all : NULL, 2, NULL));
    REQUIRE(v[0] == (float)rank);
    REQUIRE_OK(td_broadcast(NULL, one, size - 1, NULL));
    REQUIRE(v[0] == (float)(size - 1));
    REQUIRE_OK(td_barrier(NULL));

    td_group *odd; /* a group of some ranks, in which the last asks whether the others have come */
    int ranks[] = { 1, 3 };
    td_work *work;
    REQUIRE_OK(td_group_new(ranks, 2, &odd));
    if (odd != NULL) {
        v[0] = 1;
        REQUIRE_OK(td_all_reduce(odd, one, TD_AVERAGE, &work));
        while (!td_work_test(work)) {
        }
        REQUIRE_OK(td_work_wait(work, 0.0));
        REQUIRE(v[0] == 1.0f);
    }
    td_group_free(odd);
    td_free(one);
    td_free(all);
    td_free(other);
    td_dist_destroy();
    return 0;
}

static void test_all_kinds(void **state)
{
    (void)state;
    simulate(5, call_all_kinds, NULL);
}

/* ---- messages ---- */

static int send_around(int rank, void *unused)
{
    (void)unused;
    REQUIRE_OK(td_dist_init());
    int size = td_dist_world_size(), left = (rank + size - 1) % size;
    td_tensor *mine = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU),
              *theirs = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *works[2];
    for (int turn = 0; turn < 3; turn++) { /* messages of one pair keep their order */
        td_fill_(mine, 10.0 * rank + turn);
        REQUIRE_OK(td_send_named(NULL, mine, (rank + 1) % size, "turn", &works[0]));
        REQUIRE_OK(td_work_wait(works[0], 0.0));
    }
    for (int turn = 0; turn < 3; turn++) {
        REQUIRE_OK(td_recv_named(NULL, theirs, left, "turn", &works[1]));
        REQUIRE_OK(td_work_wait(works[1], 0.0));
        REQUIRE(((const float *)td_data(theirs))[2] == (float)(10 * left + turn));
    }
    td_free(mine);
    td_free(theirs);
    td_dist_destroy();
    return 0;
}

static void test_messages(void **state)
{
    (void)state;
    simulate(2, send_around, NULL);
    simulate(7, send_around, NULL);
}

/* ---- failures ---- */

enum { OTHER, DEADLOCK, LEAVES, NAME };

static int fail_on(int rank, void *how)
{
    const int what = *(const int *)how;
    td_status status = td_dist_init();
    td_tensor *t = td_zeros(TD_SHAPE(4), TD_F32, TD_CPU),
              *more = td_zeros(TD_SHAPE(5), TD_F32, TD_CPU);
    if (what == OTHER) {
        status = td_all_reduce(NULL, rank == 1 ? more : t, TD_SUM, NULL);
    } else if (what == DEADLOCK) {
        status = rank == 0 ? td_recv(NULL, t, 1, NULL) : td_barrier(NULL);
    } else if (what == NAME && rank < 2) {
        status = rank == 0 ? td_send_named(NULL, t, 1, "F0", NULL)
                           : td_recv_named(NULL, t, 0, "F1", NULL);
    } else if (what == LEAVES && rank != 1) {
        status = td_barrier(NULL);
    }
    td_free(t);
    td_free(more);
    td_dist_destroy();
    return status != TD_OK;
}

static void test_failures(void **state)
{
    (void)state;
    static const struct {
        int what;
        const char *says;
    } cases[] = {
        { OTHER, "ranks 0, 2 call all_reduce number 1" },
        { DEADLOCK, "all ranks wait for each other, rank 0 in recv number 1" },
        { LEAVES, "rank 1 has left the group" },
        { NAME, "rank 0 sends 4 elements of f32, named 'F0'" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_sim_result result;
        td_sim_options o = world_of(3);
        int what = cases[i].what;
        assert_int_equal(td_sim_run(&o, fail_on, &what, &result), TD_E_PEER);
        assert_error_says("ended with exit code 1: ", cases[i].says, NULL);
    }
}

/* A rank that dies at a microsecond ends the others in the same step each time. */
static void test_death_at_a_time(void **state)
{
    (void)state;
    sim_case whole = { .steps = 6, .failed_step = -1 };
    td_sim_result result = simulate(8, sim_rank, &whole);
    double seconds = result.whole.clock;
    int last = -1, steps = 0;
    assert_int_equal(whole.failed_step, -1);
    for (int part = 1; part < 12; part++) {
        td_sim_result one, two;
        sim_case a = { .steps = 6, .failed_step = -1 }, b = a;
        td_sim_options o = world_of(8);
        o.killed = 3;
        o.killed_at = seconds * part / 12;
        assert_int_equal(td_sim_run(&o, sim_rank, &a, &one), td_sim_run(&o, sim_rank, &b, &two));
        assert_int_equal(a.failed_step, b.failed_step);
        assert_memory_equal(&one, &two, sizeof one);
        assert_true(a.failed_step >= last);
        steps += a.failed_step > last;
        last = a.failed_step;
    }
    assert_true(steps >= 4);
}

/* ---- TANDEM_SIM ---- */

static td_status read_variables(const char *world, const char *name, const char *value,
                                td_sim_options *o)
{
    static const char *const names[] = { "_LINK", "_KERNELS", "_CORES", "_KILL" };
    setenv("TANDEM_SIM", world, 1);
    for (int i = 0; i < 4; i++) {
        char variable[40];
        snprintf(variable, sizeof variable, "TANDEM_SIM%s", names[i]);
        unsetenv(variable);
        if (name != NULL && strcmp(names[i], name) == 0) {
            setenv(variable, value, 1);
        }
    }
    td_status status = td_sim_read(o);
    unsetenv("TANDEM_SIM");
    return status;
}

static void test_variables(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        { "" },
        { "0" },
        { "65537" },
        { "4x" },
        { "4", "_LINK", "25GB/s" },
        { "4", "_LINK", "25,5us" },
        { "4", "_LINK", "0GB/s,5us" },
        { "4", "_LINK", "1e400GB/s,5us" },
        { "4", "_LINK", "25GB/s,5us," },
        { "4", "_CORES", "0" },
        { "4", "_KILL", "4@3us" },
        { "4", "_KILL", "1@-3us" },
        { "4", "_KILL", "1" },
    };
    td_sim_options o;
    assert_int_equal(read_variables("256", "_LINK", "12.5GB/s,2us", &o), TD_OK);
    assert_true(o.ranks == 256 && o.bandwidth == 12.5e9 && near(o.latency, 2e-6));
    assert_true(o.kernels == NULL && o.cores == 0 && o.killed == -1);
    assert_int_equal(read_variables("4", "_KILL", "3@3200us", &o), TD_OK);
    assert_true(o.killed == 3 && near(o.killed_at, 3.2e-3));
    assert_int_equal(read_variables("4", "_CORES", "2", &o), TD_OK);
    assert_int_equal(o.cores, 2);
    assert_int_equal(read_variables("4", "_KERNELS", "k.txt", &o), TD_OK);
    assert_string_equal(o.kernels, "k.txt");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (read_variables(bad[i][0], bad[i][1], bad[i][2], &o) != TD_E_ARG) {
            fail_msg("'%s', '%s' was read", bad[i][0], bad[i][2]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_of_processes),
        cmocka_unit_test(test_the_same_time_twice),
        cmocka_unit_test(test_clock),
        cmocka_unit_test_setup_teardown(test_costs_of_kernels, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_death_at_a_time),
        cmocka_unit_test(test_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
