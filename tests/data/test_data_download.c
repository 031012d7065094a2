/* Downloads against a server on loopback that misbehaves on demand (http_server.py). */
// run: waits
#include "data/download/download.h"
#include "data/text/text.h"
#include "tests/help/temp_folder.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#if defined(TD_HAVE_CURL) && defined(TD_HAVE_ARCHIVE) && defined(TD_HAVE_MD)

/* ---- the server ---- */

static struct {
    pid_t process;
    FILE *input; /* it ends when this is closed */
    int port;
    char log[64];
    char md5_name[16][32], md5_hex[16][33];
    int md5_count;
} server;

static void start_python(int input, int output)
{
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    execlp("python3", "python3", "tests/data/http_server.py", server.log, (char *)NULL);
    _exit(127);
}

static int start_server(void **state)
{
    (void)state;
    setenv("no_proxy", "127.0.0.1", 1);
    snprintf(server.log, sizeof server.log, "/tmp/tandem-http-log-XXXXXX");
    int to[2], from[2], log = mkstemp(server.log);
    if (log < 0 || pipe(to) != 0 || pipe(from) != 0) {
        return -1;
    }
    close(log);
    server.process = fork();
    if (server.process == 0) {
        close(to[1]);
        start_python(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    server.input = fdopen(to[1], "w");
    FILE *output = fdopen(from[0], "r");
    char line[128] = "";
    while (fgets(line, sizeof line, output) != NULL && strcmp(line, "ready\n") != 0) {
        int i = server.md5_count;
        if (sscanf(line, "port %d", &server.port) != 1 && i < 16 &&
            sscanf(line, "md5 %31s %32s", server.md5_name[i], server.md5_hex[i]) == 2) {
            server.md5_count++;
        }
    }
    fclose(output);
    if (strcmp(line, "ready\n") != 0) {
        fprintf(stderr,
                "tests/data/http_server.py did not start: run this in the repository's root, with "
                "python3\n");
        return -1;
    }
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    fclose(server.input);
    waitpid(server.process, NULL, 0);
    return unlink(server.log);
}

static const char *md5_of(const char *name)
{
    for (int i = 0; i < server.md5_count; i++) {
        if (strcmp(server.md5_name[i], name) == 0) {
            return server.md5_hex[i];
        }
    }
    fail_msg("the server knows no MD5 of %s", name);
    return NULL;
}

/* The ranges that were asked for in a mode, in order: "all bytes=100- ". */
static const char *requests(const char *mode)
{
    static char all[1024];
    all[0] = '\0';
    FILE *log = fopen(server.log, "r");
    assert_non_null(log);
    char name[32], range[64];
    while (fscanf(log, "%31s %63s", name, range) == 2) {
        if (strcmp(name, mode) == 0) {
            strcat(strcat(all, range), " ");
        }
    }
    fclose(log);
    return all;
}

/* ---- fetching ---- */

static td_download_options options_for(const char *mode, const char *archive)
{
    static char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/%s/cifar-10-binary.tar.gz", server.port, mode);
    return (td_download_options){
        .url = url,
        .md5 = md5_of(archive),
        .attempts = 3,
        /* A busy machine may be silent for a while; only "stall" is meant to be given up. */
        .stall_seconds = strcmp(mode, "stall") == 0 ? 1 : 60,
        .pause_seconds = 0.01,
    };
}

static td_status fetch(const char *mode, const char *archive)
{
    td_download_options options = options_for(mode, archive);
    return td_cifar_fetch(temp_folder(), TD_CIFAR10, &options);
}

static bool exists(const char *name)
{
    struct stat info;
    return lstat(temp_path(name), &info) == 0;
}

static int64_t size_of(const char *name)
{
    struct stat info;
    assert_int_equal(stat(temp_path(name), &info), 0);
    return info.st_size;
}

/* The set is there, whole, and nothing else is. */
static void check_set(void)
{
    char md5[33];
    assert_int_equal(td_file_md5(temp_path("cifar-10-batches-bin/data_batch_3.bin"), md5), TD_OK);
    assert_string_equal(md5, md5_of("data_batch_3.bin"));
    td_dataset *dataset;
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, true, &dataset), TD_OK);
    assert_int_equal(dataset->length, 100);
    td_dataset_free(dataset);
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, false, &dataset), TD_OK);
    assert_int_equal(dataset->length, 20);
    td_dataset_free(dataset);
    assert_true(exists("cifar-10-batches-bin/batches.meta.txt"));
    assert_false(exists("cifar-10-batches-bin/unknown.sh"));
    assert_false(exists("cifar-10-binary.tar.gz"));
    assert_false(exists("cifar-10-binary.tar.gz.part"));
}

static void test_whole(void **state)
{
    (void)state;
    assert_int_equal(fetch("whole", "whole"), TD_OK);
    check_set();
    assert_string_equal(requests("whole"), "all ");
    assert_int_equal(fetch("whole", "whole"), TD_OK); /* it is there: nothing is asked for */
    assert_string_equal(requests("whole"), "all ");
    /* A look at sizes is enough, so that a run reads its set once; opening the set says the rest.
     */
    const char *first = temp_path("cifar-10-batches-bin/data_batch_1.bin");
    FILE *damaged = fopen(first, "r+b");
    assert_non_null(damaged);
    assert_int_equal(fputc(10, damaged), 10); /* no label */
    assert_int_equal(fclose(damaged), 0);
    assert_int_equal(fetch("whole", "whole"), TD_OK);
    assert_string_equal(requests("whole"), "all ");
    td_dataset *set;
    assert_int_equal(td_cifar_open(temp_folder(), TD_CIFAR10, true, &set), TD_E_FORMAT);
    assert_error_says("record 0 has label 10", "Delete it and download", NULL);
    assert_int_equal(unlink(temp_path("cifar-10-batches-bin/data_batch_2.bin")), 0);
    assert_int_equal(fetch("whole", "whole"), TD_OK); /* a file is missing */
    assert_string_equal(requests("whole"), "all all ");
    check_set();
}

/* One file, here an archive: fetched once, checked, and another file of its name stays. */
static void test_a_text(void **state)
{
    (void)state;
    char md5[33];
    td_download_options options = options_for("text", "whole");
    const char *path = temp_path("a/tinyshakespeare.txt");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(td_shakespeare_fetch(path, &options), TD_OK);
        assert_int_equal(td_file_md5(path, md5), TD_OK);
        assert_string_equal(md5, options.md5);
        assert_string_equal(requests("text"), "all ");
    }
    temp_write("b.txt", "mine", 4);
    assert_int_equal(td_shakespeare_fetch(temp_path("b.txt"), &options), TD_E_FORMAT);
    assert_error_says("b.txt is another text", NULL);
    assert_int_equal(td_shakespeare_download(temp_path("b.txt"), NULL), TD_E_FORMAT);
    assert_int_equal(size_of("b.txt"), 4);
    options.md5 = "00000000000000000000000000000000";
    assert_int_equal(td_shakespeare_fetch(temp_path("c.txt"), &options), TD_E_CHECKSUM);
    assert_error_says("expected 0000", NULL);
    assert_false(exists("c.txt") || exists("c.txt.part"));
}

/* What is fetched in the place of wrong old bytes goes into the file whose lock others wait for. */
static void test_fetched_into_the_locked_file(void **state)
{
    (void)state;
    td_download_options options = options_for("text", "whole");
    struct stat locked, fetched;
    temp_write("d.txt.part", "something else", 14);
    FILE *part = fopen(temp_path("d.txt.part"), "r");
    assert_int_equal(td_fetch_checked(temp_path("d.txt"), &options), TD_OK);
    assert_int_equal(fstat(fileno(part), &locked), 0);
    assert_int_equal(stat(temp_path("d.txt"), &fetched), 0);
    assert_true(locked.st_ino == fetched.st_ino);
    fclose(part);
}

static void test_folders_are_made(void **state)
{
    (void)state;
    td_download_options options = options_for("whole", "whole");
    assert_int_equal(td_cifar_fetch(temp_path("a/b//c/"), TD_CIFAR10, &options), TD_OK);
    assert_true(exists("a/b/c/cifar-10-batches-bin/test_batch.bin"));
    temp_write("file", "x", 1);
    assert_int_equal(td_cifar_fetch(temp_path("file/below"), TD_CIFAR10, &options), TD_E_IO);
    assert_error_says("file is not a folder", NULL);
    assert_int_equal(td_cifar_fetch(temp_path("file"), TD_CIFAR10, &options), TD_E_IO);
    assert_error_says("file", NULL);
}

static void test_cut_off_transfer_goes_on(void **state)
{
    (void)state;
    assert_int_equal(fetch("cut", "whole"), TD_OK);
    check_set();
    assert_memory_equal(requests("cut"), "all bytes=", 10);
}

static void test_server_without_ranges(void **state)
{
    (void)state;
    assert_int_equal(fetch("norange", "whole"), TD_OK);
    check_set();
    const char *asked = requests("norange"); /* all, the rest (answered with all), all */
    assert_memory_equal(asked, "all bytes=", 10);
    assert_string_equal(asked + strlen(asked) - 5, " all ");
}

static void test_stalled_and_busy_servers_are_asked_again(void **state)
{
    (void)state;
    assert_int_equal(fetch("stall", "whole"), TD_OK);
    check_set();
    assert_memory_equal(requests("stall"), "all bytes=", 10);
    assert_int_equal(unlink(temp_path("cifar-10-batches-bin/test_batch.bin")), 0);
    assert_int_equal(fetch("busy", "whole"), TD_OK);
    assert_string_equal(requests("busy"), "all all ");
    check_set();
}

/* Puts the archive, or the beginning of it, where an interrupted run leaves it. */
static void leave_part(int64_t bytes)
{
    td_download_options options = options_for("whole", "whole");
    bool resumed;
    const char *part = temp_path("cifar-10-binary.tar.gz.part");
    assert_int_equal(td_transfer(part, 1 << 24, &options, &resumed), TD_OK);
    assert_false(resumed);
    if (bytes >= 0) {
        assert_int_equal(truncate(part, bytes), 0);
    }
}

/* The last request of a mode. */
static const char *last_request(const char *mode)
{
    static char last[64];
    const char *asked = requests(mode), *at = asked + strlen(asked) - 1;
    while (at > asked && at[-1] != ' ') {
        at--;
    }
    snprintf(last, sizeof last, "%s", at);
    return last;
}

static void test_interrupted_run_goes_on(void **state)
{
    (void)state;
    leave_part(100000);
    assert_int_equal(fetch("whole", "whole"), TD_OK);
    assert_string_equal(last_request("whole"), "bytes=100000- ");
    check_set();
}

static void test_finished_transfer_is_not_repeated(void **state)
{
    (void)state;
    leave_part(-1);
    int64_t size = size_of("cifar-10-binary.tar.gz.part");
    assert_int_equal(fetch("whole", "whole"), TD_OK);
    char range[64];
    snprintf(range, sizeof range, "bytes=%lld- ", (long long)size);
    assert_string_equal(last_request("whole"), range); /* 416: there is no more */
    check_set();
}

static void test_wrong_old_bytes_are_thrown_away(void **state)
{
    (void)state;
    temp_write("cifar-10-binary.tar.gz.part", "something else", 14);
    assert_int_equal(fetch("whole", "whole"), TD_OK);
    assert_string_equal(last_request("whole"), "all ");
    check_set();
}

static void test_archive_put_there_by_hand_is_used_and_kept(void **state)
{
    (void)state;
    leave_part(-1);
    assert_int_equal(
        rename(temp_path("cifar-10-binary.tar.gz.part"), temp_path("cifar-10-binary.tar.gz")), 0);
    assert_int_equal(fetch("missing", "whole"), TD_OK);
    assert_string_equal(requests("missing"), "");
    assert_true(exists("cifar-10-binary.tar.gz"));
    assert_true(exists("cifar-10-batches-bin/test_batch.bin"));
}

/* Ranks that are all told to download: one does, the others wait. */
static void test_processes_do_not_disturb_each_other(void **state)
{
    (void)state;
    char before[1024];
    snprintf(before, sizeof before, "%s", requests("whole"));
    pid_t child[3];
    for (int i = 0; i < 3; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            _exit(fetch("whole", "whole") == TD_OK ? 0 : 1);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    check_set();
    assert_int_equal(strlen(requests("whole")), strlen(before) + strlen("all "));
}

/* ---- failures ---- */

static void test_wrong_bytes(void **state)
{
    (void)state;
    assert_int_equal(fetch("changed", "whole"), TD_E_CHECKSUM);
    assert_error_says("/changed/", md5_of("changed"), md5_of("whole"), "try again", NULL);
    assert_string_equal(requests("changed"), "all ");
    assert_false(exists("cifar-10-binary.tar.gz.part"));
    assert_false(exists("cifar-10-batches-bin"));
}

static void test_not_found(void **state)
{
    (void)state;
    assert_int_equal(fetch("missing", "whole"), TD_E_NETWORK);
    assert_error_says("/missing/", "404", NULL);
    assert_string_equal(requests("missing"), "all "); /* asking again would not help */
}

static void test_nobody_there(void **state)
{
    (void)state;
    td_download_options options = options_for("whole", "whole");
    options.url = "http://127.0.0.1:1/cifar-10-binary.tar.gz";
    assert_int_equal(td_cifar_fetch(temp_folder(), TD_CIFAR10, &options), TD_E_NETWORK);
    assert_error_says("127.0.0.1:1", "attempt 3", NULL);
    options.url = "file:///etc/hostname";
    assert_int_equal(td_cifar_fetch(temp_folder(), TD_CIFAR10, &options), TD_E_NETWORK);
    assert_error_says("file:///etc/hostname", NULL);
    assert_int_equal(td_cifar_download(temp_folder(), (td_cifar_kind)3, NULL), TD_E_ARG);
}

static void test_endless_answer(void **state)
{
    (void)state;
    td_download_options options = options_for("endless", "whole");
    bool resumed;
    const char *path = temp_path("endless");
    assert_int_equal(td_transfer(path, 1 << 20, &options, &resumed), TD_E_FORMAT);
    assert_error_says("1048576 bytes", NULL);
    assert_in_range(size_of("endless"), 0, 1 << 20);
}

static void test_full_disk(void **state)
{
    (void)state;
    td_download_options options = options_for("whole", "whole");
    bool resumed;
    if (access("/dev/full", W_OK) != 0) {
        print_message("# skipped: this system has no /dev/full\n");
        skip();
    }
    assert_int_equal(td_transfer("/dev/full", 1 << 24, &options, &resumed), TD_E_IO);
    assert_error_says("/dev/full", "No space left", "Free some space", NULL);
}

static void test_bad_archives(void **state)
{
    (void)state;
    assert_int_equal(fetch("lacks", "lacks"), TD_E_FORMAT);
    assert_error_says("not the official archive", NULL);
    assert_int_equal(unlink(temp_path("cifar-10-binary.tar.gz")), 0);
    assert_int_equal(fetch("nogzip", "nogzip"), TD_E_FORMAT);
    assert_error_says("not a whole .tar.gz", NULL);
    assert_int_equal(unlink(temp_path("cifar-10-binary.tar.gz")), 0);
    assert_int_equal(fetch("fat", "fat"), TD_E_FORMAT);
    assert_error_says("not the official archive", NULL);
}

static void test_truncated_archive(void **state)
{
    (void)state;
    leave_part(200000);
    const char *part = temp_path("cifar-10-binary.tar.gz.part");
    assert_int_equal(td_cifar_unpack(part, TD_CIFAR10, temp_folder()), TD_E_FORMAT);
    assert_error_says("not a whole .tar.gz", NULL);
    assert_int_equal(td_cifar_unpack(temp_path("absent"), TD_CIFAR10, temp_folder()), TD_E_FORMAT);
}

static void test_hostile_archive_stays_inside(void **state)
{
    (void)state;
    temp_make_folder("inner");
    td_download_options options = options_for("hostile", "hostile");
    assert_int_equal(td_cifar_fetch(temp_path("inner"), TD_CIFAR10, &options), TD_OK);
    assert_false(exists("escaped.bin"));
    assert_false(exists("inner/escaped.bin"));
    assert_int_equal(access("/tmp/tandem-escaped.bin", F_OK), -1);
    for (int i = 1; i <= 5; i++) {
        char name[64];
        struct stat info;
        snprintf(name, sizeof name, "inner/cifar-10-batches-bin/data_batch_%d.bin", i);
        assert_int_equal(lstat(temp_path(name), &info), 0);
        assert_true(S_ISREG(info.st_mode));
        assert_int_equal(info.st_size, 20 * 3073);
    }
}

#define TEMP_TEST(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(test_whole),
        TEMP_TEST(test_a_text),
        TEMP_TEST(test_fetched_into_the_locked_file),
        TEMP_TEST(test_folders_are_made),
        TEMP_TEST(test_cut_off_transfer_goes_on),
        TEMP_TEST(test_server_without_ranges),
        TEMP_TEST(test_stalled_and_busy_servers_are_asked_again),
        TEMP_TEST(test_interrupted_run_goes_on),
        TEMP_TEST(test_finished_transfer_is_not_repeated),
        TEMP_TEST(test_wrong_old_bytes_are_thrown_away),
        TEMP_TEST(test_archive_put_there_by_hand_is_used_and_kept),
        TEMP_TEST(test_processes_do_not_disturb_each_other),
        TEMP_TEST(test_wrong_bytes),
        TEMP_TEST(test_not_found),
        TEMP_TEST(test_nobody_there),
        TEMP_TEST(test_endless_answer),
        TEMP_TEST(test_full_disk),
        TEMP_TEST(test_bad_archives),
        TEMP_TEST(test_truncated_archive),
        TEMP_TEST(test_hostile_archive_stays_inside),
    };
    return cmocka_run_group_tests_name("data: download", tests, start_server, stop_server);
}

#else

static void test_says_what_is_missing(void **state)
{
    (void)state;
    assert_int_equal(td_cifar_download("folder", TD_CIFAR10, NULL), TD_E_UNSUPPORTED);
    assert_error_says("cannot download", "-dev", "cifar-10-binary.tar.gz", "folder", NULL);
    assert_int_equal(td_cifar_download("folder", (td_cifar_kind)3, NULL), TD_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_says_what_is_missing) };
    return cmocka_run_group_tests_name("data: download", tests, NULL, NULL);
}

#endif
