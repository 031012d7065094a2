/* Files that a user names: what is read whole, and what is refused. */
#include "tensor/system/files.h"
#include "tests/help/temp_folder.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 5000 };

static void test_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 1, 4095, 4096, MOST - 1, MOST, MOST + 1 };
    char written[MOST + 1];
    for (size_t i = 0; i < sizeof written; i++) {
        written[i] = (char)i;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *bytes;
        size_t size;
        temp_write("file", written, sizes[i]);
        td_status status = td_read_file(temp_path("file"), "a file", MOST, &bytes, &size);
        if (sizes[i] > MOST) {
            assert_int_equal(status, TD_E_FORMAT);
            assert_error_says("file: 5001 bytes are more than the 5000", "for a file", NULL);
            continue;
        }
        assert_int_equal(status, TD_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(bytes, written, size);
        assert_int_equal(bytes[size], 0);
        free(bytes);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
        td_status status;
    } cases[] = {
        { "nothing", "nothing: cannot be opened: No such file", TD_E_NOTFOUND },
        { "folder", "folder: a directory, not a regular file", TD_E_IO },
        { "fifo", "fifo: a FIFO or device, not a regular file", TD_E_IO },
    };
    temp_make_folder("folder");
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *bytes;
        size_t size;
        assert_int_equal(td_read_file(temp_path(cases[i].name), "a file", MOST, &bytes, &size),
                         cases[i].status);
        assert_error_says(cases[i].says, NULL);
    }
}

/* Files of sysfs say that they have a page, and end before. */
static void test_shorter_than_it_says(void **state)
{
    (void)state;
    static const char path[] = "/sys/devices/system/cpu/online";
    char *bytes;
    size_t size;
    if (access(path, R_OK) != 0) {
        skip();
    }
    assert_int_equal(td_read_file(path, "a file", 1 << 20, &bytes, &size), TD_E_IO);
    assert_error_says(path, "reading failed: the file became shorter", NULL);
}

static int interruptions; /* of the next reads; the last one gives a part */

/* In the place of the C library's. */
ssize_t pread(int fd, void *to, size_t size, off_t offset)
{
    if (interruptions > 1) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    size = interruptions == 1 ? size / 3 : size;
    interruptions = 0;
    return syscall(SYS_pread64, fd, to, size, offset);
}

static void test_a_read_that_is_interrupted(void **state)
{
    (void)state;
    static const char written[] = "bytes that come in pieces";
    char *bytes;
    size_t size;
    temp_write("file", written, sizeof written);
    interruptions = 3;
    assert_int_equal(td_read_file(temp_path("file"), "a file", MOST, &bytes, &size), TD_OK);
    assert_int_equal(interruptions, 0);
    assert_int_equal(size, sizeof written);
    assert_memory_equal(bytes, written, size);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_refused, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_shorter_than_it_says),
        cmocka_unit_test_setup_teardown(test_a_read_that_is_interrupted, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
