/* Token files as a dataset: windows of a stream, and the sampler that draws windows at random. */
#include "data/dataset.h"
#include "data/text/token_file.h"
#include "tensor/system/list.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct token_file {
    char *name;
    const unsigned char *map; /* [bytes] of the whole file */
    int64_t bytes;
    td_token_layout layout;
    int64_t begin; /* its first token's place in the stream */
} token_file;

typedef struct token_stream {
    td_dataset base;
    token_file *files;
    int64_t count;  /* of files */
    int64_t total;  /* tokens of all files */
    int64_t begin;  /* the first token of the part for training, or for validation */
    int64_t stride; /* from window to window */
} token_stream;

/* ---- windows ---- */

/* The file with a token of the stream. */
static const token_file *find_file(const token_stream *s, int64_t token)
{
    int64_t low = 0, high = s->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->files[middle].begin <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &s->files[low];
}

/* Writes the tokens from `begin` on into row i of t, i64 [n,T]. */
static td_status copy_window(const token_stream *s, int64_t begin, td_tensor *t, int64_t i)
{
    int64_t *row = (int64_t *)td_data_rw(t) + i * t->stride[0];
    const token_file *file = find_file(s, begin);
    for (int64_t k = 0; k < t->shape[1]; file++) {
        int64_t place = begin + k - file->begin;
        for (; k < t->shape[1] && place < file->layout.count; k++, place++) {
            uint32_t token = td_token_at(file->map, &file->layout, place);
            TD_CHECK(token < (uint32_t)s->base.classes, TD_E_FORMAT,
                     "%s: token %lld (counted from 0) is %u, beyond the vocabulary of %d: use the "
                     "tokenizer of this vocabulary, or set .vocabulary",
                     file->name, (long long)place, token, s->base.classes);
            row[k * t->stride[1]] = token;
        }
    }
    return TD_OK;
}

static td_status tokens_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                              uint64_t epoch, td_tensor *x, td_tensor *y)
{
    (void)epoch;
    const token_stream *s = (const token_stream *)dataset;
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = s->begin + index[i] * s->stride;
        TD_TRY(copy_window(s, begin, x, i));
        TD_TRY(copy_window(s, begin + 1, y, i));
    }
    return TD_OK;
}

static void tokens_free(td_dataset *dataset)
{
    token_stream *s = (token_stream *)dataset;
    for (int64_t i = 0; i < s->count; i++) {
        if (s->files[i].map != NULL) {
            munmap((void *)(uintptr_t)s->files[i].map, (size_t)s->files[i].bytes);
        }
        free(s->files[i].name);
    }
    free(s->files);
    free(s);
}

static const td_dataset_vtable tokens_vtable = { "set of tokens", tokens_fetch, tokens_free };

/* ---- files ---- */

static td_status add_files(token_stream *s, const char *const *names, size_t count,
                           td_token_format format)
{
    s->files = calloc(count + 1, sizeof *s->files);
    TD_CHECK(s->files != NULL, TD_E_NOMEM, "td_tokens_open: no memory for %zu files", count);
    for (size_t i = 0; i < count; i++) {
        token_file *file = &s->files[s->count++];
        file->name = strdup(names[i]);
        TD_TRY(file->name != NULL
                   ? td_map_file(names[i], &file->map, &file->bytes)
                   : td_fail(TD_E_NOMEM, "td_tokens_open: no memory for %zu files", count));
        TD_TRY(td_token_layout_read(file->map, file->bytes, names[i], format, &file->layout));
        file->begin = s->total;
        s->total += file->layout.count;
    }
    return TD_OK;
}

static td_status open_files(token_stream *s, const td_tokens_options *o)
{
    if (o->path == NULL) {
        return add_files(s, o->paths, (size_t)o->path_count, o->format);
    }
    if (access(o->path, F_OK) == 0) { /* also a name with brackets */
        return add_files(s, &o->path, 1, o->format);
    }
    glob_t found;
    TD_CHECK(glob(o->path, GLOB_NOSORT | GLOB_NOCHECK, NULL, &found) == 0, TD_E_IO,
             "%s: the files cannot be listed: %s", o->path, strerror(errno));
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, td_compare_texts);
    td_status status = add_files(s, (const char *const *)found.gl_pathv, found.gl_pathc, o->format);
    globfree(&found);
    return status;
}

/* ---- options ---- */

static td_status find_vocabulary(token_stream *s, int given)
{
    const token_file *first = &s->files[0];
    int64_t vocabulary = given > 0 ? given : first->layout.vocabulary;
    for (const token_file *file = first; file < first + s->count; file++) {
        const td_token_layout *own = &file->layout;
        TD_CHECK(vocabulary != 0, TD_E_ARG,
                 "%s does not say how many tokens its vocabulary has: set .vocabulary", file->name);
        TD_CHECK(given > 0 ? !own->declared || own->vocabulary <= given
                           : own->vocabulary == vocabulary,
                 TD_E_MISMATCH, "%s has a vocabulary of %lld tokens, and %s of %lld", file->name,
                 (long long)own->vocabulary, given > 0 ? ".vocabulary is one" : first->name,
                 (long long)vocabulary);
    }
    s->base.classes = (int)vocabulary;
    return TD_OK;
}

/* The part for training or for validation, and its windows. */
static td_status find_windows(token_stream *s, const td_tokens_options *o)
{
    int64_t training = (int64_t)((double)s->total * (1.0 - o->val_fraction));
    int64_t tokens = o->val ? s->total - training : training;
    TD_CHECK(tokens - 1 >= o->window, TD_E_ARG,
             "%s: %lld tokens for %s; a window of %lld needs one more than it has: take a shorter "
             "window, or more text",
             s->files[0].name, (long long)tokens, o->val ? "validation" : "training",
             (long long)o->window);
    s->begin = o->val ? training : 0;
    s->stride = o->stride > 0 ? o->stride : o->window;
    s->base.length = (tokens - 1 - o->window) / s->stride + 1;
    s->base.sample_shape = s->base.target_shape = TD_SHAPE(o->window);
    return TD_OK;
}

static td_status tokens_check_options(const td_tokens_options *o)
{
    bool share = o->val_fraction >= 0 && o->val_fraction < 1 && (!o->val || o->val_fraction > 0);
    TD_CHECK(share && o->window >= 1 && o->stride >= 0 && o->vocabulary >= 0, TD_E_ARG,
             "td_tokens_open: window %lld, stride %lld, vocabulary %d, val_fraction %g; give a "
             "window of 1 or more, no negative numbers, and a fraction below 1, for .val above 0",
             (long long)o->window, (long long)o->stride, o->vocabulary, o->val_fraction);
    return TD_OK;
}

td_dataset *td_tokens_open_at(td_tokens_options options, td_site at)
{
    TD_REQUIRE((options.path != NULL) != (options.path_count > 0), at,
               "td_tokens_open: give a path, or paths and their path_count");
    TD_REQUIRE(options.path_count <= 0 || options.paths != NULL, at,
               "td_tokens_open: path_count is %d, and paths is NULL", options.path_count);
    token_stream *s = calloc(1, sizeof *s);
    TD_CHECK_NULL(s != NULL, TD_E_NOMEM, "td_tokens_open: no memory");
    s->base = (td_dataset){ .vtable = &tokens_vtable, .dtype = TD_I64 };
    if (tokens_check_options(&options) != TD_OK || open_files(s, &options) != TD_OK ||
        find_vocabulary(s, options.vocabulary) != TD_OK || find_windows(s, &options) != TD_OK) {
        tokens_free(&s->base);
        return NULL;
    }
    return &s->base;
}

/* ---- windows at random ---- */

typedef struct window_sampler {
    td_sampler base;
    int64_t samples; /* of an epoch */
    uint64_t seed;
    int64_t drawn; /* windows since the seed */
    td_generator generator;
} window_sampler;

/* An epoch's order depends on its number alone: an epoch before the last one is drawn from the seed
 * on. */
static int64_t window_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    window_sampler *s = (window_sampler *)sampler;
    int64_t begin = (int64_t)epoch * s->samples;
    if (s->drawn > begin) {
        td_generator_seed(&s->generator, s->seed);
        s->drawn = 0;
    }
    for (; s->drawn < begin + s->samples; s->drawn++) {
        int64_t window = td_random_int(&s->generator, 0, length);
        if (s->drawn >= begin) {
            index[s->drawn - begin] = window;
        }
    }
    return s->samples;
}

static int64_t window_count(const td_sampler *sampler, int64_t length)
{
    (void)length;
    return ((const window_sampler *)sampler)->samples;
}

static void window_free(td_sampler *sampler)
{
    free(sampler);
}

td_sampler *td_window_sampler(int64_t samples, uint64_t seed)
{
    window_sampler *s = samples > 0 ? malloc(sizeof *s) : NULL;
    TD_CHECK_NULL(s != NULL, samples > 0 ? TD_E_NOMEM : TD_E_ARG,
                  "td_window_sampler: no memory for %lld samples, or fewer than 1",
                  (long long)samples);
    *s = (window_sampler){ .base = { window_order, window_count, window_free },
                           .samples = samples,
                           .seed = seed };
    td_generator_seed(&s->generator, seed);
    return &s->base;
}
