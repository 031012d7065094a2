/* Files that are written over others: their mode, owner and links stay, as with open() and write();
 * and a path means what it meant when it was given. */
#include "nn/io/safetensors.h"
#include "nn/onnx/onnx.h"
#include "tandem.h"
#include "tensor/observe/memory_plan.h"
#include "tensor/system/temporary.h"
#include "dist/trace.h"
#include "tests/help/temp_folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static td_module *net;

static td_status save_net(const char *path)
{
    return td_save(path, net);
}

static td_status save_run(const char *path)
{
    td_saving *saving = NULL;
    td_status status = td_checkpoint_save(path, net, .with_random = true, .background = &saving);
    td_status written = td_saving_wait(&saving);
    return status == TD_OK ? written : status;
}

static td_status save_tensors(const char *path)
{
    float one = 1;
    const td_safetensors_entry entry = { "one", TD_F32, TD_SHAPE(1), &one, sizeof one };
    return td_safetensors_write(path, &entry, 1, NULL, 0);
}

static td_status export_net(const char *path)
{
    return td_onnx_export(net, TD_SHAPE(1, 2), path);
}

static td_status trace(const char *path)
{
    td_status status = td_trace_open(path);
    return status == TD_OK ? td_trace_close() : status;
}

static td_status draw(const char *path)
{
    return td_memory_plan_draw(path);
}

static td_status (*const writers[])(const char *path) = { save_net,   save_run, save_tensors,
                                                          export_net, trace,    draw };
enum { WRITERS = sizeof writers / sizeof *writers };

static struct stat info_of(const char *name)
{
    struct stat info;
    assert_int_equal(lstat(temp_path(name), &info), 0);
    return info;
}

static void write_by(int writer, const char *name)
{
    if (writers[writer](temp_path(name)) != TD_OK) {
        fail_msg("writer %d, %s: %s", writer, name, td_last_error());
    }
}

static void test_modes(void **state)
{
    (void)state;
    static const mode_t modes[] = { 0600, 0664, 0640, 0755, 02660 };
    for (int i = 0; i < WRITERS; i++) {
        write_by(i, "a");
        assert_int_equal(info_of("a").st_mode & 07777, 0644); /* a new one: by the umask */
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
            assert_int_equal(chmod(temp_path("a"), modes[k]), 0);
            write_by(i, "a");
            assert_int_equal(info_of("a").st_mode & 07777, modes[k]);
        }
        assert_int_equal(unlink(temp_path("a")), 0);
    }
}

/* Only root may give files away. */
static void test_owner(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("# skipped: only root can write over another user's file in its name\n");
        skip();
    }
    for (int i = 0; i < WRITERS; i++) {
        write_by(i, "a");
        assert_int_equal(chown(temp_path("a"), 12345, 54321), 0);
        assert_int_equal(chmod(temp_path("a"), 0640), 0);
        write_by(i, "a");
        struct stat info = info_of("a");
        assert_int_equal(info.st_uid, 12345);
        assert_int_equal(info.st_gid, 54321);
        assert_int_equal(info.st_mode & 07777, 0640);
        assert_int_equal(unlink(temp_path("a")), 0);
    }
}

/* A user who may write a file and its folder, but owns neither, and one who may not write the file.
 * Only root can become such a user. */
static void test_another_user(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("# skipped: only root can become another user\n");
        skip();
    }
    assert_int_equal(chmod(temp_folder(), 0777), 0);
    static const struct {
        mode_t before, after;
    } cases[] = { { 0666, 0666 }, { 04606, 0666 }, { 0644, 0 }, { 0444, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_by(0, "a");
        assert_int_equal(chmod(temp_path("a"), cases[i].before), 0);
        pid_t child = fork();
        if (child == 0) {
            bool other = setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0;
            td_status status = other ? save_net(temp_path("a")) : TD_E_UNSUPPORTED;
            bool refused = status == TD_E_IO && strstr(td_last_error(), strerror(EACCES)) != NULL;
            _exit(status == TD_OK ? 0 : refused ? 1 : 2);
        }
        int end;
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_int_equal(WEXITSTATUS(end), cases[i].after == 0);
        struct stat info = info_of("a");
        assert_int_equal(info.st_uid, cases[i].after == 0 ? 0 : 65534);
        assert_int_equal(info.st_mode & 07777, cases[i].after ? cases[i].after : cases[i].before);
        assert_int_equal(unlink(temp_path("a")), 0);
    }
}

/* Links to a file, to a link, from another folder, and to what is not there yet. */
static void test_symbolic_links(void **state)
{
    (void)state;
    temp_make_folder("disk");
    assert_int_equal(symlink("disk/real", temp_path("link")), 0);
    assert_int_equal(symlink("../link", temp_path("disk/back")), 0);
    assert_int_equal(symlink(temp_path("disk/back"), temp_path("far")), 0);
    assert_int_equal(symlink("disk", temp_path("other")), 0);
    static const char *const names[] = { "link", "disk/back", "far", "other/back" };
    for (int i = 0; i < WRITERS; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            write_by(i, names[k]); /* first a new file, then over it */
            write_by(i, names[k]);
            assert_true(S_ISLNK(info_of(names[k]).st_mode));
            assert_true(S_ISREG(info_of("disk/real").st_mode));
            assert_true(info_of("disk/real").st_size > 0);
            assert_int_equal(unlink(temp_path("disk/real")), 0);
        }
    }
    assert_int_equal(symlink("round", temp_path("round")), 0);
    assert_int_equal(save_net(temp_path("round")), TD_E_IO);
    assert_error_says("round", strerror(ELOOP), NULL);
}

/* A new file takes the name's place; other names keep the old file, which stays whole. */
static void test_hard_links(void **state)
{
    (void)state;
    write_by(0, "a");
    assert_int_equal(link(temp_path("a"), temp_path("b")), 0);
    write_by(0, "a");
    assert_int_equal(info_of("b").st_nlink, 1);
    td_module *copy = td_nn_linear(2, 2);
    assert_int_equal(td_load(temp_path("b"), copy), TD_OK);
    td_module_free(copy);
}

/* What is no file is refused, and stays what it is: root could put a file in its place. */
static void test_devices(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    temp_make_folder("folder");
    assert_int_equal(symlink("fifo", temp_path("to")), 0);
    static const char *const names[] = { "fifo", "folder", "to" };
    for (size_t k = 0; k < 3; k++) {
        assert_int_equal(save_net(temp_path(names[k])), TD_E_IO);
        assert_error_says("give the name of a file, not of a folder, a device or a pipe", NULL);
        assert_int_equal(export_net(temp_path(names[k])), TD_E_IO);
    }
    assert_int_equal(save_net("/dev/null"), TD_E_IO);
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

/* What no file system does is said in words that tell what to do. */
static void test_names(void **state)
{
    (void)state;
    char name[300];
    memset(name, 'n', 250);
    name[250] = '\0';
    assert_int_equal(save_net(temp_path(name)), TD_E_IO);
    assert_error_says("give a shorter name", NULL);
    assert_int_equal(symlink("circle", temp_path("circle")), 0);
    assert_int_equal(save_net(temp_path("circle")), TD_E_IO);
    assert_error_says("correct the symbolic links", NULL);
}

/* The program changes its folder between the call and the end of writing. */
static void test_relative_paths(void **state)
{
    (void)state;
    char *before = getcwd(NULL, 0);
    assert_non_null(before);
    temp_make_folder("here");
    temp_make_folder("there");
    const float one = 1;
    const td_safetensors_entry entry = { "one", TD_F32, TD_SHAPE(1), &one, sizeof one };
    td_safetensors_out *out;
    td_saving *saving = NULL;
    assert_int_equal(chdir(temp_path("here")), 0);
    assert_int_equal(symlink("real", "link"), 0);
    assert_int_equal(td_checkpoint_save("run", net, .background = &saving), TD_OK);
    assert_int_equal(td_safetensors_plan("link", &entry, 1, NULL, 0, &out), TD_OK);
    assert_int_equal(td_trace_open("trace"), TD_OK);
    assert_int_equal(chdir(temp_path("there")), 0);
    td_trace_begin("span");
    td_trace_end();
    assert_int_equal(td_trace_close(), TD_OK);
    assert_int_equal(td_safetensors_put(out, 0, 0, &one, sizeof one), TD_OK);
    assert_int_equal(td_safetensors_finish(out, true), TD_OK);
    assert_int_equal(td_saving_wait(&saving), TD_OK);
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_true(info_of("here/run").st_size > 0 && info_of("here/trace").st_size > 0);
    assert_true(S_ISREG(info_of("here/real").st_mode) && S_ISLNK(info_of("here/link").st_mode));
    assert_int_equal(rmdir(temp_path("there")), 0); /* it is empty */
}

static int setup(void **state)
{
    umask(022);
    net = td_nn_linear(2, 2);
    return temp_folder_setup(state);
}

static int teardown(void **state)
{
    td_module_free(net);
    return temp_folder_teardown(state);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_modes),        WITH_FOLDER(test_owner),
        WITH_FOLDER(test_another_user), WITH_FOLDER(test_symbolic_links),
        WITH_FOLDER(test_hard_links),   WITH_FOLDER(test_devices),
        WITH_FOLDER(test_names),        WITH_FOLDER(test_relative_paths),
    };
    return cmocka_run_group_tests_name("files that are replaced", tests, NULL, NULL);
}
