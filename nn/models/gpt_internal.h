/* A GPT, seen by what generates text and reads files. Users do not include this. */
#pragma once

#include "nn/models/gpt.h"
#include "nn/models/models.h"

/* Keys and values of the tokens so far: for each layer [B,C,kv_heads,head width]; NULL for a layer
 * that is in another rank's stage. */
typedef struct td_gpt_cache {
    td_tensor **k, **v;
    int64_t past; /* tokens that are in it */
} td_gpt_cache;

/* From now on a forward takes the tokens behind those of the cache, appends them to it, and returns
 * the logits behind the last token alone, [B,1,vocabulary]. NULL: the ordinary forward. */
void td_gpt_use_cache(td_module *gpt, const td_gpt_cache *cache);
/* The heads of a layer's keys and values that this rank computes: fewer with slices, 0 if the layer
 * is in another rank's stage. */
int64_t td_gpt_heads_here(const td_module *gpt, int64_t layer);
/* An empty cache for `batch` sequences of up to `tokens`. td_gpt_cache_free also after a failure.
 */
td_status td_gpt_cache_make(td_gpt_cache *cache, td_module *gpt, int64_t batch, int64_t tokens);
void td_gpt_cache_free(td_gpt_cache *cache, const td_module *gpt);

/* The token that follows `tokens`, by their logits, which are overwritten; number: how many were
 * drawn before. Negative: a td_status. */
int64_t td_gpt_sample(double *logits, int64_t vocabulary, const int64_t *tokens, int64_t count,
                      const td_gpt_generate_options *o, int prompt, int64_t number);

/* Fills in the preset's sizes and checks all. */
td_status td_gpt_options_complete(td_gpt_options *o);
/* Options from a text, "gpt2 layers=6 rope", and a complete set of options as a text. */
td_status td_gpt_options_read(const char *text, td_gpt_options *o);
void td_gpt_options_write(const td_gpt_options *o, char *text, size_t size);
enum { TD_GPT_PRESETS = 6, TD_GPT_TEXT = 320 /* bytes of such a text */ };

/* Sizes that have a name. */
typedef struct td_gpt_preset {
    const char *name;
    td_gpt_options sizes;
} td_gpt_preset;
extern const td_gpt_preset td_gpt_presets[TD_GPT_PRESETS];

bool td_is_gpt(const td_module *m);
