/* A GPT: the transformer of GPT-2 (Radford et al. 2019), with nanoGPT's parameter names and initial
 * weights. With options it is a small Llama (Touvron et al. 2023). */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* td_gpt(.preset = "gpt-mini", .vocabulary = 65, ...):
 *
 *     td_forward(gpt, tokens)            tokens i64 [B,T] -> logits [B,T,vocabulary]
 *     td_forward2(gpt, tokens, labels)   labels i64 [B,T] -> the mean cross-entropy, a scalar; a
 *                                        label of -100 does not count. The whole logits do not
 *                                        exist (td_linear_cross_entropy)
 *
 *     x = wte[tokens] + wpe[position]
 *     for each layer: x = x + attention(ln_1(x));  x = x + mlp(ln_2(x))
 *     logits = ln_f(x) wte^T
 *
 * mlp(x) = c_proj(gelu_tanh(c_fc x)), or, with .swiglu, c_proj(silu(c_gate x) * (c_fc x)). Names:
 * transformer.{wte,wpe,ln_f}, transformer.h.N.{ln_1,ln_2}, .attn.{c_attn,c_proj},
 * .mlp.{c_fc,c_gate,c_proj}, and lm_head with .untied. The weights of linear layers are [out,in];
 * c_attn has the rows of all queries, then of all keys, then of all values.
 *
 * Presets: gpt-nano (0.8 M parameters, context 64) and gpt-mini (10.8 M, context 256), whose
 * vocabulary is the 256 bytes, and gpt2, gpt2-medium, gpt2-large, gpt2-xl (124 M to 1.6 G). NULL is
 * gpt-nano; each size that is not 0 replaces the preset's. td_model takes the same as a text:
 * "gpt-nano layers=6 rope rms_norm". Weights are drawn as nanoGPT draws them, from the default
 * generator: after td_manual_seed(s) they have the bits of a nanoGPT made after
 * torch.manual_seed(s). NULL with td_last_error(): an unknown preset, sizes that do not fit, no
 * memory. */
typedef struct td_gpt_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *preset;
    int64_t vocabulary, context; /* numbers of different tokens, and of positions */
    int64_t layers, heads, width;
    int64_t kv_heads; /* heads of keys and values, which groups of heads share; 0: heads */
    int64_t hidden;   /* of the MLP; 0: 4 width, with swiglu 8/3 width, rounded up to 32s */
    bool rope;        /* td_rope of queries and keys instead of wpe */
    bool rms_norm;    /* instead of layer norm */
    bool swiglu;
    bool untied;      /* the head has a weight of its own */
    bool no_bias;     /* of linear layers and layer norms */
    bool blank;       /* weights are 0, not random: for a model whose weights are loaded next */
    double rope_base; /* 0: 10000 */
    double eps;       /* of the norms; 0: 1e-5 */
    double dropout;   /* of the embedding, and of each attention's and MLP's result; attention's
                         weights have none */
} td_gpt_options;
td_module *td_gpt_at(td_gpt_options options, td_site at);
/* The options of a GPT with all sizes; preset is NULL. A mistake of the program if m is no GPT. */
td_gpt_options td_gpt_options_of(const td_module *m);

/* From now on the weights of linear layers and embeddings are held in bf16, but for positions:
 * half the memory, and tokens are generated faster, as each one reads all weights. They are widened
 * where they are used, so a forward has the bits of a model whose weights have been rounded to
 * bf16. No parameter takes gradients any more. Call it before td_parameters. TD_E_NOMEM: a part of
 * the weights is bf16. */
td_status td_gpt_hold_bf16(td_module *gpt);

/* ---- text from a GPT ---- */

typedef struct td_gpt_prompt {
    const int64_t *tokens;
    int64_t count; /* at least 1 */
} td_gpt_prompt;

/* td_gpt_generate(gpt, .prompts = &(td_gpt_prompt){ tokens, n }, .length = 100, .token = print):
 * continues each prompt by `length` tokens, and calls a function with each token as soon as it is
 * chosen. Call it outside of steps; the model computes in evaluation mode, and no other thread may
 * run it meanwhile.
 *
 * The next token is drawn from softmax(logits / temperature): of the top_k likeliest tokens, and of
 * those the likeliest whose probabilities add up to top_p. Before that the logits of tokens that
 * the sequence has already are divided by repetition_penalty if they are positive, otherwise
 * multiplied (Keskar et al. 2019). A draw depends only on the seed, the prompt's number and the
 * token's number.
 *
 * Keys and values of earlier tokens are kept (td_attention's caches), so a token costs one row of
 * each product. On the CPU the logits have the bits of a forward of the whole sequence, for any
 * neighbouring prompts and any number of threads.
 *
 * TD_E_ARG: an empty prompt; a token outside of the vocabulary; a prompt with `length` tokens more
 * does not fit into the model's context and .slide is not set; an option out of range. Then no
 * token has been chosen. TD_E_MISMATCH: a logit is not finite.
 * TD_E_NOMEM.
 *
 * Of a model in stages or slices all ranks that hold it call td_gpt_generate with the same options.
 * All get the same tokens, with equal .slices those of one process; the function's answers must be
 * the same on all. TD_E_UNSUPPORTED: slices spread rows (TD_TP_SEQUENCE). */
typedef struct td_gpt_generate_options {
    int begin_;
    td_module *gpt;
    const td_gpt_prompt *prompts;
    int prompt_count;          /* 0: 1. Prompts are computed together */
    int64_t length;            /* new tokens for each prompt */
    double temperature;        /* 0: 1; TD_ZERO: always the likeliest token */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 0: 1 */
    double repetition_penalty; /* 0: 1 */
    uint64_t seed;
    const int64_t *stop; /* a sequence ends with the first of these tokens */
    int stop_count;
    bool slide; /* when the context is full, forgets its older half and computes the rest again */
    bool (*token)(int prompt, int64_t token, void *user); /* false: this prompt's sequence ends */
    void *user;
} td_gpt_generate_options;
td_status td_gpt_generate_at(td_gpt_generate_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_gpt(...) TD_CALL(td_gpt, .begin_ = 0, __VA_ARGS__)

#define td_gpt_generate(...) TD_CALL(td_gpt_generate, TD_OPT1(gpt, __VA_ARGS__))
