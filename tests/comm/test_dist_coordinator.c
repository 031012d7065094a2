/* The launcher's coordinator alone: this program is the agents of two nodes, which report failures
 * in every order, and reads which of them it takes for the cause; and who may start again. */
// run: waits
#include "tensor/clock.h"
#include "dist/comm/launch/link.h"
#include "dist/comm/launch/launcher.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { NODES = 2 };

static td_launch_options options; /* of the job */

typedef struct job {
    td_store *store;
    td_coordinator *coordinator;
    td_link agents[NODES];
} job;

/* The next message to a node, which may be a while in coming; both say meanwhile that they live.
 * The caller's to free. */
static char *hear(job *j, int node)
{
    static const double PATIENCE = 60, BEAT = 0.5;
    double begin = td_clock(), beat = begin;
    char *text = NULL;
    while (text == NULL) {
        td_coordinator_look(j->coordinator);
        assert_int_equal(td_link_receive(&j->agents[node], &text), TD_OK);
        assert_true(td_clock() - begin < PATIENCE);
        if (td_clock() > beat + BEAT) {
            beat = td_clock();
            for (int i = 0; i < NODES; i++) {
                assert_int_equal(td_link_send(&j->agents[i], "beat"), TD_OK);
            }
        }
        td_sleep(0.002);
    }
    return text;
}

static void expect(job *j, int node, const char *begin)
{
    char *text = hear(j, node);
    if (strncmp(text, begin, strlen(begin)) != 0) {
        fail_msg("node %d was told '%s', not '%s'", node, text, begin);
    }
    free(text);
}

/* Two nodes of one worker each, which run. Node i's launcher has the process id pid + i. */
static job open_job(int min_nodes, int max_restarts, int pid)
{
    options = (td_launch_options){ .min_nodes = min_nodes,
                                   .max_nodes = NODES,
                                   .workers = 1,
                                   .run_id = "run",
                                   .max_restarts = max_restarts,
                                   .join_timeout = 60,
                                   .grace = 60 };
    job j = { 0 };
    assert_int_equal(td_file_store_open(temp_path("store"), "run", 60, &j.store), TD_OK);
    j.coordinator = td_coordinator_new(&options, j.store);
    assert_non_null(j.coordinator);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(td_link_open(j.store, &j.agents[i]), TD_OK);
        assert_int_equal(td_link_send(&j.agents[i], "join n%d %d %d %d", i + 1, pid + i, i, 1),
                         TD_OK);
    }
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "start 0 0 ");
    }
    return j;
}

static void close_job(job *j)
{
    (void)td_coordinator_free(j->coordinator);
    td_store_close(j->store);
}

/* Rank i is node i's, on host n<i+1>, with pid 10 + i. */
static td_worker_failure failure(int rank, double when, int status, const char *message)
{
    td_worker_failure f = { .when = td_clock() - 1000 + when,
                            .rank = rank,
                            .node = rank,
                            .pid = 10 + rank,
                            .status = status };
    snprintf(f.host, sizeof f.host, "n%d", rank + 1);
    snprintf(f.message, sizeof f.message, "%s", message);
    return f;
}

static void report(td_link *agent, const td_worker_failure *f, int round)
{
    char text[3000];
    td_failure_pack(f, text, sizeof text);
    assert_int_equal(td_link_send(agent, "fail %d %s", round, text), TD_OK);
}

enum { EXIT_1 = 1 << 8, EXIT_3 = 3 << 8 };

typedef struct two_failures {
    const char *name;
    td_worker_failure of[NODES];
    int cause; /* rank */
} two_failures;

/* Both orders of arrival: the second comes when the coordinator stops the nodes already. */
static void check_cause(const two_failures *c)
{
    for (int first = 0; first < NODES; first++) {
        temp_folder_setup(NULL);
        job j = open_job(NODES, 0, 1000);
        int second = 1 - first;
        report(&j.agents[first], &c->of[first], 0);
        expect(&j, first, "stop 0");
        expect(&j, second, "stop 0");
        report(&j.agents[second], &c->of[second], 0);
        for (int i = 0; i < NODES; i++) {
            assert_int_equal(td_link_send(&j.agents[i], "stopped 0"), TD_OK);
        }
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\nrank %d failed first: ", c->cause);
        for (int i = 0; i < NODES; i++) {
            char *text = hear(&j, i);
            int code = -1;
            assert_int_equal(sscanf(text, "end %d", &code), 1);
            if (strstr(text, wanted) == NULL ||
                code != td_child_exit_code(c->of[c->cause].status)) {
                fail_msg("%s, rank %d's first: node %d was told: %s", c->name, first, i, text);
            }
            free(text);
        }
        close_job(&j);
        temp_folder_teardown(NULL);
    }
}

static void test_the_cause(void **state)
{
    (void)state;
    const two_failures cases[] = {
        { "the earlier one",
          { failure(0, 100.0, EXIT_3, "the disk is full"), failure(1, 100.5, EXIT_1, "later") },
          0 },
        { "the earlier one, of the other node",
          { failure(0, 100.5, EXIT_1, "later"), failure(1, 100.0, EXIT_3, "the disk is full") },
          1 },
        { "the one that a survivor names, though that was faster",
          { failure(0, 100.0, EXIT_1, "all_reduce: rank 1 (pid 11 on n2) has died"),
            failure(1, 101.0, SIGKILL, "") },
          1 },
        { "the one that a survivor names, though clocks differ",
          { failure(0, 500.0, SIGSEGV, ""),
            failure(1, 100.0, EXIT_1, "all_reduce: rank 0 (pid 10 on n1) has died") },
          0 },
        { "another pid is another process: the earlier one",
          { failure(0, 100.0, EXIT_1, "all_reduce: rank 1 (pid 111 on n2) has died"),
            failure(1, 101.0, SIGKILL, "") },
          0 },
        { "the same pid of another host: the earlier one",
          { failure(0, 100.0, EXIT_1, "all_reduce: rank 1 (pid 11 on n3) has died"),
            failure(1, 101.0, SIGKILL, "") },
          0 },
        { "each names the other: the earlier one",
          { failure(0, 100.0, EXIT_1, "rank 1 (pid 11 on n2) has died"),
            failure(1, 101.0, EXIT_1, "rank 0 (pid 10 on n1) has died") },
          0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_cause(&cases[i]);
    }
}

/* The hosts' clocks may differ by hours: a node says how long ago a rank failed. */
static void test_skewed_clocks(void **state)
{
    (void)state;
    job j = open_job(NODES, 0, 1000);
    assert_int_equal(td_link_send(&j.agents[0], "fail 0 0.5 0 0 0 10 256 n1\n\nlater"), TD_OK);
    expect(&j, 0, "stop 0");
    assert_int_equal(td_link_send(&j.agents[1], "fail 0 8.0 1 0 1 11 768 n2\n\nthe cause"), TD_OK);
    expect(&j, 1, "stop 0");
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(td_link_send(&j.agents[i], "stopped 0"), TD_OK);
    }
    char *text = hear(&j, 0);
    assert_non_null(strstr(text, "end 3\nrank 1 failed first: exit code 3"));
    free(text);
    close_job(&j);
}

/* With restarts left all start again, and what the last round's failure was does not count any
 * more. */
static void test_a_restart_forgets(void **state)
{
    (void)state;
    job j = open_job(NODES, 1, 1000);
    td_worker_failure old = failure(0, 50.0, EXIT_3, "the first round's");
    report(&j.agents[0], &old, 0);
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "stop 0");
        assert_int_equal(td_link_send(&j.agents[i], "stopped 0"), TD_OK);
    }
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "start 1 1 ");
    }
    td_worker_failure late = failure(1, 40.0, EXIT_1, "late news of the first round"),
                      now = failure(1, 60.0, EXIT_1, "the second round's");
    report(&j.agents[1], &late, 0); /* of a round that is over: not heard */
    report(&j.agents[1], &now, 1);
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "stop 1");
        assert_int_equal(td_link_send(&j.agents[i], "stopped 1"), TD_OK);
    }
    for (int i = 0; i < NODES; i++) {
        char *text = hear(&j, i);
        assert_non_null(strstr(text, "end 1\nrank 1 failed first: exit code 1"));
        assert_non_null(strstr(text, "the second round's"));
        free(text);
    }
    close_job(&j);
}

/* The coordinator's process was stopped, so it has heard nothing, also of its own node. */
static void test_a_coordinator_that_stood_still(void **state)
{
    (void)state;
    job j = open_job(NODES, 0, 1000);
    td_sleep(TD_LOST + 0.2);
    td_coordinator_look(j.coordinator);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(td_link_send(&j.agents[i], "beat"), TD_OK);
    }
    td_coordinator_look(j.coordinator);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(td_link_send(&j.agents[i], "done 0"), TD_OK);
    }
    expect(&j, 0, "end 0");
    close_job(&j);
}

/* The same while the nodes stop: what they have sent counts. */
static void test_a_coordinator_that_stood_still_at_a_stop(void **state)
{
    (void)state;
    job j = open_job(NODES, 0, 1000);
    options.grace = -13; /* nodes have 15 s more to stop: 2 s */
    td_worker_failure first = failure(0, 100.0, EXIT_3, "the disk is full");
    report(&j.agents[0], &first, 0);
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "stop 0");
    }
    td_sleep(2.2);
    td_coordinator_look(j.coordinator);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(td_link_send(&j.agents[i], "stopped 0"), TD_OK);
    }
    for (int i = 0; i < NODES; i++) {
        expect(&j, i, "end 3\nrank 0 failed first: exit code 3");
    }
    close_job(&j);
}

/* The others wait for a lost node in vain, so that they are stopped sooner. A message that makes no
 * sense is not heard. */
static void test_a_lost_node(void **state)
{
    (void)state;
    job j = open_job(NODES, 0, 1000);
    td_link stranger;
    assert_int_equal(td_link_open(j.store, &stranger), TD_OK);
    assert_int_equal(td_link_send(&stranger, "join n3 1 -1 2147483647"), TD_OK);
    assert_int_equal(td_link_send(&stranger, "join n3 1 -1 0"), TD_OK);
    assert_int_equal(td_link_send(&j.agents[0], "leave 2147483647"), TD_OK);
    char *text = NULL;
    for (double begin = td_clock(); text == NULL && td_clock() < begin + 60; td_sleep(0.1)) {
        assert_int_equal(td_link_send(&j.agents[0], "beat"), TD_OK); /* node 1 is silent */
        td_coordinator_look(j.coordinator);
        assert_int_equal(td_link_receive(&j.agents[0], &text), TD_OK);
    }
    assert_non_null(text);
    assert_string_equal(text, "stop 0 lost");
    free(text);
    assert_int_equal(td_link_receive(&stranger, &text), TD_OK);
    assert_null(text);
    assert_int_equal(td_link_send(&j.agents[0], "stopped 0"), TD_OK);
    expect(&j, 0, "end 1\nnode on host n2 (pid 1001) was lost");
    close_job(&j);
}

/* A signal to the host's launcher ends an elastic job. A signal to another launcher does not,
 * though in containers that launcher may have the host's process id. */
static void test_a_node_leaves_an_elastic_job(void **state)
{
    (void)state;
    job j = open_job(1, 0, (int)getpid() - 1);
    assert_int_equal(td_link_send(&j.agents[1], "leave %d", SIGTERM), TD_OK);
    expect(&j, 0, "stop 0");
    expect(&j, 1, "end 143");
    td_link host;
    char name[128] = "";
    gethostname(name, sizeof(name) - 1);
    assert_int_equal(td_link_open(j.store, &host), TD_OK);
    assert_int_equal(td_link_send(&host, "join %s %d -1 1", name, (int)getpid()), TD_OK);
    assert_int_equal(td_link_send(&host, "leave %d", SIGTERM), TD_OK);
    expect(&j, 0, "end 143");
    close_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cause),
        cmocka_unit_test_setup_teardown(test_skewed_clocks, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_restart_forgets, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_coordinator_that_stood_still, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_coordinator_that_stood_still_at_a_stop,
                                        temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_node, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_node_leaves_an_elastic_job, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("dist: the coordinator", tests, NULL, NULL);
}
