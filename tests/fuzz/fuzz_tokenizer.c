/* Fuzzing tokenizers' files and texts: any bytes are refused with a message that names the file, or
 * make a tokenizer whose tokens of any text decode to the text. The first byte says what follows: a
 * file of ranks and a text, or vocab.json, merges.txt and a text, divided by zeros; or a text
 * alone. What the bytes lack is that of the byte's tokens, so that short inputs come far. */
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_internal.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

typedef struct span {
    const char *text;
    size_t size;
} span;

/* What comes before the next zero, which is skipped. */
static span next_span(span *rest)
{
    const char *zero = memchr(rest->text, 0, rest->size);
    span first = { rest->text, zero != NULL ? (size_t)(zero - rest->text) : rest->size };
    size_t skipped = first.size + (zero != NULL);
    *rest = (span){ rest->text + skipped, rest->size - skipped };
    return first;
}

/* Tokens 0 to 255 for the bytes, in front of what was invented. The caller frees the text. */
static span with_bytes(span s, bool json)
{
    char *text = malloc(s.size + 256 * 32 + 3);
    require(text != NULL);
    size_t at = 0;
    text[at++] = json ? '{' : '\n';
    for (int byte = 0, other = 256; byte < 256; byte++) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        bool seen = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        at += (size_t)(json ? sprintf(text + at, "\"\\u%04x\":%d,", seen ? byte : other++, byte)
                            : sprintf(text + at, "%c%c== %d\n", digits[byte >> 2],
                                      digits[(byte & 3) << 4], byte));
    }
    memcpy(text + at, s.text, s.size);
    at += s.size;
    text[at] = '\0';
    return (span){ text, at };
}

static void check_round_trip(const td_tokenizer *t, span s, bool special)
{
    int64_t *tokens, count;
    if (td_tokenizer_encode(t, s.text, s.size, special, &tokens, &count) != TD_OK) {
        require(*td_last_error() != '\0');
        return;
    }
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t size;
        const char *bytes = td_tokenizer_bytes(t, tokens[i], &size);
        require(bytes != NULL && size <= s.size - at && memcmp(bytes, s.text + at, size) == 0);
        at += size;
    }
    require(at == s.size);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const patterns[] = { NULL, "\\p{L}+|\\s", "." };
    int choice = size > 0 ? *bytes : 0;
    span rest = { (const char *)bytes + (size > 0), size - (size > 0) };
    bool merges = choice & 1;
    span file = with_bytes(next_span(&rest), merges), lines = { "", 0 };
    char *copy = NULL;
    if (merges) {
        lines = next_span(&rest);
        copy = strndup(lines.text, lines.size);
    }
    td_tokenizer *t =
        merges ? td_tokenizer_of_merges(file.text, file.size, "fuzz.v", copy, lines.size, "fuzz.m")
               : td_tokenizer_of_ranks(file.text, file.size, "fuzz.r");
    if (t == NULL) {
        require(strncmp(td_last_error(), "fuzz.", 5) == 0);
    } else if (td_pattern_new(patterns[choice / 2 % 3], &t->pattern) == TD_OK) {
        check_round_trip(t, rest, choice & 64);
    }
    td_tokenizer_free(t);
    free((char *)(uintptr_t)file.text);
    free(copy);
    return 0;
}
