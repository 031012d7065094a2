/* The options of a GPT: presets, checks, and the text that td_model and files have. */
#include "nn/models/gpt_internal.h"
#include "tensor/system/number.h"
#include "tensor/part.h"
#include "tensor/system/text.h"

#include <stddef.h>
#include <string.h>

#define GPT_SIZES(v, c, l, h, w)                                                                   \
    {                                                                                              \
        .vocabulary = v, .context = c, .layers = l, .heads = h, .width = w                         \
    }
const td_gpt_preset td_gpt_presets[TD_GPT_PRESETS] = {
    { "gpt-nano", GPT_SIZES(256, 64, 4, 4, 128) },
    { "gpt-mini", GPT_SIZES(256, 256, 6, 6, 384) },
    { "gpt2", GPT_SIZES(50257, 1024, 12, 12, 768) },
    { "gpt2-medium", GPT_SIZES(50257, 1024, 24, 16, 1024) },
    { "gpt2-large", GPT_SIZES(50257, 1024, 36, 20, 1280) },
    { "gpt2-xl", GPT_SIZES(50257, 1024, 48, 25, 1600) },
};

static td_status gpt_find_preset(const char *name, size_t length, const td_gpt_options **found)
{
    const char *names[TD_GPT_PRESETS];
    for (int i = 0; i < TD_GPT_PRESETS; i++) {
        names[i] = td_gpt_presets[i].name;
        if (strlen(names[i]) == length && strncmp(name, names[i], length) == 0) {
            *found = &td_gpt_presets[i].sizes;
            return TD_OK;
        }
    }
    return td_fail(TD_E_ARG, "there is no GPT '%.*s'; the nearest name is '%s'", (int)length, name,
                   td_nearest_name(name, names, TD_GPT_PRESETS));
}

/* ---- complete and right ---- */

static td_status gpt_check(const td_gpt_options *o)
{
    enum { MOST = 1 << 24 };
    const int64_t sizes[] = { o->vocabulary, o->context,  o->layers, o->heads,
                              o->width,      o->kv_heads, o->hidden };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TD_CHECK(sizes[i] >= 1 && sizes[i] <= MOST, TD_E_ARG,
                 "a GPT with vocabulary %lld, context %lld, layers %lld, heads %lld, "
                 "width %lld, kv_heads %lld, hidden %lld: each must be from 1 to %d",
                 (long long)sizes[0], (long long)sizes[1], (long long)sizes[2], (long long)sizes[3],
                 (long long)sizes[4], (long long)sizes[5], (long long)sizes[6], MOST);
    }
    TD_CHECK(o->width % o->heads == 0 && o->heads % o->kv_heads == 0 &&
                 (!o->rope || o->width / o->heads % 2 == 0),
             TD_E_ARG,
             "a GPT with width %lld, heads %lld, kv_heads %lld: the heads must divide the "
             "width, and kv_heads the heads; with rope a head's width must be even",
             (long long)o->width, (long long)o->heads, (long long)o->kv_heads);
    TD_CHECK(o->dropout >= 0.0 && o->dropout < 1.0 && o->eps > 0.0 && o->rope_base > 0.0, TD_E_ARG,
             "a GPT with dropout %g, eps %g, rope_base %g: dropout must be in [0, 1), the "
             "others above 0",
             o->dropout, o->eps, o->rope_base);
    return TD_OK;
}

static void gpt_default(int64_t *size, int64_t usual)
{
    *size = *size != 0 ? *size : usual;
}

td_status td_gpt_options_complete(td_gpt_options *o)
{
    const td_gpt_options *p = &td_gpt_presets[0].sizes;
    if (o->preset != NULL) {
        TD_TRY(gpt_find_preset(o->preset, strlen(o->preset), &p));
    }
    o->preset = NULL;
    gpt_default(&o->vocabulary, p->vocabulary);
    gpt_default(&o->context, p->context);
    gpt_default(&o->layers, p->layers);
    gpt_default(&o->heads, p->heads);
    gpt_default(&o->width, p->width);
    gpt_default(&o->kv_heads, o->heads);
    gpt_default(&o->hidden, o->swiglu ? (8 * o->width / 3 + 31) / 32 * 32 : 4 * o->width);
    o->rope_base = td_or_usual(o->rope_base, 10000.0);
    o->eps = td_or_usual(o->eps, 1e-5);
    return gpt_check(o);
}

/* ---- as a text ---- */

typedef enum gpt_kind { GPT_SIZE, GPT_SWITCH, GPT_NUMBER } gpt_kind;
#define GPT_FIELD(name, kind)                                                                      \
    {                                                                                              \
#name, offsetof(td_gpt_options, name), kind                                                \
    }
static const struct gpt_field {
    const char *name;
    size_t place;
    gpt_kind kind;
} fields[] = {
    GPT_FIELD(vocabulary, GPT_SIZE),  GPT_FIELD(context, GPT_SIZE),
    GPT_FIELD(layers, GPT_SIZE),      GPT_FIELD(heads, GPT_SIZE),
    GPT_FIELD(width, GPT_SIZE),       GPT_FIELD(kv_heads, GPT_SIZE),
    GPT_FIELD(hidden, GPT_SIZE),      GPT_FIELD(rope, GPT_SWITCH),
    GPT_FIELD(rms_norm, GPT_SWITCH),  GPT_FIELD(swiglu, GPT_SWITCH),
    GPT_FIELD(untied, GPT_SWITCH),    GPT_FIELD(no_bias, GPT_SWITCH),
    GPT_FIELD(rope_base, GPT_NUMBER), GPT_FIELD(eps, GPT_NUMBER),
    GPT_FIELD(dropout, GPT_NUMBER),
};
enum { GPT_FIELDS = sizeof fields / sizeof *fields };

/* One word, "layers=6" or "rope", of `length` bytes. */
static td_status gpt_read_word(const char *word, size_t length, td_gpt_options *o)
{
    enum { MOST = 1 << 30 };
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", (int)length, word);
    char *value = strchr(copy, '=');
    if (value != NULL) {
        *value++ = '\0';
    }
    const char *names[GPT_FIELDS];
    for (int i = 0; i < GPT_FIELDS; i++) {
        const struct gpt_field *f = &fields[i];
        void *at = (char *)o + f->place;
        names[i] = f->name;
        if (strcmp(f->name, copy) != 0) {
            continue;
        }
        bool right = f->kind == GPT_SWITCH ? value == NULL : value != NULL;
        if (right && f->kind == GPT_SWITCH) {
            *(bool *)at = true;
        } else if (right && f->kind == GPT_SIZE) {
            right = td_read_count(value, MOST, at);
        } else if (right) {
            char *end;
            *(double *)at = td_strtod(value, &end);
            right = end != value && *end == '\0';
        }
        return right ? TD_OK
                     : td_fail(TD_E_ARG, "'%.*s' of a GPT: it must be %s%s", (int)length, word,
                               f->name, f->kind == GPT_SWITCH ? " alone" : "=NUMBER");
    }
    return td_fail(TD_E_ARG, "a GPT has no option '%s'; the nearest name is '%s'", copy,
                   td_nearest_name(copy, names, GPT_FIELDS));
}

td_status td_gpt_options_read(const char *text, td_gpt_options *o)
{
    const td_gpt_options *preset;
    size_t length = strcspn(text, " ");
    TD_TRY(gpt_find_preset(text, length, &preset));
    *o = *preset;
    for (text += length; *text != '\0'; text += length) {
        text += strspn(text, " ");
        length = strcspn(text, " ");
        TD_TRY(length > 0 ? gpt_read_word(text, length, o) : TD_OK);
    }
    return TD_OK;
}

void td_gpt_options_write(const td_gpt_options *o, char *text, size_t size)
{
    td_gpt_options usual = { .swiglu = o->swiglu };
    (void)td_gpt_options_complete(&usual); /* it has a preset's sizes */
    size_t used = (size_t)snprintf(text, size, "%s", td_gpt_presets[0].name);
    for (int i = 0; i < GPT_FIELDS && used < size; i++) {
        const struct gpt_field *f = &fields[i];
        const void *at = (const char *)o + f->place, *other = (const char *)&usual + f->place;
        char *to = text + used;
        size_t room = size - used;
        if (f->kind == GPT_SIZE) {
            used +=
                (size_t)snprintf(to, room, " %s=%lld", f->name, (long long)*(const int64_t *)at);
        } else if (f->kind == GPT_SWITCH && *(const bool *)at) {
            used += (size_t)snprintf(to, room, " %s", f->name);
        } else if (f->kind == GPT_NUMBER && *(const double *)at != *(const double *)other) {
            used += (size_t)td_snprintf(to, room, " %s=%.17g", f->name, *(const double *)at);
        }
    }
}
