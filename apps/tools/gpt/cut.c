/* A GPT in slices: which matrices are cut, and along which dimension. */
#include "apps/tools/gpt/gpt_run.h"

#include <fnmatch.h>

static td_status gpt_check_cut(const gpt_run *g, const td_gpt_options *o)
{
    const train_run *r = &g->base;
    int64_t tp = td_mesh_size(r->ranks.mesh, "tp");
    int64_t slices = r->args.ranks.slices > 0 ? r->args.ranks.slices : tp;
    bool divides = slices % tp == 0 && o->heads % slices == 0 && o->kv_heads % slices == 0 &&
                   o->hidden % slices == 0 && o->vocabulary % slices == 0;
    TD_CHECK(divides, TD_E_ARG,
             "%" PRId64 " slices on %" PRId64 " processes: the processes must "
             "divide the slices, and the slices %" PRId64 " heads, %" PRId64
             " of keys and values, %" PRId64 " hidden numbers and %" PRId64 " tokens",
             slices, tp, o->heads, o->kv_heads, o->hidden, o->vocabulary);
    return TD_OK;
}

/* Whether the model has a module of such a path. */
static bool gpt_has(const td_module *gpt, const char *path)
{
    const td_module *m = gpt;
    while (m != NULL && fnmatch(path, td_module_path(gpt, m), 0) != 0) {
        m = td_module_next(gpt, m);
    }
    return m != NULL;
}

/* Of an adapter (td_lora) that half is cut whose side of the layer is. */
td_status gpt_cut(gpt_run *g)
{
    train_run *r = &g->base;
    td_gpt_options o = td_gpt_options_of(g->gpt);
    const td_tp_rule all[] = {
        { "*.attn.c_attn", .style = TD_TP_COLUMN, .parts = { o.heads, o.kv_heads, o.kv_heads } },
        { "*.attn.c_attn.lora.B", TD_TP_COLUMN, { o.heads, o.kv_heads, o.kv_heads } },
        { "*.attn.c_proj", .style = TD_TP_ROW },
        { "*.attn.c_proj.lora.A", .style = TD_TP_ROW },
        { "*.mlp.c_fc", .style = TD_TP_COLUMN },
        { "*.mlp.c_fc.lora.B", .style = TD_TP_COLUMN },
        { "*.mlp.c_gate", .style = TD_TP_COLUMN }, /* of swiglu */
        { "*.mlp.c_gate.lora.B", .style = TD_TP_COLUMN },
        { "*.mlp.c_proj", .style = TD_TP_ROW },
        { "*.mlp.c_proj.lora.A", .style = TD_TP_ROW },
        { "transformer.wte", .style = TD_TP_VOCAB },
        { "lm_head", .style = TD_TP_VOCAB },
    };
    enum { RULES = sizeof all / sizeof *all };
    td_tp_rule rules[RULES];
    int count = 0;
    for (int i = 0; i < RULES; i++) { /* those of layers that this model has */
        rules[count] = all[i];
        count += gpt_has(g->gpt, all[i].path);
    }
    TD_TRY(train_is_cut(r) ? gpt_check_cut(g, &o) : TD_OK);
    r->net = train_cut(r, r->net, rules, count);
    return r->net != NULL ? TD_OK : TD_E_ARG; /* td_last_error has the reason */
}
