/* Prints the text that a GPT writes. A stop text may consist of several tokens: what could be its
 * beginning is printed when it is known not to be. */
#include "apps/tools/gpt/write.h"
#include "dist/comm/collectives.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a prompt and what follows it. */
typedef struct written_text {
    FILE *file; /* writes text; NULL: there is none yet */
    char *text;
    size_t size, begin;  /* begin: where the model's part does */
    size_t end, printed; /* end: of what belongs to the result */
} written_text;

typedef struct text_writer {
    const gpt_writing *how;
    td_tokenizer *tokenizer;
    int64_t end_of_text; /* the special token; -1: none */
    written_text *texts;
    td_gpt_prompt *prompts;
    int count;
} text_writer;

/* The bytes at the text's end that may be the beginning of the stop text. */
static size_t held_back(const written_text *t, const char *stop)
{
    size_t most = stop != NULL ? strlen(stop) : 0, size = t->size - t->begin;
    for (size_t n = most < size ? most : size; n > 0; n--) {
        if (memcmp(t->text + t->size - n, stop, n) == 0) {
            return n;
        }
    }
    return 0;
}

static bool writer_prints(const text_writer *w)
{
    return w->how->group == NULL || td_group_rank(w->how->group) == 0;
}

static void print_until(const text_writer *w, written_text *t, size_t end)
{
    if (end > t->printed && writer_prints(w)) {
        fwrite(t->text + t->printed, 1, end - t->printed, stdout);
        fflush(stdout);
        t->printed = end;
    }
}

static bool take_token(int prompt, int64_t token, void *user)
{
    text_writer *w = user;
    written_text *t = &w->texts[prompt];
    const char *stop = w->how->stop;
    size_t size = 0;
    const char *bytes = td_tokenizer_bytes(w->tokenizer, token, &size);
    if (bytes == NULL || token == w->end_of_text) {
        return bytes == NULL; /* the vocabulary may be padded with tokens that have no text */
    }
    fwrite(bytes, 1, size, t->file);
    fflush(t->file);
    t->end = t->size;
    char *found =
        stop != NULL ? memmem(t->text + t->begin, t->size - t->begin, stop, strlen(stop)) : NULL;
    if (found != NULL) {
        t->end = (size_t)(found - t->text);
    }
    if (w->count == 1) {
        print_until(w, t, found != NULL ? t->end : t->end - held_back(t, stop));
    }
    return found == NULL;
}

static td_status text_begin(text_writer *w, int i, const char *prompt)
{
    written_text *t = &w->texts[i];
    int64_t *tokens;
    TD_TRY(td_tokenizer_encode(w->tokenizer, prompt, strlen(prompt), false, &tokens,
                               &w->prompts[i].count));
    w->prompts[i].tokens = tokens;
    t->file = open_memstream(&t->text, &t->size);
    TD_CHECK(t->file != NULL && fputs(prompt, t->file) != EOF && fflush(t->file) == 0, TD_E_NOMEM,
             "no memory for the text of a prompt");
    t->begin = t->end = t->size;
    if (w->count == 1) {
        print_until(w, t, t->end);
    }
    return TD_OK;
}

/* The tokenizer, which must be the model's, and the prompts' tokens. */
static td_status texts_begin(text_writer *w, const td_module *gpt, const char *const *prompts)
{
    const gpt_writing *how = w->how;
    int64_t vocabulary = td_gpt_options_of(gpt).vocabulary;
    w->tokenizer = td_tokenizer_open(how->vocab, .merges = how->merges);
    if (w->tokenizer == NULL) {
        return TD_E_FORMAT; /* td_last_error has the reason */
    }
    int64_t tokens = td_tokenizer_vocabulary(w->tokenizer);
    TD_CHECK(tokens == vocabulary || (how->vocab != NULL && tokens < vocabulary), TD_E_MISMATCH,
             "the model has %" PRId64 " tokens, and %s %" PRId64
             ": give the --vocab (and --merges) of its training",
             vocabulary, how->vocab != NULL ? how->vocab : "bytes are", tokens);
    w->end_of_text = td_tokenizer_special(w->tokenizer, "<|endoftext|>");
    w->texts = calloc((size_t)w->count, sizeof *w->texts);
    w->prompts = calloc((size_t)w->count, sizeof *w->prompts);
    TD_CHECK(w->texts != NULL && w->prompts != NULL, TD_E_NOMEM, "no memory for %d texts",
             w->count);
    for (int i = 0; i < w->count; i++) {
        TD_TRY(text_begin(w, i, prompts[i]));
    }
    return TD_OK;
}

static td_status texts_generate(text_writer *w, td_module *gpt)
{
    const gpt_writing *how = w->how;
    int64_t context = td_gpt_options_of(gpt).context, longest = 0;
    for (int i = 0; i < w->count; i++) {
        longest = w->prompts[i].count > longest ? w->prompts[i].count : longest;
    }
    if (!how->quiet && longest + how->length - 1 > context) {
        fprintf(stderr,
                "note: the model's context is %" PRId64 " tokens, and the text may get %" PRId64
                ": the model forgets the older half each time the context is full\n",
                context, longest + how->length);
    }
    return td_gpt_generate(
        gpt, .prompts = w->prompts, .prompt_count = w->count, .length = how->length,
        .temperature = how->temperature > 0 ? how->temperature : TD_ZERO, .top_k = how->top_k,
        .top_p = how->top_p, .repetition_penalty = how->repetition_penalty,
        .seed = (uint64_t)how->seed, .slide = true, .token = take_token, .user = w);
}

static void texts_end(text_writer *w, bool whole)
{
    bool prints = whole && writer_prints(w);
    for (int i = 0; i < w->count && w->texts != NULL && w->prompts != NULL; i++) {
        written_text *t = &w->texts[i];
        if (prints && w->count > 1) {
            printf("---- %d ----\n", i + 1);
        }
        if (prints) {
            print_until(w, t, t->end);
        }
        if (prints || t->printed > 0) {
            putchar('\n');
        }
        if (t->file != NULL) {
            fclose(t->file);
        }
        free(t->text);
        free((int64_t *)(uintptr_t)w->prompts[i].tokens);
    }
    free(w->texts);
    free(w->prompts);
    td_tokenizer_free(w->tokenizer);
}

td_status gpt_write(const gpt_writing *how, td_module *gpt, const char *const *prompts, int count)
{
    text_writer w = { .how = how, .count = count };
    td_status status = texts_begin(&w, gpt, prompts);
    status = how->group != NULL ? td_group_agree(how->group, status) : status;
    status = status == TD_OK ? texts_generate(&w, gpt) : status;
    texts_end(&w, status == TD_OK);
    return status;
}
