/* For tests: a folder of one's own for files, gone afterwards. */
#pragma once

#include <stddef.h>

/* cmocka setup and teardown: an empty folder for each test. */
int temp_folder_setup(void **state);
int temp_folder_teardown(void **state);

/* Its path, and "path/name" in a ring of 8 static buffers. */
const char *temp_folder(void);
const char *temp_path(const char *name);

/* Makes a folder or writes a file in it (name may hold slashes; folders must exist). */
void temp_make_folder(const char *name);
void temp_write(const char *name, const void *bytes, size_t size);

/* All bytes of a file and a zero behind them, malloc'ed. */
void *temp_read(const char *path, size_t *size);

/* Fails the test unless td_last_error() contains each of the parts; ends with NULL. */
void assert_error_says(const char *part, ...) __attribute__((sentinel));
