/* The file that a checkpoint is written to before it is renamed: its name, and what others have
 * left or planted. */
#include "tandem.h"
#include "tensor/system/temporary.h"
#include "tests/help/temp_folder.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void save(const char *path)
{
    td_module *net = td_nn_linear(4, 8);
    assert_int_equal(td_save(path, net), TD_OK);
    td_module_free(net);
}

/* PATH.tmp.HOST.PID.RANDOM, if `ending` is ".tmp.". */
static const char *touch(const char *path, const char *ending, uint32_t host, long number)
{
    static char name[8][4200];
    static int next;
    char *place = name[next++ % 8];
    snprintf(place, sizeof name[0], "%s%s%08" PRIx32 ".%ld.0123456789abcdef", path, ending, host,
             number);
    FILE *file = fopen(place, "w");
    assert_non_null(file);
    fclose(file);
    return place;
}

static pid_t dead_process(void)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    return child;
}

/* What killed processes have left goes away at the next save, what others have does not. Whether a
 * process of another host lives cannot be asked: there the file's age decides. */
static void test_leftovers(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", temp_path("a.safetensors"));
    uint32_t here = td_host_number(), there = here + 1;
    pid_t child = dead_process();
    const char *gone[] = { touch(path, ".tmp.", here, child), touch(path, ".tmp.", there, 1) };
    const char *kept[] = { touch(path, ".tmp.", here, getppid()), touch(path, ".tmp.", there, 2),
                           touch(path, ".tmp.of", here, child),
                           touch(path, "b.tmp.", here, child) };
    struct timespec old[2] = { { .tv_sec = time(NULL) - 7200 }, { .tv_sec = time(NULL) - 7200 } };
    assert_int_equal(utimensat(AT_FDCWD, gone[1], old, 0), 0);
    save(path);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        assert_int_equal(access(gone[i], F_OK), -1);
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_int_equal(access(kept[i], F_OK), 0);
    }
}

/* Somebody who guesses the name of the temporary file puts a link there: the file that the link
 * leads to stays as it was. */
static void test_planted_link(void **state)
{
    (void)state;
    char path[4096], victim[4096];
    snprintf(path, sizeof path, "%s", temp_path("a.safetensors"));
    snprintf(victim, sizeof victim, "%s", temp_path("victim"));
    temp_write("victim", "precious", 8);
    char guess[4200];
    snprintf(guess, sizeof guess, "%s.tmp.%08" PRIx32 ".%ld", path, td_host_number(),
             (long)getpid());
    assert_int_equal(symlink(victim, guess), 0);
    save(path);
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_int_equal(stat(victim, &info), 0);
    assert_int_equal(info.st_size, 8);
}

static bool guessed; /* whether the name's random part is known beforehand: zeros */

/* In the place of the C library's. */
int getentropy(void *bytes, size_t size)
{
    if (guessed) {
        memset(bytes, 0, size);
        return 0;
    }
    return syscall(SYS_getrandom, bytes, size, 0) == (long)size ? 0 : -1;
}

/* Somebody who guesses the whole name has planted a file or a link there: it is not written into,
 * and not followed. */
static void test_guessed_name(void **state)
{
    (void)state;
    char path[4096], victim[4096], guess[4200];
    snprintf(path, sizeof path, "%s", temp_path("a.safetensors"));
    snprintf(victim, sizeof victim, "%s", temp_path("victim"));
    snprintf(guess, sizeof guess, "%s.tmp.%08" PRIx32 ".%ld.%016d", path, td_host_number(),
             (long)getpid(), 0);
    temp_write("victim", "precious", 8);
    for (int linked = 0; linked < 2; linked++) {
        assert_int_equal((linked ? symlink : link)(victim, guess), 0);
        td_module *net = td_nn_linear(4, 8);
        guessed = true;
        td_status status = td_save(path, net);
        guessed = false;
        td_module_free(net);
        struct stat info;
        assert_int_equal(status, TD_E_IO);
        assert_int_equal(stat(victim, &info), 0);
        assert_int_equal(info.st_size, 8);
        assert_int_equal(unlink(guess), 0);
    }
}

/* With closed standard streams the file must not become one of them: text that is printed would get
 * into it. */
static void test_closed_streams(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s", temp_path("a.safetensors"));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *name;
        close(STDOUT_FILENO);
        int fd = td_temporary_open(path, &name);
        _exit(fd <= STDERR_FILENO || unlink(name) != 0);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
}

/* Another container numbers its processes by itself: its numbers say nothing about processes here.
 */
static void test_host_number_of_containers(void **state)
{
    (void)state;
    uint32_t here = td_host_number();
    enum { SAME = 1, NOT_ALLOWED = 77 };
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
            _exit(NOT_ALLOWED);
        }
        pid_t inside = fork();
        if (inside == 0) {
            _exit(td_host_number() == here ? SAME : 0);
        }
        int end;
        _exit(waitpid(inside, &end, 0) == inside && WIFEXITED(end) ? WEXITSTATUS(end) : SAME);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == NOT_ALLOWED) {
        print_message("# skipped: making a pid namespace is not allowed here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(result), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_leftovers, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_planted_link, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_guessed_name, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_closed_streams, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test(test_host_number_of_containers),
    };
    return cmocka_run_group_tests_name("checkpoints: temporary files", tests, NULL, NULL);
}
