/* The file store across processes and runs; files that are cut, foreign or gone. */
#include "tensor/clock.h"
#include "dist/dist.h"
#include "dist/comm/store/wire.h"
#include "tests/comm/dist_store.h"
#include "tests/help/temp_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void file_between_processes(void **state)
{
    (void)state;
    enum { PROCESSES = 4, TIMES = 50 };
    td_store *store;
    assert_int_equal(td_file_store_open(temp_path("store"), "r", 20, &store), TD_OK);
    for (int i = 0; i < PROCESSES; i++) {
        if (fork() == 0) {
            td_store *own;
            int64_t sum;
            int failures = td_file_store_open(temp_path("store"), "r", 20, &own) != TD_OK;
            for (int k = 0; k < TIMES; k++) {
                failures += td_store_add(own, "sum", 1, &sum) != TD_OK;
            }
            char *text = NULL;
            failures += td_store_get_text(own, "end", 20, &text) != TD_OK;
            td_store_close(own);
            _exit(failures);
        }
    }
    td_sleep(0.05);
    assert_int_equal(td_store_set_text(store, "end", "1"), TD_OK);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_text(store, "sum", "200");
    td_store_close(store);
}

static void file_of_another_run_is_started_anew(void **state)
{
    (void)state;
    td_store *old, *new;
    bool exists;
    const char *path = temp_path("store");
    assert_int_equal(td_file_store_open(path, "one", 20, &old), TD_OK);
    assert_int_equal(td_store_set_text(old, "k", "old"), TD_OK);
    assert_int_equal(td_file_store_open(path, "two", 20, &new), TD_OK);
    assert_int_equal(td_store_check(new, "k", &exists), TD_OK);
    assert_false(exists);
    assert_int_equal(td_store_set_text(old, "k", "older"), TD_E_IO);
    assert_error_says("another run", NULL);
    td_store_close(old);
    td_store_close(new);
}

/* Without a run id, what dead processes left is stale, and what living ones share is not. */
static void file_without_run_id(void **state)
{
    (void)state;
    const char *path = temp_path("store");
    td_store *first, *second;
    bool exists;
    pid_t pid = fork();
    if (pid == 0) {
        td_store *own;
        bool well = td_file_store_open(path, NULL, 20, &own) == TD_OK &&
                    td_store_set_text(own, "left", "1") == TD_OK;
        _exit(well ? 0 : 1); /* without closing it, as if killed */
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(td_file_store_open(path, NULL, 20, &first), TD_OK);
    assert_int_equal(td_store_check(first, "left", &exists), TD_OK);
    assert_false(exists);
    assert_int_equal(td_store_set_text(first, "k", "1"), TD_OK);
    assert_int_equal(td_file_store_open(path, NULL, 20, &second), TD_OK);
    assert_text(second, "k", "1");
    td_store_close(first);
    td_store_close(second);
}

/* What a crash of the host has spoilt in a file that nobody uses any more. */
static void file_that_a_crash_has_spoilt(void **state)
{
    (void)state;
    static const char zeros[64];
    const char *path = temp_path("store");
    td_store *store;
    bool exists;
    assert_int_equal(td_file_store_open(path, NULL, 20, &store), TD_OK);
    assert_int_equal(td_store_set_text(store, "old", "1"), TD_OK);
    td_store_close(store);
    FILE *file = fopen(path, "ab");
    assert_int_equal(fwrite(zeros, 1, sizeof(zeros), file), sizeof(zeros));
    assert_int_equal(fclose(file), 0);
    assert_int_equal(td_file_store_open(path, NULL, 20, &store), TD_OK);
    assert_int_equal(td_store_check(store, "old", &exists), TD_OK);
    assert_false(exists);
    td_store_close(store);
}

/* A writer that was killed in the middle leaves a piece of a record, at any length. */
static void file_cut_inside_a_record(void **state)
{
    (void)state;
    const char *path = temp_path("store");
    td_store *store;
    for (int cut = 1; cut < TD_WIRE_REQUEST_BYTES + 6; cut++) {
        struct stat info;
        bool exists;
        assert_int_equal(td_file_store_open(path, "cut", 20, &store), TD_OK);
        assert_int_equal(td_store_set_text(store, "whole", "1"), TD_OK);
        assert_int_equal(td_store_set_text(store, "cut", "123"), TD_OK);
        assert_int_equal(stat(path, &info), 0);
        td_store *reader;
        assert_int_equal(truncate(path, info.st_size - cut), 0);
        assert_int_equal(td_file_store_open(path, "cut", 20, &reader), TD_OK);
        assert_int_equal(td_store_check(reader, "cut", &exists), TD_OK);
        assert_false(exists);
        assert_int_equal(td_store_set_text(reader, "cut", "12345"), TD_OK);
        assert_text(reader, "whole", "1");
        assert_text(reader, "cut", "12345");
        td_store_close(reader);
        td_store_close(store);
        assert_int_equal(unlink(path), 0);
    }
}

static void file_errors(void **state)
{
    (void)state;
    td_store *store;
    temp_write("notes", "these are a user's notes, not a store\n", 38);
    assert_int_equal(td_file_store_open(temp_path("notes"), "r", 20, &store), TD_E_FORMAT);
    assert_error_says("notes", "not a store", NULL);
    temp_write("old", "TDFILE\x01\n\x01\0\0\0r1234", 17); /* left by an earlier version */
    assert_int_equal(td_file_store_open(temp_path("old"), "r", 20, &store), TD_OK);
    assert_int_equal(td_store_set_text(store, "k", "v"), TD_OK);
    assert_text(store, "k", "v");
    td_store_close(store);
    static const char broken[][32] = {
        "TDFILE\x02\n\x01\0\0\0r\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",      /* no request */
        "TDFILE\x02\n\x01\0\0\0r\x09\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0k", /* a will */
    };
    for (int i = 0; i < 2; i++) {
        temp_write("broken", broken[i], 13 + TD_WIRE_REQUEST_BYTES + i);
        assert_int_equal(td_file_store_open(temp_path("broken"), "r", 20, &store), TD_E_FORMAT);
        assert_error_says("broken at byte 13", NULL);
    }
    assert_int_equal(td_file_store_open(temp_path("no/such/folder"), "r", 20, &store), TD_E_IO);
    assert_error_says("no/such/folder", NULL);
    assert_int_equal(td_file_store_open(temp_path("gone"), "r", 20, &store), TD_OK);
    assert_int_equal(unlink(temp_path("gone")), 0);
    alarm(60); /* a call that kept the lock would have the next one wait without end */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(td_store_set_text(store, "k", "v"), TD_E_IO);
        assert_error_says("removed", NULL);
    }
    alarm(0);
    td_store_close(store);
}

/* As a process that is stopped while it has the lock. */
static void file_whose_lock_is_held(void **state)
{
    (void)state;
    td_store *store, *other;
    const char *path = temp_path("held");
    assert_int_equal(td_file_store_open(path, "r", 0.3, &store), TD_OK);
    int holder = open(path, O_RDWR);
    struct flock first_byte = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
    assert_true(holder >= 0);
    assert_int_equal(fcntl(holder, F_OFD_SETLK, &first_byte), 0);
    double begin = td_clock();
    assert_int_equal(td_store_set_text(store, "k", "v"), TD_E_TIMEOUT);
    assert_error_says("held", "its lock", NULL);
    assert_int_equal(td_file_store_open(path, "r", 0.3, &other), TD_E_TIMEOUT);
    assert_true(td_clock() - begin < 15);
    close(holder);
    assert_int_equal(td_store_set_text(store, "k", "v"), TD_OK);
    assert_text(store, "k", "v");
    td_store_close(store);
}

/* What another user may have written is not believed: a file, or a name, that was there before. */
static void file_that_was_planted(void **state)
{
    (void)state;
    td_store *store;
    struct stat info;
    assert_int_equal(td_file_store_open(temp_path("own"), "r", 20, &store), TD_OK);
    td_store_close(store);
    assert_int_equal(stat(temp_path("own"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* who cannot read it cannot hold its lock */
    assert_int_equal(chmod(temp_path("own"), 0602), 0);
    assert_int_equal(td_file_store_open(temp_path("own"), "r", 20, &store), TD_E_ARG);
    assert_error_says("no other user may write", NULL);
    assert_int_equal(chmod(temp_path("own"), 0600), 0);
    assert_int_equal(symlink("own", temp_path("link")), 0);
    assert_int_equal(td_file_store_open(temp_path("link"), "r", 20, &store), TD_E_IO);
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    assert_int_equal(td_file_store_open(temp_path("fifo"), "r", 20, &store), TD_E_ARG);
    if (chown(temp_path("own"), 65534, 65534) == 0) { /* root may give files away */
        assert_int_equal(td_file_store_open(temp_path("own"), "r", 20, &store), TD_E_ARG);
    }
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(file_between_processes),   FOLDER_TEST(file_of_another_run_is_started_anew),
        FOLDER_TEST(file_without_run_id),      FOLDER_TEST(file_that_a_crash_has_spoilt),
        FOLDER_TEST(file_cut_inside_a_record), FOLDER_TEST(file_errors),
        FOLDER_TEST(file_whose_lock_is_held),  FOLDER_TEST(file_that_was_planted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
