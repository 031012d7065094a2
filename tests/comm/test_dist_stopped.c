/* What is stopped, or speaks to nobody, is told apart from what hangs: Ctrl-Z, an unread stderr. */
// run: waits
#include "dist/comm/process.h"
#include "dist/dist.h"
#include "tensor/clock.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static const double TIMEOUT = 4; /* of a collective */

static bool await_file(const char *name)
{
    for (int i = 0; i < 6000; i++) {
        if (access(temp_path(name), F_OK) == 0) {
            return true;
        }
        td_sleep(0.01);
    }
    return false;
}

/* Rank 0 waits in a barrier, and rank 1 comes when it is told to. */
static int meet_late(int rank, void *arg)
{
    (void)arg;
    char pid[16];
    if (td_dist_init(.timeout = TIMEOUT) != TD_OK) {
        return 2;
    }
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    temp_write(rank == 0 ? "pid.0" : "pid.1", pid, sizeof pid);
    if (rank == 1 && !await_file("go")) {
        return 3;
    }
    td_status status = td_barrier(NULL);
    td_dist_destroy();
    return status == TD_OK ? 0 : 4;
}

static pid_t read_pid(const char *name)
{
    size_t size;
    assert_true(await_file(name));
    td_sleep(0.1); /* now it is written, and rank 0 waits in the barrier */
    char *text = temp_read(temp_path(name), &size);
    pid_t pid = atoi(text);
    free(text);
    assert_true(pid > 0);
    return pid;
}

static bool is_stopped(pid_t pid)
{
    uint64_t start;
    return td_process_state(pid, &start) == 'T';
}

static void ctrl_z_stops_all_and_times_out_nobody(void **state)
{
    (void)state;
    int status = 0;
    pid_t parent = fork();
    if (parent == 0) {
        alarm(120);
        _exit(td_spawn(meet_late, NULL, 2) == TD_OK ? 0 : 1);
    }
    setpgid(parent, parent); /* a job of this process, as a shell's: the system lets it stop */
    pid_t first = read_pid("pid.0"), second = read_pid("pid.1");
    assert_int_equal(kill(parent, SIGTSTP), 0);
    assert_int_equal(waitpid(parent, &status, WUNTRACED), parent);
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < 1000 && !(is_stopped(first) && is_stopped(second)); i++) {
        td_sleep(0.01);
    }
    assert_true(is_stopped(first) && is_stopped(second));
    td_sleep(TIMEOUT + 2);
    temp_write("go", "", 0);
    assert_int_equal(kill(parent, SIGCONT), 0);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* stderr becomes a pipe that is full. */
static void speak_to_nobody(void)
{
    int ends[2];
    char bytes[4096] = { 0 };
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
    while (write(ends[1], bytes, sizeof bytes) > 0) {
    }
    REQUIRE(fcntl(ends[1], F_SETFL, 0) == 0);
    dup2(ends[1], STDERR_FILENO);
}

static int wait_in_vain(int rank, int size, void *arg)
{
    (void)arg;
    setenv("TANDEM_DIST_STALL", "1", 1); /* the report comes before the time-out */
    procs_init(rank, size, TIMEOUT);
    if (rank == 1) {
        procs_await(1);
        return 0;
    }
    speak_to_nobody();
    td_status status = td_barrier(NULL);
    procs_arrive();
    return status == TD_E_TIMEOUT ? 0 : 5;
}

static void an_unread_stderr_delays_no_time_out(void **state)
{
    (void)state;
    procs_end ends[2];
    procs_run(2, 60, wait_in_vain, NULL, ends);
    assert_int_equal(ends[0].code, 0);
}

/* A failure whose message nobody reads. rank 1 waits for the end of rank 0. */
static int die_unheard(int rank, int size, void *arg)
{
    procs_init(rank, size, TIMEOUT);
    if (rank == 1) {
        return td_barrier(NULL) == TD_E_PEER ? 0 : 5;
    }
    speak_to_nobody();
    if (arg != NULL) {
        td_fatal(TD_HERE, "unheard");
    }
    td_die();
}

static void an_unread_stderr_delays_no_end(void **state)
{
    static int fatal;
    procs_end ends[2];
    procs_run(2, 60, die_unheard, NULL, ends);
    assert_int_equal(ends[0].code, 1);
    assert_int_equal(ends[1].code, 0);
    procs_run(2, 60, die_unheard, &fatal, ends);
    assert_int_equal(ends[0].signal, SIGABRT);
    assert_int_equal(ends[1].code, 0);
    (void)state;
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

/* Who has no file or memory left to look at another process does not call it dead. */
static void a_process_that_cannot_be_read_lives(void **state)
{
    (void)state;
    struct rlimit usual, none;
    uint64_t start = 0, kept;
    assert_int_equal(td_process_state(getpid(), &start), 'R');
    assert_true(start > 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = usual;
    none.rlim_cur = 0;
    kept = start;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    char seen = td_process_state(getpid(), &kept);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(seen, TD_PROCESS_UNKNOWN);
    assert_int_equal(kept, start);
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(td_process_state(child, &start), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(ctrl_z_stops_all_and_times_out_nobody),
        cmocka_unit_test(a_process_that_cannot_be_read_lives),
        FOLDER_TEST(an_unread_stderr_delays_no_time_out),
        FOLDER_TEST(an_unread_stderr_delays_no_end),
    };
    return cmocka_run_group_tests_name("dist: stopped, not hanging", tests, NULL, NULL);
}
