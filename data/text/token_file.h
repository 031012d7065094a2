/* The layout of token files, for whoever reads and writes them. Not for users. */
#pragma once

#include "data/text/text.h"

enum { TD_TOKEN_HEADER = 256 }; /* int32 words of llm.c's header */

typedef struct td_token_layout {
    int width;          /* bytes of a token: 1, 2, 4 */
    int64_t offset;     /* of the first token, in bytes */
    int64_t count;      /* of tokens */
    int64_t vocabulary; /* 0: the file does not say */
    bool declared;      /* the header says the vocabulary; otherwise the format does */
} td_token_layout;

/* Where the tokens are in a file of `size` bytes. `name` is the file's, for messages, and decides
 * between formats. TD_E_FORMAT: these bytes are no such file. */
td_status td_token_layout_read(const void *bytes, int64_t size, const char *name,
                               td_token_format format, td_token_layout *layout);

/* Maps a file for reading, of 0 bytes, too: munmap it, unless it is NULL. TD_E_NOTFOUND, TD_E_IO.
 */
td_status td_map_file(const char *path, const unsigned char **map, int64_t *size);

/* Token i of a mapped file. */
uint32_t td_token_at(const unsigned char *map, const td_token_layout *layout, int64_t i);

/* A header for `count` tokens of 2 or 4 bytes. TD_E_ARG: the header cannot say this. */
td_status td_token_header(int width, int64_t count, int64_t vocabulary,
                          int32_t header[TD_TOKEN_HEADER]);
