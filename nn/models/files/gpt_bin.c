/* llm.c's and llama2.c's model files: a header of numbers, then for each kind of tensor those of
 * all layers, f32. */
#include "nn/models/files/gpt_source.h"
#include "tensor/system/files.h"

#include <math.h>

/* The kinds in a file's order: how their names end. "angles" are a table of cosines and sines, not
 * a parameter. */
static const char llmc[] =
    "wte.weight wpe.weight .ln_1.weight .ln_1.bias .c_attn.weight .c_attn.bias attn.c_proj.weight "
    "attn.c_proj.bias .ln_2.weight .ln_2.bias .c_fc.weight .c_fc.bias mlp.c_proj.weight "
    "mlp.c_proj.bias ln_f.weight ln_f.bias";
#define LLAMA2C_ATTENTION " .q_proj.weight .k_proj.weight .v_proj.weight .o_proj.weight"
static const char llama2c[] =
    "embed_tokens.weight .input_layernorm.weight" LLAMA2C_ATTENTION
    " .post_attention_layernorm.weight .gate_proj.weight .down_proj.weight .up_proj.weight "
    "model.norm.weight angles lm_head.weight";
static const char llama2c_1[] =
    ".input_layernorm.weight .post_attention_layernorm.weight model.norm.weight "
    "embed_tokens.weight" LLAMA2C_ATTENTION
    " .gate_proj.weight .down_proj.weight .up_proj.weight lm_head.weight";

typedef struct bin_source {
    gpt_source source; /* first */
    FILE *file;
    const char *kinds;
    int64_t begin, size; /* bytes of the header, and of the file */
    int64_t padded;      /* rows of wte in the file */
} bin_source;

static td_status bin_fail(const bin_source *b, double bytes)
{
    return td_fail(TD_E_FORMAT,
                   "it has %lld bytes, and a model of the sizes in its header has %s%.0f; it is "
                   "cut off or damaged",
                   (long long)b->size, bytes > 0.0 ? "" : "more than ", fabs(bytes));
}

/* Gives each piece its place. */
static td_status bin_find(gpt_source *s)
{
    bin_source *b = (bin_source *)s;
    const td_gpt_options *o = &s->options;
    double at = (double)b->begin;
    char kind[64];
    for (const char *rest = b->kinds; sscanf(rest, "%63s", kind) == 1;) {
        for (int i = 0; i < s->count; i++) {
            if (td_gpt_ends(s->items[i].name, kind)) {
                s->items[i].at = (int64_t)at;
                at += 4.0 * (double)td_numel(&s->items[i].part);
            }
        }
        at += strcmp(kind, "angles") == 0
                  ? 4.0 * (double)(o->context * (o->width / o->heads / 2 * 2))
                  : 0.0;
        at += strcmp(kind, "wte.weight") == 0
                  ? 4.0 * (double)((b->padded - o->vocabulary) * o->width)
                  : 0.0;
        rest += strspn(rest, " ") + strlen(kind);
    }
    return at == (double)b->size ? TD_OK : bin_fail(b, at);
}

static td_status bin_read(gpt_source *s, gpt_piece *piece)
{
    td_tensor part = piece->part;
    size_t bytes = (size_t)td_numel(&part) * sizeof(float);
    if (td_gpt_ends(piece->name, "q_proj.weight") || td_gpt_ends(piece->name, "k_proj.weight")) {
        /* llama2.c turns elements 2 j and 2 j + 1 of a head together, td_rope j and j + h / 2. */
        int64_t half = s->options.width / s->options.heads / 2, row = part.stride[0];
        td_shape shape = TD_SHAPE(part.shape[0] / (2 * half), half, 2, part.shape[1]);
        part.ndim = 4;
        memcpy(part.shape, shape.dim, sizeof part.shape);
        memcpy(part.stride, (int64_t[]){ 2 * half * row, row, half * row, part.stride[1] },
               4 * sizeof *part.stride);
    }
    float *values = malloc(bytes);
    td_status status = values == NULL
                           ? td_fail(TD_E_NOMEM, "no memory to read '%s'", piece->name)
                           : td_file_read(((bin_source *)s)->file, piece->at, values, bytes);
    if (status == TD_OK) {
        td_write(&part, values, TD_F32);
    }
    free(values);
    return status;
}

/* ---- headers ---- */

enum {
    LLMC_MAGIC = 20240326,
    LLMC_HEADER = 256 * 4,
    LLAMA2C_MAGIC = 0x616b3432, /* "ak42", of version 1 and later */
    LLAMA2C_HEADER = 256,
    LLAMA2C_OLD_HEADER = 7 * 4,
    BIN_WORDS = 10 /* of a header that are looked at */
};

/* llama2.c: width, hidden, layers, heads, kv_heads, vocabulary (version 0: negative if the head has
 * its own weight), context. */
static void bin_llama2c(bin_source *b, const int32_t *n, bool untied)
{
    b->source.llama = true;
    b->source.options = (td_gpt_options){ .width = n[0],
                                          .hidden = n[1],
                                          .layers = n[2],
                                          .heads = n[3],
                                          .kv_heads = n[4],
                                          .vocabulary = n[5] < 0 ? -(int64_t)n[5] : n[5],
                                          .context = n[6],
                                          .rope = true,
                                          .rms_norm = true,
                                          .swiglu = true,
                                          .no_bias = true,
                                          .untied = untied };
}

static td_status bin_header(bin_source *b, const int32_t n[BIN_WORDS])
{
    if (n[0] == LLMC_MAGIC && b->size >= LLMC_HEADER) {
        b->kinds = llmc;
        b->begin = LLMC_HEADER;
        b->padded = n[7];
        b->source.options = (td_gpt_options){
            .context = n[2], .vocabulary = n[3], .layers = n[4], .heads = n[5], .width = n[6]
        };
        TD_CHECK(n[1] == 3, TD_E_UNSUPPORTED,
                 "a model of llm.c, version %d; version 3, of f32, is read", n[1]);
        return TD_OK;
    }
    if (n[0] == LLAMA2C_MAGIC && b->size >= LLAMA2C_HEADER) {
        b->kinds = llama2c_1;
        b->begin = LLAMA2C_HEADER;
        bin_llama2c(b, n + 2, *(const unsigned char *)&n[9] == 0);
        TD_CHECK(n[1] == 1, TD_E_UNSUPPORTED,
                 "a model of llama2.c, version %d; versions 0 and 1, of f32, are read", n[1]);
        return TD_OK;
    }
    b->kinds = llama2c; /* no magic number: the file's size must fit */
    b->begin = LLAMA2C_OLD_HEADER;
    bin_llama2c(b, n, n[5] < 0);
    return n[1] > 0 && n[4] > 0 ? TD_OK : TD_E_FORMAT; /* no defaults */
}

/* Fails if the largest parameters alone are more than the file. */
static td_status bin_check(const bin_source *b)
{
    enum { MOST = 1 << 24 };
    const td_gpt_options *o = &b->source.options;
    double words = (double)o->vocabulary + (b->kinds == llmc ? (double)o->context : 0.0),
           rows = words + (double)o->layers * (double)(o->width + o->hidden);
    bool pads = b->kinds != llmc || (b->padded >= o->vocabulary && b->padded <= MOST);
    double bytes = 4.0 * (double)o->width * rows;
    return pads && bytes <= (double)b->size ? TD_OK : bin_fail(b, -bytes);
}

td_module *td_gpt_load_bin(const char *path, FILE *file, int64_t size, bool *found)
{
    bin_source b = { .source = { .find = bin_find, .read = bin_read }, .file = file, .size = size };
    int32_t header[BIN_WORDS];
    *found = false;
    if (size < (int64_t)sizeof header || td_file_read(file, 0, header, sizeof header) != TD_OK) {
        return NULL;
    }
    td_status status = bin_header(&b, header);
    status = status == TD_OK ? td_gpt_options_complete(&b.source.options) : status;
    status = status == TD_OK ? bin_check(&b) : status;
    td_module *net = status == TD_OK ? td_gpt_from_source(&b.source) : NULL;
    *found = net != NULL || b.kinds != llama2c;
    if (net == NULL) {
        (void)td_fail_context(status != TD_OK ? status : TD_E_FORMAT, "'%s'", path);
    }
    return net;
}
