/* Cuts a text into pieces, by PCRE2. */
#include "data/text/tokenizer_internal.h"

#ifdef TD_HAVE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The characters of Unicode that are white space; PCRE2's \s has one more. */
#define WHITE                                                                                      \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"           \
    "\\x{202f}\\x{205f}\\x{3000}"
/* The end of a contraction; letters, digits or other characters, with a blank before them; white
 * space, which leaves its last character to the word behind it. */
static const char gpt2_pattern[] = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE
                                   "\\p{L}\\p{N}]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+";

td_status td_pattern_new(const char *pattern, void **compiled)
{
    int error;
    PCRE2_SIZE where;
    const char *text = pattern != NULL ? pattern : gpt2_pattern;
    *compiled = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &where, NULL);
    if (*compiled == NULL) {
        unsigned char message[256];
        pcre2_get_error_message(error, message, sizeof message);
        return td_fail(TD_E_ARG, "the pattern '%s' is wrong at offset %zu: %s", text, (size_t)where,
                       (const char *)message);
    }
    pcre2_jit_compile(*compiled, PCRE2_JIT_COMPLETE); /* a matter of speed: it may fail */
    return TD_OK;
}

void td_pattern_free(void *compiled)
{
    pcre2_code_free(compiled);
}

/* How many bytes are UTF-8. PCRE2 checks that before it looks for a match. */
static size_t valid_bytes(const void *compiled, pcre2_match_data *match, const char *text,
                          size_t size)
{
    int found = pcre2_match(compiled, (PCRE2_SPTR)text, size, 0, 0, match, NULL);
    bool wrong = found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21;
    return wrong ? pcre2_get_startchar(match) : size;
}

/* The end of the piece that begins at `at`; 0: the match takes too many steps. */
static size_t end_of_piece(const void *compiled, pcre2_match_data *match, const char *text,
                           size_t size, size_t at)
{
    int found = pcre2_match(compiled, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, match, NULL);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);
    if (found < 0) {
        return found == PCRE2_ERROR_NOMATCH ? size : 0;
    }
    size_t end = place[0] > at ? place[0] : place[1]; /* what is before a match is a piece, too */
    end += end <= at;                                 /* after an empty match one character */
    while (end < size && (text[end] & 0xc0) == 0x80) {
        end++;
    }
    return end;
}

td_status td_text_pieces(const void *compiled, const char *text, size_t size, td_piece_sink sink,
                         void *user)
{
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(compiled, NULL);
    td_status status = match != NULL ? TD_OK : td_fail(TD_E_NOMEM, "tokenizer: no memory");
    size_t begin = 0, valid = 0; /* a run of UTF-8, which is a text of its own */
    for (size_t at = 0, end; at < size && status == TD_OK; at = end) {
        if (at == valid) {
            begin = at;
            valid = at + valid_bytes(compiled, match, text + at, size - at);
        }
        end = valid > at
                  ? begin + end_of_piece(compiled, match, text + begin, valid - begin, at - begin)
                  : (valid = at + 1);
        status = end > at
                     ? sink(user, text + at, end - at)
                     : td_fail(TD_E_FORMAT, "the pattern takes too many steps at byte %zu", at);
    }
    pcre2_match_data_free(match);
    return status;
}

#else

td_status td_pattern_new(const char *pattern, void **compiled)
{
    (void)pattern;
    *compiled = NULL;
    return td_fail(TD_E_UNSUPPORTED, "this build has no BPE. Install libpcre2-dev and build again "
                                     "(make deps does it); bytes as tokens need nothing");
}

void td_pattern_free(void *compiled)
{
    (void)compiled;
}

td_status td_text_pieces(const void *compiled, const char *text, size_t size, td_piece_sink sink,
                         void *user)
{
    (void)compiled;
    return sink(user, text, size);
}

#endif
