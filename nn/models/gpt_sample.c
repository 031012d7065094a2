/* The next token by its logits: temperature, top-k, top-p, repetition penalty. */
#include "nn/models/gpt_internal.h"

#include <math.h>
#include <stdlib.h>

typedef struct gpt_choice {
    double logit; /* below that of the likeliest, divided by the temperature */
    int64_t token;
} gpt_choice;

static bool gpt_is_likelier(gpt_choice a, gpt_choice b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* ---- a heap: the likeliest is first, and each is likelier than its two below ---- */

static void gpt_sink(gpt_choice *heap, int64_t count, int64_t i)
{
    for (int64_t next; (next = 2 * i + 1) < count; i = next) {
        next += next + 1 < count && gpt_is_likelier(heap[next + 1], heap[next]);
        if (gpt_is_likelier(heap[i], heap[next])) {
            return;
        }
        gpt_choice swapped = heap[i];
        heap[i] = heap[next];
        heap[next] = swapped;
    }
}

/* Moves the likeliest of `count` behind the others. */
static gpt_choice gpt_pop(gpt_choice *heap, int64_t count)
{
    gpt_choice first = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = first;
    gpt_sink(heap, count - 1, 0);
    return first;
}

/* ---- what may be drawn: it is put behind the rest, the likeliest last ---- */

static double gpt_weight(gpt_choice c)
{
    return exp(c.logit);
}

/* Returns the number of choices that stay, and their weight. */
static int64_t gpt_keep(gpt_choice *all, int64_t count, int64_t top_k, double top_p,
                        double *kept_weight)
{
    for (int64_t i = count / 2; i-- > 0;) {
        gpt_sink(all, count, i);
    }
    int64_t limit = top_k > 0 && top_k < count ? top_k : count;
    double total = 0.0;
    if (limit < count) {
        for (int64_t i = 0; i < limit; i++) {
            total += gpt_weight(gpt_pop(all, count - i));
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            total += gpt_weight(all[i]);
        }
    }
    int64_t kept = 0;
    double weight = 0.0;
    for (; kept < limit && (kept == 0 || weight < top_p * total); kept++) {
        gpt_choice c = limit < count ? all[count - 1 - kept] : gpt_pop(all, count - kept);
        weight += gpt_weight(c);
    }
    *kept_weight = weight;
    return kept;
}

/* A number in [0, 1). */
static double gpt_uniform(uint64_t seed, int prompt, int64_t number)
{
    uint32_t words[4];
    td_philox((td_philox_key){ seed, (uint64_t)prompt }, (uint64_t)number, 0, words);
    return ((double)(words[0] >> 5) * 0x1p26 + (double)(words[1] >> 6)) * 0x1p-53;
}

/* The choice behind all[from], all[from + step], ... with `weight` in all, where a draw falls. */
static int64_t gpt_draw_among(const gpt_choice *all, int64_t from, int64_t step, int64_t count,
                              double draw)
{
    int64_t i = 0;
    for (; i < count - 1; i++) {
        draw -= gpt_weight(all[from + step * i]);
        if (draw < 0.0) {
            break;
        }
    }
    return all[from + step * i].token;
}

/* ---- logits ---- */

static td_status gpt_penalise(double *logits, int64_t vocabulary, const int64_t *tokens,
                              int64_t count, double penalty)
{
    bool *seen = penalty != 1.0 ? calloc((size_t)vocabulary, sizeof *seen) : NULL;
    TD_CHECK(penalty == 1.0 || seen != NULL, TD_E_NOMEM,
             "td_gpt_generate: no memory for the repetition penalty");
    for (int64_t i = 0; seen != NULL && i < count; i++) {
        double *logit = &logits[tokens[i]];
        if (!seen[tokens[i]]) {
            *logit = *logit > 0.0 ? *logit / penalty : *logit * penalty;
        }
        seen[tokens[i]] = true;
    }
    free(seen);
    return TD_OK;
}

int64_t td_gpt_sample(double *logits, int64_t vocabulary, const int64_t *tokens, int64_t count,
                      const td_gpt_generate_options *o, int prompt, int64_t number)
{
    TD_TRY(
        gpt_penalise(logits, vocabulary, tokens, count, td_or_usual(o->repetition_penalty, 1.0)));
    int64_t best = 0;
    bool finite = true;
    for (int64_t i = 0; i < vocabulary; i++) {
        finite = finite && isfinite(logits[i]);
        best = logits[i] > logits[best] ? i : best;
    }
    TD_CHECK(finite, TD_E_MISMATCH,
             "td_gpt_generate: a logit is not finite: the model's weights "
             "are damaged, or its training has diverged");
    double temperature = td_or_usual(o->temperature, 1.0), top_p = td_or_usual(o->top_p, 1.0);
    if (temperature == 0.0) {
        return best;
    }
    gpt_choice *all = calloc((size_t)vocabulary, sizeof *all);
    TD_CHECK(all != NULL, TD_E_NOMEM, "td_gpt_generate: no memory to choose a token");
    double weight = 0.0;
    for (int64_t i = 0; i < vocabulary; i++) {
        all[i] = (gpt_choice){ (logits[i] - logits[best]) / temperature, i };
        weight += gpt_weight(all[i]);
    }
    bool cut = (o->top_k > 0 && o->top_k < vocabulary) || top_p < 1.0;
    int64_t kept = cut ? gpt_keep(all, vocabulary, o->top_k, top_p, &weight) : vocabulary;
    double draw = gpt_uniform(o->seed, prompt, number) * weight;
    int64_t token = gpt_draw_among(all, cut ? vocabulary - 1 : 0, cut ? -1 : 1, kept, draw);
    free(all);
    return token;
}
