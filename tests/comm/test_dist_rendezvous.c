/* Rendezvous: URLs and environments; real processes that meet, or do not. */
// run: waits
#include "tensor/clock.h"
#include "tensor/system/text.h"
#include "dist/comm/rendezvous.h"
#include "tests/help/temp_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static const char *const variables[] = {
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TANDEM_AGENT_STORE",
    "TANDEM_RUN_ID",
    "TANDEM_ATTEMPT",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_LAUNCH_NODE_IPADDR",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_JOBID",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
};

/* Sets "NAME=value" pairs; everything else that counts is unset. Ends with NULL. */
static void set_environment(const char *first, ...)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        unsetenv(variables[i]);
    }
    va_list list;
    va_start(list, first);
    for (const char *pair = first; pair != NULL; pair = va_arg(list, const char *)) {
        char name[64];
        const char *equals = strchr(pair, '=');
        snprintf(name, sizeof(name), "%.*s", (int)(equals - pair), pair);
        setenv(name, equals + 1, 1);
    }
    va_end(list);
}

static td_rendezvous_plan plan_of(const td_dist_options *options)
{
    static const td_dist_options defaults;
    td_rendezvous_plan plan;
    assert_int_equal(td_rendezvous_plan_make(options != NULL ? options : &defaults, &plan), TD_OK);
    return plan;
}

static void assert_no_plan(const td_dist_options *options, const char *part, const char *also)
{
    static const td_dist_options defaults;
    td_rendezvous_plan plan;
    assert_int_equal(td_rendezvous_plan_make(options != NULL ? options : &defaults, &plan),
                     TD_E_ARG);
    assert_error_says(part, also, NULL);
}

/* ---- plans ---- */

static void environment(void **state)
{
    (void)state;
    set_environment("RANK=2", "WORLD_SIZE=4", "MASTER_ADDR=node1", "MASTER_PORT=29500",
                    "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", NULL);
    td_rendezvous_plan plan = plan_of(NULL);
    assert_int_equal(plan.way, TD_MEET_OVER_TCP);
    assert_int_equal(plan.rank, 2);
    assert_int_equal(plan.world_size, 4);
    assert_string_equal(plan.host, "node1");
    assert_int_equal(plan.port, 29500);
    assert_int_equal(plan.local_rank, 0);
    assert_int_equal(plan.local_world_size, 2);
    assert_false(plan.hosts_server);
    setenv("RANK", "0", 1);
    assert_true(plan_of(NULL).hosts_server);
    setenv("TANDEM_AGENT_STORE", "1", 1);
    setenv("TANDEM_RUN_ID", "abc", 1);
    setenv("TANDEM_ATTEMPT", "3", 1);
    plan = plan_of(NULL);
    assert_false(plan.hosts_server);
    assert_string_equal(plan.run_id, "abc");
    assert_int_equal(plan.attempt, 3);

    setenv("RANK", "-1", 1);
    assert_no_plan(NULL, "rank -1 does not exist", "from 0 to 3");
    setenv("RANK", "1x", 1);
    assert_no_plan(NULL, "RANK is '1x'", "");
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_no_plan(NULL, "env://: rank 5 does not exist in a world of 2", "from 0 to 1");
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "0", 1);
    assert_no_plan(NULL, "world size is 0", "");
    setenv("WORLD_SIZE", "2147483647", 1);
    assert_no_plan(NULL, "world size is 2147483647", "65536");
    setenv("WORLD_SIZE", "1", 1);
    setenv("MASTER_PORT", "65536", 1);
    assert_no_plan(NULL, "port 65536", "");
}

static void environment_names_what_is_missing(void **state)
{
    (void)state;
    set_environment(NULL, NULL);
    assert_no_plan(NULL, "not set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
                   "tdrun sets them; srun");
    set_environment("RANK=0", "WORLD_SIZE=1", "MASTER_PORT=1", NULL);
    assert_no_plan(NULL, "not set: MASTER_ADDR (", "");
    set_environment("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=", "MASTER_PORT=1", NULL);
    assert_no_plan(&(td_dist_options){ .init_method = "env://" }, "not set: MASTER_ADDR (", "");
}

static void urls(void **state)
{
    (void)state;
    set_environment(NULL, NULL);
    td_dist_options o = { .init_method = "tcp://10.1.2.3:5000", .rank = 1, .world_size = 2 };
    td_rendezvous_plan plan = plan_of(&o);
    assert_string_equal(plan.host, "10.1.2.3");
    assert_int_equal(plan.port, 5000);
    assert_int_equal(plan.rank, 1);
    assert_int_equal(plan.world_size, 2);
    assert_false(plan.hosts_server);
    o = (td_dist_options){ .init_method = "tcp://[::1]:5000?rank=0&world_size=3" };
    plan = plan_of(&o);
    assert_string_equal(plan.host, "::1");
    assert_int_equal(plan.rank, 0);
    assert_int_equal(plan.world_size, 3);
    assert_true(plan.hosts_server);
    o = (td_dist_options){ .init_method = "file:///tmp/meet?world_size=3&rank=2" };
    plan = plan_of(&o);
    assert_int_equal(plan.way, TD_MEET_IN_FILE);
    assert_string_equal(plan.path, "/tmp/meet");
    assert_int_equal(plan.rank, 2);

    o = (td_dist_options){ .init_method = "tcp://h:1?rank=0&world_size=3", .world_size = 3 };
    assert_no_plan(&o, "given twice", "");
    o = (td_dist_options){ .init_method = "tcp://h:1" };
    assert_no_plan(&o, "wants a rank and a world size", "?rank=");
    o = (td_dist_options){ .init_method = "tcp://h:1?rank=0" };
    assert_no_plan(&o, "wants a rank and a world size", "");
    o = (td_dist_options){ .init_method = "tcp://h:1?rank=3&world_size=2" };
    assert_no_plan(&o, "tcp://: rank 3 does not exist in a world of 2", "");
    o = (td_dist_options){ .init_method = "file:///tmp/meet", .rank = 2, .world_size = 2 };
    assert_no_plan(&o, "file://: rank 2 does not exist in a world of 2", "");
    o = (td_dist_options){ .init_method = "tcp://h:1?rank=0&size=3" };
    assert_no_plan(&o, "cannot read 'size'", "");
    o = (td_dist_options){ .init_method = "tcp://h", .world_size = 1 };
    assert_no_plan(&o, "no port", "");
    o = (td_dist_options){ .init_method = "tcp://:80", .world_size = 1 };
    assert_no_plan(&o, "name has 0", "");
    o = (td_dist_options){ .init_method = "file://relative", .world_size = 1 };
    assert_no_plan(&o, "absolute", "");
    o = (td_dist_options){ .init_method = "http://h:1", .world_size = 1 };
    assert_no_plan(&o, "http://h:1", "env://, tcp://HOST:PORT and file:///PATH");
}

static void slurm(void **state)
{
    (void)state;
    set_environment("SLURM_JOB_ID=77", "SLURM_PROCID=3", "SLURM_NTASKS=5", "SLURM_LOCALID=1",
                    "SLURM_NODEID=1", "SLURM_STEP_ID=2", "SLURM_JOB_NODELIST=n[01-03,7]",
                    "SLURM_STEP_TASKS_PER_NODE=2(x2),1", NULL);
    td_rendezvous_plan plan = plan_of(NULL);
    assert_int_equal(plan.rank, 3);
    assert_int_equal(plan.world_size, 5);
    assert_int_equal(plan.local_rank, 1);
    assert_int_equal(plan.local_world_size, 2);
    assert_string_equal(plan.host, "n01");
    assert_int_equal(plan.port, 10000 + 77 * 7 + 2);
    assert_string_equal(plan.run_id, "slurm-77.2");
    setenv("SLURM_LAUNCH_NODE_IPADDR", "10.9.8.7", 1); /* n01 does not resolve */
    setenv("MASTER_PORT", "1234", 1);
    plan = plan_of(NULL);
    assert_string_equal(plan.host, "10.9.8.7");
    assert_int_equal(plan.port, 1234);
    setenv("MASTER_ADDR", "here", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    plan = plan_of(NULL);
    assert_string_equal(plan.host, "here");
    assert_int_equal(plan.world_size, 4);
    unsetenv("MASTER_ADDR");
    unsetenv("SLURM_JOB_NODELIST");
    assert_no_plan(NULL, "SLURM_JOB_NODELIST", "srun");
    setenv("RANK", "0", 1); /* a launcher inside a job: its word counts */
    assert_no_plan(NULL, "not set: WORLD_SIZE", "");
}

static void mpi(void **state)
{
    (void)state;
    set_environment("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                    "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                    "PMIX_NAMESPACE=job1", NULL);
    td_rendezvous_plan plan = plan_of(NULL);
    assert_int_equal(plan.rank, 1);
    assert_int_equal(plan.world_size, 2);
    assert_int_equal(plan.local_rank, 1);
    assert_string_equal(plan.host, "127.0.0.1");
    assert_in_range(plan.port, 10000, 29999);
    int port = plan.port;
    setenv("PMIX_NAMESPACE", "job2", 1);
    assert_int_not_equal(plan_of(NULL).port, port);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
    assert_no_plan(NULL, "MASTER_ADDR", "mpirun -x");
    setenv("MASTER_ADDR", "n1", 1);
    assert_string_equal(plan_of(NULL).host, "n1");

    set_environment("PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2", NULL);
    plan = plan_of(NULL);
    assert_int_equal(plan.world_size, 2);
    assert_true(plan.hosts_server);
}

/* ---- meetings, in real processes ---- */

typedef struct job {
    char url[600];
    int world; /* how many are started */
    double timeout;
    int claimed_world[4]; /* what a rank says the world size is; 0: world */
    int claimed_rank[4];  /* what it says its rank is; -1: its own */
    double delay[4];      /* before it comes; negative: it never does */
    int inits;
    int together;      /* so many wait for each other before they come; 0: nobody does */
    _Atomic int *here; /* how many of these there are (shared by the ranks) */
    bool fails;
    const char *says[3]; /* of which error */
} job;

static job new_job(const char *scheme, int world)
{
    job j = { .world = world, .timeout = 60, .inits = 1, .claimed_rank = { -1, -1, -1, -1 } };
    if (strcmp(scheme, "tcp") == 0) {
        snprintf(j.url, sizeof(j.url), "tcp://127.0.0.1:%d", td_free_port());
    } else {
        snprintf(j.url, sizeof(j.url), "file://%s", temp_path("meeting"));
    }
    return j;
}

static int check_result(const td_rendezvous_result *r, const td_dist_options *o, int round)
{
    int wrong = r->rank != o->rank || r->world_size != o->world_size || r->local_rank != o->rank ||
                r->local_world_size != o->world_size || !r->one_host;
    /* The store works, and has nothing of an earlier init. */
    int64_t sum = 0, last = 0;
    char *text = NULL;
    wrong += td_store_add(r->store, "sum", 1, &sum) != TD_OK || sum > o->world_size;
    wrong += td_store_add(r->store, "last", round, &last) != TD_OK;
    if (sum == o->world_size) {
        wrong += td_store_set_text(r->store, "end", "1") != TD_OK;
    }
    wrong += td_store_get_text(r->store, "end", 60, &text) != TD_OK;
    free(text);
    return wrong;
}

static int take_part(int rank, void *arg)
{
    const job *j = arg;
    if (j->delay[rank] < 0) {
        return 0;
    }
    td_sleep(j->delay[rank]);
    if (j->together > 0) {
        ++*j->here;
    }
    while (j->together > 0 && *j->here < j->together) {
        td_sleep(0.001);
    }
    td_dist_options o = { .init_method = j->url, .timeout = j->timeout, .world_size = j->world };
    o.rank = j->claimed_rank[rank] >= 0 ? j->claimed_rank[rank] : rank;
    o.world_size = j->claimed_world[rank] > 0 ? j->claimed_world[rank] : j->world;
    int wrong = 0;
    for (int i = 0; i < j->inits; i++) {
        td_rendezvous_result r;
        td_status status = td_rendezvous(&o, &r);
        if (status == TD_OK) {
            wrong += check_result(&r, &o, i);
            td_rendezvous_end(&r);
        }
        wrong += (status != TD_OK) != j->fails;
        for (int k = 0; j->fails && k < 3; k++) {
            wrong += j->says[k] != NULL && strstr(td_last_error(), j->says[k]) == NULL;
        }
        if (wrong > 0) {
            fprintf(stderr, "# rank %d, init %d: status %d: %s\n", rank, i, status,
                    td_last_error());
            return 1;
        }
    }
    return 0;
}

static void run_job(job *j)
{
    set_environment(NULL, NULL);
    j->here =
        mmap(NULL, sizeof *j->here, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->here != MAP_FAILED);
    td_status status = td_spawn(take_part, j, j->world);
    munmap((void *)j->here, sizeof *j->here);
    if (status != TD_OK) {
        fail_msg("%s", td_last_error());
    }
}

static void all_meet(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        job tcp = new_job("tcp", world), file = new_job("file", world);
        tcp.delay[0] = 0.1; /* the others come before the server */
        run_job(&tcp);
        run_job(&file);
    }
}

/* Again and again, at the same port, some leaving and coming earlier than others. */
static void init_again(void **state)
{
    (void)state;
    job tcp = new_job("tcp", 3), file = new_job("file", 3);
    tcp.inits = file.inits = 10;
    run_job(&tcp);
    run_job(&file);
    /* And a later job at the same place finds nothing of the one before. */
    run_job(&tcp);
    run_job(&file);
}

static void missing_rank_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        job j = new_job(i == 0 ? "tcp" : "file", 4);
        j.timeout = 2;
        j.delay[2] = -1;
        j.together = 3; /* so that they come in time */
        j.fails = true;
        j.says[0] = "3 joined (0-1, 3)";
        j.says[1] = "missing: 2;";
        double begin = td_clock();
        run_job(&j);
        assert_true(td_clock() - begin < 20);
    }
}

static void wrong_world_size_is_everybodys_error(void **state)
{
    (void)state;
    job j = new_job("tcp", 3);
    j.timeout = 60;
    j.claimed_world[1] = 2;
    j.fails = true;
    j.says[0] = "wrong world size";
    /* One token for all: td_spawn's own is not used for another world size. */
    setenv("TANDEM_TOKEN", "00112233445566778899aabbccddeeff", 1);
    double begin = td_clock();
    run_job(&j);
    unsetenv("TANDEM_TOKEN");
    assert_true(td_clock() - begin < 30); /* at once, not after the time-out */
}

static void rank_twice_is_everybodys_error(void **state)
{
    (void)state;
    job j = new_job("tcp", 4);
    j.timeout = 60;
    j.claimed_rank[3] = 1;
    j.fails = true;
    j.says[0] = "rank 1 has come twice";
    j.says[1] = "pid";
    double begin = td_clock();
    run_job(&j);
    assert_true(td_clock() - begin < 30);
}

static void no_rank_0(void **state)
{
    (void)state;
    job j = new_job("tcp", 2);
    j.timeout = 0.5;
    j.delay[0] = -1;
    j.fails = true;
    j.says[0] = "no store at 127.0.0.1:";
    run_job(&j);
}

/* A store that the program brings; an agent's, with a prefix for the attempt. */
static void other_stores(void **state)
{
    (void)state;
    td_tcp_server *server;
    td_store *store;
    td_rendezvous_result r;
    char port[32];
    bool exists;
    set_environment(NULL, NULL);
    assert_int_equal(td_tcp_server_start(0, &server), TD_OK);
    assert_int_equal(td_tcp_store_open("127.0.0.1", td_tcp_server_port(server), 5, &store), TD_OK);
    td_dist_options o = { .store = store, .world_size = 1 };
    assert_int_equal(td_rendezvous(&o, &r), TD_OK);
    assert_string_equal(r.address, "127.0.0.1");
    td_rendezvous_end(&r);
    assert_int_equal(td_store_set_text(store, "mine", "1"), TD_OK); /* still open */

    snprintf(port, sizeof(port), "MASTER_PORT=%d", td_tcp_server_port(server));
    set_environment("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", port, "TANDEM_RUN_ID=run",
                    "TANDEM_ATTEMPT=4", "TANDEM_AGENT_STORE=1", NULL);
    assert_int_equal(td_rendezvous(NULL, &r), TD_OK);
    assert_int_equal(td_store_set_text(r.store, "k", "1"), TD_OK);
    assert_int_equal(td_store_check(store, "run/4/init1/k", &exists), TD_OK);
    assert_true(exists);
    td_rendezvous_end(&r);
    td_store_close(store);
    td_tcp_server_stop(server);
}

/* A store that counts what it is asked for. */
typedef struct counting_store {
    td_store base;
    td_store *inner;
    int calls;
} counting_store;

static td_status count_call(td_store *store, const td_store_request *r, char **reply, size_t *size)
{
    counting_store *c = (counting_store *)store;
    c->calls++;
    return td_store_call(c->inner, r, reply, size);
}

/* The message about missing ranks does not take a request for each of them. */
static void missing_ranks_of_a_large_world_are_counted(void **state)
{
    (void)state;
    static const td_store_kind kind = { "counting", count_call, NULL };
    counting_store store = { .base = { &kind, 60 } };
    td_rendezvous_result r;
    set_environment(NULL, NULL);
    assert_int_equal(td_file_store_open(temp_path("large"), "run", 60, &store.inner), TD_OK);
    td_dist_options o = { .store = &store.base, .world_size = 65536, .rank = 65535 };
    o.timeout = 0.2;
    double begin = td_clock();
    assert_int_equal(td_rendezvous(&o, &r), TD_E_TIMEOUT);
    assert_non_null(strstr(td_last_error(), "for 65536 ranks: 1 joined; look at"));
    assert_true(td_clock() - begin < 20);
    assert_true(store.calls < 20);
    td_store_close(store.inner);
}

/* A key of the rendezvous that another program has set. */
static void a_host_with_an_endless_name(void **state)
{
    (void)state;
    char name[5001];
    td_store *store;
    td_rendezvous_result r;
    set_environment(NULL, NULL);
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(td_file_store_open(temp_path("endless"), "run", 60, &store), TD_OK);
    assert_int_equal(td_store_set_text(store, "0/init2/joined/1", name), TD_OK); /* the third */
    assert_int_equal(td_store_set_text(store, "0/init2/joined/2", "far|"), TD_OK);
    assert_int_equal(td_store_add(store, "0/init2/arrived", 2, NULL), TD_OK);
    td_dist_options o = { .store = store, .world_size = 3, .timeout = 5 };
    assert_int_equal(td_rendezvous(&o, &r), TD_OK);
    assert_true(r.hosts[2] == td_hash_text(TD_HASH_BEGIN, "far"));
    td_rendezvous_end(&r);
    td_store_close(store);
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment),
        cmocka_unit_test(environment_names_what_is_missing),
        cmocka_unit_test(urls),
        cmocka_unit_test(slurm),
        cmocka_unit_test(mpi),
        FOLDER_TEST(all_meet),
        FOLDER_TEST(init_again),
        FOLDER_TEST(missing_rank_is_named),
        FOLDER_TEST(missing_ranks_of_a_large_world_are_counted),
        FOLDER_TEST(wrong_world_size_is_everybodys_error),
        FOLDER_TEST(rank_twice_is_everybodys_error),
        FOLDER_TEST(no_rank_0),
        cmocka_unit_test(other_stores),
        FOLDER_TEST(a_host_with_an_endless_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
