/* LoRA: an adapter is a child of its linear layer, and runs around the layer's forward. */
#include "nn/extra/lora.h"
#include "autograd/ops/shapes.h"
#include "autograd/tape.h"
#include "nn/internal.h"
#include "nn/io/checkpoint.h"
#include "nn/io/records.h"
#include "nn/io/safetensors.h"
#include "nn/params.h"
#include "tensor/part.h"
#include "tensor/system/number.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* ---- an adapter ---- */

typedef struct lora_state {
    td_module *a, *b;
    double alpha, scale; /* scale: alpha / rank */
} lora_state;

static td_tensor *lora_forward(td_module *self, td_tensor *x, td_site at)
{
    const lora_state *s = self->state;
    return td_forward_at(s->b, td_mul_scalar_at(td_forward_at(s->a, x, at), s->scale, at), at);
}

static void lora_describe(const td_module *self, char *text, size_t size)
{
    const lora_state *s = self->state;
    const td_tensor *a = s->a->tensors[0].tensor;
    td_snprintf(text, size, "rank %lld, alpha %g", (long long)a->shape[0], s->alpha);
}

static const td_module_type lora_type = { .name = "LoRA",
                                          .forward = lora_forward,
                                          .describe = lora_describe };

/* The adapter of a layer, its last child; NULL: it has none. */
static td_module *lora_of(const td_module *m)
{
    td_module *last = m->child_count > 0 ? m->children[m->child_count - 1] : NULL;
    return last != NULL && last->type == &lora_type ? last : NULL;
}

static td_tensor *lora_run(const td_around_rest *rest, td_tensor *x, void *user)
{
    (void)user;
    td_tensor *y = td_run_rest(rest, x);
    return td_add_at(y, td_forward_at(lora_of(rest->m), x, rest->at), rest->at);
}

static td_module *lora_new(const td_module *layer, int64_t rank, double alpha)
{
    const td_tensor *weight = layer->tensors[0].tensor;
    td_module *m = td_module_new(&lora_type, sizeof(lora_state));
    lora_state s = { .alpha = alpha, .scale = alpha / (double)rank };
    s.a = td_module_add(m, "A", td_nn_linear(weight->shape[1], rank, .no_bias = true));
    bool blank = td_init_blank(true);
    s.b = td_module_add(m, "B", td_nn_linear(rank, weight->shape[0], .no_bias = true));
    td_init_blank(blank);
    m = td_module_finish_with(m, &s);
    if (m != NULL && td_module_to(m, layer->device, layer->dtype) != TD_OK) {
        td_module_free(m);
        return NULL;
    }
    return m;
}

static td_status lora_add(td_module *layer, int64_t rank, double alpha)
{
    const td_tensor *weight = layer->tensors[0].tensor;
    TD_CHECK(rank >= 1 && rank <= weight->shape[0] && rank <= weight->shape[1], TD_E_ARG,
             "LoRA of rank %lld for '%s' %s: it must be from 1 to the smaller size",
             (long long)rank, td_node_of(layer)->path, td_describe_shape(td_shape_of(weight)));
    td_module *adapter = lora_new(layer, rank, alpha);
    if (adapter == NULL || td_module_add(layer, "lora", adapter) == NULL) {
        return TD_E_NOMEM;
    }
    return td_module_surround(layer, &(td_around){ .run = lora_run, .copies = true });
}

/* ---- the layers of a model ---- */

static void lora_train(td_module *net, bool train)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        for (int i = 0; i < m->tensor_count; i++) {
            if (!m->tensors[i].buffer) {
                td_requires_grad(m->tensors[i].tensor, train);
            }
        }
    }
}

static void lora_prepare(td_module *net, td_site at)
{
    TD_REQUIRE(net != NULL, at, "td_lora: the model is NULL (%s)", td_last_reason());
    TD_REQUIRE(td_params_laid_out(net) == NULL, at,
               "td_lora after td_parameters; adapt the model first");
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        TD_REQUIRE(lora_of(m) == NULL, at, "td_lora: '%s' has an adapter already",
                   td_module_path(net, m));
    }
    lora_train(net, false);
}

/* Adapters for the layers of one pattern; *count: how many have been added. */
static td_status lora_match(td_module *net, const td_lora_options *o, const char *pattern,
                            int *count)
{
    bool any = false;
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        const td_module *parent = td_node_of(m)->parent;
        bool adapts = parent != NULL && parent->type == &lora_type;
        bool match = td_is_linear(m) && !adapts && fnmatch(pattern, td_module_path(net, m), 0) == 0;
        any = any || match;
        if (match && lora_of(m) == NULL) { /* another pattern may have matched, too */
            TD_TRY(lora_add(m, o->rank, td_or_usual(o->alpha, (double)o->rank)));
            ++*count;
        }
    }
    TD_CHECK(any, TD_E_ARG,
             "LoRA: no linear layer's path matches '%s'; paths are like "
             "\"transformer.h.0.attn.c_attn\", and td_summary shows them",
             pattern);
    return TD_OK;
}

int td_lora_at(td_module *net, td_lora_options options, td_site at)
{
    lora_prepare(net, at);
    int count = 0;
    char *list = strdup(options.layers != NULL ? options.layers : "*"), *rest = list;
    td_status status = list != NULL ? TD_OK : td_fail(TD_E_NOMEM, "td_lora: no memory");
    for (char *pattern; status == TD_OK && (pattern = strsep(&rest, ",")) != NULL;) {
        status = lora_match(net, &options, pattern, &count);
    }
    free(list);
    return status == TD_OK ? count : (int)status;
}

/* ---- files ---- */

static const char lora_alpha[] = "lora.alpha";

/* To be freed; NULL when memory is short. */
static char *lora_name(const td_module *net, const td_module *layer, int i)
{
    return td_format("base_model.model.%s.lora_%c.weight", td_module_path(net, layer), "AB"[i]);
}

static td_tensor *lora_tensor(const td_module *adapter, int i)
{
    return adapter->children[i]->tensors[0].tensor;
}

/* The whole of t, of which ranks may have slices, or one stage all. NULL with td_last_error() on
 * all ranks. */
static td_tensor *lora_collect(const td_module *net, const td_tensor *t)
{
    const td_slicing *slicing = td_node_of(net)->slicing;
    const td_staging *stages = td_node_of(net)->staging;
    const td_cut *cut = slicing != NULL ? slicing->type->of(slicing, t) : NULL;
    int owner = stages != NULL ? stages->owners[td_staging_place(stages, t)] : 0;
    td_tensor *whole = td_new(cut != NULL ? slicing->type->whole(slicing, cut) : td_shape_of(t),
                              t->dtype, td_device_of(t));
    td_status status = td_records_agree_all(net, NULL, whole != NULL ? TD_OK : TD_E_NOMEM);
    if (status == TD_OK && (stages == NULL || stages->rank == owner)) {
        status = cut != NULL ? slicing->type->gather(slicing, cut, t, whole) : TD_OK;
        if (cut == NULL) {
            td_copy_(whole, t);
        }
    }
    status =
        status == TD_OK && stages != NULL ? stages->broadcast(whole, owner, stages->user) : status;
    if (status != TD_OK) {
        td_free(whole);
        return NULL;
    }
    return whole;
}

/* Lists the adapters' tensors, whole. Their names and they are the caller's to free. */
static td_status lora_list(const td_module *net, td_safetensors_entry *entries, int *count,
                           double *alpha)
{
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        const td_module *adapter = lora_of(m);
        for (int i = 0; adapter != NULL && i < 2; i++) {
            td_tensor *whole = lora_collect(net, lora_tensor(adapter, i));
            if (whole == NULL) {
                return td_fail_context(TD_E_NOMEM, "saving the adapter of '%s'",
                                       td_module_path(net, m));
            }
            char *name = lora_name(net, m, i);
            entries[(*count)++] = td_safetensors_of(name, whole, TD_F32);
            *alpha = ((const lora_state *)adapter->state)->alpha;
            TD_TRY(td_records_agree_all(net, NULL, name != NULL ? TD_OK : TD_E_NOMEM));
        }
    }
    return TD_OK;
}

td_status td_lora_save(const char *path, const td_module *net)
{
    td_state_list all = td_module_state(net); /* it has more tensors than the adapters */
    td_safetensors_entry *entries = calloc((size_t)(all.count + 1), sizeof *entries);
    char text[32];
    int count = 0;
    double alpha = 0.0;
    bool room = all.count >= 0 && entries != NULL;
    td_status status = td_records_agree_all(
        net, NULL, room ? TD_OK : td_fail(TD_E_NOMEM, "no memory to save '%s'", path));
    status = status == TD_OK ? lora_list(net, entries, &count, &alpha) : status;
    if (status == TD_OK && count == 0) {
        status = td_fail(TD_E_ARG, "'%s': the model has no adapters to save", path);
    }
    if (status == TD_OK) {
        td_snprintf(text, sizeof text, "%.17g", alpha);
        td_metadata metadata[] = { { "format", "pt" }, { lora_alpha, text } };
        bool writes = (td_node_of(net)->slicing == NULL || td_node_of(net)->slicing->rank == 0) &&
                      (td_node_of(net)->staging == NULL || td_node_of(net)->staging->rank == 0);
        status = writes ? td_safetensors_write_tensors(path, entries, count, metadata, 2) : TD_OK;
        status = td_records_agree_all(net, NULL, status);
    }
    while (count-- > 0) {
        free((char *)(uintptr_t)entries[count].name);
        td_free((td_tensor *)(uintptr_t)entries[count].data);
    }
    free(entries);
    td_state_list_free(&all);
    return status;
}

static td_status lora_read(const td_safetensors *file, const td_safetensors_entry *e, td_tensor *to)
{
    TD_CHECK(td_safetensors_unknown(file, e) == NULL && td_is_float(e->dtype) &&
                 td_shape_equal(e->shape, td_shape_of(to)),
             TD_E_MISMATCH, "'%s' must be of floats %s for this model", e->name,
             td_describe_shape(td_shape_of(to)));
    return td_safetensors_take(file, e, to);
}

/* Gives linear layers the adapters that the file has for them. *count: its tensors that were read;
 * where a layer's B is missing, A alone. */
static td_status lora_read_layers(const td_safetensors *file, td_module *net, double alpha,
                                  int *count)
{
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        for (int i = 0; td_is_linear(m) && i < 2; i++) {
            char *name = lora_name(net, m, i);
            const td_safetensors_entry *e = name != NULL ? td_safetensors_find(file, name) : NULL;
            free(name);
            if (e == NULL) {
                break;
            }
            if (i == 0) {
                TD_TRY(lora_add(m, e->shape.ndim == 2 ? e->shape.dim[0] : 0, alpha));
            }
            TD_TRY(lora_read(file, e, lora_tensor(lora_of(m), i)));
            ++*count;
        }
    }
    return TD_OK;
}

static td_status lora_read_file(const td_safetensors *file, td_module *net)
{
    const char *text = td_safetensors_metadata(file, lora_alpha);
    double alpha = text != NULL ? td_strtod(text, NULL) : 0.0;
    int count = 0, all = td_safetensors_count(file);
    TD_CHECK(alpha > 0.0, TD_E_FORMAT, "its metadata have no '%s', which td_lora_save writes",
             lora_alpha);
    TD_TRY(lora_read_layers(file, net, alpha, &count));
    TD_CHECK(count == all && count % 2 == 0, TD_E_MISMATCH,
             "%d of its %d tensors are adapters for linear layers of this model", count, all);
    return TD_OK;
}

td_status td_lora_load(const char *path, td_module *net)
{
    td_safetensors *file;
    lora_prepare(net, TD_HERE);
    TD_TRY(td_safetensors_open(path, &file));
    td_status status = lora_read_file(file, net);
    td_safetensors_close(file);
    return status == TD_OK ? TD_OK : td_fail_context(status, "'%s' as adapters", path);
}

/* ---- merging ---- */

static void lora_merge_layer(td_module *m)
{
    td_module *adapter = lora_of(m);
    if (adapter == NULL) {
        return;
    }
    double scale = ((const lora_state *)adapter->state)->scale;
    td_tensor *weight = m->tensors[0].tensor, *a = lora_tensor(adapter, 0);
    TD_STEP {
        td_no_grad_begin();
        td_tensor *change = td_linear(lora_tensor(adapter, 1), td_transpose(a, 0, 1), NULL);
        td_copy_(weight, td_add(weight, td_mul_scalar(change, scale)));
        td_no_grad_end();
    }
    td_module_unsurround(m, lora_run, NULL);
    m->child_count--;
    td_node_of(adapter)->parent = NULL;
    td_module_free(adapter);
}

td_module *td_lora_merged(const td_module *net)
{
    td_module *merged = td_module_clone(net);
    if (merged != NULL) {
        td_math before = td_math_now();
        td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
        for (td_module *m = merged; m != NULL; m = td_module_next(merged, m)) {
            lora_merge_layer(m);
        }
        td_set_math(before);
        lora_train(merged, true);
    }
    return merged;
}
