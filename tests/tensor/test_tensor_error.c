/* Errors: statuses, messages, the fatal handler, the context of modules; the command line. */
#include "apps/library/command_line.h"
#include "tensor/error.h"
#include "tensor/extend.h"
#include "tests/help/expect_fatal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_every_status_has_a_text(void **state)
{
    (void)state;
    assert_string_equal(td_status_text(TD_OK), "success");
#define TD_ERROR(name, code, meaning)                                                              \
    assert_true(TD_E_##name < 0);                                                                  \
    assert_string_equal(td_status_text(TD_E_##name), meaning);
#include "tensor/errors.def"
#undef TD_ERROR
    assert_string_equal(td_status_text((td_status)-9999), "unknown status");
}

static void test_failures_leave_a_message(void **state)
{
    (void)state;
    assert_int_equal(td_fail(TD_E_IO, "cannot read '%s'", "a.txt"), TD_E_IO);
    assert_string_equal(td_last_error(), "cannot read 'a.txt'");
    assert_int_equal(td_fail_context(TD_E_IO, "line %d", 3), TD_E_IO);
    assert_string_equal(td_last_error(), "line 3: cannot read 'a.txt'");
    /* The last message may be an argument of the next. */
    td_fail(TD_E_IO, "again: %s", td_last_error());
    assert_string_equal(td_last_error(), "again: line 3: cannot read 'a.txt'");
}

static void test_long_messages_are_cut(void **state)
{
    (void)state;
    char longer[9000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    td_fail(TD_E_IO, "%s", longer);
    assert_int_equal(strlen(td_last_error()), 2047);
    td_fail_context(TD_E_IO, "front");
    assert_int_equal(strlen(td_last_error()), 2047);
    assert_memory_equal(td_last_error(), "front: xxx", 10);
    expect_fatal("xxx", td_fatal(TD_HERE, "%s", longer));
    assert_true(strlen(fatal_message()) < sizeof longer);
}

static td_status fails_below(int depth)
{
    if (depth == 0) {
        return td_fail(TD_E_NOTFOUND, "the bottom");
    }
    TD_TRY(fails_below(depth - 1));
    return TD_OK;
}

static void test_try_passes_failures_on(void **state)
{
    (void)state;
    assert_int_equal(fails_below(3), TD_E_NOTFOUND);
    assert_string_equal(td_last_error(), "the bottom");
}

static void *fail_elsewhere(void *message_there)
{
    td_fail(TD_E_IO, "from the other thread");
    snprintf(message_there, 64, "%s", td_last_error());
    return NULL;
}

static void test_messages_belong_to_their_thread(void **state)
{
    (void)state;
    td_fail(TD_E_IO, "from this thread");
    char there[64] = "";
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, there), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(there, "from the other thread");
    assert_string_equal(td_last_error(), "from this thread");
}

static void test_fatal_tells_place_and_modules(void **state)
{
    (void)state;
    td_site at = { "user.c", 12 };
    expect_fatal("tandem: user.c:12: shapes 3 and 4", td_fatal(at, "shapes %d and %d", 3, 4));
    assert_string_equal(fatal_message(), "tandem: user.c:12: shapes 3 and 4");

    td_context_push("net (Sequential)");
    td_context_push("fc1 (Linear)");
    assert_string_equal(td_context_top(), "fc1 (Linear)");
    expect_fatal("wrong", td_fatal(at, "wrong"));
    assert_string_equal(fatal_message(),
                        "tandem: user.c:12: wrong\n  in fc1 (Linear)\n  in net (Sequential)");
    td_context_pop();
    expect_fatal("wrong", td_fatal(at, "wrong"));
    assert_string_equal(fatal_message(), "tandem: user.c:12: wrong\n  in net (Sequential)");
    td_context_clear();
    expect_fatal("wrong", td_fatal(at, "wrong"));
    assert_string_equal(fatal_message(), "tandem: user.c:12: wrong");
    assert_null(td_context_top());
    td_context_pop(); /* one too many is harmless */
    assert_null(td_context_top());
}

static void test_deep_contexts_are_counted(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        td_context_push(i == 0 ? "outermost" : "deep");
    }
    expect_fatal("in outermost", td_fatal(TD_HERE, "here"));
    for (int i = 0; i < 99; i++) {
        td_context_pop();
    }
    assert_string_equal(td_context_top(), "outermost");
    td_context_clear();
}

static void test_require(void **state)
{
    (void)state;
    int wanted = 2;
    TD_REQUIRE(wanted == 2, TD_HERE, "not reached");
    expect_fatal("wanted is 2", TD_REQUIRE(wanted == 3, TD_HERE, "wanted is %d", wanted));
    assert_non_null(strstr(fatal_message(), "test_tensor_error.c"));
}

/* What a process prints that calls last_act, which must exit with `code`. */
static void read_last_words(void (*last_act)(const char *), const char *with, int code, char *text,
                            size_t size)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        last_act(with);
        _exit(0);
    }
    close(ends[1]);
    FILE *words = fdopen(ends[0], "r");
    text[fread(text, 1, size - 1, words)] = '\0';
    fclose(words);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static void die_of(const char *failure)
{
    td_fail(TD_E_IO, "%s", failure);
    td_die();
}

static void test_die(void **state)
{
    (void)state;
    char text[256];
    read_last_words(die_of, "cannot read 'a.txt'", 1, text, sizeof text);
    assert_string_equal(text, "test_tensor_error: cannot read 'a.txt'\n");
    read_last_words(die_of, "", 1, text, sizeof text);
    assert_string_equal(text, "test_tensor_error: td_die, but no call has failed\n");
}

/* ---- the command line ---- */

static int epochs, save_every, few;
static const char *folder;
static const td_option options[] = {
    { "epochs", .number = &epochs, .least = 1 },
    { "few", .number = &few, .least = -2, .most = 2 },
    { "data", .text = &folder },
    { "SAVE_EVERY", .number = &save_every },
    { 0 },
};

/* Words are separated by spaces; "''" is an empty one. */
static void read_command(const char *line)
{
    static char copy[256], *words[16] = { "program" };
    int count = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        words[count++] = strcmp(word, "''") == 0 ? "" : word;
    }
    words[count] = NULL;
    epochs = 5, save_every = 50, few = 0, folder = NULL;
    optind = 0; /* getopt begins again */
    td_read_options(count, words, "[--epochs N] [SAVE_EVERY]", options);
}

static void test_options_are_read(void **state)
{
    (void)state;
    read_command("");
    assert_true(epochs == 5 && save_every == 50 && folder == NULL);
    read_command("--epochs 2147483647 --few=-2 --data a/b 7");
    assert_true(epochs == 2147483647 && few == -2 && save_every == 7);
    assert_string_equal(folder, "a/b");
    read_command("0 --epochs 1");
    assert_true(epochs == 1 && save_every == 0);
}

static void test_wrong_options_end_the_program(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        { "--epochs 5x", "test_tensor_error: --epochs: '5x' is not a whole number" },
        { "--epochs ''", "--epochs: '' is not a whole number" },
        { "--epochs 1.5", "'1.5' is not a whole number" },
        { "--epochs 0", "--epochs: 0 is out of range; it goes from 1 to 2147483647" },
        { "--epochs 99999999999", "is out of range" },
        { "--epochs 99999999999999999999", "is out of range" },
        { "--few 3", "--few: 3 is out of range; it goes from -2 to 2" },
        { "--few=-3", "-3 is out of range" },
        { "7x", "test_tensor_error: SAVE_EVERY: '7x' is not a whole number" },
        { "7 8", "test_tensor_error: '8' is one value too many" },
        { "--epochs", "--epochs: the value is missing" },
        { "--SAVE_EVERY 7", "unrecognized option" },
        { "--others 7", "unrecognized option" },
    };
    char text[512];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        read_last_words(read_command, wrong[i][0], 64, text, sizeof text);
        if (strstr(text, wrong[i][1]) == NULL ||
            strstr(text, "\nusage: test_tensor_error [--epochs N] [SAVE_EVERY]\n") == NULL) {
            fail_msg("%s: %s", wrong[i][0], text);
        }
    }
    read_last_words(read_command, "--help 7 8 9", 0, text, sizeof text); /* on stdout */
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status_has_a_text),
        cmocka_unit_test(test_failures_leave_a_message),
        cmocka_unit_test(test_long_messages_are_cut),
        cmocka_unit_test(test_try_passes_failures_on),
        cmocka_unit_test(test_messages_belong_to_their_thread),
        cmocka_unit_test(test_fatal_tells_place_and_modules),
        cmocka_unit_test(test_deep_contexts_are_counted),
        cmocka_unit_test(test_require),
        cmocka_unit_test(test_die),
        cmocka_unit_test(test_options_are_read),
        cmocka_unit_test(test_wrong_options_end_the_program),
    };
    return cmocka_run_group_tests_name("tensor errors", tests, NULL, NULL);
}
