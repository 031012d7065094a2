/* Text files to a token file for language models, and back.
 *
 *     apps/tokenize --out train.bin TEXT...                                          bytes
 *     apps/tokenize --out train.bin --vocab gpt2.tiktoken TEXT...                    BPE
 *     apps/tokenize --out train.bin --vocab vocab.json --merges merges.txt TEXT...   the same
 *     apps/tokenize --download tinyshakespeare.txt                                   fetches a text
 *     apps/tokenize --decode --vocab gpt2.tiktoken train.bin                         text on stdout
 *
 * The token file has llm.c's header, and the vocabulary in the header's fourth word; td_tokens_open
 * (data/text/text.h) reads it. Texts are mapped and tokens written as they come, so that memory
 * does not grow with the text. */
#include "apps/tools/common/cli.h"
#include "data/text/token_file.h"
#include "data/text/tokenizer.h"
#include "tensor/clock.h"
#include "tensor/system/temporary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1

typedef struct tokenizing {
    const char *out, *vocab, *merges, *pattern; /* of the command line */
    bool decode, download, plain, special, end_of_text;
    td_tokenizer *tokenizer;
    FILE *file;
    int width;
    int64_t tokens, bytes, total; /* written; of texts, so far and of all files */
    bool *used;                   /* [vocabulary] whether the texts have this token */
    bool live;
    double began, drawn;
} tokenizing;

/* ---- encoding ---- */

static void show_progress(tokenizing *z, int64_t bytes)
{
    double now = td_clock(), share = (double)bytes / (double)z->total;
    if (z->live && now - z->drawn > REDRAW_SECONDS) {
        z->drawn = now;
        fprintf(stderr, "\r\033[K%3.0f %%  %.1f MB/s  %.0f s left", 100 * share,
                (double)bytes / 1e6 / (now - z->began), (now - z->began) * (1 - share) / share);
        fflush(stderr);
    }
}

static td_status write_tokens(void *user, const int64_t *tokens, int64_t count, size_t done)
{
    tokenizing *z = user;
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)tokens[i];
        z->used[token] = true;
        if (fwrite(&token, (size_t)z->width, 1, z->file) != 1) { /* little-endian */
            return td_temporary_failed(z->out, z->tokens * z->width, "writing");
        }
        z->tokens++;
    }
    show_progress(z, z->bytes + (int64_t)done);
    return TD_OK;
}

static td_status encode_file(tokenizing *z, const char *path, bool measure)
{
    const unsigned char *text;
    int64_t size;
    TD_TRY(td_map_file(path, &text, &size));
    td_status status = TD_OK;
    TD_CHECK(size != 0, TD_E_FORMAT, "%s: the text is empty", path);
    if (measure) {
        z->total += size;
    } else {
        status = td_tokenizer_encode_to(z->tokenizer, (const char *)text, (size_t)size, z->special,
                                        write_tokens, z);
        z->bytes += size;
    }
    munmap((void *)(uintptr_t)text, (size_t)size);
    return status;
}

/* The header is written twice: how many tokens there are is known at the end. */
static td_status write_header(tokenizing *z)
{
    int32_t header[TD_TOKEN_HEADER];
    int64_t vocabulary = td_tokenizer_vocabulary(z->tokenizer);
    if (z->plain) {
        return TD_OK;
    }
    TD_TRY(td_token_header(z->width, z->tokens, vocabulary, header));
    return fseeko(z->file, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, z->file) == 1
               ? TD_OK
               : td_temporary_failed(z->out, z->tokens * z->width, "writing");
}

static td_status encode_files(tokenizing *z, char **paths, int count)
{
    int64_t end = td_tokenizer_special(z->tokenizer, "<|endoftext|>");
    TD_CHECK(!z->end_of_text || end >= 0, TD_E_ARG,
             "--end-of-text: the vocabulary has no <|endoftext|>");
    for (int i = 0; i < count; i++) {
        TD_TRY(encode_file(z, paths[i], true));
    }
    TD_TRY(write_header(z));
    for (int i = 0; i < count; i++) {
        TD_TRY(encode_file(z, paths[i], false));
        if (z->end_of_text) {
            TD_TRY(write_tokens(z, &end, 1, 0));
        }
    }
    return write_header(z);
}

static td_status encode(tokenizing *z, char **paths, int count)
{
    char *name;
    int64_t vocabulary = td_tokenizer_vocabulary(z->tokenizer), used = 0;
    const char *terminal = getenv("TERM");
    z->live = isatty(STDERR_FILENO) && terminal != NULL && strcmp(terminal, "dumb") != 0;
    z->began = td_clock();
    z->width = vocabulary <= UINT16_MAX + 1 ? 2 : 4;
    z->used = calloc((size_t)vocabulary, sizeof *z->used);
    TD_CHECK(z->used != NULL, TD_E_NOMEM, "no memory for %lld tokens", (long long)vocabulary);
    TD_TRY(td_temporary_begin(z->out, 0, &z->file, &name));
    td_status status = encode_files(z, paths, count);
    if (z->drawn > 0) {
        fputs("\r\033[K", stderr);
    }
    TD_TRY(td_temporary_end(z->file, name, z->out, z->tokens * z->width, status));
    for (int64_t i = 0; i < vocabulary; i++) {
        used += z->used[i];
    }
    printf("%s: %lld bytes of text, %lld tokens of %d bytes, %.2f bytes of text a token; %lld of "
           "%lld different tokens\n",
           z->out, (long long)z->bytes, (long long)z->tokens, z->width,
           (double)z->bytes / (double)z->tokens, (long long)used, (long long)vocabulary);
    return TD_OK;
}

/* ---- decoding ---- */

static td_status decode_tokens(tokenizing *z, const char *path, const unsigned char *map,
                               const td_token_layout *layout)
{
    for (int64_t i = 0; i < layout->count; i++) {
        size_t size;
        uint32_t token = td_token_at(map, layout, i);
        const char *bytes = td_tokenizer_bytes(z->tokenizer, token, &size);
        TD_CHECK(bytes != NULL, TD_E_FORMAT,
                 "%s: token %lld (counted from 0) is %u, which this vocabulary does not have: name "
                 "that of the file (--vocab)",
                 path, (long long)i, token);
        TD_CHECK(fwrite(bytes, 1, size, z->file) == size, TD_E_IO, "%s: writing failed: %s",
                 z->out != NULL ? z->out : "stdout", strerror(errno));
        z->bytes += (int64_t)size;
    }
    return TD_OK;
}

static td_status decode_file(tokenizing *z, const char *path)
{
    const unsigned char *map;
    int64_t size;
    td_token_layout layout;
    TD_TRY(td_map_file(path, &map, &size));
    td_status status = td_token_layout_read(map, size, path, TD_TOKENS_AUTO, &layout);
    status = status == TD_OK ? decode_tokens(z, path, map, &layout) : status;
    if (map != NULL) {
        munmap((void *)(uintptr_t)map, (size_t)size);
    }
    return status;
}

static td_status decode(tokenizing *z, char **paths, int count)
{
    char *name = NULL;
    td_status status = TD_OK;
    z->file = stdout;
    TD_TRY(z->out != NULL ? td_temporary_begin(z->out, 0, &z->file, &name) : TD_OK);
    for (int i = 0; i < count && status == TD_OK; i++) {
        status = decode_file(z, paths[i]);
    }
    return z->out != NULL ? td_temporary_end(z->file, name, z->out, z->bytes, status) : status;
}

int main(int argc, char **argv)
{
    tokenizing z = { .out = NULL };
    cli_option options[] = {
        cli_text("out", "FILE", &z.out, "The file to write; with --decode, stdout otherwise",
                 .first = true),
        cli_text("vocab", "FILE", &z.vocab,
                 "tiktoken's file of ranks, or vocab.json; otherwise each byte is a token",
                 .first = true),
        cli_text("merges", "FILE", &z.merges, "merges.txt, with vocab.json", .first = true),
        cli_flag("decode", &z.decode, "Makes text of token files", .first = true),
        cli_flag("download", &z.download,
                 "Downloads tinyshakespeare to the first FILE, if it is not there; without --out "
                 "that is all"),
        cli_text("pattern", "REGEX", &z.pattern,
                 "What a piece of text is, where it is not GPT-2's (for PCRE2)"),
        cli_flag("special", &z.special, "Texts of special tokens, <|endoftext|>, are these tokens"),
        cli_flag("end-of-text", &z.end_of_text, "Writes <|endoftext|> after each text"),
        cli_flag("plain", &z.plain, "Writes no header: bare uint16 or uint32"),
    };
    cli_rest rest = { .name = "FILE...", .wanted = "one file", .least = 1 };
    cli_parse_rest(argc, argv, "Makes a token file of texts, for training language models.",
                   options, sizeof options / sizeof *options, &rest);
    CLI_CHECK(z.decode || z.download || z.out != NULL, "name the file to write: --out FILE");
    CLI_CHECK(z.merges == NULL || z.vocab != NULL,
              "--merges without --vocab; name vocab.json, too");
    bool done = !z.download || td_shakespeare_download(rest.values[0], NULL) == TD_OK;
    if (done && (z.decode || z.out != NULL)) {
        z.tokenizer = td_tokenizer_open(z.vocab, .merges = z.merges, .pattern = z.pattern);
        done = z.tokenizer != NULL &&
               (z.decode ? decode : encode)(&z, rest.values, rest.count) == TD_OK;
    }
    free(z.used);
    td_tokenizer_free(z.tokenizer);
    return done ? 0 : app_failed("tokenize");
}
