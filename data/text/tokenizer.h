/* Tokenizers: text to tokens and back. Bytes as tokens, or GPT-2's byte-level BPE (byte-pair
 * encoding) from the files that others publish. tandem.h does not include this header.
 *
 *     td_tokenizer *t = td_tokenizer_open("vocab.json", .merges = "merges.txt");
 *     td_tokenizer *t = td_tokenizer_open("gpt2.tiktoken");
 *     td_tokenizer *t = td_tokenizer_open();                             bytes: 256 tokens
 *
 * BPE cuts a text into pieces, words with the blank before them, by a regular expression. A piece
 * begins as single bytes; of all neighbours that are a token together, those of the lowest rank are
 * joined, the first ones of several, until there are none. Any bytes can be encoded, and decoding
 * gives them back: bytes that are no UTF-8 become tokens of single bytes, and the text around them
 * is encoded as texts of their own.
 *
 * Special tokens stand for texts as a whole. In vocab.json they are the tokens that no merge makes.
 * With a file of ranks there is one, "<|endoftext|>", numbered after the largest rank. */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TD_BEGIN_C

typedef struct td_tokenizer td_tokenizer;

typedef struct td_tokenizer_options {
    int begin_;          /* for the library: lets the macro take an empty list */
    const char *vocab;   /* NULL: bytes. With merges: vocab.json; without: tiktoken's file of ranks,
                            lines of a token's bytes in base64 and its number */
    const char *merges;  /* merges.txt: lines of two tokens to join, the most frequent ones first */
    const char *pattern; /* what a piece is, for PCRE2; NULL: GPT-2's. Text that the pattern does
                            not match is a piece, too. In PCRE2, \s matches U+180E, elsewhere not */
} td_tokenizer_options;

/* NULL with td_last_error(), which names the file and the line: it is missing or damaged, numbers
 * or tokens are there twice, a byte has no token, a merge's tokens are not in the vocabulary; the
 * pattern is wrong; TD_E_UNSUPPORTED: tandem was built without PCRE2, which BPE needs. */
td_tokenizer *td_tokenizer_open_at(td_tokenizer_options options, td_site at);
#define td_tokenizer_open(...)                                                                     \
    td_tokenizer_open_at((td_tokenizer_options){ TD_OPT2(vocab, merges, __VA_ARGS__) }, TD_HERE)
void td_tokenizer_free(td_tokenizer *t); /* NULL is fine */

/* The largest token + 1, for the model's vocabulary. */
int64_t td_tokenizer_vocabulary(const td_tokenizer *t);

/* Gets the next tokens of a text; the first `done` bytes are encoded then. Another status than
 * TD_OK ends the encoding, whose status it is. */
typedef td_status (*td_token_sink)(void *user, const int64_t *tokens, int64_t count, size_t done);

/* Encodes a text of `size` bytes piece by piece, so that the tokens of a large file need no memory.
 * special: the texts of special tokens become these tokens, the longest of several; otherwise they
 * are text like any other. Threads may share a tokenizer. TD_E_NOMEM; TD_E_FORMAT: the pattern
 * needs too many steps at a place, which the message tells. */
td_status td_tokenizer_encode_to(const td_tokenizer *t, const char *text, size_t size, bool special,
                                 td_token_sink sink, void *user);
/* The same with all tokens in one array, which the caller frees. */
td_status td_tokenizer_encode(const td_tokenizer *t, const char *text, size_t size, bool special,
                              int64_t **tokens, int64_t *count);

/* The bytes of a token, its text if it is special; the tokenizer owns them. They need not be whole
 * characters. NULL: there is no such token. */
const char *td_tokenizer_bytes(const td_tokenizer *t, int64_t token, size_t *size);

/* The token of a special token's text; -1: there is none. */
int64_t td_tokenizer_special(const td_tokenizer *t, const char *text);

TD_END_C
