/* Small models and the plans that cut them. */
#include "tests/dist/slices_job.h"

#include "nn/internal.h"
#include "nn/module.h"
#include "nn/shared/slices.h"
#include "tensor/extend.h"
#include "tests/help/dist_procs.h"

#include <string.h>

enum { WIDTH = 32, ROWS = 16, BATCH = 4, CONTEXT = 8, WORDS = 32 };

/* A module of a program's own, whose state does not have its parameter's address. */
static td_tensor *gain_forward(td_module *self, td_tensor *x, td_site at)
{
    return td_mul_at(td_mul_at(x, x, at), self->tensors[0].tensor, at);
}

static td_module *gain(void)
{
    static const td_module_type type = { .name = "Gain", .forward = gain_forward };
    td_module *m = td_module_new(&type, 0);
    REQUIRE(m != NULL);
    td_module_parameter(m, "gain", td_full(TD_SHAPE(WIDTH), 0.5, TD_F32, TD_CPU));
    return td_module_finish(m);
}

static td_module *mlp_block(double dropout)
{
    return td_nn_sequential(gain(), td_nn_linear(WIDTH, 4 * WIDTH), td_nn_gelu(),
                            td_nn_dropout(dropout), td_nn_linear(4 * WIDTH, WIDTH));
}

td_module *slices_net(slices_kind kind, td_dtype dtype, double dropout)
{
    td_manual_seed(1);
    td_module *net = NULL;
    switch (kind) {
    case SLICES_MLP:
        net = td_nn_sequential(mlp_block(dropout), mlp_block(dropout), mlp_block(dropout));
        break;
    case SLICES_ATTENTION:
        net = td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 1, .heads = 8, .width = 64,
                     .dropout = dropout);
        break;
    case SLICES_GPT:
        net = td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 2, .heads = 8, .width = 64,
                     .dropout = dropout);
        break;
    case SLICES_LLAMA:
        net = td_gpt(.vocabulary = WORDS, .context = CONTEXT, .layers = 2, .heads = 16,
                     .kv_heads = 8, .width = 128, .rope = true, .rms_norm = true, .swiglu = true,
                     .untied = true, .no_bias = true, .dropout = dropout);
        break;
    }
    REQUIRE(net != NULL);
    REQUIRE_OK(td_module_to(net, TD_CPU, dtype));
    return net;
}

const td_tp_rule *slices_plan(slices_kind kind, bool sequence, int *count)
{
    static const td_tp_rule mlp[] = { { "*.1", .style = TD_TP_COLUMN },
                                      { "*.3", .style = TD_TP_COLUMN },
                                      { "*.4", .style = TD_TP_ROW },
                                      { "?", .style = TD_TP_SEQUENCE } };
    static const td_tp_rule attention[] = { { "*.attn.c_attn", .style = TD_TP_COLUMN,
                                              .parts = { 8, 8, 8 } },
                                            { "*.attn.c_proj", .style = TD_TP_ROW } };
    static const td_tp_rule gpt[] = { { "*.attn.c_attn", .style = TD_TP_COLUMN,
                                        .parts = { 8, 8, 8 } },
                                      { "*.attn.c_proj", .style = TD_TP_ROW },
                                      { "*.mlp.c_fc", .style = TD_TP_COLUMN },
                                      { "*.mlp.c_proj", .style = TD_TP_ROW },
                                      { "*.wte", .style = TD_TP_VOCAB },
                                      { "lm_head", .style = TD_TP_VOCAB },
                                      { "transformer.h", .style = TD_TP_SEQUENCE } };
    static const td_tp_rule llama[] = { { "*.attn.c_attn", .style = TD_TP_COLUMN,
                                          .parts = { 16, 8, 8 } },
                                        { "*.c_proj", .style = TD_TP_ROW },
                                        { "*.mlp.c_fc", .style = TD_TP_COLUMN },
                                        { "*.mlp.c_gate", .style = TD_TP_COLUMN },
                                        { "*.wte", .style = TD_TP_VOCAB },
                                        { "lm_head", .style = TD_TP_VOCAB },
                                        { "transformer.h", .style = TD_TP_SEQUENCE } };
    static const struct {
        const td_tp_rule *rules;
        int count;
    } plans[] = { { mlp, 4 }, { attention, 2 }, { gpt, 7 }, { llama, 7 } };
    *count = plans[kind].count - (kind != SLICES_ATTENTION && !sequence ? 1 : 0);
    return plans[kind].rules;
}

static void slices_data(slices_job *job)
{
    td_generator g;
    td_generator_seed(&g, 3);
    if (job->c->kind == SLICES_MLP) {
        job->x = td_new(TD_SHAPE(ROWS, WIDTH), job->c->dtype, TD_CPU);
        job->y = td_new(TD_SHAPE(ROWS, WIDTH), job->c->dtype, TD_CPU);
        td_normal_(job->x, 0.0, 1.0, &g);
        td_normal_(job->y, 0.0, 1.0, &g);
        return;
    }
    int64_t tokens[BATCH * CONTEXT + 1];
    for (int i = 0; i <= BATCH * CONTEXT; i++) {
        tokens[i] = (int64_t)(td_random_f64(&g) * WORDS);
    }
    job->x = td_new(TD_SHAPE(BATCH, CONTEXT), TD_I64, TD_CPU);
    job->y = td_new(TD_SHAPE(BATCH, CONTEXT), TD_I64, TD_CPU);
    td_write(job->x, tokens, TD_I64);
    td_write(job->y, tokens + 1, TD_I64);
}

static void slices_wrap(slices_job *job)
{
    const slices_case *c = job->c;
    char text[64];
    int count;
    const td_tp_rule *rules = slices_plan(c->kind, c->sequence, &count);
    snprintf(text, sizeof text, "dp=*,tp=%d", c->tp);
    REQUIRE_OK(td_mesh_new(text, &job->mesh));
    job->net = td_tensor_parallel(job->net, rules, count, .mesh = job->mesh, .slices = c->slices);
    if (c->dp > 1) {
        job->net = td_ddp(job->net, .mesh = job->mesh, .strategy = td_zero(c->shard));
    }
    REQUIRE(job->net != NULL);
}

void slices_open(slices_job *job, const slices_case *c)
{
    bool defers = td_defer_init(c->deferred);
    *job = (slices_job){ .c = c, .net = slices_net(c->kind, c->dtype, c->dropout) };
    td_defer_init(defers);
    if (c->slices > 0) {
        slices_wrap(job);
    }
    job->optim = td_adam(td_parameters(job->net), .lr = 1e-3);
    job->ema = c->ema ? td_ema_new(job->net, .decay = 0.9) : NULL;
    slices_data(job);
    if (c->load != NULL) {
        REQUIRE_OK(td_checkpoint_load(c->load, job->net, .optim = job->optim, .ema = job->ema,
                                      .with_random = true));
    }
}

void slices_close(slices_job *job)
{
    td_ema_free(job->ema);
    td_optim_free(job->optim);
    td_module_free(job->net);
    td_mesh_free(job->mesh);
    td_free(job->x);
    td_free(job->y);
}

static td_tensor *slices_loss(const slices_job *job)
{
    if (job->c->kind == SLICES_MLP) {
        return td_mse_loss(td_forward(job->net, job->x), job->y);
    }
    if (job->c->logits) {
        td_tensor *logits = td_reshape(td_forward(job->net, job->x), TD_SHAPE(-1, WORDS));
        return td_cross_entropy(logits, td_reshape(job->y, TD_SHAPE(-1)));
    }
    return td_forward2(job->net, job->x, job->y);
}

double slices_step(slices_job *job)
{
    double loss = 0.0;
    TD_STEP {
        td_tensor *l = slices_loss(job);
        td_zero_grad(job->optim);
        td_backward(l);
        if (job->c->clip) {
            td_clip_grad_norm(td_parameters(job->net), 0.05);
        }
        td_optim_step(job->optim);
        if (job->ema != NULL) {
            td_ema_update(job->ema);
        }
        loss = td_item(l);
    }
    return loss;
}

int64_t slices_weights(td_module *net, double *numbers)
{
    const td_slicing *slicing = td_node_of(net)->slicing;
    td_state_list list = td_module_state(net);
    int64_t at = 0;
    REQUIRE(list.count > 0);
    for (int i = 0; i < list.count; i++) {
        td_tensor *t = list.items[i].tensor;
        const td_cut *cut = td_cut_of(slicing, t);
        td_shape shape = cut != NULL ? td_cut_whole(slicing, cut) : td_shape_of(t);
        if (numbers != NULL) {
            td_tensor *whole = td_new(shape, t->dtype, TD_CPU);
            if (cut != NULL) {
                REQUIRE_OK(td_cut_gather(slicing, cut, t, whole));
            } else {
                td_copy_(whole, t);
            }
            td_read(whole, numbers + at, TD_F64);
            td_free(whole);
        }
        at += td_shape_numel(shape);
    }
    td_state_list_free(&list);
    return at;
}
