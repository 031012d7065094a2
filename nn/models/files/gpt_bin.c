/* llm.c's and llama2.c's model files: a header of numbers, then for each kind of tensor those of
 * all layers, f32. */
#include "nn/models/files/gpt_source.h"
#include "tensor/extend.h"
#include "tensor/system/files.h"

#include <stdlib.h>
#include <string.h>

/* A kind of tensor, in the file's order: how its name ends, and its rows and columns as numbers of
 * the header. */
typedef enum bin_size {
    ONE,
    VOCABULARY,
    CONTEXT,
    WIDTH,
    HIDDEN,
    ROWS,
    KV_WIDTH,
    HALF_HEAD
} bin_size;
typedef struct bin_kind {
    const char *end; /* NULL: not a parameter, but a table */
    bin_size rows, columns;
    bool layers;
} bin_kind;

static const bin_kind llmc[] = {
    { "wte.weight", VOCABULARY, WIDTH, false },
    { "wpe.weight", CONTEXT, WIDTH, false },
    { ".ln_1.weight", WIDTH, ONE, true },
    { ".ln_1.bias", WIDTH, ONE, true },
    { ".attn.c_attn.weight", ROWS, WIDTH, true },
    { ".attn.c_attn.bias", ROWS, ONE, true },
    { ".attn.c_proj.weight", WIDTH, WIDTH, true },
    { ".attn.c_proj.bias", WIDTH, ONE, true },
    { ".ln_2.weight", WIDTH, ONE, true },
    { ".ln_2.bias", WIDTH, ONE, true },
    { ".mlp.c_fc.weight", HIDDEN, WIDTH, true },
    { ".mlp.c_fc.bias", HIDDEN, ONE, true },
    { ".mlp.c_proj.weight", WIDTH, HIDDEN, true },
    { ".mlp.c_proj.bias", WIDTH, ONE, true },
    { "ln_f.weight", WIDTH, ONE, false },
    { "ln_f.bias", WIDTH, ONE, false },
    { "", ONE, ONE, false },
};
static const bin_kind llama2c[] = {
    /* version 0 */
    { "embed_tokens.weight", VOCABULARY, WIDTH, false },
    { ".input_layernorm.weight", WIDTH, ONE, true },
    { ".q_proj.weight", WIDTH, WIDTH, true },
    { ".k_proj.weight", KV_WIDTH, WIDTH, true },
    { ".v_proj.weight", KV_WIDTH, WIDTH, true },
    { ".o_proj.weight", WIDTH, WIDTH, true },
    { ".post_attention_layernorm.weight", WIDTH, ONE, true },
    { ".gate_proj.weight", HIDDEN, WIDTH, true },
    { ".down_proj.weight", WIDTH, HIDDEN, true },
    { ".up_proj.weight", HIDDEN, WIDTH, true },
    { "model.norm.weight", WIDTH, ONE, false },
    { NULL, CONTEXT, HALF_HEAD, false }, /* the angles' cosines, sines */
    { NULL, CONTEXT, HALF_HEAD, false },
    { "lm_head.weight", VOCABULARY, WIDTH, false },
    { "", ONE, ONE, false },
};
static const bin_kind llama2c_1[] = {
    { ".input_layernorm.weight", WIDTH, ONE, true },
    { ".post_attention_layernorm.weight", WIDTH, ONE, true },
    { "model.norm.weight", WIDTH, ONE, false },
    { "embed_tokens.weight", VOCABULARY, WIDTH, false },
    { ".q_proj.weight", WIDTH, WIDTH, true },
    { ".k_proj.weight", KV_WIDTH, WIDTH, true },
    { ".v_proj.weight", KV_WIDTH, WIDTH, true },
    { ".o_proj.weight", WIDTH, WIDTH, true },
    { ".gate_proj.weight", HIDDEN, WIDTH, true },
    { ".down_proj.weight", WIDTH, HIDDEN, true },
    { ".up_proj.weight", HIDDEN, WIDTH, true },
    { "lm_head.weight", VOCABULARY, WIDTH, false },
    { "", ONE, ONE, false },
};

typedef struct bin_source {
    gpt_source source; /* first */
    FILE *file;
    const bin_kind *kinds;
    int64_t begin;             /* bytes of the header */
    int64_t padded_vocabulary; /* rows of wte in the file */
} bin_source;

static int64_t bin_elements(const bin_source *b, const bin_kind *kind)
{
    const td_gpt_options *o = &b->source.options;
    const int64_t head = o->width / o->heads;
    const int64_t sizes[] = { [ONE] = 1,
                              [VOCABULARY] = b->padded_vocabulary,
                              [CONTEXT] = o->context,
                              [WIDTH] = o->width,
                              [HIDDEN] = o->hidden,
                              [ROWS] = 3 * o->width,
                              [KV_WIDTH] = head * o->kv_heads,
                              [HALF_HEAD] = head / 2 };
    bool there = kind->end == NULL || strcmp(kind->end, "lm_head.weight") != 0 || o->untied;
    return there ? sizes[kind->rows] * sizes[kind->columns] : 0; /* each is at most 2^24 */
}

static bool bin_is_end(const bin_kind *kind)
{
    return kind->end != NULL && kind->end[0] == '\0';
}

/* Where a piece begins; -1: the file has no such kind. */
static int64_t bin_place(const bin_source *b, const char *name)
{
    int64_t at = b->begin;
    for (const bin_kind *kind = b->kinds; !bin_is_end(kind); kind++) {
        int64_t bytes = bin_elements(b, kind) * (int64_t)sizeof(float);
        size_t length = strlen(name), end = kind->end != NULL ? strlen(kind->end) : 0;
        if (end > 0 && length >= end && strcmp(name + length - end, kind->end) == 0) {
            const char *layer = name + strcspn(name, "0123456789");
            return at + (kind->layers ? atoi(layer) : 0) * bytes;
        }
        at += bytes * (kind->layers ? b->source.options.layers : 1);
    }
    return -1;
}

static td_status bin_check(gpt_source *s, const gpt_piece *piece)
{
    const bin_source *b = (const bin_source *)s;
    return bin_place(b, piece->name) >= 0
               ? TD_OK
               : td_fail(TD_E_FORMAT, "such a file has no '%s'", piece->name);
}

/* llama2.c turns elements 2 j and 2 j + 1 of a head together, td_rope j and j + h / 2. */
static void bin_part_pairs(const gpt_source *s, const gpt_piece *piece, const float *from,
                           float *to)
{
    int64_t head = s->options.width / s->options.heads, columns = piece->columns;
    for (int64_t row = 0; row < piece->rows; row++) {
        int64_t in_head = row % head;
        int64_t other = in_head < head / 2 ? 2 * in_head : 2 * (in_head - head / 2) + 1;
        memcpy(to + row * columns, from + (row - in_head + other) * columns,
               (size_t)columns * sizeof *to);
    }
}

static td_status bin_read(gpt_source *s, const gpt_piece *piece, float *values)
{
    const bin_source *b = (const bin_source *)s;
    size_t bytes = (size_t)(piece->rows * piece->columns) * sizeof(float);
    int64_t at = bin_place(b, piece->name);
    bool pairs = strstr(piece->name, "q_proj") != NULL || strstr(piece->name, "k_proj") != NULL;
    if (!pairs) {
        return td_file_read(b->file, at, values, bytes);
    }
    float *file_order = malloc(bytes);
    if (file_order == NULL) {
        return td_fail(TD_E_NOMEM, "no memory to read '%s'", piece->name);
    }
    td_status status = td_file_read(b->file, at, file_order, bytes);
    if (status == TD_OK) {
        bin_part_pairs(s, piece, file_order, values);
    }
    free(file_order);
    return status;
}

/* ---- headers ---- */

enum {
    LLMC_MAGIC = 20240326,
    LLMC_HEADER = 256 * 4,
    LLAMA2C_MAGIC = 0x616b3432, /* "ak42", of version 1 and later */
    LLAMA2C_HEADER = 256,
    LLAMA2C_OLD_HEADER = 7 * 4,
    BIN_LEAST = 8 * 4
};

/* llm.c: magic, version, context, vocabulary, layers, heads, width, padded vocabulary. */
static td_status bin_llmc(bin_source *b, const int32_t *header)
{
    if (header[1] != 3) {
        return td_fail(TD_E_UNSUPPORTED, "a model of llm.c, version %d; version 3, of f32, is read",
                       header[1]);
    }
    b->kinds = llmc;
    b->begin = LLMC_HEADER;
    b->padded_vocabulary = header[7];
    b->source.options = (td_gpt_options){ .context = header[2],
                                          .vocabulary = header[3],
                                          .layers = header[4],
                                          .heads = header[5],
                                          .width = header[6],
                                          .hidden = (int64_t)4 * header[6] };
    return TD_OK;
}

/* llama2.c: width, hidden, layers, heads, kv_heads, vocabulary (version 0: negative if the head has
 * its own weight), context. */
static void bin_llama2c(bin_source *b, const int32_t *numbers, bool untied)
{
    int64_t vocabulary = numbers[5];
    b->source.llama = true;
    b->padded_vocabulary = vocabulary < 0 ? -vocabulary : vocabulary;
    b->source.options = (td_gpt_options){ .width = numbers[0],
                                          .hidden = numbers[1],
                                          .layers = numbers[2],
                                          .heads = numbers[3],
                                          .kv_heads = numbers[4],
                                          .vocabulary = b->padded_vocabulary,
                                          .context = numbers[6],
                                          .rope = true,
                                          .rms_norm = true,
                                          .swiglu = true,
                                          .no_bias = true,
                                          .untied = untied };
}

static td_status bin_header(bin_source *b, const unsigned char *bytes, int64_t size, bool *found)
{
    int32_t n[BIN_LEAST / 4 + 2];
    memcpy(n, bytes, sizeof n);
    *found = true;
    if (n[0] == LLMC_MAGIC && size >= LLMC_HEADER) {
        return bin_llmc(b, n);
    }
    if (n[0] == LLAMA2C_MAGIC && size >= LLAMA2C_HEADER) {
        if (n[1] != 1) {
            return td_fail(TD_E_UNSUPPORTED,
                           "a model of llama2.c, version %d; versions 0 and 1, of f32, are read",
                           n[1]);
        }
        b->kinds = llama2c_1;
        b->begin = LLAMA2C_HEADER;
        bin_llama2c(b, n + 2, bytes[9 * 4] == 0);
        return TD_OK;
    }
    /* Version 0 has no magic number: its sizes must make sense, and the file's size fit. */
    b->kinds = llama2c;
    b->begin = LLAMA2C_OLD_HEADER;
    bin_llama2c(b, n, n[5] < 0);
    *found = n[0] > 0 && n[1] > 0 && n[2] > 0 && n[2] < 4096 && n[3] > 0 && n[4] > 0 && n[6] > 0 &&
             n[0] % n[3] == 0;
    return TD_OK;
}

/* The bytes that a file of these sizes has. */
static double bin_bytes(const bin_source *b)
{
    double elements = 0.0;
    for (const bin_kind *kind = b->kinds; !bin_is_end(kind); kind++) {
        double layers = kind->layers ? (double)b->source.options.layers : 1.0;
        elements += layers * (double)bin_elements(b, kind);
    }
    return (double)b->begin + 4.0 * elements;
}

td_module *td_gpt_load_bin(const char *path, FILE *file, int64_t size, bool *found)
{
    bin_source b = { .source = { .check = bin_check, .read = bin_read }, .file = file };
    unsigned char bytes[BIN_LEAST + 8] = { 0 };
    *found = false;
    if (size < (int64_t)sizeof bytes || td_file_read(file, 0, bytes, sizeof bytes) != TD_OK) {
        return NULL;
    }
    td_status status = bin_header(&b, bytes, size, found);
    int64_t padded = b.padded_vocabulary;
    if (status == TD_OK && *found) {
        status = td_gpt_options_complete(&b.source.options);
    }
    bool fits = status == TD_OK && *found && padded >= b.source.options.vocabulary &&
                padded <= 1 << 24 && bin_bytes(&b) == (double)size;
    if (b.kinds == llama2c && !fits) {
        *found = false;
        return NULL;
    }
    if (status == TD_OK && !fits) {
        status =
            td_fail(TD_E_FORMAT,
                    "it has %lld bytes, and a model of the sizes in its header has %.0f; it is "
                    "cut off or damaged",
                    (long long)size, bin_bytes(&b));
    }
    td_module *net = status == TD_OK ? td_gpt_from_source(&b.source) : NULL;
    if (net == NULL) {
        (void)td_fail_context(status != TD_OK ? status : TD_E_FORMAT, "'%s'", path);
    }
    return net;
}
