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
    return divides
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "%" PRId64 " slices on %" PRId64 " processes: the processes must "
                         "divide the slices, and the slices %" PRId64 " heads, %" PRId64
                         " of keys and values, %" PRId64 " hidden numbers and %" PRId64 " tokens",
                         slices, tp, o->heads, o->kv_heads, o->hidden, o->vocabulary);
}

typedef struct rule_search {
    const char *path;
    bool found;
} rule_search;

static void gpt_look(td_module *m, const char *path, void *user)
{
    (void)m;
    rule_search *s = user;
    s->found = s->found || fnmatch(s->path, path, 0) == 0;
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
        rule_search s = { .path = all[i].path };
        td_module_each(g->gpt, gpt_look, &s);
        rules[count] = all[i];
        count += s.found;
    }
    TD_TRY(train_is_cut(r) ? gpt_check_cut(g, &o) : TD_OK);
    r->net = train_cut(r, r->net, rules, count);
    return r->net != NULL ? TD_OK : TD_E_ARG; /* td_last_error has the reason */
}
