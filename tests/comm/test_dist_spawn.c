/* td_spawn: results, failures, signals, logs, no orphans. */
#include "dist/comm/launch/children.h"
#include "tensor/clock.h"
#include "dist/dist.h"
#include "tests/help/temp_folder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* Nothing here may need SIGKILL: what takes as long as this has failed. */
enum { QUICK = 30 };

static void mark(const char *what, int rank, long value)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%d", what, rank);
    FILE *file = fopen(temp_path(name), "w");
    fprintf(file, "%ld", value);
    fclose(file);
}

/* What a rank has marked; waits for it a little. */
static long marked(const char *what, int rank)
{
    char name[64];
    long value = -1;
    snprintf(name, sizeof(name), "%s.%d", what, rank);
    for (int i = 0; i < 6000 && value < 0; i++) {
        FILE *file = fopen(temp_path(name), "r");
        if (file != NULL) {
            if (fscanf(file, "%ld", &value) != 1) {
                value = -1;
            }
            fclose(file);
        }
        td_sleep(value < 0 ? 0.01 : 0);
    }
    return value;
}

static bool is_gone(long pid)
{
    for (int i = 0; i < 6000; i++) {
        char path[64], state = 'Z';
        snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            return true;
        }
        (void)!fscanf(file, "%*d (%*[^)]) %c", &state);
        fclose(file);
        if (state == 'Z') { /* dead; whoever inherits it has not looked yet */
            return true;
        }
        td_sleep(0.01);
    }
    return false;
}

static int note_rank(int rank, void *arg)
{
    mark("rank", rank, 10 * rank + *(int *)arg);
    return getpgid(0) == getpid() ? 0 : 9;
}

static void all_end_well(void **state)
{
    (void)state;
    int seven = 7;
    assert_int_equal(td_spawn(note_rank, &seven, 4), TD_OK);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(marked("rank", rank), 10 * rank + 7);
    }
}

/* Rank 1 makes fewer steps, and returns 0: rank 0 fails, and is not the cause. */
static int return_early(int rank, void *arg)
{
    (void)arg;
    if (td_dist_init(.timeout = 20) != TD_OK || td_barrier(NULL) != TD_OK) {
        return 3;
    }
    return rank == 1 ? 0 : td_barrier(NULL) != TD_OK;
}

static void a_rank_returns_early(void **state)
{
    (void)state;
    assert_int_equal(td_spawn(return_early, NULL, 2), TD_E_PEER);
    assert_non_null(strstr(td_last_error(), "rank 1 had ended before (exit code 0)"));
    assert_non_null(strstr(td_last_error(), "fewer steps?"));
}

static int sleep_long(int rank)
{
    mark("pid", rank, getpid());
    td_sleep(60);
    return 0;
}

/* Rank 1 fails in the way of arg once the others are there; they sleep until they are stopped. */
static int fail_somehow(int rank, void *arg)
{
    const char *how = arg;
    if (rank != 1) {
        return sleep_long(rank);
    }
    marked("pid", 0);
    marked("pid", 2);
    if (strcmp(how, "code") == 0) {
        return 3;
    }
    if (strcmp(how, "message") == 0) {
        td_fail(TD_E_IO, "the disk of rank 1 is full");
        return 1;
    }
    if (strcmp(how, "fatal") == 0) {
        td_fatal(TD_HERE, "shapes do not fit");
    }
    if (strcmp(how, "large code") == 0) {
        return 256; /* which a system would take for 0 */
    }
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn it into an exit code */
    raise(strcmp(how, "segfault") == 0 ? SIGSEGV : SIGKILL);
    return 0;
}

static void check_failure(const char *how, const char *part, const char *also)
{
    double begin = td_clock();
    assert_int_equal(td_spawn(fail_somehow, (void *)(uintptr_t)how, 3, .stop_timeout = QUICK),
                     TD_E_PEER);
    assert_true(td_clock() - begin < 30);
    assert_error_says("rank 1 (pid ", part, also, NULL);
    assert_true(is_gone(marked("pid", 0)));
    assert_true(is_gone(marked("pid", 2)));
}

static void exit_code(void **state)
{
    (void)state;
    check_failure("code", "exit code 3", "");
}

static void message_of_the_child(void **state)
{
    (void)state;
    check_failure("message", "exit code 1", "the disk of rank 1 is full");
}

static void fatal_error(void **state)
{
    (void)state;
    check_failure("fatal", "SIGABRT", "shapes do not fit");
}

static void large_exit_code(void **state)
{
    (void)state;
    check_failure("large code", "exit code 1", "");
}

static void segfault(void **state)
{
    (void)state;
    check_failure("segfault", "signal 11 (SIGSEGV)", "");
}

static void killed(void **state)
{
    (void)state;
    check_failure("kill", "signal 9 (SIGKILL)", "");
}

/* Rank 1 writes all over the memory that it shares with its parent, and fails. */
static int overwrite(int rank, void *arg)
{
    (void)arg;
    char line[512], mode[8];
    unsigned long begin, end;
    if (rank != 1) {
        return sleep_long(rank);
    }
    marked("pid", 0);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, mode) == 3 && strcmp(mode, "rw-s") == 0) {
            memset((void *)begin, 0, end - begin);
        }
    }
    fclose(maps);
    return 3;
}

static void a_rank_with_wild_writes(void **state)
{
    (void)state;
    assert_int_equal(td_spawn(overwrite, NULL, 2, .stop_timeout = QUICK), TD_E_PEER);
    assert_error_says("rank 1 (pid ", "exit code 3", NULL);
    assert_true(is_gone(marked("pid", 0)));
}

/* A rank is killed, and the survivor, which names it, ends before it does. */
static int survive_shortly(int rank, void *arg)
{
    (void)arg;
    mark("pid", rank, getpid());
    if (rank == 1) {
        marked("told", 0);
        td_sleep(0.3);
        raise(SIGKILL);
    }
    td_fail(TD_E_PEER, "rank 1 (pid %ld) has died", marked("pid", 1));
    mark("told", 0, 1);
    return 1;
}

static void killed_and_slow_to_end(void **state)
{
    (void)state;
    assert_int_equal(td_spawn(survive_shortly, NULL, 2, .stop_timeout = QUICK), TD_E_PEER);
    assert_error_says("rank 1 (pid ", "signal 9 (SIGKILL)", NULL);
}

static void messages_that_name_a_process(void **state)
{
    (void)state;
    const char *near = "rank 1 (pid 12) has died", *far = "rank 1 (pid 12 on n2) has died";
    assert_true(td_message_names(near, "n1", 12, "n1"));
    assert_false(td_message_names(near, "n1", 1, "n1"));
    assert_false(td_message_names(near, "n1", 12, "n2"));
    assert_true(td_message_names(far, "n1", 12, "n2"));
    assert_false(td_message_names(far, "n1", 12, "n1"));
    assert_false(td_message_names(far, "n1", 12, "n"));
    assert_false(td_message_names("its process, pid 12, is stopped", "n1", 12, "n1"));
    assert_true(td_message_names("(pid 3 on n1), (pid 12 on n2)", "n1", 12, "n2"));
}

/* One that ignores SIGTERM, and one that is stopped, do not hold up the end. */
static int be_stubborn(int rank, void *arg)
{
    (void)arg;
    if (rank == 0) {
        signal(SIGTERM, SIG_IGN);
        return sleep_long(rank);
    }
    if (rank == 1) {
        marked("pid", 0);
        marked("pid", 2);
        return 5;
    }
    mark("pid", rank, getpid());
    raise(SIGSTOP);
    td_sleep(60);
    return 0;
}

static void stubborn_ones_are_killed(void **state)
{
    (void)state;
    double begin = td_clock();
    assert_int_equal(td_spawn(be_stubborn, NULL, 3, .stop_timeout = 0.3), TD_E_PEER);
    assert_true(td_clock() - begin < 40); /* they would sleep for 60 */
    assert_error_says("rank 1", "exit code 5", NULL);
    assert_true(is_gone(marked("pid", 0)));
    assert_true(is_gone(marked("pid", 2)));
}

static int print_something(int rank, void *arg)
{
    (void)arg;
    printf("out of %d\n", rank);
    fprintf(stderr, "err of %d\n", rank);
    return 0;
}

static void assert_file(const char *name, const char *wanted)
{
    char text[256] = "";
    FILE *file = fopen(temp_path(name), "r");
    assert_non_null(file);
    (void)!fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_string_equal(text, wanted);
}

static void logs_go_to_files(void **state)
{
    (void)state;
    assert_int_equal(td_spawn(print_something, NULL, 2, .log_dir = temp_path("logs")), TD_OK);
    assert_file("logs/0/stdout", "out of 0\n");
    assert_file("logs/1/stdout", "out of 1\n");
    assert_file("logs/1/stderr", "err of 1\n");
    const char *nowhere = temp_path("logs/0/stdout/below"); /* stdout is a file */
    assert_int_equal(td_spawn(print_something, NULL, 2, .log_dir = nowhere), TD_E_IO);
    assert_error_says("logs/0/stdout is not a folder", NULL);
}

static int only_sleep(int rank, void *arg)
{
    (void)arg;
    return sleep_long(rank);
}

/* A process that spawns and gets a signal. Its code: 0 if td_spawn says that it was interrupted. */
static pid_t fork_parent(void)
{
    pid_t parent = fork();
    if (parent == 0) {
        bool said = td_spawn(only_sleep, NULL, 2, .stop_timeout = QUICK) == TD_E_INTERRUPTED &&
                    strstr(td_last_error(), "stopped by SIG") != NULL;
        _exit(said ? 0 : 1);
    }
    return parent;
}

static void check_signal(int number, int wanted_status)
{
    pid_t parent = fork_parent();
    long first = marked("pid", 0), second = marked("pid", 1);
    int status;
    kill(parent, number);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    assert_int_equal(status, wanted_status);
    assert_true(is_gone(first));
    assert_true(is_gone(second));
    assert_int_equal(unlink(temp_path("pid.0")), 0);
    assert_int_equal(unlink(temp_path("pid.1")), 0);
}

static void signals_to_the_parent(void **state)
{
    (void)state;
    check_signal(SIGTERM, 0);
    check_signal(SIGINT, 0);
    check_signal(SIGHUP, 0);
    check_signal(SIGKILL, SIGKILL); /* no orphans even then */
}

/* ---- where the ranks meet ---- */

/* Whether a program that is no rank could take the port where the ranks will meet. */
static bool port_is_free(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    at.sin_port = htons((uint16_t)atoi(getenv("MASTER_PORT")));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool bound = bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
    close(fd);
    return bound;
}

/* The processes of a td_spawn are a world, wherever its own process was started. */
static int meet_others(int rank, void *arg)
{
    int size = *(int *)arg;
    if (port_is_free()) {
        return 3;
    }
    if (!td_dist_is_launched() || td_dist_init() != TD_OK) {
        return 1;
    }
    double sum = rank + 1;
    bool good = td_dist_rank() == rank && td_dist_world_size() == size &&
                td_dist_local_rank() == rank && td_dist_local_world_size() == size &&
                td_all_reduce_numbers(NULL, &sum, 1) == TD_OK && sum == size * (size + 1) / 2.0;
    td_dist_destroy();
    return good ? 0 : 2;
}

static int spawn_three(int rank, void *arg)
{
    (void)rank, (void)arg;
    int three = 3;
    return td_spawn(meet_others, &three, three, .stop_timeout = QUICK) == TD_OK ? 0 : 1;
}

static void ranks_meet(void **state)
{
    (void)state;
    int two = 2;
    assert_int_equal(td_spawn(meet_others, &two, two, .stop_timeout = QUICK), TD_OK);
    setenv("TANDEM_AGENT_STORE", "1",
           1); /* a launcher's, which its processes' children cannot use */
    assert_int_equal(td_spawn(spawn_three, NULL, 2, .stop_timeout = QUICK), TD_OK);
    unsetenv("TANDEM_AGENT_STORE");
    assert_false(td_dist_is_launched());
}

/* Options come before the environment: two spawned processes as ranks 2 and 3 of four. */
static int meet_in_file(int rank, void *arg)
{
    td_dist_options place = { .init_method = arg, .rank = rank + 2, .world_size = 4 };
    if (td_dist_init_at(place, TD_HERE) != TD_OK) {
        return 1;
    }
    bool good =
        td_dist_rank() == rank + 2 && td_dist_world_size() == 4 && td_dist_local_world_size() == 4;
    td_dist_destroy();
    return good ? 0 : 2;
}

static int meet_in_file_first(int rank, void *arg)
{
    return meet_in_file(rank - 2, arg);
}

static void part_of_a_larger_world(void **state)
{
    (void)state;
    char url[320];
    int status;
    snprintf(url, sizeof(url), "file://%s", temp_path("meeting"));
    pid_t other = fork();
    if (other == 0) {
        _exit(td_spawn(meet_in_file_first, url, 2, .stop_timeout = QUICK) == TD_OK ? 0 : 1);
    }
    assert_int_equal(td_spawn(meet_in_file, url, 2, .stop_timeout = QUICK), TD_OK);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
}

/* One rank gives up while the other waits for it. */
static int die_in_group(int rank, void *arg)
{
    (void)arg;
    double sum = 0;
    if (td_dist_init() != TD_OK) {
        return 1;
    }
    if (rank == 1) {
        td_fail(TD_E_IO, "the disk of rank 1 is full");
        td_die();
    }
    if (td_all_reduce_numbers(NULL, &sum, 1) != TD_OK) {
        td_die();
    }
    return 0;
}

static void a_rank_dies(void **state)
{
    (void)state;
    assert_int_equal(td_spawn(die_in_group, NULL, 2, .stop_timeout = QUICK), TD_E_PEER);
    assert_error_says("rank 1 (pid ", "exit code 1", "the disk of rank 1 is full", NULL);
}

static void *wait_for_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void not_with_threads(void **state)
{
    (void)state;
    int seven = 7;
    pthread_t thread;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_lock, &lock), 0);
    assert_int_equal(td_spawn(note_rank, &seven, 2), TD_E_ARG);
    assert_error_says("threads already", NULL);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    assert_int_equal(td_spawn(note_rank, &seven, 0), TD_E_ARG);
    assert_int_equal(td_spawn(note_rank, &seven, 2), TD_OK); /* it is gone */
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

/* Also where no process was started. */
static void test_stopped_by_is_set(void **state)
{
    (void)state;
    int stopped_by = 77;
    assert_int_equal(td_spawn(only_sleep, NULL, 0, .stopped_by = &stopped_by), TD_E_ARG);
    assert_int_equal(stopped_by, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_by_is_set),
        cmocka_unit_test(a_rank_returns_early),
        FOLDER_TEST(all_end_well),
        FOLDER_TEST(exit_code),
        FOLDER_TEST(message_of_the_child),
        FOLDER_TEST(fatal_error),
        FOLDER_TEST(large_exit_code),
        FOLDER_TEST(segfault),
        FOLDER_TEST(killed),
        FOLDER_TEST(a_rank_with_wild_writes),
        FOLDER_TEST(killed_and_slow_to_end),
        cmocka_unit_test(messages_that_name_a_process),
        FOLDER_TEST(stubborn_ones_are_killed),
        FOLDER_TEST(logs_go_to_files),
        FOLDER_TEST(signals_to_the_parent),
        FOLDER_TEST(ranks_meet),
        FOLDER_TEST(part_of_a_larger_world),
        FOLDER_TEST(a_rank_dies),
        FOLDER_TEST(not_with_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
