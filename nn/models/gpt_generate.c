/* Text from a GPT, a token at a time for all prompts together. Prompts of different lengths go in
 * step: all sequences are at the same position, and at each position the longer prompts have their
 * own token where the others have a chosen one. */
#include "nn/models/gpt_internal.h"
#include "nn/shared/slices.h"

#include <stdlib.h>
#include <string.h>

/* ---- the cache ---- */

td_status td_gpt_cache_make(td_gpt_cache *cache, td_module *gpt, int64_t batch, int64_t tokens)
{
    td_gpt_options o = td_gpt_options_of(gpt);
    td_precision precision = td_math_now().precision;
    bool half =
        gpt->dtype == TD_F32 && (precision == TD_PRECISION_BF16 || precision == TD_PRECISION_FP16);
    td_dtype dtype = half ? td_precision_dtype(precision) : gpt->dtype;
    *cache = (td_gpt_cache){ calloc((size_t)o.layers, sizeof(td_tensor *)),
                             calloc((size_t)o.layers, sizeof(td_tensor *)), 0 };
    bool made = cache->k != NULL && cache->v != NULL;
    for (int64_t i = 0; i < o.layers && made; i++) {
        int64_t heads = td_gpt_heads_here(gpt, i);
        td_shape shape = TD_SHAPE(batch, tokens, heads, o.width / o.heads);
        cache->k[i] = heads > 0 ? td_zeros(shape, dtype, gpt->device) : NULL;
        cache->v[i] = heads > 0 ? td_zeros(shape, dtype, gpt->device) : NULL;
        made = heads == 0 || (cache->k[i] != NULL && cache->v[i] != NULL);
    }
    return made ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the keys and values of a GPT");
}

void td_gpt_cache_free(td_gpt_cache *cache, const td_module *gpt)
{
    int64_t layers = cache->k != NULL && cache->v != NULL ? td_gpt_options_of(gpt).layers : 0;
    for (int64_t i = 0; i < layers; i++) {
        td_free(cache->k[i]);
        td_free(cache->v[i]);
    }
    free(cache->k);
    free(cache->v);
    *cache = (td_gpt_cache){ NULL, NULL, 0 };
}

/* ---- weights in bf16 ---- */

static td_status gpt_hold(td_module *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        td_tensor *t = m->tensors[i].tensor, *narrow;
        td_requires_grad(t, false);
        if (t->ndim != 2 || t->dtype != TD_F32 || strcmp(m->name, "wpe") == 0) {
            continue;
        }
        if ((narrow = td_clone_as(t, TD_BF16, td_device_of(t))) == NULL) {
            return TD_E_NOMEM;
        }
        td_exchange_memory(t, narrow);
        td_free(narrow);
    }
    return TD_OK;
}

td_status td_gpt_hold_bf16(td_module *gpt)
{
    for (td_module *m = gpt; m != NULL; m = td_module_next(gpt, m)) {
        TD_TRY(gpt_hold(m));
    }
    return TD_OK;
}

/* ---- ranks ---- */

/* TD_OK if that is the status of all ranks that hold the model together. */
static td_status gpt_agree(const td_module *gpt, td_status mine)
{
    const td_slicing *slices = td_node_of(gpt)->slicing;
    const td_staging *stages = td_node_of(gpt)->staging;
    mine = slices != NULL ? slices->agree(mine, slices->user) : mine;
    return stages != NULL ? stages->agree(mine, stages->user) : mine;
}

/* ---- what is asked for ---- */

static td_status gpt_check_prompt(const td_gpt_generate_options *o, const td_gpt_options *model,
                                  int number)
{
    const td_gpt_prompt *p = &o->prompts[number];
    TD_CHECK(p->count >= 1, TD_E_ARG,
             "td_gpt_generate: prompt %d is empty; give a token to begin with", number);
    for (int64_t i = 0; i < p->count; i++) {
        TD_CHECK(p->tokens[i] >= 0 && p->tokens[i] < model->vocabulary, TD_E_ARG,
                 "td_gpt_generate: token %lld of prompt %d is %lld, and the model's "
                 "vocabulary has %lld; were its tokens made by another tokenizer?",
                 (long long)i, number, (long long)p->tokens[i], (long long)model->vocabulary);
    }
    TD_CHECK(o->slide || o->length <= 0 || p->count + o->length - 1 <= model->context, TD_E_ARG,
             "td_gpt_generate: prompt %d has %lld tokens, and %lld more do not fit into "
             "the model's context of %lld; ask for fewer, or set .slide",
             number, (long long)p->count, (long long)o->length, (long long)model->context);
    return TD_OK;
}

static td_status gpt_check_generate(const td_gpt_generate_options *o)
{
    enum { MOST = 1 << 30 };
    td_gpt_options model = td_gpt_options_of(o->gpt);
    const td_slicing *slicing = td_node_of(o->gpt)->slicing;
    TD_CHECK(slicing == NULL || !slicing->rows, TD_E_UNSUPPORTED,
             "td_gpt_generate: the model's slices spread rows (TD_TP_SEQUENCE), and a token is one "
             "row: save the model, and load it without");
    TD_CHECK(o->length >= 0 && o->length <= MOST && o->top_k >= 0 && o->temperature >= 0.0 &&
                 o->top_p >= 0.0 && o->top_p <= 1.0 && o->repetition_penalty >= 0.0,
             TD_E_ARG,
             "td_gpt_generate: length %lld, top_k %lld, temperature %g, top_p %g, "
             "repetition_penalty %g: none may be negative, nor top_p above 1",
             (long long)o->length, (long long)o->top_k, o->temperature, o->top_p,
             o->repetition_penalty);
    for (int i = 0; i < o->prompt_count; i++) {
        TD_TRY(gpt_check_prompt(o, &model, i));
    }
    return TD_OK;
}

/* ---- the run ---- */

typedef struct generation {
    const td_gpt_generate_options *o;
    td_gpt_options model;
    int64_t longest;    /* tokens of the longest sequence at its end */
    int64_t *tokens;    /* [prompt_count, longest] */
    bool *ended;        /* of each prompt */
    double *logits;     /* [prompt_count, vocabulary] */
    td_gpt_cache cache; /* of the tokens from `first` on */
    int64_t first;
} generation;

static td_status gpt_open(generation *g)
{
    const td_gpt_generate_options *o = g->o;
    size_t count = (size_t)o->prompt_count;
    for (int i = 0; i < o->prompt_count; i++) {
        int64_t length = o->prompts[i].count + o->length;
        g->longest = length > g->longest ? length : g->longest;
    }
    g->tokens = calloc(count * (size_t)g->longest, sizeof *g->tokens);
    g->ended = calloc(count, sizeof *g->ended);
    g->logits = malloc(count * (size_t)g->model.vocabulary * sizeof *g->logits);
    TD_CHECK(g->tokens != NULL && g->ended != NULL && g->logits != NULL, TD_E_NOMEM,
             "td_gpt_generate: no memory for %d sequences of %lld tokens", o->prompt_count,
             (long long)g->longest);
    for (int i = 0; i < o->prompt_count; i++) {
        memcpy(g->tokens + i * g->longest, o->prompts[i].tokens,
               (size_t)o->prompts[i].count * sizeof *g->tokens);
    }
    int64_t rows = g->longest < g->model.context ? g->longest : g->model.context;
    return td_gpt_cache_make(&g->cache, o->gpt, o->prompt_count, rows);
}

/* The logits behind token end - 1, computed from those that the cache does not have yet. */
static td_status gpt_run(generation *g, int64_t end, td_site at)
{
    if (end - g->first > g->model.context) {
        g->first = end - (g->model.context + 1) / 2;
        g->cache.past = 0;
    }
    int64_t begin = g->first + g->cache.past, batch = g->o->prompt_count, count = end - begin;
    td_tensor *tokens = td_new(TD_SHAPE(batch, count), TD_I64, TD_CPU);
    td_tensor *there = tokens;
    if (tokens != NULL) {
        int64_t *values = td_data_rw(tokens);
        for (int64_t i = 0; i < batch; i++) {
            memcpy(values + i * count, g->tokens + i * g->longest + begin,
                   (size_t)count * sizeof *values);
        }
        there = td_clone_as(tokens, TD_I64, g->o->gpt->device);
    }
    if (there == NULL) {
        td_free(tokens);
        return td_fail(TD_E_NOMEM, "td_gpt_generate: no memory for %lld tokens", (long long)count);
    }
    td_gpt_use_cache(g->o->gpt, &g->cache);
    TD_STEP {
        td_no_grad_begin();
        td_read(td_forward_at(g->o->gpt, there, at), g->logits, TD_F64);
        td_no_grad_end();
    }
    td_gpt_use_cache(g->o->gpt, NULL);
    g->cache.past += count;
    td_free(there);
    td_free(tokens);
    return TD_OK;
}

/* Token `at` of a sequence: the prompt's, or the one that is chosen now. */
static td_status gpt_choose(generation *g, int prompt, int64_t at)
{
    const td_gpt_generate_options *o = g->o;
    int64_t *tokens = g->tokens + prompt * g->longest, given = o->prompts[prompt].count;
    if (at < given || g->ended[prompt]) {
        return TD_OK;
    }
    int64_t token = td_gpt_sample(g->logits + prompt * g->model.vocabulary, g->model.vocabulary,
                                  tokens, at, o, prompt, at - given);
    if (token < 0) {
        return (td_status)token;
    }
    tokens[at] = token;
    bool goes_on =
        (o->token == NULL || o->token(prompt, token, o->user)) && at + 1 < given + o->length;
    for (int i = 0; i < o->stop_count; i++) {
        goes_on = goes_on && o->stop[i] != token;
    }
    g->ended[prompt] = !goes_on;
    return TD_OK;
}

static td_status gpt_go(generation *g, td_site at)
{
    int count = g->o->prompt_count, ended = 0;
    int64_t end = g->o->prompts[0].count; /* of the shortest prompt */
    for (int i = 1; i < count; i++) {
        end = g->o->prompts[i].count < end ? g->o->prompts[i].count : end;
    }
    for (; ended < count; end++) {
        TD_TRY(gpt_run(g, end, at));
        ended = 0;
        for (int i = 0; i < count; i++) {
            TD_TRY(gpt_choose(g, i, end));
            ended += g->ended[i];
        }
    }
    return TD_OK;
}

td_status td_gpt_generate_at(td_gpt_generate_options o, td_site at)
{
    TD_REQUIRE(o.gpt != NULL && o.prompts != NULL && o.prompt_count >= 0, at,
               "td_gpt_generate: there is no model or no prompt");
    TD_REQUIRE(!td_in_step(), at, "td_gpt_generate inside of a step: call it behind its end");
    o.prompt_count = o.prompt_count > 0 ? o.prompt_count : 1;
    TD_TRY(gpt_check_generate(&o));
    if (o.length == 0) {
        return TD_OK;
    }
    td_eval_for_now(o.gpt);
    generation g = { .o = &o, .model = td_gpt_options_of(o.gpt) };
    td_status status = gpt_agree(o.gpt, gpt_open(&g));
    status = status == TD_OK ? gpt_go(&g, at) : status;
    td_gpt_cache_free(&g.cache, o.gpt);
    td_give_modes_back(o.gpt);
    free(g.tokens);
    free(g.ended);
    free(g.logits);
    return status;
}
