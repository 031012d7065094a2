/* The queue of a process group and its end, over an engine made for it: when nothing, something or
 * a collective that never comes to an end is under way. */
#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "dist/comm/watchdog.h"
#include "tests/help/sanitized.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- an engine ---- */

typedef struct toy_engine {
    double start_takes, abort_takes; /* seconds */
    int polls_left;                  /* until a collective is done; negative: never */
    atomic_bool starting, aborted;
} toy_engine;

static td_status toy_run(void *engine, const td_collective *c)
{
    const toy_engine *toy = engine;
    (void)c;
    while (toy->polls_left < 1) { /* as a call into a library that cannot be interrupted */
        td_sleep(0.1);
    }
    return TD_OK;
}

static td_status toy_start(void *engine, const td_collective *c, void **request)
{
    toy_engine *toy = engine;
    (void)c;
    *request = toy;
    atomic_store(&toy->starting, true);
    if (toy->start_takes > 0) {
        td_sleep(toy->start_takes);
    }
    return TD_OK;
}

static td_status toy_poll(void *engine, void *request, bool *done)
{
    toy_engine *toy = engine;
    (void)request;
    if (atomic_load(&toy->aborted)) {
        return td_fail(TD_E_INTERRUPTED, "aborted");
    }
    *done = toy->polls_left == 0;
    toy->polls_left -= toy->polls_left > 0;
    return TD_OK;
}

static void toy_abort(void *engine, td_status status, const char *reason)
{
    toy_engine *toy = engine;
    (void)status;
    (void)reason;
    if (toy->abort_takes > 0) {
        td_sleep(toy->abort_takes);
    }
    atomic_store(&toy->aborted, true);
}

static bool toy_entered(void *engine, int rank, td_entered *entered, char note[TD_NOTE_BYTES])
{
    (void)engine, (void)rank, (void)note;
    *entered = (td_entered){ .number = 0 };
    return true;
}

static void toy_destroy(void *engine)
{
    (void)engine;
}

static const td_engine_type polled = { .name = "toy",
                                       .start = toy_start,
                                       .poll = toy_poll,
                                       .abort = toy_abort,
                                       .entered = toy_entered,
                                       .destroy = toy_destroy };

/* As mpi: what hangs in it cannot be freed. */
static const td_engine_type stubborn = { .name = "toy",
                                         .cannot_abort = true,
                                         .run = toy_run,
                                         .abort = toy_abort,
                                         .entered = toy_entered,
                                         .destroy = toy_destroy };

/* Rank 0 of two. td_group_end frees it. */
static td_group *make_group(const td_engine_type *type, toy_engine *engine, double timeout)
{
    td_group *group = calloc(1, sizeof *group);
    assert_non_null(group);
    group->size = 2;
    group->timeout = timeout;
    group->engine_type = type;
    group->engine = engine;
    td_queue_init(&group->queue);
    return group;
}

/* A message runs by toy_start and toy_poll, a barrier by toy_run. */
static td_work *begin(td_group *group, td_collective_kind kind)
{
    td_collective c = { .kind = kind, .peer = 1 };
    td_work *work;
    assert_int_equal(td_submit(group, &c, 0, &work), TD_OK);
    return work;
}

/* ---- tests ---- */

/* All has been waited for, and the group ends at once: nobody is to be told anything, though the
 * communication thread may still be on its way out of the loop over messages. On one CPU that
 * thread is often displaced just there by the one that it has woken. */
static void test_end_after_the_last_wait(void **state)
{
    (void)state;
    enum { TIMES = TD_SANITIZED ? 200 : 1000 };
    cpu_set_t before, one;
    CPU_ZERO(&one);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_SET(sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one); /* only more likely to fail */
    int told = 0;
    for (int i = 0; i < TIMES; i++) {
        toy_engine toy = { .polls_left = i % 3 };
        td_group *group = make_group(&polled, &toy, 10);
        assert_int_equal(td_work_wait(begin(group, TD_COLLECTIVE_SEND), 0), TD_OK);
        td_group_end(group);
        told += atomic_load(&toy.aborted);
    }
    (void)sched_setaffinity(0, sizeof before, &before);
    assert_int_equal(told, 0);
}

/* What is under way when the group ends fails, and the others are told; so does what is just being
 * started. */
static void test_end_with_something_under_way(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        toy_engine toy = { .polls_left = -1, .start_takes = slow ? 0.1 : 0 };
        td_group *group = make_group(&polled, &toy, 10);
        (void)begin(group, TD_COLLECTIVE_SEND); /* nobody waits for it */
        while (slow && !atomic_load(&toy.starting)) {
            td_sleep(0.001);
        }
        double begin = td_clock();
        td_group_end(group);
        assert_true(atomic_load(&toy.aborted));
        assert_true(td_clock() - begin < 9); /* not the time-out */
    }
}

/* A collective that the engine cannot give up: the end of the group waits for it, and the watchdog
 * ends the process with the reason when the time is over. */
static void end_stubborn(void)
{
    static toy_engine toy;
    td_group *group = make_group(&stubborn, &toy, 0.3);
    (void)begin(group, TD_COLLECTIVE_BARRIER);
    td_sleep(0.05);
    alarm(60); /* it must not come to that */
    td_group_end(group);
    _exit(0);
}

static void test_end_is_watched(void **state)
{
    (void)state;
    char said[2048];
    int out[2], status;
    assert_int_equal(pipe(out), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        end_stubborn();
    }
    close(out[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(out[0], said + length, sizeof said - 1 - length)) > 0) {
        length += (size_t)got;
    }
    said[length] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(said, "barrier number 1 timed out after "));
    assert_non_null(strstr(said, "so this process ends"));
}

/* Each group has its own deadlines, also while the end of another group's collective takes long.
 * Groups leave in any order. */
static void test_groups_are_watched_apart(void **state)
{
    (void)state;
    enum { GROUPS = 4, SLOW = 1, HANGS = 2 };
    toy_engine toys[GROUPS] = { { 0 } };
    td_group *groups[GROUPS];
    toys[SLOW].polls_left = toys[HANGS].polls_left = -1;
    toys[SLOW].abort_takes = 1.0;
    for (int i = 0; i < GROUPS; i++) {
        groups[i] = make_group(&polled, &toys[i], i == SLOW ? 0.3 : i == HANGS ? 0.6 : 60);
    }
    double begin_time = td_clock();
    td_work *slow = begin(groups[SLOW], TD_COLLECTIVE_SEND);
    assert_int_equal(td_work_wait(begin(groups[HANGS], TD_COLLECTIVE_SEND), 0), TD_E_TIMEOUT);
    assert_true(td_clock() - begin_time < 0.3 + toys[SLOW].abort_takes);
    assert_non_null(
        strstr(td_last_error(), "send number 1 to rank 1 (f32, 0 elements) timed out after "));
    assert_int_equal(td_work_wait(slow, 0), TD_E_TIMEOUT);
    for (int i = 0; i < GROUPS; i++) {
        assert_int_equal(atomic_load(&toys[i].aborted), i == SLOW || i == HANGS);
    }
    td_group_end(groups[SLOW]);
    td_group_end(groups[3]);
    assert_int_equal(td_work_wait(begin(groups[0], TD_COLLECTIVE_SEND), 0), TD_OK);
    td_group_end(groups[0]);
    td_group_end(groups[HANGS]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_is_watched), /* first: it forks */
        cmocka_unit_test(test_end_after_the_last_wait),
        cmocka_unit_test(test_end_with_something_under_way),
        cmocka_unit_test(test_groups_are_watched_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
