/* Tokenizers: joining bytes to tokens, and special tokens. */
#include "data/text/tokenizer_internal.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1, AT_ONCE = 1024 /* tokens that a sink gets */ };

/* ---- what bytes stand for ---- */

/* Where these bytes are in the table, or would be. */
static td_joint *joint_slot(const td_tokenizer *t, int32_t left, const char *bytes, size_t size)
{
    uint64_t hash = td_hash_bytes(TD_HASH_BEGIN + (uint64_t)left, bytes, size);
    uint32_t i = (uint32_t)(hash ^ hash >> 32);
    for (;; i++) {
        td_joint *joint = &t->joints[i & t->mask];
        const td_token_bytes *token = &t->tokens[joint->token != NONE ? joint->token : 0];
        if (joint->token == NONE || (joint->left == left && (size_t)token->size == size &&
                                     memcmp(t->bytes + token->begin, bytes, size) == 0)) {
            return joint;
        }
    }
}

int32_t td_joint_find(const td_tokenizer *t, int32_t left, const char *bytes, size_t size)
{
    const td_joint *joint = joint_slot(t, left, bytes, size);
    return joint->token != NONE ? joint->value : NONE;
}

bool td_joint_add(td_tokenizer *t, int32_t token, int32_t left, int32_t value)
{
    const td_token_bytes *own = &t->tokens[token];
    td_joint *joint = joint_slot(t, left, t->bytes + own->begin, (size_t)own->size);
    if (joint->token != NONE) {
        return false;
    }
    *joint = (td_joint){ token, left, value };
    return true;
}

/* ---- joining ---- */

/* A part of a piece, at the place of its first byte. The next part begins where its bytes end. */
typedef struct part {
    int32_t token, rank; /* rank: of joining this part and the next; NONE: that is not possible */
    uint32_t before;     /* the part before it */
} part;

typedef struct encoder {
    const td_tokenizer *t;
    const char *text;
    const char *piece;
    size_t size;    /* of the piece */
    part *parts;    /* [room] */
    uint64_t *heap; /* [3 * room] ranks and places of possible joints, the lowest first, and of some
                       that are not possible any more */
    size_t room, joints;
    int64_t tokens[AT_ONCE], count; /* that the sink has not got yet */
    td_token_sink sink;
    void *user;
} encoder;

static void heap_push(encoder *e, uint64_t joint)
{
    size_t i = e->joints++;
    for (; i > 0 && e->heap[(i - 1) / 2] > joint; i = (i - 1) / 2) {
        e->heap[i] = e->heap[(i - 1) / 2];
    }
    e->heap[i] = joint;
}

static uint64_t heap_pop(encoder *e)
{
    uint64_t first = e->heap[0], last = e->heap[--e->joints];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < e->joints; i = child) {
        child += child + 1 < e->joints && e->heap[child + 1] < e->heap[child];
        if (e->heap[child] >= last) {
            break;
        }
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return first;
}

static size_t part_end(const encoder *e, size_t at)
{
    return at + (size_t)e->t->tokens[e->parts[at].token].size;
}

/* Notes whether the part at `at` and the next one can be joined. */
static void look_at(encoder *e, size_t at)
{
    size_t next = part_end(e, at);
    e->parts[at].rank = NONE;
    if (next < e->size) {
        size_t left = e->t->merged != NULL ? next - at : 0;
        e->parts[at].rank =
            td_joint_find(e->t, (int32_t)left, e->piece + at, part_end(e, next) - at);
    }
    if (e->parts[at].rank != NONE) {
        heap_push(e, (uint64_t)e->parts[at].rank << 32 | at);
    }
}

static void join_parts(encoder *e, size_t at)
{
    part *p = &e->parts[at];
    e->parts[part_end(e, at)].rank = NONE;
    p->token = e->t->merged != NULL ? e->t->merged[p->rank] : p->rank;
    if (part_end(e, at) < e->size) {
        e->parts[part_end(e, at)].before = (uint32_t)at;
    }
    look_at(e, at);
    if (at > 0) {
        look_at(e, p->before);
    }
}

/* A piece has at first as many joints as parts, and every joining makes two more. */
static td_status encoder_room(encoder *e, size_t size)
{
    if (size > e->room) {
        free(e->parts);
        free(e->heap);
        e->room = 2 * size;
        bool fits = size < UINT32_MAX;
        e->parts = fits ? malloc(e->room * sizeof *e->parts) : NULL;
        e->heap = fits ? malloc(3 * e->room * sizeof *e->heap) : NULL;
    }
    return e->parts != NULL && e->heap != NULL
               ? TD_OK
               : td_fail(TD_E_NOMEM, "tokenizer: no memory for a piece of %zu bytes", size);
}

/* ---- encoding ---- */

static td_status emit(encoder *e, int64_t token)
{
    e->tokens[e->count++] = token;
    if (e->count < AT_ONCE) {
        return TD_OK;
    }
    e->count = 0;
    return e->sink(e->user, e->tokens, AT_ONCE, (size_t)(e->piece - e->text) + e->size);
}

static td_status encode_piece(void *encoding, const char *piece, size_t size)
{
    encoder *e = encoding;
    int32_t whole = e->t->merged == NULL ? td_joint_find(e->t, 0, piece, size) : NONE;
    e->piece = piece;
    e->size = size;
    if (whole != NONE) {
        return emit(e, whole);
    }
    TD_TRY(encoder_room(e, size));
    for (size_t i = 0; i < size; i++) {
        e->parts[i] = (part){ e->t->of_byte[(unsigned char)piece[i]], NONE, (uint32_t)i - 1 };
    }
    for (size_t i = 0; i < size; i++) {
        look_at(e, i);
    }
    while (e->joints > 0) {
        uint64_t joint = heap_pop(e);
        size_t at = (uint32_t)joint;
        if (e->parts[at].rank == (int32_t)(joint >> 32)) {
            join_parts(e, at);
        }
    }
    for (size_t i = 0; i < size; i = part_end(e, i)) {
        TD_TRY(emit(e, e->parts[i].token));
    }
    return TD_OK;
}

/* A text without special tokens. */
static td_status encode_text(encoder *e, const char *text, size_t size)
{
    if (e->t->pattern != NULL) {
        return td_text_pieces(e->t->pattern, text, size, encode_piece, e);
    }
    td_status status = TD_OK;
    for (size_t i = 0; i < size && status == TD_OK; i++) {
        status = encode_piece(e, text + i, 1);
    }
    return status;
}

/* The longest special token at the beginning of a text; NONE. */
static int32_t special_at(const td_tokenizer *t, const char *text, size_t size)
{
    int32_t best = NONE, longest = 0;
    for (int i = 0; i < t->special_count; i++) {
        const td_token_bytes *s = &t->tokens[t->special[i]];
        if (s->size > longest && (size_t)s->size <= size &&
            memcmp(text, t->bytes + s->begin, (size_t)s->size) == 0) {
            best = t->special[i];
            longest = s->size;
        }
    }
    return best;
}

static td_status encode_all(encoder *e, const char *text, size_t size, bool special)
{
    size_t begin = 0, at = 0;
    while (special && at < size) {
        int32_t token = special_at(e->t, text + at, size - at);
        if (token == NONE) {
            at++;
            continue;
        }
        TD_TRY(encode_text(e, text + begin, at - begin));
        begin = at += (size_t)e->t->tokens[token].size;
        TD_TRY(emit(e, token));
    }
    TD_TRY(encode_text(e, text + begin, size - begin));
    return e->count > 0 ? e->sink(e->user, e->tokens, e->count, size) : TD_OK;
}

td_status td_tokenizer_encode_to(const td_tokenizer *t, const char *text, size_t size, bool special,
                                 td_token_sink sink, void *user)
{
    encoder *e = malloc(sizeof *e);
    TD_CHECK(e != NULL, TD_E_NOMEM, "tokenizer: no memory");
    *e = (encoder){ .t = t, .text = text, .piece = text, .sink = sink, .user = user };
    td_status status = encode_all(e, text, size, special && t->special_count > 0);
    free(e->parts);
    free(e->heap);
    free(e);
    return status;
}

static td_status append(void *out, const int64_t *tokens, int64_t count, size_t done)
{
    (void)done;
    bool written = fwrite(tokens, sizeof *tokens, (size_t)count, out) == (size_t)count;
    return written ? TD_OK : td_fail(TD_E_NOMEM, "tokenizer: no memory for the tokens");
}

td_status td_tokenizer_encode(const td_tokenizer *t, const char *text, size_t size, bool special,
                              int64_t **tokens, int64_t *count)
{
    char *bytes = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&bytes, &length);
    td_status status = out != NULL ? td_tokenizer_encode_to(t, text, size, special, append, out)
                                   : td_fail(TD_E_NOMEM, "tokenizer: no memory");
    if (out != NULL && fclose(out) != 0 && status == TD_OK) {
        status = td_fail(TD_E_NOMEM, "tokenizer: no memory for the tokens");
    }
    if (status != TD_OK) {
        free(bytes);
        bytes = NULL;
        length = 0;
    }
    *tokens = (int64_t *)(void *)bytes;
    *count = (int64_t)(length / sizeof **tokens);
    return status;
}

/* ---- tokens ---- */

int64_t td_tokenizer_vocabulary(const td_tokenizer *t)
{
    return t->count;
}

const char *td_tokenizer_bytes(const td_tokenizer *t, int64_t token, size_t *size)
{
    *size = token >= 0 && token < t->count ? (size_t)t->tokens[token].size : 0;
    return *size > 0 ? t->bytes + t->tokens[token].begin : NULL;
}

int64_t td_tokenizer_special(const td_tokenizer *t, const char *text)
{
    int32_t token = special_at(t, text, strlen(text));
    return token != NONE && (size_t)t->tokens[token].size == strlen(text) ? token : NONE;
}
