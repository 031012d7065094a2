/* A tokenizer, seen from inside: who reads its files, who cuts texts, who joins bytes. */
#pragma once

#include "data/text/tokenizer.h"

typedef struct td_token_bytes {
    size_t begin;
    int32_t size; /* 0: there is no such token */
    bool made;    /* a merge makes it */
} td_token_bytes;

/* What bytes in a row stand for: those of tokens[token], of which `left` are a merge's left part
 * (0: the token itself). */
typedef struct td_joint {
    int32_t token, left, value; /* token -1: a free slot */
} td_joint;

struct td_tokenizer {
    char *bytes; /* of all tokens */
    size_t filled;
    td_token_bytes *tokens; /* [most] */
    int64_t count, most;    /* the largest token + 1, and its limit */
    td_joint *joints;       /* [mask + 1] a hash table by bytes and left */
    uint32_t mask;
    int32_t *merged; /* [merge_count] what each merge makes; NULL: a rank is the token itself */
    int32_t merge_count;
    int32_t of_byte[256];
    int32_t *special; /* [special_count] */
    int special_count;
    void *pattern; /* NULL: each byte is a token */
};

/* The value of these bytes, of which `left` are the left part (0: a token); -1: none. */
int32_t td_joint_find(const td_tokenizer *t, int32_t left, const char *bytes, size_t size);
/* Adds a value; false: these bytes have one. */
bool td_joint_add(td_tokenizer *t, int32_t token, int32_t left, int32_t value);

/* Tokenizers of files' contents, without a pattern; names are for messages. NULL with
 * td_last_error(). */
td_tokenizer *td_tokenizer_of_ranks(const char *text, size_t size, const char *name);
td_tokenizer *td_tokenizer_of_merges(const char *vocab, size_t vocab_size, const char *vocab_name,
                                     const char *merges, size_t merges_size,
                                     const char *merges_name);

/* A compiled pattern; NULL: GPT-2's. TD_E_ARG, TD_E_UNSUPPORTED. */
td_status td_pattern_new(const char *pattern, void **compiled);
void td_pattern_free(void *compiled);

/* Gives the pieces of a text one after the other; bytes that are no UTF-8, one by one. */
typedef td_status (*td_piece_sink)(void *user, const char *piece, size_t size);
td_status td_text_pieces(const void *compiled, const char *text, size_t size, td_piece_sink sink,
                         void *user);
