/* The launcher and td_spawn where the system, or a signal at the end, plays them a trick. */
// run: waits
#include "dist/comm/launch/launcher.h"
#include "dist/comm/store/tcp.h"
#include "dist/dist.h"
#include "tensor/clock.h"
#include "tests/comm/dist_raw.h"
#include "tests/help/temp_folder.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- a waitid that fails ---- */

static int waitid_fails; /* an errno code, or 0; ECHILD: somebody else has waited */

/* In place of the C library's. */
int waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    if (waitid_fails == ECHILD && waitpid((pid_t)id, NULL, WNOHANG) == 0) {
        info->si_pid = 0; /* it runs, and has not been waited for */
        return 0;
    }
    if (waitid_fails != 0) {
        errno = waitid_fails;
        return -1;
    }
    return (int)syscall(SYS_waitid, type, id, info, options, NULL);
}

static int end_with(int rank, void *arg)
{
    return rank == 1 ? *(int *)arg : 0;
}

static void ends_are_noticed_without_waitid(void **state)
{
    (void)state;
    static const int errors[] = { 0, ENOSYS, EPERM };
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int well = 0, badly = 3;
        waitid_fails = errors[i];
        assert_int_equal(td_spawn(end_with, &well, 3), TD_OK);
        assert_int_equal(td_spawn(end_with, &badly, 3), TD_E_PEER);
        assert_error_says("rank 1 ", "exit code 3", NULL);
    }
    waitid_fails = 0;
}

/* Who has not seen the end cannot know that it was a good one. */
static void an_end_that_another_has_taken_is_a_failure(void **state)
{
    (void)state;
    int well = 0;
    waitid_fails = ECHILD;
    assert_int_equal(td_spawn(end_with, &well, 1), TD_E_PEER);
    assert_error_says("rank 0 ", "exit code", NULL);
    waitid_fails = 0;
}

/* ---- a signal that comes when all is over ---- */

static pid_t launch(const td_token *token, int port, char **worker)
{
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TMPDIR", temp_folder(), 1);
        td_launch_options options = { .min_nodes = 1,
                                      .max_nodes = 1,
                                      .workers = 1,
                                      .node_rank = -1,
                                      .hosts = true,
                                      .host = "127.0.0.1",
                                      .port = port,
                                      .run_id = "late",
                                      .token = *token,
                                      .monitor_interval = 0.01,
                                      .join_timeout = 60,
                                      .grace = 10,
                                      .argv = worker };
        exit(td_launch(&options));
    }
    return pid;
}

/* The launcher's folder goes when all is decided; then it waits some seconds for its last client.
 */
static void await_decision(void)
{
    glob_t found;
    for (int i = 0; i < 6000 && glob(temp_path("tdrun-*"), 0, NULL, &found) == 0; i++) {
        globfree(&found);
        td_sleep(0.01);
    }
}

/* Signals come while the launcher waits for this test, its client, until the launcher is gone. */
static void a_late_signal_keeps_the_exit_code(void **state)
{
    (void)state;
    for (int code = 0; code <= 3; code += 3) {
        td_token token = raw_new_token();
        td_store *store;
        char command[4400];
        int status = 0, port = td_free_port();
        const char *go = temp_path(code == 0 ? "go.0" : "go.3");
        snprintf(command, sizeof command, "until [ -e %s ]; do sleep 0.01; done; exit %d", go,
                 code);
        char *worker[] = { "sh", "-c", command, NULL };
        pid_t pid = launch(&token, port, worker);
        assert_int_equal(td_tcp_store_connect("127.0.0.1", port, 60, &token, &store), TD_OK);
        temp_write(code == 0 ? "go.0" : "go.3", "", 0);
        await_decision();
        while (waitpid(pid, &status, WNOHANG) == 0) {
            kill(pid, SIGTERM);
            td_sleep(0.001);
        }
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), code);
        td_store_close(store);
    }
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_noticed_without_waitid),
        cmocka_unit_test(an_end_that_another_has_taken_is_a_failure),
        FOLDER_TEST(a_late_signal_keeps_the_exit_code),
    };
    return cmocka_run_group_tests_name("dist: the launcher's ends", tests, NULL, NULL);
}
