/* GPT-2 (Radford et al. 2019) and, with options, Llama (Touvron et al. 2023): nanoGPT's names,
 * initialisation and order of draws. */
#include "autograd/ops/elements.h"
#include "autograd/ops/shapes.h"
#include "nn/extra/layers.h"
#include "nn/layer.h"
#include "nn/models/gpt_internal.h"
#include "nn/params.h"

#include <math.h>
#include <string.h>

enum { GPT_NO_LABEL = -100 }; /* PyTorch's ignore_index */

/* ---- attention ---- */

typedef struct attention_state {
    td_module *c_attn, *c_proj, *dropout; /* dropout NULL: none */
    int64_t heads, kv_heads, rows, layer; /* rows: all heads' widths together */
    double rope_base;                     /* 0: positions are added to the embedding */
    const td_gpt_cache *cache;            /* NULL: none */
} attention_state;

/* Takes queries, keys and values apart, and turns the first two. */
static void gpt_turn(const attention_state *s, td_attention_options *o, td_site at)
{
    int64_t turned = o->heads + o->kv_heads, all = turned + o->kv_heads;
    const int64_t *shape = o->qkv->shape;
    td_tensor *x = td_reshape_at(o->qkv, TD_SHAPE(shape[0], shape[1], all, shape[2] / all), at);
    td_rope_options rope = { .x = td_slice_at(x, 2, 0, turned, 1, at),
                             .past = o->past,
                             .base = s->rope_base };
    td_tensor *qk = td_rope_at(rope, at);
    o->q = td_slice_at(qk, 2, 0, o->heads, 1, at);
    o->k = td_slice_at(qk, 2, o->heads, turned, 1, at);
    o->v = td_slice_at(x, 2, turned, all, 1, at);
    o->qkv = NULL;
}

/* The end of a branch: its last linear layer and dropout, added to the residual (NULL: alone). */
static td_tensor *gpt_branch_end(td_module *proj, td_module *dropout, td_tensor *h,
                                 td_tensor *residual, td_site at)
{
    if (dropout == NULL) {
        return td_nn_linear_add(proj, h, residual, at);
    }
    h = td_forward_at(dropout, td_forward_at(proj, h, at), at);
    return residual != NULL ? td_add_at(residual, h, at) : h;
}

static td_tensor *gpt_attention_add(td_module *self, td_tensor *x, td_tensor *residual, td_site at)
{
    const attention_state *s = self->state;
    td_attention_options o = { .qkv = td_forward_at(s->c_attn, x, at) };
    int64_t part = s->rows / o.qkv->shape[2]; /* c_attn may have a slice of all heads */
    o.heads = s->heads / part;
    o.kv_heads = s->kv_heads / part;
    if (s->cache != NULL) {
        o.k_cache = s->cache->k[s->layer];
        o.v_cache = s->cache->v[s->layer];
        o.past = s->cache->past;
    }
    if (s->rope_base > 0.0) {
        gpt_turn(s, &o, at);
    }
    return gpt_branch_end(s->c_proj, s->dropout, td_attention_at(o, at), residual, at);
}

static td_tensor *gpt_attention_forward(td_module *self, td_tensor *x, td_site at)
{
    return gpt_attention_add(self, x, NULL, at);
}

static const td_module_type attention_type = { .name = "CausalSelfAttention",
                                               .forward = gpt_attention_forward,
                                               .forward2 = gpt_attention_add };

static td_module *gpt_dropout(td_module *m, const char *name, const td_gpt_options *o, td_site at)
{
    return o->dropout > 0.0 ? td_module_add(m, name, td_nn_dropout_at(o->dropout, at)) : NULL;
}

static td_module *gpt_linear(int64_t in, int64_t out, const td_gpt_options *o)
{
    return td_nn_linear(in, out, .no_bias = o->no_bias);
}

static td_module *gpt_attention(const td_gpt_options *o, int64_t layer, td_site at)
{
    td_module *m = td_module_new(&attention_type, sizeof(attention_state));
    attention_state s = { .rows = o->width / o->heads * (o->heads + 2 * o->kv_heads),
                          .heads = o->heads,
                          .kv_heads = o->kv_heads,
                          .layer = layer,
                          .rope_base = o->rope ? o->rope_base : 0.0 };
    s.c_attn = td_module_add(m, "c_attn", gpt_linear(o->width, s.rows, o));
    s.c_proj = td_module_add(m, "c_proj", gpt_linear(o->width, o->width, o));
    s.dropout = gpt_dropout(m, "resid_dropout", o, at);
    return td_module_finish_with(m, &s);
}

/* ---- the two or three linear layers behind it ---- */

typedef struct mlp_state {
    td_module *c_fc, *c_gate, *c_proj, *dropout; /* c_gate NULL: GELU */
} mlp_state;

static td_tensor *gpt_mlp_add(td_module *self, td_tensor *x, td_tensor *residual, td_site at)
{
    const mlp_state *s = self->state;
    td_tensor *h = td_forward_at(s->c_fc, x, at);
    h = s->c_gate != NULL ? td_swiglu_at(td_forward_at(s->c_gate, x, at), h, at)
                          : td_gelu_tanh_at(h, at);
    return gpt_branch_end(s->c_proj, s->dropout, h, residual, at);
}

static td_tensor *gpt_mlp_forward(td_module *self, td_tensor *x, td_site at)
{
    return gpt_mlp_add(self, x, NULL, at);
}

static const td_module_type mlp_type = { .name = "MLP",
                                         .forward = gpt_mlp_forward,
                                         .forward2 = gpt_mlp_add };

static td_module *gpt_mlp(const td_gpt_options *o, td_site at)
{
    td_module *m = td_module_new(&mlp_type, sizeof(mlp_state));
    mlp_state s = { 0 };
    s.c_fc = td_module_add(m, "c_fc", gpt_linear(o->width, o->hidden, o));
    if (o->swiglu) {
        s.c_gate = td_module_add(m, "c_gate", gpt_linear(o->width, o->hidden, o));
    }
    s.c_proj = td_module_add(m, "c_proj", gpt_linear(o->hidden, o->width, o));
    s.dropout = gpt_dropout(m, "dropout", o, at);
    return td_module_finish_with(m, &s);
}

/* ---- a layer ---- */

typedef struct layer_state {
    td_module *ln_1, *attn, *ln_2, *mlp;
} layer_state;

/* x + branch(norm(x)); a module that is around a branch sees one input. */
static td_tensor *gpt_branch(td_module *norm, td_module *branch, td_tensor *x, td_site at)
{
    td_tensor *y = td_forward_at(norm, x, at);
    return td_is_surrounded(branch) ? td_add_at(x, td_forward_at(branch, y, at), at)
                                    : td_forward2_at(branch, y, x, at);
}

static td_tensor *gpt_layer_forward(td_module *self, td_tensor *x, td_site at)
{
    const layer_state *s = self->state;
    x = gpt_branch(s->ln_1, s->attn, x, at);
    return gpt_branch(s->ln_2, s->mlp, x, at);
}

static const td_module_type layer_type = { .name = "Block", .forward = gpt_layer_forward };

static td_module *gpt_norm(const td_gpt_options *o)
{
    return o->rms_norm ? td_nn_rms_norm(o->width, .eps = o->eps, .for_products = true)
                       : td_nn_layer_norm(o->width, .eps = o->eps, .no_bias = o->no_bias,
                                          .for_products = true);
}

static td_module *gpt_layer(const td_gpt_options *o, int64_t layer, td_site at)
{
    td_module *m = td_module_new(&layer_type, sizeof(layer_state));
    layer_state s = { 0 };
    s.ln_1 = td_module_add(m, "ln_1", gpt_norm(o));
    s.attn = td_module_add(m, "attn", gpt_attention(o, layer, at));
    s.ln_2 = td_module_add(m, "ln_2", gpt_norm(o));
    s.mlp = td_module_add(m, "mlp", gpt_mlp(o, at));
    return td_module_finish_with(td_module_mark(m, TD_PART_BLOCK), &s);
}

/* ---- all layers: tokens [B,T] -> [B,T,width] ---- */

typedef struct transformer_state {
    td_module *wte, *wpe, *dropout, *h, *ln_f; /* wpe NULL: rope */
    int64_t context;
    const td_gpt_cache *cache;
} transformer_state;

static td_tensor *gpt_embed(const transformer_state *s, td_tensor *tokens, td_site at)
{
    TD_REQUIRE(tokens->ndim == 2 && tokens->dtype == TD_I64, at,
               "gpt: the tokens are %s; they must be i64 [B,T]", td_describe(tokens));
    int64_t past = s->cache != NULL ? s->cache->past : 0, end = past + tokens->shape[1];
    TD_REQUIRE(end <= s->context, at,
               "gpt: %lld tokens are more than the context of %lld that the model was made for",
               (long long)end, (long long)s->context);
    td_tensor *x = td_forward_at(s->wte, tokens, at);
    if (x->dtype == TD_BF16 && s->ln_f->tensors[0].tensor->dtype == TD_F32) { /* td_gpt_hold_bf16 */
        x = td_cast_at(x, TD_F32, at);
    }
    if (s->wpe != NULL) {
        td_tensor *position = s->wpe->tensors[0].tensor;
        bool whole = past == 0 && end == s->context;
        x = td_add_at(x, whole ? position : td_slice_at(position, 0, past, end, 1, at), at);
    }
    return s->dropout != NULL ? td_forward_at(s->dropout, x, at) : x;
}

static td_tensor *gpt_transformer_forward(td_module *self, td_tensor *tokens, td_site at)
{
    const transformer_state *s = self->state;
    td_tensor *x = td_forward_at(s->h, gpt_embed(s, tokens, at), at);
    return td_forward_at(s->ln_f, x, at);
}

static const td_module_type transformer_type = { .name = "Transformer",
                                                 .forward = gpt_transformer_forward,
                                                 .takes_indices = true };

static td_module *gpt_transformer(const td_gpt_options *o, td_site at)
{
    td_module *m = td_module_new(&transformer_type, sizeof(transformer_state));
    transformer_state s = { .context = o->context };
    s.wte = td_module_add(m, "wte", td_nn_embedding(o->vocabulary, o->width));
    if (!o->rope) {
        s.wpe = td_module_add(m, "wpe", td_nn_embedding(o->context, o->width));
    }
    s.dropout = gpt_dropout(m, "drop", o, at);
    td_module *layers = td_nn_sequential_list(NULL, 0);
    for (int64_t i = 0; i < o->layers && layers != NULL; i++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        td_module_add(layers, name, gpt_layer(o, i, at));
    }
    s.h = td_module_add(m, "h", td_module_finish(layers));
    s.ln_f = td_module_add(m, "ln_f", gpt_norm(o));
    return td_module_finish_with(m, &s);
}

/* ---- the head: logits, or the loss ---- */

typedef struct head_state {
    td_tensor *weight; /* its own, or the embedding's */
} head_state;

/* For the loss the whole logits need not exist. */
static td_tensor *head_loss(td_module *self, td_tensor *x, td_tensor *labels, td_site at)
{
    td_linear_cross_entropy_options o = { .x = x,
                                          .w = ((const head_state *)self->state)->weight,
                                          .labels = labels,
                                          .ignore_index = GPT_NO_LABEL };
    return td_linear_cross_entropy_at(o, at);
}

static int64_t head_multiply_adds(const td_module *self, td_shape in, td_shape out)
{
    (void)in;
    return td_shape_numel(out) * ((const head_state *)self->state)->weight->shape[1];
}

TD_LAYER_BY(head, head_state, "Head", td_linear_at(x, s->weight, NULL, at), .forward2 = head_loss,
            .multiply_adds = head_multiply_adds);

static td_module *gpt_head(const td_gpt_options *o, td_tensor *tied)
{
    head_state s = { tied };
    td_module *m = td_module_new(&head_type, sizeof s);
    if (o->untied) {
        td_layer_weights(m, &s.weight, NULL, TD_SHAPE(o->vocabulary, o->width), 0);
    }
    return td_module_finish_with(m, &s);
}

/* ---- the whole ---- */

typedef struct gpt_state {
    td_module *transformer, *lm_head;
    td_gpt_options options;
    const td_gpt_cache *cache;
    char text[TD_GPT_TEXT]; /* the options, for the record */
} gpt_state;

/* With a cache of the last token alone. */
static td_tensor *gpt_logits(const gpt_state *s, td_tensor *x, td_site at)
{
    if (s->cache != NULL) {
        x = td_slice_at(x, 1, -1, x->shape[1], 1, at);
    }
    return td_forward_at(s->lm_head, x, at);
}

static td_tensor *gpt_forward(td_module *self, td_tensor *tokens, td_site at)
{
    const gpt_state *s = self->state;
    return gpt_logits(s, td_forward_at(s->transformer, tokens, at), at);
}

static td_tensor *gpt_loss(td_module *self, td_tensor *tokens, td_tensor *labels, td_site at)
{
    const gpt_state *s = self->state;
    return td_forward2_at(s->lm_head, td_forward_at(s->transformer, tokens, at), labels, at);
}

/* ---- as a chain: the embedding, the layers, and the last norm with the head ---- */

static td_tensor *gpt_first_link(td_module *self, td_tensor *tokens, td_site at)
{
    return gpt_embed(((const gpt_state *)self->state)->transformer->state, tokens, at);
}

static td_tensor *gpt_last_link(td_module *self, td_tensor *x, td_site at)
{
    const gpt_state *s = self->state;
    const transformer_state *t = s->transformer->state;
    return gpt_logits(s, td_forward_at(t->ln_f, x, at), at);
}

static td_tensor *gpt_last_link_loss(td_module *self, td_tensor *x, td_tensor *labels, td_site at)
{
    const gpt_state *s = self->state;
    const transformer_state *t = s->transformer->state;
    return td_forward2_at(s->lm_head, td_forward_at(t->ln_f, x, at), labels, at);
}

static int gpt_chain(td_module *self, td_chain_link *links)
{
    const gpt_state *s = self->state;
    const transformer_state *t = s->transformer->state;
    int count = td_module_chain(t->h, links != NULL ? links + 1 : NULL) + 2;
    if (links != NULL) {
        links[0] = (td_chain_link){ .self = self, .run = gpt_first_link }; /* it only looks up */
        td_module *parts[] = { t->wte, t->wpe, t->dropout };
        for (int i = 0, k = 0; i < 3; i++) {
            if (parts[i] != NULL) {
                links[0].parts[k++] = parts[i];
            }
        }
        bool tied = s->lm_head->tensor_count == 0;
        links[count - 1] = (td_chain_link){ .parts = { t->ln_f, s->lm_head, tied ? t->wte : NULL },
                                            .self = self,
                                            .run = gpt_last_link,
                                            .end = gpt_last_link_loss,
                                            .uses = 1.0 };
    }
    return count;
}

static void gpt_describe(const td_module *self, char *text, size_t size)
{
    snprintf(text, size, "%s", ((const gpt_state *)self->state)->text);
}

/* The record's text is the copy's own. */
static td_status gpt_copy(td_module *to, const td_module *from)
{
    (void)from;
    td_node_of(to)->record.arch = ((const gpt_state *)to->state)->text;
    return TD_OK;
}

static const td_module_type gpt_type = { .name = "GPT",
                                         .forward = gpt_forward,
                                         .forward2 = gpt_loss,
                                         .takes_indices = true,
                                         .chain = gpt_chain,
                                         .describe = gpt_describe,
                                         .copy = gpt_copy };

/* Embeddings and linear layers are drawn a second time, when all is built, and those that end a
 * residual branch a third time: their deviation falls with the number of branches. */
static void gpt_draw(td_module *m)
{
    for (int i = 0; i < m->tensor_count; i++) {
        td_tensor *t = m->tensors[i].tensor;
        if (t->ndim == 2) {
            td_init_normal_(t, 0.02);
        } else if (strcmp(m->tensors[i].name, "bias") == 0) {
            td_fill_(t, 0.0);
        }
    }
}

static void gpt_init(td_module *gpt, const td_gpt_options *o)
{
    const gpt_state *s = gpt->state;
    const td_module *wte = ((const transformer_state *)s->transformer->state)->wte;
    if (!o->untied && !o->blank) { /* nanoGPT's head is drawn before it gets wte's weight */
        td_uniform_skip(td_default_generator(), o->vocabulary * o->width);
    }
    for (td_module *m = gpt; m != NULL; m = td_module_next(gpt, m)) {
        gpt_draw(m);
    }
    if (!o->untied) {
        td_init_normal_(wte->tensors[0].tensor, 0.02);
    }
    for (td_module *m = gpt; m != NULL; m = td_module_next(gpt, m)) {
        if (strcmp(m->name, "c_proj") == 0) {
            td_init_normal_(m->tensors[0].tensor, 0.02 / sqrt(2.0 * (double)o->layers));
        }
    }
}

td_module *td_gpt_at(td_gpt_options o, td_site at)
{
    td_module *m =
        td_gpt_options_complete(&o) == TD_OK ? td_module_new(&gpt_type, sizeof(gpt_state)) : NULL;
    if (m == NULL) {
        return NULL;
    }
    bool blank = td_init_blank(o.blank);
    gpt_state *s = m->state;
    s->options = o;
    td_gpt_options_write(&o, s->text, sizeof s->text);
    s->transformer = td_module_add(m, "transformer", gpt_transformer(&o, at));
    if (s->transformer != NULL) {
        const td_module *wte = ((const transformer_state *)s->transformer->state)->wte;
        s->lm_head = td_module_add(m, "lm_head", gpt_head(&o, wte->tensors[0].tensor));
    }
    m = td_module_finish(m);
    if (m != NULL) {
        gpt_init(m, &o);
    }
    td_init_blank(blank);
    return td_model_set_record(
        m, (td_model_record){ .arch = m != NULL ? s->text : NULL, .classes = o.vocabulary });
}

bool td_is_gpt(const td_module *m)
{
    return m->type == &gpt_type;
}

td_gpt_options td_gpt_options_of(const td_module *m)
{
    TD_REQUIRE(m != NULL && td_is_gpt(m), TD_HERE, "td_gpt_options_of: the module is %s, not a GPT",
               m == NULL ? "NULL" : m->type->name);
    return ((const gpt_state *)m->state)->options;
}

void td_gpt_use_cache(td_module *gpt, const td_gpt_cache *cache)
{
    gpt_state *s = gpt->state;
    transformer_state *t = s->transformer->state;
    s->cache = cache;
    t->cache = cache;
    for (int i = 0; i < t->h->child_count; i++) {
        const layer_state *layer = t->h->children[i]->state;
        ((attention_state *)layer->attn->state)->cache = cache;
    }
}

int64_t td_gpt_heads_here(const td_module *gpt, int64_t layer)
{
    const transformer_state *t = ((const gpt_state *)gpt->state)->transformer->state;
    const layer_state *l = t->h->children[layer]->state;
    const attention_state *a = l->attn->state;
    const td_tensor *weight = a->c_attn->tensors[0].tensor; /* perhaps a slice of it */
    const td_staging *stages = td_node_of(gpt)->staging;
    bool here = stages == NULL || stages->owners[td_staging_place(stages, weight)] == stages->rank;
    return here ? a->kv_heads * weight->shape[0] / a->rows : 0;
}

/* ---- the family ---- */

static td_module *gpt_make(const void *preset, const td_model_options *options)
{
    (void)preset; /* options->name has it, and more */
    td_gpt_options o;
    if (td_gpt_options_read(options->name, &o) != TD_OK) {
        return NULL;
    }
    o.blank = options->blank;
    o.vocabulary = options->classes != 0 ? options->classes : o.vocabulary;
    o.dropout = td_or_usual(options->dropout, o.dropout);
    return td_gpt_at(o, TD_HERE);
}

const td_model_family td_gpt_family = { TD_PLANS(td_gpt_presets), gpt_make };
