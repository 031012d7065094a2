/* Hugging Face's GPT-2 and Llama: config.json and model.safetensors. */
#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "nn/models/files/gpt_source.h"
#include "tensor/extend.h"
#include "tensor/system/files.h"
#include "tensor/part.h"
#include "tensor/system/folders.h"
#include "tensor/system/temporary.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- config.json ---- */

static td_status hf_size(const cJSON *config, const char *key, int64_t usual, int64_t *size)
{
    enum { MOST = 1 << 24 };
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    *size = usual;
    if (item == NULL || cJSON_IsNull(item)) {
        return usual >= 0 ? TD_OK : td_fail(TD_E_FORMAT, "config.json has no '%s'", key);
    }
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    if (!(value >= 1.0 && value <= MOST) || value != (double)(int64_t)value) {
        return td_fail(TD_E_FORMAT, "config.json: '%s' is no whole number from 1 to %d", key, MOST);
    }
    *size = (int64_t)value;
    return TD_OK;
}

static double hf_number(const cJSON *config, const char *key, double usual)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsNumber(item) ? item->valuedouble : usual;
}

static bool hf_is_true(const cJSON *config, const char *key, bool usual)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : usual;
}

static bool hf_is_text(const cJSON *config, const char *key, const char *text)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

static td_status hf_has_not(bool has, const char *what)
{
    return has ? td_fail(TD_E_UNSUPPORTED, "config.json: td_gpt has no model with %s", what)
               : TD_OK;
}

static td_status hf_gpt2(const cJSON *c, td_gpt_options *o)
{
    TD_TRY(hf_size(c, "vocab_size", -1, &o->vocabulary));
    TD_TRY(hf_size(c, "n_positions", -1, &o->context));
    TD_TRY(hf_size(c, "n_layer", -1, &o->layers));
    TD_TRY(hf_size(c, "n_head", -1, &o->heads));
    TD_TRY(hf_size(c, "n_embd", -1, &o->width));
    TD_TRY(hf_size(c, "n_inner", 0, &o->hidden));
    o->eps = hf_number(c, "layer_norm_epsilon", 1e-5);
    o->untied = !hf_is_true(c, "tie_word_embeddings", true);
    bool tanh = cJSON_GetObjectItemCaseSensitive(c, "activation_function") == NULL ||
                hf_is_text(c, "activation_function", "gelu_new") ||
                hf_is_text(c, "activation_function", "gelu_pytorch_tanh");
    TD_TRY(hf_has_not(!tanh, "an activation_function other than gelu_new"));
    TD_TRY(hf_has_not(!hf_is_true(c, "scale_attn_weights", true), "scale_attn_weights off"));
    return hf_has_not(hf_is_true(c, "scale_attn_by_inverse_layer_idx", false),
                      "scale_attn_by_inverse_layer_idx");
}

static td_status hf_llama(const cJSON *c, td_gpt_options *o)
{
    int64_t head;
    TD_TRY(hf_size(c, "vocab_size", -1, &o->vocabulary));
    TD_TRY(hf_size(c, "max_position_embeddings", -1, &o->context));
    TD_TRY(hf_size(c, "num_hidden_layers", -1, &o->layers));
    TD_TRY(hf_size(c, "num_attention_heads", -1, &o->heads));
    TD_TRY(hf_size(c, "num_key_value_heads", o->heads, &o->kv_heads));
    TD_TRY(hf_size(c, "hidden_size", -1, &o->width));
    TD_TRY(hf_size(c, "intermediate_size", -1, &o->hidden));
    TD_TRY(hf_size(c, "head_dim", o->width / o->heads, &head));
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(c, "rope_parameters");
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(c, "rope_scaling");
    bool scaled = cJSON_IsObject(scaling) || (rope != NULL && !cJSON_IsNull(rope) &&
                                              !hf_is_text(rope, "rope_type", "default"));
    o->rope = o->rms_norm = o->swiglu = o->no_bias = true;
    o->rope_base = hf_number(rope != NULL ? rope : c, "rope_theta", 10000.0);
    o->eps = hf_number(c, "rms_norm_eps", 1e-6);
    o->untied = !hf_is_true(c, "tie_word_embeddings", false);
    TD_TRY(hf_has_not(scaled, "scaled rotary positions"));
    TD_TRY(hf_has_not(!hf_is_text(c, "hidden_act", "silu"), "a hidden_act other than silu"));
    TD_TRY(hf_has_not(hf_is_true(c, "attention_bias", false) || hf_is_true(c, "mlp_bias", false),
                      "biases"));
    return hf_has_not(head * o->heads != o->width, "a head_dim that is not width / heads");
}

td_status td_gpt_read_config(const char *text, size_t size, gpt_source *s)
{
    cJSON *config = cJSON_ParseWithLength(text, size);
    s->llama = hf_is_text(config, "model_type", "llama");
    td_status status = TD_OK;
    if (!cJSON_IsObject(config)) {
        status = td_fail(TD_E_FORMAT, "config.json is no JSON object");
    } else if (!s->llama && !hf_is_text(config, "model_type", "gpt2")) {
        status = td_fail(TD_E_UNSUPPORTED, "config.json: model_type is neither gpt2 nor llama");
    } else {
        status = s->llama ? hf_llama(config, &s->options) : hf_gpt2(config, &s->options);
    }
    cJSON_Delete(config);
    return status == TD_OK ? td_gpt_options_complete(&s->options) : status;
}

/* ---- tensors ---- */

typedef struct hf_source {
    gpt_source source; /* first */
    td_safetensors *file;
    bool turned; /* GPT-2's Conv1D: linear weights are [in,out] */
    bool *used;  /* of the file's tensors */
} hf_source;

/* The names of a model without a head begin behind "transformer." or "model.". */
static const td_safetensors_entry *hf_find(const hf_source *s, const char *name)
{
    const td_safetensors_entry *entry = td_safetensors_find(s->file, name);
    return entry != NULL ? entry : td_safetensors_find(s->file, strchr(name, '.') + 1);
}

static td_tensor hf_turned(const td_tensor *t)
{
    td_tensor view = *t;
    for (int d = 0; d < 2; d++) {
        view.shape[d] = t->shape[1 - d];
        view.stride[d] = t->stride[1 - d];
    }
    return view;
}

static td_shape hf_shape(const gpt_piece *piece, bool turned)
{
    return piece->ndim == 1 ? TD_SHAPE(piece->rows)
           : turned         ? TD_SHAPE(piece->columns, piece->rows)
                            : TD_SHAPE(piece->rows, piece->columns);
}

static td_status hf_check(gpt_source *source, const gpt_piece *piece)
{
    hf_source *s = (hf_source *)source;
    const td_safetensors_entry *e = hf_find(s, piece->name);
    td_shape shape = hf_shape(piece, s->turned && piece->conv1d);
    if (e == NULL) {
        return td_fail(TD_E_MISMATCH, "there is no '%s' %s in it", piece->name,
                       td_describe_shape(shape));
    }
    if (td_safetensors_unknown(s->file, e) != NULL || !td_is_float(e->dtype) ||
        !td_shape_equal(e->shape, shape)) {
        return td_fail(TD_E_MISMATCH, "'%s' must be of floats %s, as config.json has it", e->name,
                       td_describe_shape(shape));
    }
    s->used[e - td_safetensors_get(s->file, 0)] = true;
    return TD_OK;
}

static td_status hf_read(gpt_source *source, const gpt_piece *piece, float *values)
{
    const hf_source *s = (const hf_source *)source;
    const td_safetensors_entry *e = hf_find(s, piece->name);
    void *bytes = malloc(e->bytes + 1);
    td_status status = bytes != NULL ? td_safetensors_read(s->file, e, bytes)
                                     : td_fail(TD_E_NOMEM, "no memory to read '%s'", e->name);
    td_tensor *t = status == TD_OK ? td_from(bytes, e->shape, e->dtype, TD_CPU) : NULL;
    free(bytes);
    if (t == NULL) {
        return status != TD_OK ? status : TD_E_NOMEM;
    }
    if (s->turned && piece->conv1d) {
        td_tensor view = hf_turned(t);
        td_read(&view, values, TD_F32);
    } else {
        td_read(t, values, TD_F32);
    }
    td_free(t);
    return TD_OK;
}

static bool hf_ends(const char *name, const char *end)
{
    size_t length = strlen(name), size = strlen(end);
    return length >= size && strcmp(name + length - size, end) == 0;
}

/* Masks, tables and the tied head may stand in a file. */
static td_status hf_check_others(const hf_source *s)
{
    for (int i = 0; i < td_safetensors_count(s->file); i++) {
        const char *name = td_safetensors_get(s->file, i)->name;
        if (!s->used[i] && !hf_ends(name, ".attn.bias") && !hf_ends(name, ".masked_bias") &&
            !hf_ends(name, "inv_freq") &&
            (s->source.options.untied || strcmp(name, "lm_head.weight") != 0)) {
            return td_fail(TD_E_MISMATCH, "it has a tensor '%s', which such a model has not", name);
        }
    }
    return TD_OK;
}

static td_module *hf_make(hf_source *s, const char *config, size_t size)
{
    int count = td_safetensors_count(s->file);
    s->used = calloc((size_t)count + 1, sizeof *s->used);
    if (s->used == NULL || td_gpt_read_config(config, size, &s->source) != TD_OK) {
        return NULL;
    }
    if (s->source.options.layers > count) {
        (void)td_fail(TD_E_MISMATCH, "it has %d tensors, and config.json %lld layers", count,
                      (long long)s->source.options.layers);
        return NULL;
    }
    const td_safetensors_entry *e = hf_find(s, "transformer.h.0.attn.c_attn.weight");
    s->turned = e != NULL && e->shape.ndim == 2 && e->shape.dim[0] == s->source.options.width;
    td_module *net = td_gpt_from_source(&s->source);
    if (net != NULL && hf_check_others(s) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    return net;
}

/* path: of model.safetensors, next to config.json. */
static td_module *hf_load(const char *path)
{
    hf_source s = { .source = { .check = hf_check, .read = hf_read } };
    if (td_safetensors_open(path, &s.file) != TD_OK) {
        return NULL;
    }
    if (td_safetensors_metadata(s.file, "model.arch") != NULL) { /* td_save wrote it */
        td_safetensors_close(s.file);
        return td_load_model(path);
    }
    if (td_safetensors_metadata(s.file, "lora.alpha") != NULL) {
        td_safetensors_close(s.file);
        (void)td_fail(TD_E_FORMAT, "'%s': it has adapters alone (td_lora_load), no model", path);
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) : 1;
    char *beside = td_format("%.*s/config.json", folder, slash != NULL ? path : "."),
         *config = NULL;
    size_t size = 0;
    td_module *net = NULL;
    if (beside != NULL &&
        td_read_file(beside, "a GPT's config.json", 1 << 20, &config, &size) == TD_OK) {
        net = hf_make(&s, config, size);
    }
    if (net == NULL) {
        (void)td_fail_context(TD_E_FORMAT, "'%s'", path);
    }
    free(beside);
    free(config);
    free(s.used);
    td_safetensors_close(s.file);
    return net;
}

td_module *td_gpt_load(const char *path)
{
    struct stat kind;
    char *inside = NULL;
    if (stat(path, &kind) == 0 && S_ISDIR(kind.st_mode)) {
        inside = td_format("%s/model.safetensors", path);
        td_module *net = inside != NULL ? hf_load(inside) : NULL;
        free(inside);
        return net;
    }
    FILE *file;
    if (td_open_to_read(path, &file) != TD_OK) {
        return NULL;
    }
    bool found = false;
    td_module *net = td_gpt_load_bin(path, file, (int64_t)kind.st_size, &found);
    fclose(file);
    return found ? net : hf_load(path);
}

/* ---- writing ---- */

static char *hf_config(const td_gpt_options *o, bool llama)
{
    const char *tied = o->untied ? "false" : "true";
    if (!llama) {
        return td_format(
            "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
            "  \"activation_function\": \"gelu_new\",\n  \"vocab_size\": %lld,\n"
            "  \"n_positions\": %lld,\n  \"n_layer\": %lld,\n  \"n_head\": %lld,\n"
            "  \"n_embd\": %lld,\n  \"n_inner\": %lld,\n  \"layer_norm_epsilon\": %.17g,\n"
            "  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": null,\n"
            "  \"eos_token_id\": null\n}\n",
            (long long)o->vocabulary, (long long)o->context, (long long)o->layers,
            (long long)o->heads, (long long)o->width, (long long)o->hidden, o->eps, tied);
    }
    return td_format(
        "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
        "  \"hidden_act\": \"silu\",\n  \"vocab_size\": %lld,\n"
        "  \"max_position_embeddings\": %lld,\n  \"num_hidden_layers\": %lld,\n"
        "  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n"
        "  \"hidden_size\": %lld,\n  \"intermediate_size\": %lld,\n  \"rms_norm_eps\": %.17g,\n"
        "  \"rope_theta\": %.17g,\n  \"tie_word_embeddings\": %s,\n  \"bos_token_id\": null,\n"
        "  \"eos_token_id\": null\n}\n",
        (long long)o->vocabulary, (long long)o->context, (long long)o->layers, (long long)o->heads,
        (long long)o->kv_heads, (long long)o->width, (long long)o->hidden, o->eps, o->rope_base,
        tied);
}

static td_status hf_write_text(const char *path, const char *text)
{
    char *name = NULL;
    FILE *file = td_temporary_file(path, &name);
    if (file == NULL) {
        return td_temporary_failed(path, (int64_t)strlen(text), "open");
    }
    bool written = fputs(text, file) >= 0;
    return td_temporary_end(file, name, path, (int64_t)strlen(text), written);
}

/* A parameter's pieces, which begin at tensor `first` of the file, as Conv1D's if it is GPT-2's. */
static td_status hf_put(td_safetensors_out *out, int first, const gpt_piece *pieces, int count,
                        const td_tensor *t)
{
    float *values = malloc((size_t)td_numel(t) * sizeof *values);
    td_status status = values != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory to write a GPT");
    td_tensor view = pieces[0].conv1d ? hf_turned(t) : *t;
    if (status == TD_OK) {
        td_read(&view, values, TD_F32);
    }
    const float *from = values;
    for (int k = 0; k < count && status == TD_OK; k++) {
        int64_t elements = pieces[k].rows * pieces[k].columns;
        status = td_safetensors_put(out, first + k, 0, from, (size_t)elements * sizeof *from);
        from += elements;
    }
    free(values);
    return status;
}

/* pieces: the pieces of all parameters, one after the other; entries: the same for the file. */
static td_status hf_write(const char *path, const gpt_source *s, const td_state_list *list,
                          gpt_piece *pieces, td_safetensors_entry *entries)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        int more = td_gpt_pieces(s, &list->items[i], pieces + count);
        for (int end = count + more; count < end; count++) {
            const gpt_piece *p = &pieces[count];
            entries[count] = (td_safetensors_entry){
                .name = p->name,
                .dtype = TD_F32,
                .shape = hf_shape(p, p->conv1d),
                .bytes = (size_t)(p->rows * p->columns) * sizeof(float),
            };
        }
    }
    td_safetensors_out *out;
    TD_TRY(td_safetensors_plan(path, entries, count, &(td_metadata){ "format", "pt" }, 1, &out));
    td_status status = TD_OK;
    for (int i = 0, first = 0; i < list->count && status == TD_OK; i++) {
        gpt_piece own[GPT_MOST_PIECES];
        int more = td_gpt_pieces(s, &list->items[i], own);
        status = hf_put(out, first, own, more, list->items[i].tensor);
        first += more;
    }
    td_status end = td_safetensors_finish(out, status == TD_OK);
    return status == TD_OK ? end : status;
}

td_status td_gpt_save(const char *folder, td_module *gpt)
{
    gpt_source s = { .options = td_gpt_options_of(gpt) };
    const td_gpt_options *o = &s.options;
    s.llama = o->rope;
    bool plain = !o->rope && !o->rms_norm && !o->swiglu && !o->no_bias && o->kv_heads == o->heads;
    if (!plain && !(o->rope && o->rms_norm && o->swiglu && o->no_bias)) {
        return td_fail(TD_E_UNSUPPORTED,
                       "'%s': transformers has GPT-2 (plain, or untied) and Llama (rope, rms_norm, "
                       "swiglu, no_bias), and no such model: %s",
                       folder, td_model_record_of(gpt).arch);
    }
    char *path = td_format("%s/model.safetensors", folder);
    char *beside = td_format("%s/config.json", folder), *config = hf_config(o, s.llama);
    td_state_list list = td_module_state(gpt);
    size_t most = GPT_MOST_PIECES * (size_t)(list.count > 0 ? list.count : 1);
    gpt_piece *pieces = calloc(most, sizeof *pieces);
    td_safetensors_entry *entries = calloc(most, sizeof *entries);
    td_status status = td_fail(TD_E_NOMEM, "no memory to write '%s'", folder);
    if (path != NULL && beside != NULL && config != NULL && list.count >= 0 && pieces != NULL &&
        entries != NULL) {
        status = td_make_folders(folder);
        status = status == TD_OK ? hf_write(path, &s, &list, pieces, entries) : status;
        status = status == TD_OK ? hf_write_text(beside, config) : status;
    }
    td_state_list_free(&list);
    free(pieces);
    free(entries);
    free(path);
    free(beside);
    free(config);
    return status;
}
