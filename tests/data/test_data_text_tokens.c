/* Token files as a dataset: formats, windows, several files, the split, windows at random, a run
 * that goes on, and what is said of bad files. */
#include "data/text/token_file.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tests/data/toy_dataset.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 101, VOCABULARY = 300, HEADER_BYTES = TD_TOKEN_HEADER * 4 };

static uint32_t token(int64_t i)
{
    return (uint32_t)(i * 37 + i * i) % 256; /* fits into a byte */
}

/* Writes the tokens from `begin` to `end` with so many bytes each, behind a header or not. */
static const char *write_tokens(const char *name, int width, const int32_t *header, int64_t begin,
                                int64_t end)
{
    char bytes[HEADER_BYTES + 4 * TOKENS];
    size_t size = header != NULL ? HEADER_BYTES : 0;
    if (header != NULL) {
        memcpy(bytes, header, HEADER_BYTES);
    }
    for (int64_t i = begin; i < end; i++, size += (size_t)width) {
        uint32_t value = token(i);
        memcpy(bytes + size, &value, (size_t)width); /* little-endian */
    }
    temp_write(name, bytes, size);
    return temp_path(name);
}

static td_dataset *opened(td_dataset *dataset)
{
    if (dataset == NULL) {
        fail_msg("%s", td_last_error());
    }
    return dataset;
}

/* All windows of a stream of token(first), ..., which end after `tokens` tokens. */
static void check_windows(td_dataset *d, int64_t first, int64_t tokens, int64_t window,
                          int64_t stride)
{
    opened(d);
    assert_int_equal(d->length, (tokens - 1 - window) / stride + 1);
    assert_true(td_shape_equal(d->sample_shape, TD_SHAPE(window)));
    td_loader *loader = td_loader_open(d, .batch_size = 3, .workers = 2);
    int64_t sample = 0;
    for (td_batch batch; td_loader_next(loader, &batch);) {
        assert_true(batch.x->dtype == TD_I64 && batch.y->dtype == TD_I64);
        assert_true(td_shape_equal(td_shape_of(batch.x), TD_SHAPE(batch.size, window)));
        assert_true(td_shape_equal(td_shape_of(batch.y), TD_SHAPE(batch.size, window)));
        const int64_t *x = td_data(batch.x), *y = td_data(batch.y);
        for (int64_t i = 0; i < batch.size * window; i++) {
            int64_t place = first + (sample + i / window) * stride + i % window;
            assert_int_equal(x[i], token(place));
            assert_int_equal(y[i], token(place + 1));
        }
        sample += batch.size;
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    assert_int_equal(sample, d->length);
    td_loader_close(loader);
    td_dataset_free(d);
}

/* The same tokens in every format. */
static void test_formats(void **state)
{
    (void)state;
    int32_t header[2][TD_TOKEN_HEADER];
    for (int k = 0; k < 2; k++) {
        assert_int_equal(td_token_header(2 * k + 2, TOKENS, 0, header[k]), TD_OK);
    }
    static const struct {
        const char *name;
        int width, header;
        td_token_format format;
        int given, classes;
    } cases[] = {
        { "a.txt", 1, -1, TD_TOKENS_AUTO, 0, 256 },   { "a.txt", 1, -1, TD_TOKENS_BYTES, 300, 300 },
        { "b.bin", 2, -1, TD_TOKENS_AUTO, 300, 300 }, { "b", 2, -1, TD_TOKENS_U16, 256, 256 },
        { "c.bin", 4, -1, TD_TOKENS_U32, 257, 257 },  { "d", 2, 0, TD_TOKENS_AUTO, 0, 50257 },
        { "d.bin", 2, 0, TD_TOKENS_U16, 256, 256 },   { "e", 4, 1, TD_TOKENS_AUTO, 0, 128256 },
        { "e", 4, 1, TD_TOKENS_U32, 300, 300 },
    };
    static const int64_t windows[] = { 1, 7, 33, TOKENS - 1 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int32_t *words = cases[c].header >= 0 ? header[cases[c].header] : NULL;
        const char *path = write_tokens(cases[c].name, cases[c].width, words, 0, TOKENS);
        for (int w = 0; w < 4; w++) {
            td_dataset *d =
                opened(td_tokens_open(path, .window = windows[w], .format = cases[c].format,
                                      .vocabulary = cases[c].given));
            assert_int_equal(d->classes, cases[c].classes);
            check_windows(d, 0, TOKENS, windows[w], windows[w]);
        }
    }
}

static void test_strides(void **state)
{
    (void)state;
    const char *path = write_tokens("a.txt", 1, NULL, 0, TOKENS);
    check_windows(td_tokens_open(path, .window = 8, .stride = 1), 0, TOKENS, 8, 1);
    check_windows(td_tokens_open(path, .window = 8, .stride = 3), 0, TOKENS, 8, 3);
    check_windows(td_tokens_open(path, .window = 8, .stride = 1000), 0, TOKENS, 8, 1000);
}

/* The header's vocabulary, and who may say another one. */
static void test_declared_vocabulary(void **state)
{
    (void)state;
    int32_t header[TD_TOKEN_HEADER];
    assert_int_equal(td_token_header(2, TOKENS, VOCABULARY, header), TD_OK);
    const char *path = write_tokens("a.bin", 2, header, 0, TOKENS);
    td_dataset *d = opened(td_tokens_open(path, .window = 5));
    assert_int_equal(d->classes, VOCABULARY);
    td_dataset_free(d);
    d = opened(td_tokens_open(path, .window = 5, .vocabulary = 512)); /* padded, for speed */
    assert_int_equal(d->classes, 512);
    td_dataset_free(d);
    assert_null(td_tokens_open(path, .window = 5, .vocabulary = VOCABULARY - 1));
    assert_error_says("a.bin", "vocabulary of 300", "299", NULL);
    assert_int_equal(td_token_header(2, (int64_t)1 << 31, 0, header), TD_E_ARG);
    assert_error_says("2147483648 tokens", "several files", NULL);
}

/* Windows go on from file to file, whatever their formats. */
static void test_several_files(void **state)
{
    (void)state;
    int32_t header[TD_TOKEN_HEADER];
    assert_int_equal(td_token_header(2, 30, 256, header), TD_OK);
    const char *paths[] = { write_tokens("z", 1, NULL, 0, 10),
                            write_tokens("y.bin", 2, header, 10, 40),
                            write_tokens("x", 1, NULL, 40, 41),
                            write_tokens("w", 1, NULL, 41, TOKENS) };
    for (int64_t window = 1; window < TOKENS; window += 9) {
        check_windows(td_tokens_open(.paths = paths, .path_count = 4, .window = window), 0, TOKENS,
                      window, window);
    }
    /* By a pattern, in the order of bytes: "B" comes before "a" in every locale. */
    write_tokens("part_B.txt", 1, NULL, 0, 50);
    write_tokens("part_a.txt", 1, NULL, 50, TOKENS);
    write_tokens("other.txt", 1, NULL, 7, 9);
    check_windows(td_tokens_open(temp_path("part_*.txt"), .window = 8), 0, TOKENS, 8, 8);
    check_windows(td_tokens_open(write_tokens("[x]", 1, NULL, 0, TOKENS), .window = 8), 0, TOKENS,
                  8, 8);
}

/* nanoGPT's: data[:int(n * 0.9)] and data[int(n * 0.9):]. */
static void test_split(void **state)
{
    (void)state;
    const char *path = write_tokens("a.txt", 1, NULL, 0, TOKENS);
    check_windows(td_tokens_open(path, .window = 4, .val_fraction = 0.1), 0, 90, 4, 4);
    check_windows(td_tokens_open(path, .window = 4, .val_fraction = 0.1, .val = true), 90, 11, 4,
                  4);
    check_windows(td_tokens_open(path, .window = 4, .stride = 1, .val_fraction = 0.5), 0, 50, 4, 1);
}

/* PyTorch's numbers: torch.manual_seed(1337); torch.randint(1003854 - 8, (4,)), as a lecture about
 * GPTs shows them; and epochs in any order. */
static void test_random_windows(void **state)
{
    (void)state;
    static const int64_t theirs[] = { 76049,  234249, 934904, 560986, 971401, 579495,
                                      193625, 348340, 406276, 114168, 953630, 364202 };
    static const uint64_t epochs[] = { 0, 1, 2, 1, 0, 3, 0, 2 };
    int64_t length = 1003854 - 8, index[12];
    td_sampler *s = td_window_sampler(12, 1337);
    assert_int_equal(s->order(s, 0, length, index), 12);
    assert_memory_equal(index, theirs, sizeof theirs);
    td_sampler_free(s);
    s = td_window_sampler(3, 1337);
    assert_int_equal(s->count(s, length), 3);
    for (size_t i = 0; i < sizeof epochs / sizeof *epochs; i++) {
        assert_int_equal(s->order(s, epochs[i], length, index), 3);
        assert_memory_equal(index, theirs + 3 * epochs[i], 3 * sizeof *index);
    }
    td_sampler_free(s);
    assert_null(td_window_sampler(0, 1));
    assert_error_says("td_window_sampler", "0 samples", NULL);
}

/* Two ranks' parts are the windows of one. */
static void test_ranks(void **state)
{
    (void)state;
    td_dataset *d =
        opened(td_tokens_open(write_tokens("a.txt", 1, NULL, 0, TOKENS), .window = 5, .stride = 1));
    int64_t all[8], part[8];
    td_loader *loader = td_loader_open(d, .batch_size = 3, .sampler = td_window_sampler(8, 5));
    assert_int_equal(take_epoch(loader, all), 8);
    td_loader_close(loader);
    for (int rank = 0; rank < 2; rank++) {
        loader = td_loader_open(d, .batch_size = 3, .sampler = td_window_sampler(8, 5),
                                .deal = { .rank = rank, .world_size = 2 });
        assert_int_equal(take_epoch(loader, part), 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(part[i], all[2 * i + rank]);
        }
        td_loader_close(loader);
    }
    td_dataset_free(d);
}

/* A run stopped after any batch goes on with the windows of one that was not, at random and
 * shuffled. */
static void test_goes_on(void **state)
{
    (void)state;
    enum { SAMPLES = 7, EPOCHS = 3, BATCH = 2 };
    td_dataset *d = opened(td_tokens_open(write_tokens("a.txt", 1, NULL, 0, TOKENS), .window = 12));
    td_module *net = td_nn_linear(1, 1);
    for (int kind = 0; kind < 2; kind++) {
        int64_t whole[EPOCHS * 8], rest[EPOCHS * 8];
        for (int stop = 0; stop <= EPOCHS * 4; stop++) {
            int count = 0, number = 0;
            const char *path = temp_path("run.safetensors");
            for (int part = 0; part < 2; part++) {
                td_generator g;
                td_generator_seed(&g, part == 0 ? 3 : 4);
                td_loader *loader = td_loader_open(
                    d, .batch_size = BATCH, .shuffle = true, .workers = kind, .generator = &g,
                    .sampler = kind == 0 ? td_window_sampler(SAMPLES, 9) : NULL);
                if (part == 1 && td_checkpoint_load(path, net, .loader = loader) != TD_OK) {
                    fail_msg("%s", td_last_error());
                }
                while (td_loader_epoch(loader) < EPOCHS && (part == 1 || number < stop)) {
                    for (td_batch b; (part == 1 || number < stop) && td_loader_next(loader, &b);
                         number++) {
                        memcpy(rest + count, b.samples, (size_t)b.size * sizeof *rest);
                        count += (int)b.size;
                    }
                    assert_int_equal(td_loader_status(loader), TD_OK);
                }
                if (part == 0) {
                    assert_int_equal(td_checkpoint_save(path, net, .loader = loader), TD_OK);
                }
                td_loader_close(loader);
            }
            if (stop == 0) {
                memcpy(whole, rest, sizeof whole);
            }
            assert_int_equal(count, EPOCHS * (kind == 0 ? SAMPLES : d->length));
            assert_memory_equal(rest, whole, (size_t)count * sizeof *rest);
        }
    }
    td_module_free(net);
    td_dataset_free(d);
}

/* ---- what is wrong ---- */

typedef struct bad_case {
    int32_t words[4]; /* of the header; magic 0: none */
    int width;
    int64_t tokens;
    size_t cut; /* bytes that the file has, or 0: all */
    td_tokens_options options;
    const char *says[3];
} bad_case;

static void test_bad_files(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        { { 0 }, 1, 0, 0, { .window = 4 }, { "bad.bin: the file is empty" } },
        { { 0 }, 2, 9, 17, { .window = 4 }, { "bad.bin: 17 bytes", "tokens of 2 bytes" } },
        { { 0 }, 2, 9, 0, { .window = 4 }, { "bad.bin", "set .vocabulary" } },
        { { 0 }, 4, 9, 35, { .window = 4, .format = TD_TOKENS_U32 }, { "35 bytes", "of 4 bytes" } },
        { { 20240520, 1, 9 }, 2, 9, 1000, { .window = 4 }, { "1000 bytes of its header" } },
        { { 20240520, 1, 9 }, 2, 9, 4, { .window = 4 }, { "cut off after 4 bytes" } },
        { { 20240520, 1, 9 }, 2, 8, 0, { .window = 4 }, { "9 tokens", "16 bytes", "cut off" } },
        { { 20240520, 1, 9 }, 2, 10, 0, { .window = 4 }, { "9 tokens", "20 bytes" } },
        { { 20240520, 1, 9 }, 2, 9, 1041, { .window = 4 }, { "9 tokens", "17 bytes" } },
        { { 20240520, 1, -9 }, 2, 9, 0, { .window = 4 }, { "-9 tokens" } },
        { { 20240520, 2, 9 }, 2, 9, 0, { .window = 4 }, { "version is 2", "version 1" } },
        { { 20240801, 1, 9 }, 4, 9, 0, { .window = 4 }, { "version is 1", "version 7" } },
        { { 20240326, 3, 9 }, 2, 9, 0, { .window = 4 }, { "begins with 20240326", "20240520" } },
        { { 20240520, 1, 9 }, 2, 9, 0, { .window = 4, .format = TD_TOKENS_U32 }, { ".format" } },
        { { 20240520, 1, 9 },
          2,
          9,
          0,
          { .window = 9 },
          { "9 tokens for training", "window of 9" } },
        { { 20240520, 1, 0 }, 2, 0, 0, { .window = 1 }, { "0 tokens" } },
        { { 0 },
          2,
          9,
          0,
          { .window = 8, .vocabulary = 256, .val_fraction = 0.5 },
          { "4 tokens for training" } },
        { { 0 },
          2,
          9,
          0,
          { .window = 8, .vocabulary = 256, .val_fraction = 0.5, .val = true },
          { "5 tokens for validation" } },
        { { 0 }, 2, 9, 0, { .window = 0 }, { "window 0" } },
        { { 0 }, 2, 9, 0, { .window = 4, .stride = -1 }, { "stride -1" } },
        { { 0 }, 2, 9, 0, { .window = 4, .vocabulary = -1 }, { "vocabulary -1" } },
        { { 0 }, 2, 9, 0, { .window = 4, .val_fraction = 1 }, { "val_fraction 1" } },
        { { 0 }, 2, 9, 0, { .window = 4, .val = true }, { "val_fraction 0" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bad_case *c = &cases[i];
        int32_t header[TD_TOKEN_HEADER] = { 0 };
        memcpy(header, c->words, sizeof c->words);
        const char *path =
            write_tokens("bad.bin", c->width, header[0] != 0 ? header : NULL, 0, c->tokens);
        size_t size;
        char *bytes = temp_read(path, &size);
        temp_write("bad.bin", bytes, c->cut > 0 ? c->cut : size);
        free(bytes);
        td_tokens_options options = c->options;
        options.path = path;
        assert_null(td_tokens_open_at(options, TD_HERE));
        for (int k = 0; k < 3 && c->says[k] != NULL; k++) {
            assert_error_says(c->says[k], NULL);
        }
    }
    assert_null(td_tokens_open(temp_path("nowhere"), .window = 1));
    assert_error_says("nowhere: cannot be opened", NULL);
    assert_null(td_tokens_open(temp_path("no*where"), .window = 1));
    assert_error_says("no*where: cannot be opened", NULL);
    assert_null(td_tokens_open(temp_folder(), .window = 1));
    assert_error_says("a directory", NULL);
}

static void test_two_vocabularies(void **state)
{
    (void)state;
    int32_t header[TD_TOKEN_HEADER];
    assert_int_equal(td_token_header(2, 9, VOCABULARY, header), TD_OK);
    const char *paths[] = { write_tokens("a", 1, NULL, 0, 9), write_tokens("b", 2, header, 0, 9) };
    assert_null(td_tokens_open(.paths = paths, .path_count = 2, .window = 4));
    assert_error_says("/b has a vocabulary of 300", "/a of 256", NULL);
    td_dataset *d =
        td_tokens_open(.paths = paths, .path_count = 2, .window = 4, .vocabulary = VOCABULARY);
    td_dataset_free(opened(d));
}

/* The file and the place of a token that is too large; the windows before are fine. */
static void test_token_beyond_the_vocabulary(void **state)
{
    (void)state;
    static const uint16_t tokens[] = { 0, 1, 2, 3, 4, 5, 6, 7, 99, 1, 2, 3 };
    temp_write("before", "\1\2\3", 3);
    temp_write("t.bin", tokens, sizeof tokens);
    const char *paths[] = { temp_path("before"), temp_path("t.bin") };
    td_dataset *d =
        opened(td_tokens_open(.paths = paths, .path_count = 2, .window = 4, .vocabulary = 99));
    td_loader *loader = td_loader_open(d);
    td_batch batch;
    assert_true(td_loader_next(loader, &batch) && td_loader_next(loader, &batch));
    assert_false(td_loader_next(loader, &batch));
    assert_int_equal(td_loader_status(loader), TD_E_FORMAT);
    assert_error_says("batch 2", "t.bin: token 8 ", "is 99", "vocabulary of 99", NULL);
    td_loader_close(loader);
    td_dataset_free(d);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const char *const paths[] = { "a" };
    expect_fatal("give a path, or paths", td_tokens_open(.window = 1));
    expect_fatal("give a path, or paths",
                 td_tokens_open("a", .paths = paths, .path_count = 1, .window = 1));
    expect_fatal("paths is NULL", td_tokens_open(.path_count = 2, .window = 1));
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_formats),
        IN_FOLDER(test_strides),
        IN_FOLDER(test_declared_vocabulary),
        IN_FOLDER(test_several_files),
        IN_FOLDER(test_split),
        cmocka_unit_test(test_random_windows),
        IN_FOLDER(test_ranks),
        IN_FOLDER(test_goes_on),
        IN_FOLDER(test_bad_files),
        IN_FOLDER(test_two_vocabularies),
        IN_FOLDER(test_token_beyond_the_vocabulary),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
