/* Opens tokenizers: bytes, tiktoken's ranks, vocab.json with merges.txt. */
#include "data/text/tokenizer_internal.h"
#include "tensor/system/files.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1, BYTES = 256, MOST_TOKENS = 1 << 21, MOST_FILE = 1 << 28 };
static const char end_of_text[] = "<|endoftext|>";

/* An empty tokenizer for a number of bytes, tokens and merges, and end_of_text. Tokens' numbers may
 * have gaps, but none that would waste memory. NULL with td_last_error(). */
static td_tokenizer *tokenizer_new(size_t bytes, int64_t tokens, int64_t merges, const char *name)
{
    enum { GAPS = 1024 };
    td_tokenizer *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->most = tokens < MOST_TOKENS / 2 ? 2 * tokens + GAPS : MOST_TOKENS;
        for (t->mask = 1; t->mask < 2 * (uint64_t)(t->most + merges);) {
            t->mask = 2 * t->mask + 1;
        }
        t->bytes = malloc(bytes + sizeof end_of_text);
        t->tokens = calloc((size_t)t->most, sizeof *t->tokens);
        t->joints = malloc(((size_t)t->mask + 1) * sizeof *t->joints);
        t->special = malloc((size_t)t->most * sizeof *t->special);
        t->merged = merges > 0 ? malloc((size_t)merges * sizeof *t->merged) : NULL;
    }
    if (t == NULL || t->bytes == NULL || t->tokens == NULL || t->joints == NULL ||
        t->special == NULL || (merges > 0 && t->merged == NULL)) {
        td_tokenizer_free(t);
        td_fail(TD_E_NOMEM, "%s: no memory for its tokens", name);
        return NULL;
    }
    memset(t->joints, NONE, ((size_t)t->mask + 1) * sizeof *t->joints);
    memset(t->of_byte, NONE, sizeof t->of_byte);
    return t;
}

void td_tokenizer_free(td_tokenizer *t)
{
    if (t != NULL) {
        td_pattern_free(t->pattern);
        free(t->bytes);
        free(t->tokens);
        free(t->joints);
        free(t->special);
        free(t->merged);
        free(t);
    }
}

/* Adds a token, whose bytes stand behind those of the others. NULL, or what is wrong with it. */
static const char *add_token(td_tokenizer *t, int64_t token, size_t size)
{
    if (token < 0 || token >= t->most || t->tokens[token].size > 0) {
        return token < 0 || token >= t->most ? "the number is none of a token, or too large"
                                             : "another token has this number";
    }
    t->count = token >= t->count ? token + 1 : t->count;
    t->tokens[token] = (td_token_bytes){ .begin = t->filled, .size = (int32_t)size };
    if (size > 0 && !td_joint_add(t, (int32_t)token, 0, (int32_t)token)) {
        return "another token has the same bytes";
    }
    if (size == 1) {
        t->of_byte[(unsigned char)t->bytes[t->filled]] = (int32_t)token;
    }
    t->filled += size;
    return NULL;
}

/* A text may have any byte. */
static td_status check_bytes(const td_tokenizer *t, const char *name)
{
    for (int byte = 0; byte < BYTES; byte++) {
        TD_CHECK(t->of_byte[byte] != NONE, TD_E_FORMAT,
                 "%s: no token is the byte 0x%02x alone: the file is cut off, or no "
                 "vocabulary of byte-level BPE",
                 name, byte);
    }
    return TD_OK;
}

/* ---- lines ---- */

static int64_t count_lines(const char *text, size_t size)
{
    int64_t lines = 1;
    for (size_t i = 0; i < size; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

/* Reads the lines that are not empty. `read` gets a line and the place of its first blank, and
 * returns NULL or what is wrong. */
static td_status tokenizer_lines(td_tokenizer *t, const char *text, size_t size, const char *name,
                                 const char *(*read)(td_tokenizer *t, const char *line, size_t size,
                                                     size_t blank))
{
    int64_t number = 1;
    for (size_t at = 0, end; at < size; at = end + 1, number++) {
        const char *next = memchr(text + at, '\n', size - at);
        end = next != NULL ? (size_t)(next - text) : size;
        size_t length = end - at - (end > at && text[end - 1] == '\r'), blank = 0;
        while (blank < length && text[at + blank] != ' ') {
            blank++;
        }
        const char *wrong = length == 0       ? NULL
                            : blank == length ? "the line has no blank"
                                              : read(t, text + at, length, blank);
        TD_CHECK(wrong == NULL, TD_E_FORMAT, "%s:%lld: %s", name, (long long)number, wrong);
    }
    return TD_OK;
}

static td_tokenizer *kept_if(td_tokenizer *t, td_status status)
{
    if (status != TD_OK) {
        td_tokenizer_free(t);
        return NULL;
    }
    return t;
}

/* ---- tiktoken's ranks ---- */

/* Writes the bytes that a text in base64 stands for, and returns how many; -1: it is none. */
static int64_t read_base64(const char *text, size_t size, char *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int64_t count = 0;
    uint32_t value = 0;
    int bits = 0;
    for (; size > 0 && text[size - 1] == '='; size--) {
    }
    for (size_t i = 0; i < size; i++) {
        const char *digit = memchr(digits, text[i], sizeof digits - 1);
        if (digit == NULL) {
            return -1;
        }
        value = value << 6 | (uint32_t)(digit - digits);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            to[count++] = (char)(value >> bits);
        }
    }
    return count;
}

static const char *read_rank(td_tokenizer *t, const char *line, size_t size, size_t blank)
{
    int64_t rank = size > blank + 1 ? 0 : -1;
    int64_t bytes = read_base64(line, blank, t->bytes + t->filled);
    for (size_t i = blank + 1; i < size && rank >= 0 && rank < MOST_TOKENS; i++) {
        bool digit = line[i] >= '0' && line[i] <= '9';
        rank = digit ? 10 * rank + (line[i] - '0') : -1;
    }
    return bytes < 0 ? "the token is not in base64" : add_token(t, rank, (size_t)bytes);
}

td_tokenizer *td_tokenizer_of_ranks(const char *text, size_t size, const char *name)
{
    td_tokenizer *t = tokenizer_new(size, count_lines(text, size), 0, name);
    td_status status = t != NULL ? tokenizer_lines(t, text, size, name, read_rank) : TD_E_NOMEM;
    status = status == TD_OK ? check_bytes(t, name) : status;
    if (status == TD_OK && t->count < t->most) {
        t->special[t->special_count++] = (int32_t)t->count;
        t->tokens[t->count++] = (td_token_bytes){ t->filled, sizeof end_of_text - 1, false };
        memcpy(t->bytes + t->filled, end_of_text, sizeof end_of_text - 1);
    }
    return kept_if(t, status);
}

/* ---- vocab.json and merges.txt ---- */

/* These files have bytes as characters that can be seen: those of Latin-1 that can be seen stand
 * for themselves, and for the other bytes, in their order, those from 256 on. Writes the bytes of
 * such a text and returns how many; -1: it has another character. */
static int64_t read_visible(const char *text, size_t size, char *to)
{
    int16_t byte_of[2 * BYTES];
    int64_t count = 0;
    memset(byte_of, NONE, sizeof byte_of);
    for (int byte = 0, others = BYTES; byte < BYTES; byte++) {
        bool seen = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        byte_of[seen ? byte : others++] = (int16_t)byte;
    }
    for (size_t i = 0; i < size; i++) {
        int c = (unsigned char)text[i];
        if (c >= 0x80) { /* two bytes of UTF-8, or more, which are beyond the table */
            c = (c & 0x3f) << 6 | (i + 1 < size ? text[++i] & 0x3f : 0);
        }
        if (c >= 2 * BYTES || byte_of[c] == NONE) {
            return -1;
        }
        to[count++] = (char)byte_of[c];
    }
    return count;
}

static const char *read_merge(td_tokenizer *t, const char *line, size_t size, size_t blank)
{
    static const char version[] = "#version";
    if (strncmp(line, version, sizeof version - 1) == 0) {
        return NULL;
    }
    char *bytes = t->bytes + t->filled;
    int64_t left = read_visible(line, blank, bytes), right = -1;
    if (left > 0) {
        right = read_visible(line + blank + 1, size - blank - 1, bytes + left);
    }
    int32_t whole = NONE;
    if (right > 0 && td_joint_find(t, 0, bytes, (size_t)left) != NONE &&
        td_joint_find(t, 0, bytes + left, (size_t)right) != NONE) {
        whole = td_joint_find(t, 0, bytes, (size_t)(left + right));
    }
    if (whole == NONE) {
        return "a merge's two tokens, or what they make, are not in the vocabulary: are these the "
               "files of one model?";
    }
    t->tokens[whole].made = true;
    t->merged[t->merge_count] = whole;
    bool added = td_joint_add(t, whole, (int32_t)left, t->merge_count++);
    return added ? NULL : "this merge was there before";
}

static td_status read_vocab(td_tokenizer *t, const cJSON *vocab, const char *name)
{
    for (const cJSON *entry = vocab->child; entry != NULL; entry = entry->next) {
        double number = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        bool fits = number >= 0 && number < MOST_TOKENS && number == (int)number;
        size_t size = strlen(entry->string);
        int64_t bytes = read_visible(entry->string, size, t->bytes + t->filled);
        if (bytes < 0) { /* a special token, in its own letters */
            memcpy(t->bytes + t->filled, entry->string, size);
        }
        const char *wrong =
            add_token(t, fits ? (int64_t)number : -1, bytes < 0 ? size : (size_t)bytes);
        TD_CHECK(wrong == NULL, TD_E_FORMAT, "%s: '%.60s': %s", name, entry->string, wrong);
    }
    return check_bytes(t, name);
}

td_tokenizer *td_tokenizer_of_merges(const char *vocab, size_t vocab_size, const char *vocab_name,
                                     const char *merges, size_t merges_size,
                                     const char *merges_name)
{
    cJSON *json = cJSON_ParseWithLength(vocab, vocab_size);
    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        td_fail(TD_E_FORMAT, "%s: not a JSON object of tokens and their numbers", vocab_name);
        return NULL;
    }
    td_tokenizer *t = tokenizer_new(vocab_size + merges_size, cJSON_GetArraySize(json),
                                    count_lines(merges, merges_size), vocab_name);
    td_status status = t != NULL ? read_vocab(t, json, vocab_name) : TD_E_NOMEM;
    cJSON_Delete(json);
    status =
        status == TD_OK ? tokenizer_lines(t, merges, merges_size, merges_name, read_merge) : status;
    for (int32_t token = 0; status == TD_OK && token < t->count; token++) {
        if (t->tokens[token].size > 1 && !t->tokens[token].made) {
            t->special[t->special_count++] = token;
        }
    }
    return kept_if(t, status);
}

/* ---- opening ---- */

static td_tokenizer *open_bytes(void)
{
    td_tokenizer *t = tokenizer_new(BYTES, BYTES, 0, "td_tokenizer_open");
    for (int byte = 0; t != NULL && byte < BYTES; byte++) {
        t->bytes[byte] = (char)byte;
        add_token(t, byte, 1);
    }
    return t;
}

static td_tokenizer *tokenizer_open_files(const td_tokenizer_options *o)
{
    char *vocab, *merges = NULL;
    size_t size, merges_size;
    td_tokenizer *t = NULL;
    if (td_read_file(o->vocab, "a vocabulary", MOST_FILE, &vocab, &size) != TD_OK) {
        return NULL;
    }
    if (o->merges == NULL) {
        t = td_tokenizer_of_ranks(vocab, size, o->vocab);
    } else if (td_read_file(o->merges, "merges", MOST_FILE, &merges, &merges_size) == TD_OK) {
        t = td_tokenizer_of_merges(vocab, size, o->vocab, merges, merges_size, o->merges);
        free(merges);
    }
    free(vocab);
    return t != NULL ? kept_if(t, td_pattern_new(o->pattern, &t->pattern)) : NULL;
}

td_tokenizer *td_tokenizer_open_at(td_tokenizer_options options, td_site at)
{
    TD_REQUIRE(options.merges == NULL || options.vocab != NULL, at,
               "td_tokenizer_open: merges without vocab; give vocab.json, too");
    return options.vocab != NULL ? tokenizer_open_files(&options) : open_bytes();
}
