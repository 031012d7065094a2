/* The parameters of a GPT as pieces with Hugging Face's names, and a model filled piece by piece.
 */
#include "nn/models/files/gpt_source.h"

/* Ours, and Llama's. Those of a layer stand behind "transformer.h.N." and "model.layers.N.".
 * Queries, keys and values are three tensors of a Llama. (GPT-2's names are ours.) */
static const struct llama_name {
    const char *ours, *llama;
    int third;
} llama_names[] = {
    { "transformer.wte.weight", "model.embed_tokens.weight", 0 },
    { "transformer.ln_f.weight", "model.norm.weight", 0 },
    { "lm_head.weight", "lm_head.weight", 0 },
    { "ln_1.weight", "input_layernorm.weight", 0 },
    { "ln_2.weight", "post_attention_layernorm.weight", 0 },
    { "attn.c_attn.weight", "self_attn.q_proj.weight", 0 },
    { "attn.c_attn.weight", "self_attn.k_proj.weight", 1 },
    { "attn.c_attn.weight", "self_attn.v_proj.weight", 2 },
    { "attn.c_proj.weight", "self_attn.o_proj.weight", 0 },
    { "mlp.c_gate.weight", "mlp.gate_proj.weight", 0 },
    { "mlp.c_fc.weight", "mlp.up_proj.weight", 0 },
    { "mlp.c_proj.weight", "mlp.down_proj.weight", 0 },
};
enum { MOST_PIECES = 3 };

bool td_gpt_ends(const char *name, const char *end)
{
    size_t length = strlen(name), size = strlen(end);
    return length >= size && strcmp(name + length - size, end) == 0;
}

static void gpt_name_llama(char *name, size_t size, const char *path, int third)
{
    int layer = 0, used = 0;
    bool in_layer = sscanf(path, "transformer.h.%d.%n", &layer, &used) == 1 && used > 0;
    for (size_t i = 0; i < sizeof llama_names / sizeof *llama_names; i++) {
        const struct llama_name *n = &llama_names[i];
        if (n->third == third && strcmp(path + used, n->ours) == 0) {
            int written = in_layer ? snprintf(name, size, "model.layers.%d.", layer) : 0;
            snprintf(name + written, size - (size_t)written, "%s", n->llama);
        }
    }
}

/* Appends the pieces of a parameter. */
static void gpt_add_pieces(gpt_source *s, const td_named_tensor *parameter)
{
    const td_gpt_options *o = &s->options;
    const td_tensor *t = parameter->tensor;
    bool thirds = s->llama && strstr(parameter->name, "attn.c_attn.weight") != NULL;
    bool turned = s->conv1d && t->ndim == 2 && strstr(parameter->name, ".h.") != NULL;
    int64_t first = 0;
    for (int third = 0; third < (thirds ? 3 : 1); third++) {
        gpt_piece *piece = &s->items[s->count++];
        td_tensor *part = &piece->part;
        *part = *t;
        if (thirds) {
            part->shape[0] = o->width / o->heads * (third == 0 ? o->heads : o->kv_heads);
            part->offset += first * t->stride[0];
            first += part->shape[0];
        }
        for (int d = 0; d < 2 && turned; d++) {
            part->shape[d] = t->shape[1 - d];
            part->stride[d] = t->stride[1 - d];
        }
        if (s->llama) {
            gpt_name_llama(piece->name, sizeof piece->name, parameter->name, third);
        } else {
            snprintf(piece->name, sizeof piece->name, "%s", parameter->name);
        }
    }
}

td_status td_gpt_pieces(gpt_source *s, const td_module *net)
{
    td_state_list list = td_module_state(net);
    if (s->items == NULL && list.count >= 0) {
        s->items = calloc((size_t)list.count * MOST_PIECES + 1, sizeof *s->items);
    }
    s->count = 0;
    for (int i = 0; s->items != NULL && i < list.count; i++) {
        gpt_add_pieces(s, &list.items[i]); /* `at` stays */
    }
    td_state_list_free(&list);
    return s->items != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory for the names of a GPT");
}

td_module *td_gpt_from_source(gpt_source *s)
{
    bool deferred = td_defer_init(true);
    s->options.blank = true;
    td_module *plan = td_gpt_at(s->options, TD_HERE), *net = NULL;
    td_defer_init(deferred);
    if (plan != NULL && td_gpt_pieces(s, plan) == TD_OK && s->find(s) == TD_OK) {
        net = td_gpt_at(s->options, TD_HERE);
    }
    td_module_free(plan);
    td_status status = net != NULL ? td_gpt_pieces(s, net) : TD_E_NOMEM;
    for (int i = 0; i < s->count && status == TD_OK; i++) {
        status = s->read(s, &s->items[i]);
    }
    free(s->items);
    if (status != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    td_eval(net);
    return net;
}
