/* For tests of pictures: files in tests/pictures, and what PIL and torchvision made of them
 * (tests/data/make_pictures.py). */
#pragma once

#include "data/images/bitmap.h"
#include "nn/io/safetensors.h"

#define PICTURES_FOLDER "tests/pictures/"

/* cmocka group setup and teardown: tests/pictures/expected.safetensors. */
int pictures_open_expected(void **state);
int pictures_close_expected(void **state);

/* Calls fn for every tensor of a file (NULL: the expected ones) whose name begins with a word and a
 * slash, with its data; returns how many there are. */
int pictures_each(const td_safetensors *file, const char *word,
                  void (*fn)(const char *rest, const td_safetensors_entry *));

/* Fails unless two rows of bytes differ by no more than that, on average and at most. */
void pictures_require_near(const char *name, const uint8_t *a, const uint8_t *b, size_t count,
                           double mean, int most);

/* A file's bytes, to be freed. */
uint8_t *pictures_read_bytes(const char *path, size_t *size);

td_encoded pictures_encoded(const uint8_t *bytes, size_t size, const char *name);

/* A picture of tests/pictures; its rgb is to be freed. rows: 0 for all. */
td_bitmap pictures_decode(const char *name, int rows);

/* Fails unless the bytes are refused, by a message with this in it. */
void pictures_assert_bad(const uint8_t *bytes, size_t size, const char *says);
