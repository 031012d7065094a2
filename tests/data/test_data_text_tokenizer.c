/* Tokenizers: tiktoken's tokens for a small vocabulary in both forms of file, any bytes and back,
 * long pieces, special tokens, and what is said of broken files. */
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_internal.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS "tests/tokenizer/small.tiktoken"
#define VOCAB "tests/tokenizer/vocab.json"
#define MERGES "tests/tokenizer/merges.txt"
enum { VOCABULARY = 507, END = 506, TOKEN_LIST = 1 << 12 };

static td_tokenizer *opened(td_tokenizer *t)
{
    if (t == NULL) {
        fail_msg("%s", td_last_error());
    }
    return t;
}

/* A build without PCRE2 has bytes alone. */
static void needs_bpe(void)
{
    void *pattern;
    if (td_pattern_new(NULL, &pattern) != TD_OK) {
        assert_error_says("libpcre2-dev", NULL);
        skip();
    }
    td_pattern_free(pattern);
}

/* Fails unless the text becomes these tokens, and they become the text. */
static void check_tokens(const td_tokenizer *t, const char *text, size_t size, bool special,
                         const int64_t *expected, int64_t n)
{
    int64_t *tokens, count;
    assert_int_equal(td_tokenizer_encode(t, text, size, special, &tokens, &count), TD_OK);
    assert_int_equal(count, n);
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = td_tokenizer_bytes(t, tokens[i], &length);
        if (expected != NULL && tokens[i] != expected[i]) {
            fail_msg("token %lld of '%.40s' is %lld, not %lld", (long long)i, text,
                     (long long)tokens[i], (long long)expected[i]);
        }
        assert_true(bytes != NULL && at + length <= size);
        assert_memory_equal(bytes, text + at, length);
        at += length;
    }
    assert_int_equal(at, size);
    free(tokens);
}

/* A line of expected.txt: "special" or nothing, a text in hexadecimal digits, its tokens. */
static void check_line(const td_tokenizer *t, char *line)
{
    static int64_t tokens[TOKEN_LIST];
    static char text[TOKEN_LIST];
    char *word = strtok(line, " \n");
    bool special = strcmp(word, "special") == 0;
    size_t size = 0;
    int64_t count = 0;
    word = special ? strtok(NULL, " \n") : word;
    for (unsigned byte; sscanf(word + 2 * size, "%2x", &byte) == 1; size++) {
        text[size] = (char)byte;
    }
    while ((word = strtok(NULL, " \n")) != NULL) {
        tokens[count++] = strtoll(word, NULL, 10);
    }
    check_tokens(t, text, size, special, tokens, count);
}

static td_tokenizer *open_small(int form)
{
    td_tokenizer *t =
        opened(form == 0 ? td_tokenizer_open(RANKS) : td_tokenizer_open(VOCAB, .merges = MERGES));
    assert_int_equal(td_tokenizer_vocabulary(t), VOCABULARY);
    return t;
}

static void test_tokens_are_tiktokens(void **state)
{
    (void)state;
    needs_bpe();
    for (int form = 0; form < 2; form++) {
        static char line[1 << 14];
        td_tokenizer *t = open_small(form);
        FILE *file = fopen("tests/tokenizer/expected.txt", "r");
        int lines = 0;
        assert_non_null(file);
        for (; fgets(line, sizeof line, file) != NULL; lines++) {
            check_line(t, line);
        }
        assert_int_equal(lines, 31);
        fclose(file);
        td_tokenizer_free(t);
    }
}

static void test_special_tokens(void **state)
{
    (void)state;
    needs_bpe();
    for (int form = 0; form < 2; form++) {
        size_t size;
        td_tokenizer *t = open_small(form);
        assert_int_equal(td_tokenizer_special(t, "<|endoftext|>"), END);
        assert_int_equal(td_tokenizer_special(t, "<|endoftext|>x"), -1);
        assert_int_equal(td_tokenizer_special(t, "the"), -1);
        assert_memory_equal(td_tokenizer_bytes(t, END, &size), "<|endoftext|>", 13);
        assert_int_equal(size, 13);
        assert_null(td_tokenizer_bytes(t, VOCABULARY, &size));
        assert_null(td_tokenizer_bytes(t, -1, &size));
        check_tokens(t, "", 0, true, NULL, 0);
        td_tokenizer_free(t);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    td_tokenizer *t = opened(td_tokenizer_open());
    char text[256];
    int64_t tokens[256];
    for (int i = 0; i < 256; i++) {
        text[i] = (char)(i * 7);
        tokens[i] = i * 7 % 256;
    }
    assert_int_equal(td_tokenizer_vocabulary(t), 256);
    check_tokens(t, text, sizeof text, true, tokens, 256);
    assert_int_equal(td_tokenizer_special(t, "<|endoftext|>"), -1);
    td_tokenizer_free(t);
}

/* Time that grows with the square of a piece would take hours here. The vocabulary has "x" and
 * "xx". */
static void test_long_pieces(void **state)
{
    (void)state;
    needs_bpe();
    enum { LETTERS = 1 << 20 };
    td_tokenizer *t = open_small(0);
    char *text = malloc(LETTERS);
    assert_non_null(text);
    memset(text, ' ', LETTERS);
    check_tokens(t, text, LETTERS, false, NULL, LETTERS);
    memset(text, 'e', LETTERS);
    memcpy(text + LETTERS / 2, "\xff", 1); /* two pieces and a byte */
    check_tokens(t, text, LETTERS, true, NULL, 1 + LETTERS / 4 + LETTERS / 4);
    td_tokenizer_free(t);
    free(text);
}

/* The pieces are those of a pattern of one's own; what it skips, and empty matches, stay text. */
static void test_patterns(void **state)
{
    (void)state;
    needs_bpe();
    static const char *const patterns[] = { "the", "\\d*", "$", ".", "(?s).*", "\\z|(?<=t)h" };
    static const char text[] = "the them\xc3\xa9 12 \xf0\x9f\x98\x80 the";
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        td_tokenizer *t = opened(td_tokenizer_open(RANKS, .pattern = patterns[i]));
        int64_t *tokens, count;
        assert_int_equal(td_tokenizer_encode(t, text, sizeof text - 1, false, &tokens, &count),
                         TD_OK);
        check_tokens(t, text, sizeof text - 1, false, tokens, count);
        free(tokens);
        td_tokenizer_free(t);
    }
    assert_null(td_tokenizer_open(RANKS, .pattern = "a(b"));
    assert_error_says("the pattern 'a(b' is wrong at offset 3", NULL);
    td_tokenizer *t = opened(td_tokenizer_open(RANKS, .pattern = "(a+)+b|x"));
    int64_t *tokens, count;
    assert_int_equal(td_tokenizer_encode(t, "x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 42, false,
                                         &tokens, &count),
                     TD_E_FORMAT);
    assert_error_says("too many steps", NULL);
    assert_null(tokens);
    td_tokenizer_free(t);
}

static td_status stop_at_once(void *user, const int64_t *tokens, int64_t count, size_t done)
{
    *(size_t *)user = done;
    assert_true(count == 1024 && tokens[0] == 64 && done >= 1024);
    return td_fail(TD_E_INTERRUPTED, "stopped");
}

static void test_sink_ends_the_encoding(void **state)
{
    (void)state;
    needs_bpe();
    static char text[5000];
    size_t done = 0;
    td_tokenizer *t = open_small(0);
    memset(text, 'a', sizeof text);
    for (size_t i = 1; i < sizeof text; i += 2) {
        text[i] = '-';
    }
    assert_int_equal(td_tokenizer_encode_to(t, text, sizeof text, false, stop_at_once, &done),
                     TD_E_INTERRUPTED);
    assert_true(done >= 1024 && done < 1200);
    td_tokenizer_free(t);
}

/* ---- broken files ---- */

/* The file of ranks with a line more, or cut off. */
static void test_broken_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        const char *says;
    } cases[] = {
        { "IQ==", "r:507: the line has no blank" },
        { "I?== 600", "r:507: the token is not in base64" },
        { "/////w== ", "r:507: the number" },
        { "/////w== -1", "r:507: the number" },
        { "/////w== 6x", "r:507: the number" },
        { "/////w== 99999999999999999999", "r:507: the number" },
        { "/////w== 5", "r:507: another token has this number" },
        { "aGU= 600", "r:507: another token has the same bytes" },
    };
    size_t size;
    char *text = temp_read(RANKS, &size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *more = malloc(size + 100);
        assert_non_null(more);
        int length = snprintf(more, size + 100, "%s%s\r\n", text, cases[i].line);
        assert_null(td_tokenizer_of_ranks(more, (size_t)length, "r"));
        assert_error_says(cases[i].says, NULL);
        free(more);
    }
    size_t line = (size_t)(strchr(text + 900, '\n') - text);
    assert_null(td_tokenizer_of_ranks(text, line, "r"));
    assert_error_says("r: no token is the byte 0x", "alone", NULL);
    assert_null(td_tokenizer_of_ranks("", 0, "r"));
    assert_error_says("r: no token is the byte 0x00 alone", NULL);
    free(text);
    assert_null(td_tokenizer_open(temp_path("nowhere")));
    assert_error_says("nowhere: cannot be opened", NULL);
    assert_null(td_tokenizer_open(VOCAB, .merges = temp_path("nowhere")));
    assert_error_says("nowhere: cannot be opened", NULL);
}

static void test_broken_merges(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *merges; /* what comes at the end */
        const char *says;
    } cases[] = {
        { "", "\nhe", "m:253: the line has no blank" },
        { "", "\nq\xe4\xb8\x96 q", "m:253: a merge's two tokens" },
        { "", "\nq x", "m:253: a merge's two tokens" },
        { "", "\nq ", "m:253: a merge's two tokens" },
        { "", "\nh e", "m:253: this merge was there before" },
        { ",\"new\":1.5", "", "v: 'new': the number" },
        { ",\"new\":\"1\"", "", "v: 'new': the number" },
        { ",\"new\":-1", "", "v: 'new': the number" },
        { ",\"new\":1e9", "", "v: 'new': the number" },
        { ",\"new\":7", "", "v: 'new': another token has this number" },
        { ",\"he\":700", "", "v: 'he': another token has the same bytes" },
        { ",", "", "v: not a JSON object" },
    };
    size_t size, merges_size;
    char *vocab = temp_read(VOCAB, &size), *merges = temp_read(MERGES, &merges_size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char v[8192], m[2048];
        int v_size = snprintf(v, sizeof v, "%.*s%s}", (int)size - 1, vocab, cases[i].vocab);
        int m_size = snprintf(m, sizeof m, "%s%s", merges, cases[i].merges);
        assert_null(td_tokenizer_of_merges(v, (size_t)v_size, "v", m, (size_t)m_size, "m"));
        assert_error_says(cases[i].says, NULL);
    }
    assert_null(td_tokenizer_of_merges("[1]", 3, "v", merges, merges_size, "m"));
    assert_error_says("v: not a JSON object", NULL);
    assert_null(td_tokenizer_of_merges("{}", 2, "v", merges, merges_size, "m"));
    assert_error_says("v: no token is the byte 0x00", NULL);
    free(vocab);
    free(merges);
    expect_fatal("merges without vocab", td_tokenizer_open(.merges = "m"));
}

/* Gaps between numbers, and special tokens in letters that stand for no bytes. */
static void test_odd_vocabularies(void **state)
{
    (void)state;
    size_t size, merges_size;
    char *vocab = temp_read(VOCAB, &size), *merges = temp_read(MERGES, &merges_size), v[8192];
    int length =
        snprintf(v, sizeof v, "%.*s, \"<\xe2\x96\x81>\": 900, \"\": 950}", (int)size - 1, vocab);
    td_tokenizer *t =
        opened(td_tokenizer_of_merges(v, (size_t)length, "v", merges, merges_size, "m"));
    assert_int_equal(td_tokenizer_vocabulary(t), 951);
    assert_int_equal(td_tokenizer_special(t, "<\xe2\x96\x81>"), 900);
    assert_null(td_tokenizer_bytes(t, 899, &size));
    assert_null(td_tokenizer_bytes(t, 950, &size));
    td_tokenizer_free(t);
    free(vocab);
    free(merges);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_are_tiktokens),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_sink_ends_the_encoding),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_broken_ranks),
        cmocka_unit_test(test_broken_merges),
        cmocka_unit_test(test_odd_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
