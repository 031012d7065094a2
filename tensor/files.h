/* Opening files that a user names. */
#ifndef TD_TENSOR_FILES_H
#define TD_TENSOR_FILES_H

#include "tensor/error.h"

#include <stdio.h>

/* Opens a file for reading. What is no regular file is refused: opening a FIFO would wait for a
 * writer, and a device may never end. TD_E_NOTFOUND, TD_E_IO. */
td_status td_open_to_read(const char *path, FILE **file);

#endif
