/* Opening and reading files that a user names. */
#pragma once

#include "tensor/error.h"

#include <stdint.h>
#include <stdio.h>

/* Opens a file for reading. What is no regular file is refused: opening a FIFO would wait for a
 * writer, and a device may never end. TD_E_NOTFOUND, TD_E_IO. */
td_status td_open_to_read(const char *path, FILE **file);

/* Reads bytes of the file from `offset` on, all that are asked for, also if signals interrupt the
 * reading. Threads may read one file. TD_E_IO: "reading failed: ...", without the file's name. */
td_status td_file_read(FILE *file, int64_t offset, void *to, size_t size);

/* What a file holds by its first bytes, if it is something that people mix up with what a program
 * reads: "a JPEG image", "an ONNX model"; NULL: nothing that is known. */
const char *td_file_kind(const void *bytes, size_t size);

/* Reads such a file whole, as long as it is when it is opened, and puts a byte 0 behind it; the
 * caller frees the bytes. `what` says what the file is to be: "an image". TD_E_FORMAT: the file has
 * more than `most` bytes. TD_E_NOTFOUND, TD_E_IO, TD_E_NOMEM. After an error there are no bytes. */
td_status td_read_file(const char *path, const char *what, int64_t most, char **bytes,
                       size_t *size);
