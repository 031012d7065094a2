/* Text from a GPT: from its cache the same bits as by whole forwards, for any cut of the prompt,
 * any prompts beside it and any number of threads; how tokens are drawn; refusals. */
#include "tests/help/sanitized.h"
#include "tandem.h"

#include "nn/models/gpt_internal.h"
#include "nn/module.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS = 65, CONTEXT = 150, MOST = 256 };

static const char *const variants[] = {
    "gpt-nano layers=2 width=64 context=150 vocabulary=65",
    "gpt-nano layers=2 width=96 heads=6 kv_heads=2 context=150 vocabulary=65 rope rms_norm swiglu "
    "untied no_bias",
};

static td_module *make(const char *text, td_dtype dtype)
{
    td_manual_seed(3);
    td_module *net = td_model(text);
    if (net == NULL || td_module_to(net, TD_CPU, dtype) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    td_eval(net);
    return net;
}

static void fill(int64_t *tokens, int64_t count, uint64_t from)
{
    for (int64_t i = 0; i < count; i++) {
        tokens[i] = (int64_t)((((uint64_t)i + from) * 2654435761u & 0xffffffffu) >> 16) % WORDS;
    }
}

/* ---- the cache ---- */

/* Logits of a forward of tokens [batch,count]: all, or with a cache the last. */
static void run(td_module *net, const int64_t *tokens, int64_t batch, int64_t count, double *logits)
{
    td_tensor *x = td_from(tokens, TD_SHAPE(batch, count), TD_I64, TD_CPU);
    TD_STEP {
        td_no_grad_begin();
        td_read(td_forward(net, x), logits, TD_F64);
        td_no_grad_end();
    }
    td_free(x);
}

/* Compares a sequence cut at `cuts` (their number, then where they are) with `whole`. */
static void check_cuts(td_module *net, const int64_t *tokens, const double *whole, const int *cuts)
{
    static double logits[WORDS];
    td_gpt_cache cache;
    assert_int_equal(td_gpt_cache_make(&cache, net, 1, CONTEXT), TD_OK);
    td_gpt_use_cache(net, &cache);
    for (int i = 1; i <= cuts[0]; i++) {
        int64_t count = cuts[i] - cache.past;
        run(net, tokens + cache.past, 1, count, logits);
        cache.past += count;
        assert_memory_equal(logits, whole + (cache.past - 1) * WORDS, sizeof logits);
    }
    td_gpt_use_cache(net, NULL);
    td_gpt_cache_free(&cache, net);
}

static void check_cache(td_module *net)
{
    static const int cuts[][6] = {
        /* attention's tiles have 64 rows */
        { 1, 150 },
        { 2, 1, 150 },
        { 2, 149, 150 },
        { 5, 3, 5, 64, 65, 130 },
        { 4, 63, 64, 127, 128 },
    };
    static double whole[CONTEXT * WORDS], one[CONTEXT * WORDS];
    int64_t tokens[CONTEXT];
    int each[CONTEXT + 1] = { CONTEXT };
    for (int i = 1; i <= CONTEXT; i++) {
        each[i] = i;
    }
    fill(tokens, CONTEXT, 7);
    static const int threads[] = { 1, 3, 2, 8 };
    for (int i = 0; i < (checks_part() ? 2 : 4); i++) {
        assert_int_equal(td_set_threads(TD_CPU, threads[i]), TD_OK);
        run(net, tokens, 1, CONTEXT, whole);
        if (i == 0) {
            memcpy(one, whole, sizeof one);
        }
        assert_memory_equal(one, whole, sizeof one);
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            check_cuts(net, tokens, whole, cuts[k]);
        }
        check_cuts(net, tokens, whole, each);
    }
}

static void test_from_a_cache(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        td_module *net = make(variants[i], TD_F32);
        check_cache(net);
        td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
        check_cache(net);
        td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
        td_module_free(net);
        net = make(variants[i], TD_F64);
        check_cache(net);
        td_module_free(net);
    }
}

/* Rounds what td_gpt_hold_bf16 does. */
static void round_weights(const td_module *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        td_tensor *t = m->tensors[i].tensor;
        float *values = td_data_rw(t);
        for (int64_t k = 0; t->ndim == 2 && strcmp(m->name, "wpe") != 0 && k < td_numel(t); k++) {
            values[k] = td_bf16_to_f32(td_f32_to_bf16(values[k]));
        }
    }
}

static void test_weights_in_bf16(void **state)
{
    (void)state;
    static double held[CONTEXT * WORDS], rounded[CONTEXT * WORDS];
    int64_t tokens[CONTEXT];
    fill(tokens, CONTEXT, 7);
    for (int i = 0; i < 2; i++) {
        td_module *net = make(variants[i], TD_F32), *other = make(variants[i], TD_F32);
        assert_int_equal(td_gpt_hold_bf16(net), TD_OK);
        for (const td_module *m = other; m != NULL; m = td_module_next(other, m)) {
            round_weights(m);
        }
        check_cache(net);
        run(net, tokens, 1, CONTEXT, held);
        run(other, tokens, 1, CONTEXT, rounded);
        assert_memory_equal(held, rounded, sizeof held);
        td_module_free(net);
        td_module_free(other);
    }
}

/* ---- whole sequences ---- */

typedef struct written {
    int64_t tokens[4][MOST];
    int count[4];
    int most; /* tokens of a sequence, then it ends; 0: as many as come */
} written;

static bool note(int prompt, int64_t token, void *user)
{
    written *w = user;
    w->tokens[prompt][w->count[prompt]++] = token;
    return w->most == 0 || w->count[prompt] < w->most;
}

static written generate(td_gpt_generate_options o)
{
    written w = { .most = 0 };
    o.token = note;
    o.user = &w;
    if (td_gpt_generate_at(o, TD_HERE) != TD_OK) {
        fail_msg("%s", td_last_error());
    }
    return w;
}

/* The same with a whole forward for each token. */
static written generate_slowly(td_gpt_generate_options o, int64_t context)
{
    static double logits[CONTEXT * WORDS];
    written w = { .most = 0 };
    for (int p = 0; p < o.prompt_count; p++) {
        int64_t tokens[MOST], count = o.prompts[p].count, first = 0;
        memcpy(tokens, o.prompts[p].tokens, (size_t)count * sizeof *tokens);
        for (int64_t n = 0; n < o.length; n++, count++) {
            if (count - first > context) {
                first = count - (context + 1) / 2;
            }
            run(o.gpt, tokens + first, 1, count - first, logits);
            tokens[count] =
                td_gpt_sample(logits + (count - first - 1) * WORDS, WORDS, tokens, count, &o, p, n);
            w.tokens[p][w.count[p]++] = tokens[count];
        }
    }
    return w;
}

static void check_same(const written *a, const written *b)
{
    assert_memory_equal(a->count, b->count, sizeof a->count);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
}

static void test_generate(void **state)
{
    (void)state;
    int64_t tokens[3][CONTEXT];
    for (int i = 0; i < 3; i++) {
        fill(tokens[i], CONTEXT, (uint64_t)i * 100);
    }
    const td_gpt_prompt prompts[] = { { tokens[0], 9 }, { tokens[1], 1 }, { tokens[2], 14 } };
    for (int i = 0; i < 2; i++) {
        td_module *net = make(variants[i], TD_F32);
        td_gpt_generate_options o = {
            .gpt = net, .prompts = prompts, .prompt_count = 3, .length = 20, .seed = 11
        };
        static const struct {
            double temperature, top_p, penalty;
            int64_t top_k;
        } ways[] = {
            { 0 },
            { .temperature = TD_ZERO },
            { .temperature = 0.7, .top_p = 0.8 },
            { .top_k = 5 },
            { .top_k = 30, .top_p = 0.5, .penalty = 1.3 },
        };
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            o.temperature = ways[k].temperature;
            o.top_p = ways[k].top_p;
            o.top_k = ways[k].top_k;
            o.repetition_penalty = ways[k].penalty;
            assert_int_equal(td_set_threads(TD_CPU, 2), TD_OK);
            written slow = generate_slowly(o, CONTEXT), fast = generate(o);
            check_same(&slow, &fast);
            assert_int_equal(fast.count[2], 20);
            assert_int_equal(td_set_threads(TD_CPU, 3), TD_OK);
            fast = generate(o);
            check_same(&slow, &fast);
        }
        td_module_free(net);
    }
}

/* Beyond the context the older half is forgotten, also a prompt's. */
static void test_slide(void **state)
{
    (void)state;
    int64_t tokens[160];
    fill(tokens, 160, 5);
    for (int i = 0; i < 2; i++) {
        td_module *net = make(variants[i], TD_F32);
        for (int64_t count = 60; count <= 160; count += 50) {
            td_gpt_generate_options o = { .gpt = net,
                                          .prompts = &(td_gpt_prompt){ tokens, count },
                                          .prompt_count = 1,
                                          .length = 95,
                                          .slide = true };
            written slow = generate_slowly(o, CONTEXT), fast = generate(o);
            check_same(&slow, &fast);
        }
        td_module_free(net);
    }
}

/* A stop token ends one sequence, a function that returns false another; training mode stays. */
static void test_ends(void **state)
{
    (void)state;
    int64_t tokens[CONTEXT];
    fill(tokens, CONTEXT, 5);
    const td_gpt_prompt prompts[] = { { tokens, 4 }, { tokens, 6 } };
    td_module *net = make(variants[0], TD_F32);
    td_train(net);
    td_gpt_generate_options o = {
        .gpt = net, .prompts = prompts, .prompt_count = 2, .length = 12, .seed = 1
    };
    written all = generate(o);
    assert_true(net->training && net->children[0]->training);
    int stop = 3;
    while (all.tokens[0][stop] == all.tokens[0][0] || all.tokens[0][stop] == all.tokens[0][1] ||
           all.tokens[0][stop] == all.tokens[0][2]) {
        stop++; /* its first mention must be here */
    }
    o.stop = &all.tokens[0][stop];
    o.stop_count = 1;
    written stopped = generate(o);
    assert_int_equal(stopped.count[0], stop + 1);
    assert_memory_equal(stopped.tokens[0], all.tokens[0], (size_t)(stop + 1) * sizeof(int64_t));
    o.stop_count = 0;
    written few = { .most = 5 };
    o.token = note;
    o.user = &few;
    assert_int_equal(td_gpt_generate_at(o, TD_HERE), TD_OK);
    assert_true(few.count[0] == 5 && few.count[1] == 5);
    o.length = 0;
    assert_int_equal(td_gpt_generate_at(o, TD_HERE), TD_OK);
    assert_int_equal(few.count[0], 5);
    td_module_free(net);
}

/* ---- how a token is drawn ---- */

enum { DRAWS = 20000 };

/* How often each of four tokens is drawn. */
static void draw(td_gpt_generate_options o, const double *logits, const int64_t *tokens,
                 int64_t count, double share[4])
{
    memset(share, 0, 4 * sizeof *share);
    for (int64_t n = 0; n < DRAWS; n++) {
        double copy[4];
        memcpy(copy, logits, sizeof copy);
        share[td_gpt_sample(copy, 4, tokens, count, &o, 0, n)] += 1.0 / DRAWS;
    }
}

static void check_shares(td_gpt_generate_options o, const double *expected)
{
    static const double logits[] = { -0.69314718056, 0.69314718056, 0.0, -0.69314718056 };
    static const int64_t tokens[] = { 1, 3, 1 };
    double share[4];
    draw(o, logits, tokens, 3, share);
    for (int i = 0; i < 4; i++) {
        if (!(fabs(share[i] - expected[i]) < 0.015) || (expected[i] == 0 && share[i] != 0)) {
            fail_msg("token %d is drawn %g of the time, not %g", i, share[i], expected[i]);
        }
    }
}

static void test_shares(void **state)
{
    (void)state; /* weights 1/2, 2, 1, 1/2 */
    check_shares((td_gpt_generate_options){ 0 }, (double[]){ 0.125, 0.5, 0.25, 0.125 });
    check_shares((td_gpt_generate_options){ .temperature = 0.5 },
                 (double[]){ 0.25 / 5.5, 4 / 5.5, 1 / 5.5, 0.25 / 5.5 });
    check_shares((td_gpt_generate_options){ .temperature = TD_ZERO }, (double[]){ 0, 1, 0, 0 });
    check_shares((td_gpt_generate_options){ .temperature = 1e-300 }, (double[]){ 0, 1, 0, 0 });
    check_shares((td_gpt_generate_options){ .top_k = 2 }, (double[]){ 0, 2. / 3, 1. / 3, 0 });
    check_shares((td_gpt_generate_options){ .top_k = 3 }, /* of equals the first */
                 (double[]){ 1. / 7, 4. / 7, 2. / 7, 0 });
    check_shares((td_gpt_generate_options){ .top_k = 100 }, (double[]){ 0.125, 0.5, 0.25, 0.125 });
    check_shares((td_gpt_generate_options){ .top_p = 0.7 }, (double[]){ 0, 2. / 3, 1. / 3, 0 });
    check_shares((td_gpt_generate_options){ .top_p = 0.8 },
                 (double[]){ 1. / 7, 4. / 7, 2. / 7, 0 });
    check_shares((td_gpt_generate_options){ .top_p = TD_ZERO }, (double[]){ 0, 1, 0, 0 });
    check_shares((td_gpt_generate_options){ .top_k = 3, .top_p = 0.8 },
                 (double[]){ 0, 2. / 3, 1. / 3, 0 });
    check_shares((td_gpt_generate_options){ .repetition_penalty = 2.0 }, /* 1/2, sqrt 2, 1, 1/4 */
                 (double[]){ 0.5 / 3.1642, 1.4142 / 3.1642, 1 / 3.1642, 0.25 / 3.1642 });
}

/* ---- refusals ---- */

static void refuse(td_gpt_generate_options o, const char *says)
{
    written w = { .most = 0 };
    o.token = note;
    o.user = &w;
    assert_true(td_gpt_generate_at(o, TD_HERE) < 0);
    if (strstr(td_last_error(), says) == NULL) {
        fail_msg("'%s' does not say '%s'", td_last_error(), says);
    }
    assert_int_equal(w.count[0], 0);
}

static void test_refusals(void **state)
{
    (void)state;
    td_module *net = make(variants[0], TD_F32);
    int64_t tokens[CONTEXT + 1] = { 0 }, outside[] = { 3, WORDS }, negative = -1;
    const td_gpt_prompt few = { tokens, 3 }, full = { tokens, CONTEXT + 1 }, none = { tokens, 0 };
    const struct {
        td_gpt_generate_options o;
        const char *says;
    } cases[] = {
        { { .gpt = net, .prompts = &none, .length = 3 }, "prompt 0 is empty" },
        { { .gpt = net, .prompts = &(td_gpt_prompt){ outside, 2 }, .length = 3 },
          "token 1 of prompt 0 is 65, and the model's vocabulary has 65" },
        { { .gpt = net, .prompts = &(td_gpt_prompt){ &negative, 1 }, .length = 3 },
          "token 0 of prompt 0 is -1" },
        { { .gpt = net, .prompts = &full, .length = 3 },
          "do not fit into the model's context of 150" },
        { { .gpt = net, .prompts = &few, .length = CONTEXT },
          "do not fit into the model's context of 150" },
        { { .gpt = net, .prompts = &few, .length = -1 }, "none may be negative" },
        { { .gpt = net, .prompts = &few, .length = 3, .temperature = -1 }, "none may be negative" },
        { { .gpt = net, .prompts = &few, .length = 3, .temperature = NAN },
          "none may be negative" },
        { { .gpt = net, .prompts = &few, .length = 3, .top_k = -1 }, "none may be negative" },
        { { .gpt = net, .prompts = &few, .length = 3, .top_p = 1.5 }, "nor top_p above 1" },
        { { .gpt = net, .prompts = (td_gpt_prompt[]){ few, none }, .length = 3, .prompt_count = 2 },
          "prompt 1 is empty" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse(cases[i].o, cases[i].says);
    }
    td_fill_(net->children[0]->children[0]->tensors[0].tensor, NAN);
    refuse((td_gpt_generate_options){ .gpt = net, .prompts = &few, .length = 3 }, "not finite");
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_a_cache), cmocka_unit_test(test_weights_in_bf16),
        cmocka_unit_test(test_generate),     cmocka_unit_test(test_slide),
        cmocka_unit_test(test_ends),         cmocka_unit_test(test_shares),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
