/* Text as tokens: files of tokens, and the windows of them that a language model learns from.
 * tandem.h includes this header. data/text/tokenizer.h makes tokens of text. */
#pragma once

#include "data/data.h"

TD_BEGIN_C

typedef enum td_token_format {
    TD_TOKENS_AUTO = 0, /* with llm.c's header: as it says; otherwise NAME.bin: TD_TOKENS_U16;
                           otherwise TD_TOKENS_BYTES */
    TD_TOKENS_BYTES,    /* a text file: each byte is a token of 256 */
    TD_TOKENS_U16,      /* two bytes a token, little-endian, as nanoGPT has them; a header of llm.c
                           may come first */
    TD_TOKENS_U32,      /* the same with four bytes */
} td_token_format;

typedef struct td_tokens_options {
    int begin_;               /* for the library: lets the macro take an empty list */
    const char *path;         /* a file, or a shell pattern, "train_*.bin": all files that match, in
                                 the order of their names' bytes */
    const char *const *paths; /* or instead: a list of files, in this order */
    int path_count;
    int64_t window;         /* T: tokens of a sample */
    int64_t stride;         /* tokens between the beginnings of two windows; 0: window */
    int vocabulary;         /* the number of different tokens; 0: 256 for bytes, or the header's */
    td_token_format format; /* of all files */
    double val_fraction;    /* the share of the tokens, at the end, for validation; 0: none */
    bool val;               /* with val_fraction: the tokens for validation, not those before */
} td_tokens_options;

/* Opens token files as one stream, td_tokens_open("train.bin", .window = 256). Of tokens t[0] to
 * t[N-1], sample i is
 *
 *     x  i64 [T]   t[i * stride], ..., t[i * stride + T - 1]
 *     y  i64 [T]   the same, one token later: the tokens to predict
 *
 * so there are (N - 1 - T) / stride + 1 samples, and tokens at the end that fill no window are in
 * none. A window may begin in one file and end in the next. With a stride of T the loader's
 * .shuffle visits each token once an epoch; a stride of 1 is for td_window_sampler.
 * dataset->classes is the vocabulary.
 *
 * llm.c's header is 256 int32 words: 20240520, 1 (uint16) or 20240801, 7 (uint32), then the number
 * of tokens. Where the fourth word is not 0, it is the vocabulary, as apps/tokenize writes it; with
 * 0 there are 50257 or 128256 tokens, GPT-2's or Llama 3's. Files without a header need
 * .vocabulary.
 *
 * val_fraction 0.1 gives the first int(N * 0.9) tokens for training and the rest for validation, as
 * nanoGPT does: open the files twice, once with val set.
 *
 * The files are mapped, not read: opening is quick, and memory is needed for the parts in use. They
 * must not become shorter while the dataset is open.
 *
 * NULL with td_last_error(), which names the file: it is missing, empty, cut off, of an odd length,
 * another kind of file of llm.c; no vocabulary is known, or several; fewer than T + 1 tokens; an
 * option is out of range. Tokens are checked when they are used: td_loader_next fails on a token
 * beyond the vocabulary, and names its place. */
td_dataset *td_tokens_open_at(td_tokens_options options, td_site at);
#define td_tokens_open(...)                                                                        \
    td_tokens_open_at((td_tokens_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

/* Draws windows at random with replacement: an epoch has `samples` of them. The numbers of all
 * epochs, one after the other, are the same as those of
 *
 *     torch.randint(length, (n,), generator=torch.Generator().manual_seed(seed))
 *
 * for any `samples`. So with a dataset of stride 1 the batches are nanoGPT's. Give the
 * sampler to td_loader_open; on several ranks, with .deal. NULL with td_last_error(): samples is
 * below 1, or no memory. */
td_sampler *td_window_sampler(int64_t samples, uint64_t seed);

TD_END_C
