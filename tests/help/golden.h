/* For tests: files of values that PyTorch computed, in the folder that TANDEM_GOLDEN names. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

/* A parsed file, to be ended with cJSON_Delete. NULL, with a line that says so, if TANDEM_GOLDEN is
 * not set. Fails the test if the file cannot be read. */
cJSON *golden_open(const char *file);

/* The same by its path: files that are part of the project (tests/golden/). */
cJSON *golden_open_path(const char *path);

/* A member that must be there; fails the test otherwise. */
const cJSON *golden_get(const cJSON *object, const char *name);
double golden_number(const cJSON *object, const char *name);

/* An array of numbers as doubles (malloc); fails unless it has exactly `count` of them. */
double *golden_array(const cJSON *object, const char *name, int count);

/* CRC-32 as zlib and PNG have it. */
uint32_t crc32_of(const void *bytes, size_t size);
uint32_t crc32_more(uint32_t crc, const void *bytes, size_t size); /* goes on; crc starts as 0 */
