/* A node's agent and orders from the coordinator that cannot be: the agent refuses them before a
 * worker starts. */
#include "dist/comm/launch/launcher.h"
#include "dist/comm/launch/link.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs an agent of one worker, which finds these orders; what the agent returns. */
static int obey(char *const worker[], const char *order, const char *next)
{
    static td_launch_options options;
    options = (td_launch_options){ .workers = 1,
                                   .node_rank = -1,
                                   .monitor_interval = 0.01,
                                   .grace = 10,
                                   .log_dir = temp_path("logs"),
                                   .argv = (char **)worker };
    td_signal_watch watch;
    td_workers *workers;
    td_store *store;
    int agents;
    td_signal_watch_begin(&watch);
    assert_int_equal(td_workers_open(&options, &workers), TD_OK);
    td_workers_meet_at(workers, "127.0.0.1", 29400);
    assert_int_equal(td_file_store_open(temp_path("store"), "run", 60, &store), TD_OK);
    assert_int_equal(td_link_count(store, &agents), TD_OK);
    td_link down = { .store = store, .agent = agents };
    assert_int_equal(td_link_send(&down, "%s", order), TD_OK);
    if (next != NULL) {
        assert_int_equal(td_link_send(&down, "%s", next), TD_OK);
    }
    int code = td_agent_run(&options, store, workers, &watch, NULL);
    assert_int_equal(td_children_running(td_workers_children(workers)), 0);
    td_workers_close(workers, false);
    td_store_close(store);
    td_signal_watch_end(&watch);
    return code;
}

static void orders_that_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *order, *says;
    } cases[] = {
        { "start", NULL }, /* no order that the agent knows: not heard, and "end" is the next */
        { "start 0 0 0 1 0 1", "of another version" },
        { "start 0 0 0 one 0 1 run", "of another version" },
        { "start -1 0 0 1 0 1 run", "cannot be" },
        { "start 0 0 0 1 -1 1 run", "cannot be" },
        { "start 0 0 0 1 1 1 run", "cannot be" },
        { "start 0 0 0 1 0 0 run", "cannot be" },
        { "start 0 0 0 1 2147483647 2147483647 run", "cannot be" },
        { "start 0 1 0 1 0 1 run", "cannot be" }, /* more restarts than rounds */
        { "start 1 -1 0 1 0 1 run", "cannot be" },
        { "start 0 0 1 1 1 2 run", "cannot be" }, /* node 1 of 1 */
        { "start 0 0 -1 1 0 1 run", "cannot be" },
        { "start 0 0 0 0 0 1 run", "cannot be" },
        { "start 0 0 0 4097 0 4097 run", "cannot be" },
        { "start 0 0 1 2 0 2 run", "cannot be" },    /* node 0 would have no worker */
        { "start 0 0 0 2 0 1 run", "cannot be" },    /* nor node 1 */
        { "start 0 0 0 1 0 2 run", "cannot be" },    /* and whose is this one? */
        { "start 0 0 0 2 0 1026 run", "cannot be" }, /* more than a node may have */
        { "start 0 0 1 2 1025 1026 run", "cannot be" },
        { "start 0 0 0 1 0 1 ../run", "cannot be" },
        { "start 0 0 0 1 0 1 .run", "cannot be" },
        { "start 0 0 0 1 0 1 run/\x1b[2J", "cannot be" },
    };
    char started[1024]; /* temp_path's own buffers are reused */
    snprintf(started, sizeof started, "%s", temp_path("started"));
    char *const worker[] = { "touch", started, NULL };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int code = obey(worker, cases[i].order, "end 7");
        if (cases[i].says == NULL) {
            assert_int_equal(code, 7);
        } else {
            assert_int_equal(code, TD_AGENT_LOST);
            assert_error_says(cases[i].says, NULL);
        }
    }
    assert_int_not_equal(access(started, F_OK), 0);
}

/* A good order starts a worker. Another start while it runs is refused, and the worker stopped. */
static void a_start_while_workers_run(void **state)
{
    (void)state;
    static const char start[] = "start 0 0 0 1 0 1 run";
    char *const worker[] = { "sleep", "600", NULL };
    assert_int_equal(obey(worker, start, start), TD_AGENT_LOST);
    assert_error_says("cannot be", NULL);
    assert_int_equal(obey(worker, start, "again"), TD_AGENT_AGAIN);
    assert_int_equal(obey(worker, start, "end 7"), 7);
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(orders_that_cannot_be),
        FOLDER_TEST(a_start_while_workers_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
