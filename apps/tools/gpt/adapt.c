/* LoRA: adapters for the model of --init or --model, saved alone, and merged into it. */
#include "apps/tools/gpt/gpt_run.h"
#include "autograd/tape.h"
#include "nn/extra/lora.h"

static bool gpt_adapts(const gpt_run *g)
{
    return g->lora.rank > 0 || g->lora.adapter != NULL;
}

td_status gpt_adapt(gpt_run *g, td_module *gpt)
{
    gpt_lora *l = &g->lora;
    TD_CHECK(!gpt_adapts(g) || g->init != NULL, TD_E_ARG,
             "--lora and --adapter need --init FILE, the model to adapt");
    if (l->adapter != NULL) {
        TD_TRY(td_lora_load(l->adapter, gpt));
    } else if (l->rank > 0) {
        int made = td_lora(gpt, .rank = l->rank, .alpha = l->alpha, .layers = l->layers);
        TD_TRY(made < 0 ? td_fail_context((td_status)made, "--lora, --lora-layers") : TD_OK);
    }
    l->trained = 0;
    for (const td_module *m = gpt; m != NULL; m = td_module_next(gpt, m)) {
        for (int i = 0; i < m->tensor_count; i++) {
            const td_tensor *t = m->tensors[i].tensor;
            l->trained += td_is_leaf(t) ? td_numel(t) : 0;
        }
    }
    return TD_OK;
}

void gpt_adapt_tell(const gpt_run *g)
{
    if (gpt_adapts(g)) {
        td_printf_rank0("adapters: %" PRId64 " parameters are trained\n", g->lora.trained);
    }
}

td_status gpt_save_model(train_run *r, const char *path)
{
    gpt_run *g = (gpt_run *)r;
    if (!gpt_adapts(g)) {
        return notes_save_model(&r->notes, path, r->net, r->made.ema);
    }
    notes_swap(r->made.ema);
    td_status status = td_unshard(r->net);   /* all ranks that have a part are here */
    bool saves = train_readers(r).rank == 0; /* the first replica */
    status = status == TD_OK && saves ? td_lora_save(path, g->gpt) : status;
    td_reshard(r->net);
    notes_swap(r->made.ema);
    return status;
}

td_status gpt_merge(gpt_run *g)
{
    static const char *const keys[] = { "vocab", "merges" }; /* --generate finds them */
    notes n = { .count = 0 };
    char text[CLI_TEXT_BYTES];
    TD_TRY(check_can_save(g->lora.merge));
    for (int i = 0; i < 2; i++) {
        if (td_checkpoint_metadata(g->model, keys[i], text, sizeof text) == TD_OK) {
            notes_add(&n, keys[i], "%s", text);
        }
    }
    td_module *merged = td_lora_merged(g->gpt);
    td_status status =
        merged != NULL ? notes_save_model(&n, g->lora.merge, merged, NULL) : TD_E_NOMEM;
    td_module_free(merged);
    if (status == TD_OK) {
        printf("model saved: %s\n", g->lora.merge);
    }
    return status;
}
