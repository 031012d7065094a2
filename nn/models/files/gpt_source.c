/* The parameters of a GPT as pieces with Hugging Face's names, and a model filled piece by piece.
 */
#include "nn/models/files/gpt_source.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

/* Ours, and Llama's. Those of a layer stand behind "transformer.h.N." and "model.layers.N.". */
static const char *const llama_names[][2] = {
    { "transformer.wte.weight", "model.embed_tokens.weight" },
    { "transformer.ln_f.weight", "model.norm.weight" },
    { "lm_head.weight", "lm_head.weight" },
    { "ln_1.weight", "input_layernorm.weight" },
    { "ln_2.weight", "post_attention_layernorm.weight" },
    { "attn.c_proj.weight", "self_attn.o_proj.weight" },
    { "mlp.c_gate.weight", "mlp.gate_proj.weight" },
    { "mlp.c_fc.weight", "mlp.up_proj.weight" },
    { "mlp.c_proj.weight", "mlp.down_proj.weight" },
};

static void gpt_llama_name(const char *path, gpt_piece *piece)
{
    int layer = 0, used = 0;
    bool in_layer = sscanf(path, "transformer.h.%d.%n", &layer, &used) == 1 && used > 0;
    for (size_t i = 0; i < sizeof llama_names / sizeof *llama_names; i++) {
        if (strcmp(path + used, llama_names[i][0]) == 0 && in_layer) {
            snprintf(piece->name, sizeof piece->name, "model.layers.%d.%s", layer,
                     llama_names[i][1]);
        } else if (strcmp(path, llama_names[i][0]) == 0) {
            snprintf(piece->name, sizeof piece->name, "%s", llama_names[i][1]);
        }
    }
}

int td_gpt_pieces(const gpt_source *s, const td_named_tensor *parameter,
                  gpt_piece pieces[GPT_MOST_PIECES])
{
    static const char *const thirds[] = { "q", "k", "v" };
    const td_tensor *t = parameter->tensor;
    const char *attention = strstr(parameter->name, "attn.c_attn.weight");
    int64_t width = s->options.width / s->options.heads;
    pieces[0] = (gpt_piece){ .ndim = t->ndim,
                             .rows = t->shape[0],
                             .columns = t->ndim > 1 ? t->shape[1] : 1,
                             .conv1d = !s->llama && t->ndim == 2 &&
                                       strstr(parameter->name, ".h.") != NULL };
    if (!s->llama) {
        snprintf(pieces[0].name, sizeof pieces[0].name, "%s", parameter->name);
        return 1;
    }
    if (attention == NULL) {
        gpt_llama_name(parameter->name, &pieces[0]);
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        pieces[i] = pieces[0];
        pieces[i].rows = width * (i == 0 ? s->options.heads : s->options.kv_heads);
        snprintf(pieces[i].name, sizeof pieces[i].name, "model.layers.%d.self_attn.%s_proj.weight",
                 atoi(parameter->name + strlen("transformer.h.")), thirds[i]);
    }
    return 3;
}

/* Checks all pieces of all parameters, or (values) reads them. */
static td_status gpt_visit(gpt_source *s, td_module *net, bool values)
{
    td_state_list list = td_module_state(net);
    td_status status = list.count < 0 ? TD_E_NOMEM : TD_OK;
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        td_tensor *t = list.items[i].tensor;
        float *all = values ? malloc((size_t)td_numel(t) * sizeof *all) : NULL;
        gpt_piece pieces[GPT_MOST_PIECES];
        int count = td_gpt_pieces(s, &list.items[i], pieces);
        if (values && all == NULL) {
            status = td_fail(TD_E_NOMEM, "no memory to read '%s'", list.items[i].name);
        }
        float *to = all;
        for (int k = 0; k < count && status == TD_OK; k++) {
            status = values ? s->read(s, &pieces[k], to) : s->check(s, &pieces[k]);
            if (values) {
                to += pieces[k].rows * pieces[k].columns;
            }
        }
        if (values && status == TD_OK) {
            td_write(t, all, TD_F32);
        }
        free(all);
    }
    td_state_list_free(&list);
    return status;
}

td_module *td_gpt_from_source(gpt_source *s)
{
    bool deferred = td_defer_init(true);
    s->options.blank = true;
    td_module *plan = td_gpt_at(s->options, TD_HERE);
    td_defer_init(deferred);
    td_status status = plan != NULL ? gpt_visit(s, plan, false) : TD_E_NOMEM;
    td_module_free(plan);
    td_module *net = status == TD_OK ? td_gpt_at(s->options, TD_HERE) : NULL;
    if (net != NULL && gpt_visit(s, net, true) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    if (net != NULL) {
        td_eval(net);
    }
    return net;
}
