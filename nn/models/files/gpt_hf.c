/* Hugging Face's GPT-2 and Llama: config.json and model.safetensors. */
#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "nn/models/files/gpt_source.h"
#include "tensor/part.h"
#include "tensor/system/files.h"
#include "tensor/system/folders.h"
#include "tensor/system/temporary.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <sys/stat.h>

/* ---- config.json ---- */

/* An option's keys, GPT-2's and Llama's (NULL: it has none), for reading and writing. */
typedef enum hf_kind { HF_SIZE, HF_SIZE_OR_USUAL, HF_NUMBER, HF_TIED } hf_kind;
#define HF_OPTION(name) offsetof(td_gpt_options, name)
static const struct hf_key {
    const char *name[2];
    size_t place;
    hf_kind kind;
    double usual[2];
} hf_keys[] = {
    { { "vocab_size", "vocab_size" }, HF_OPTION(vocabulary), HF_SIZE, { 0 } },
    { { "n_positions", "max_position_embeddings" }, HF_OPTION(context), HF_SIZE, { 0 } },
    { { "n_layer", "num_hidden_layers" }, HF_OPTION(layers), HF_SIZE, { 0 } },
    { { "n_head", "num_attention_heads" }, HF_OPTION(heads), HF_SIZE, { 0 } },
    { { NULL, "num_key_value_heads" }, HF_OPTION(kv_heads), HF_SIZE_OR_USUAL, { 0 } },
    { { "n_embd", "hidden_size" }, HF_OPTION(width), HF_SIZE, { 0 } },
    { { "n_inner", NULL }, HF_OPTION(hidden), HF_SIZE_OR_USUAL, { 0 } },
    { { NULL, "intermediate_size" }, HF_OPTION(hidden), HF_SIZE, { 0 } },
    { { "layer_norm_epsilon", "rms_norm_eps" }, HF_OPTION(eps), HF_NUMBER, { 1e-5, 1e-6 } },
    { { NULL, "rope_theta" }, HF_OPTION(rope_base), HF_NUMBER, { 0, 10000 } },
    { { "tie_word_embeddings", "tie_word_embeddings" }, HF_OPTION(untied), HF_TIED, { 1, 0 } },
};
enum { HF_KEYS = sizeof hf_keys / sizeof *hf_keys };

static const cJSON *hf_item(const cJSON *config, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static bool hf_is_true(const cJSON *config, const char *key, bool usual)
{
    const cJSON *item = hf_item(config, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : usual;
}

static bool hf_is_text(const cJSON *config, const char *key, const char *text)
{
    const cJSON *item = hf_item(config, key);
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

static td_status hf_read_key(const cJSON *config, const struct hf_key *k, bool llama, char *o)
{
    enum { MOST = 1 << 24 };
    const char *key = k->name[llama];
    const cJSON *item = hf_item(config, key);
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1.0;
    if (k->kind == HF_TIED) {
        *(bool *)(o + k->place) = !hf_is_true(config, key, k->usual[llama] != 0.0);
    } else if (k->kind == HF_NUMBER) {
        *(double *)(o + k->place) = cJSON_IsNumber(item) ? value : k->usual[llama];
    } else if (item == NULL && k->kind == HF_SIZE) {
        return td_fail(TD_E_FORMAT, "config.json has no '%s'", key);
    } else if (item != NULL) {
        TD_CHECK(value >= 1.0 && value <= MOST && value == (double)(int64_t)value, TD_E_FORMAT,
                 "config.json: '%s' is no whole number from 1 to %d", key, MOST);
        *(int64_t *)(o + k->place) = (int64_t)value;
    }
    return TD_OK;
}

static td_status hf_has_not(bool has, const char *what)
{
    return has ? td_fail(TD_E_UNSUPPORTED, "config.json: td_gpt has no model with %s", what)
               : TD_OK;
}

static td_status hf_check_gpt2(const cJSON *c)
{
    bool tanh = hf_item(c, "activation_function") == NULL ||
                hf_is_text(c, "activation_function", "gelu_new") ||
                hf_is_text(c, "activation_function", "gelu_pytorch_tanh");
    TD_TRY(hf_has_not(!tanh, "an activation_function other than gelu_new"));
    TD_TRY(hf_has_not(!hf_is_true(c, "scale_attn_weights", true), "scale_attn_weights off"));
    return hf_has_not(hf_is_true(c, "scale_attn_by_inverse_layer_idx", false),
                      "scale_attn_by_inverse_layer_idx");
}

static td_status hf_check_llama(const cJSON *c, const cJSON *rope, const td_gpt_options *o)
{
    const cJSON *head = hf_item(c, "head_dim");
    bool scaled = cJSON_IsObject(hf_item(c, "rope_scaling")) ||
                  (rope != c && !hf_is_text(rope, "rope_type", "default"));
    TD_TRY(hf_has_not(scaled, "scaled rotary positions"));
    TD_TRY(hf_has_not(!hf_is_text(c, "hidden_act", "silu"), "a hidden_act other than silu"));
    TD_TRY(hf_has_not(hf_is_true(c, "attention_bias", false) || hf_is_true(c, "mlp_bias", false),
                      "biases"));
    return hf_has_not(head != NULL && head->valuedouble * (double)o->heads != (double)o->width,
                      "a head_dim that is not width / heads");
}

static td_status hf_read(const cJSON *config, gpt_source *s)
{
    td_gpt_options *o = &s->options;
    s->llama = hf_is_text(config, "model_type", "llama");
    TD_CHECK(cJSON_IsObject(config), TD_E_FORMAT, "config.json is no JSON object");
    TD_CHECK(s->llama || hf_is_text(config, "model_type", "gpt2"), TD_E_UNSUPPORTED,
             "config.json: model_type is neither gpt2 nor llama");
    const cJSON *rope = hf_item(config, "rope_parameters");
    rope = rope != NULL ? rope : config;
    for (int i = 0; i < HF_KEYS; i++) {
        const struct hf_key *k = &hf_keys[i];
        const cJSON *from = k->place == HF_OPTION(rope_base) ? rope : config;
        TD_TRY(k->name[s->llama] != NULL ? hf_read_key(from, k, s->llama, (char *)o) : TD_OK);
    }
    o->rope = o->rms_norm = o->swiglu = o->no_bias = s->llama;
    TD_TRY(s->llama ? hf_check_llama(config, rope, o) : hf_check_gpt2(config));
    return td_gpt_options_complete(o);
}

td_status td_gpt_read_config(const char *text, size_t size, gpt_source *s)
{
    cJSON *config = cJSON_ParseWithLength(text, size);
    td_status status = hf_read(config, s);
    cJSON_Delete(config);
    return status;
}

/* Writes config.json. */
static td_status hf_write_config(const char *path, const gpt_source *s)
{
    static const char *const texts[][2][2] = {
        { { "model_type", "gpt2" }, { "model_type", "llama" } },
        { { "activation_function", "gelu_new" }, { "hidden_act", "silu" } }
    };
    static const char *const classes[] = { "GPT2LMHeadModel", "LlamaForCausalLM" };
    cJSON *c = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(c, "architectures"),
                         cJSON_CreateString(classes[s->llama]));
    for (int i = 0; i < 2; i++) {
        cJSON_AddStringToObject(c, texts[i][s->llama][0], texts[i][s->llama][1]);
    }
    for (int i = 0; i < HF_KEYS; i++) {
        const struct hf_key *k = &hf_keys[i];
        const char *at = (const char *)&s->options + k->place, *key = k->name[s->llama];
        if (key != NULL && k->kind == HF_TIED) {
            cJSON_AddBoolToObject(c, key, !*(const bool *)at);
        } else if (key != NULL) {
            cJSON_AddNumberToObject(
                c, key, k->kind == HF_NUMBER ? *(const double *)at : (double)*(const int64_t *)at);
        }
    }
    cJSON_AddNullToObject(c, "bos_token_id");
    cJSON_AddNullToObject(c, "eos_token_id");
    char *text = cJSON_Print(c), *name = NULL;
    cJSON_Delete(c);
    TD_CHECK(text != NULL, TD_E_NOMEM, "no memory to write '%s'", path);
    FILE *file;
    int64_t size = (int64_t)strlen(text);
    td_status status = td_temporary_begin(path, size, &file, &name);
    if (status == TD_OK) {
        fputs(text, file);
        status = td_temporary_end(file, name, path, size, TD_OK);
    }
    free(text);
    return status;
}

/* ---- tensors ---- */

typedef struct hf_source {
    gpt_source source; /* first */
    td_safetensors *file;
    bool *used; /* of the file's tensors */
} hf_source;

/* The names of a model without a head begin behind "transformer." or "model.". */
static const td_safetensors_entry *hf_entry(const hf_source *s, const char *name)
{
    const td_safetensors_entry *entry = td_safetensors_find(s->file, name);
    return entry != NULL ? entry : td_safetensors_find(s->file, strchr(name, '.') + 1);
}

/* Masks, tables and the tied head may stand in a file, too. */
static bool hf_may_stay(const hf_source *s, const char *name)
{
    return td_gpt_ends(name, ".attn.bias") || td_gpt_ends(name, ".masked_bias") ||
           td_gpt_ends(name, "inv_freq") ||
           (!s->source.options.untied && strcmp(name, "lm_head.weight") == 0);
}

static td_status hf_find(gpt_source *source)
{
    hf_source *s = (hf_source *)source;
    for (int i = 0; i < source->count; i++) {
        gpt_piece *p = &source->items[i];
        const td_safetensors_entry *e = hf_entry(s, p->name);
        const char *shape = td_describe_shape(td_shape_of(&p->part));
        TD_CHECK(e != NULL, TD_E_MISMATCH, "there is no '%s' %s in it", p->name, shape);
        TD_CHECK(td_safetensors_unknown(s->file, e) == NULL && td_is_float(e->dtype) &&
                     td_shape_equal(e->shape, td_shape_of(&p->part)),
                 TD_E_MISMATCH, "'%s' must be of floats %s, as config.json has it", e->name, shape);
        p->at = e - td_safetensors_get(s->file, 0);
        s->used[p->at] = true;
    }
    for (int i = 0; i < td_safetensors_count(s->file); i++) {
        const char *name = td_safetensors_get(s->file, i)->name;
        TD_CHECK(s->used[i] || hf_may_stay(s, name), TD_E_MISMATCH,
                 "it has a tensor '%s', which such a model has not", name);
    }
    return TD_OK;
}

static td_status hf_read_piece(gpt_source *s, gpt_piece *piece)
{
    const td_safetensors *file = ((hf_source *)s)->file;
    return td_safetensors_take(file, td_safetensors_get(file, (int)piece->at), &piece->part);
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
    const td_safetensors_entry *e = hf_entry(s, "transformer.h.0.attn.c_attn.weight");
    s->source.conv1d =
        e != NULL && e->shape.ndim == 2 && e->shape.dim[0] == s->source.options.width;
    return td_gpt_from_source(&s->source);
}

/* path: of model.safetensors, next to config.json. */
static td_module *hf_load(const char *path)
{
    hf_source s = { .source = { .find = hf_find, .read = hf_read_piece } };
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

static td_status hf_write_tensors(const char *path, const gpt_source *s)
{
    td_safetensors_entry *entries = calloc((size_t)s->count + 1, sizeof *entries);
    TD_CHECK(entries != NULL, TD_E_NOMEM, "no memory to write '%s'", path);
    for (int i = 0; i < s->count; i++) {
        entries[i] = td_safetensors_of(s->items[i].name, &s->items[i].part, TD_F32);
    }
    td_status status =
        td_safetensors_write_tensors(path, entries, s->count, &(td_metadata){ "format", "pt" }, 1);
    free(entries);
    return status;
}

td_status td_gpt_save(const char *folder, td_module *gpt)
{
    gpt_source s = { .options = td_gpt_options_of(gpt) };
    const td_gpt_options *o = &s.options;
    s.llama = o->rope;
    s.conv1d = !s.llama;
    bool plain = !o->rope && !o->rms_norm && !o->swiglu && !o->no_bias && o->kv_heads == o->heads;
    TD_CHECK(plain || (o->rope && o->rms_norm && o->swiglu && o->no_bias), TD_E_UNSUPPORTED,
             "'%s': transformers has GPT-2 (plain, or untied) and Llama (rope, rms_norm, "
             "swiglu, no_bias), and no such model: %s",
             folder, td_model_record_of(gpt).arch);
    char *path = td_format("%s/model.safetensors", folder);
    char *beside = td_format("%s/config.json", folder);
    td_status status = path != NULL && beside != NULL ? td_make_folders(folder) : TD_E_NOMEM;
    status = status == TD_OK ? td_gpt_pieces(&s, gpt) : status;
    status = status == TD_OK ? hf_write_tensors(path, &s) : status;
    status = status == TD_OK ? hf_write_config(beside, &s) : status;
    free(s.items);
    free(path);
    free(beside);
    return status;
}
