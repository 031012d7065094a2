/* A temporary folder for a test's files. */
#include "tests/help/temp_folder.h"

#include "tensor/error.h"

#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h> /* cmocka wants these before it */
#include <cmocka.h>

static char folder[PATH_MAX];

int temp_folder_setup(void **state)
{
    (void)state;
    const char *root = getenv("TMPDIR"), *given = getenv("TANDEM_TEST_FOLDER");
    if (given != NULL) { /* that of all ranks, under mpirun; who has made it removes it */
        snprintf(folder, sizeof folder, "%s", given);
        return 0;
    }
    snprintf(folder, sizeof folder, "%s/tandem-test-XXXXXX", root != NULL ? root : "/tmp");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

int temp_folder_teardown(void **state)
{
    (void)state;
    if (getenv("TANDEM_TEST_FOLDER") != NULL) {
        return 0;
    }
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temp_folder(void)
{
    return folder;
}

const char *temp_path(const char *name)
{
    static char ring[8][PATH_MAX + 256];
    static int next;
    char *path = ring[next++ % 8];
    snprintf(path, sizeof ring[0], "%s/%s", folder, name);
    return path;
}

void temp_make_folder(const char *name)
{
    assert_int_equal(mkdir(temp_path(name), 0777), 0);
}

void temp_write(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(temp_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void *temp_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = calloc(*size + 1, 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

void assert_error_says(const char *part, ...)
{
    va_list parts;
    va_start(parts, part);
    for (; part != NULL; part = va_arg(parts, const char *)) {
        if (strstr(td_last_error(), part) == NULL) {
            fail_msg("the error \"%s\" does not say \"%s\"", td_last_error(), part);
        }
    }
    va_end(parts);
}
