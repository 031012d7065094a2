/* All models by name. */
#include "nn/models/models.h"
#include "tensor/system/text.h"

#include <string.h>

/* zoo/ can be deleted, and then stands for nothing here. */
#define ZOO &td_densenet_family, &td_botnet_family, &td_efficientnet_family, &td_regnet_family,
static const td_model_family *const families[] = { &td_resnet_family, ZOO &td_gpt_family };
enum { FAMILIES = sizeof families / sizeof *families };

/* Names that others know a model by. */
static const struct {
    const char *other, *name;
} aliases[] = {
    { "regnetx_160", "regnet_x_16gf" },
    { "regnety_160", "regnet_y_16gf" },
    { "regnety_320", "regnet_y_32gf" },
};

static const void *plan_of(const td_model_family *family, int i)
{
    return (const char *)family->plans + (size_t)i * family->size;
}

static const char *name_of(const void *plan)
{
    return *(const char *const *)plan;
}

const char *td_model_name(int i)
{
    for (int f = 0; f < FAMILIES && i >= 0; f++) {
        if (i < families[f]->count) {
            return name_of(plan_of(families[f], i));
        }
        i -= families[f]->count;
    }
    return NULL;
}

static const char *registry_own_name(const char *name)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        if (strcmp(aliases[i].other, name) == 0) {
            return aliases[i].name;
        }
    }
    return name;
}

static td_status unknown_model(const char *name)
{
    enum { MOST = 64 };
    const char *names[MOST];
    int count = 0;
    while (count < MOST && td_model_name(count) != NULL) {
        names[count] = td_model_name(count);
        count++;
    }
    return td_fail(TD_E_ARG, "there is no model '%s'; the nearest name is '%s'", name,
                   td_nearest_name(name, names, count));
}

static td_status check_options(const char *name, const td_model_options *o, bool imagenet_only)
{
    TD_CHECK(o->classes >= 0 && o->image_size >= 0, TD_E_ARG,
             "%s: %lld classes, images of %lld pixels: neither can be negative", name,
             (long long)o->classes, (long long)o->image_size);
    TD_CHECK(o->dropout >= 0.0 && o->dropout < 1.0 && o->stochastic_depth >= 0.0 &&
                 o->stochastic_depth < 1.0,
             TD_E_ARG,
             "%s: dropout %g, stochastic depth %g: probabilities are in [0, 1); TD_ZERO is none",
             name, o->dropout, o->stochastic_depth);
    TD_CHECK(!imagenet_only || o->stem == TD_STEM_IMAGENET, TD_E_ARG,
             "%s has no stem for small images; ResNets have", name);
    return TD_OK;
}

/* Options may follow a GPT's name. */
static bool is_called(const td_model_family *family, const char *own, const char *name)
{
    size_t length = family == &td_gpt_family ? strcspn(name, " ") : strlen(name);
    return strlen(own) == length && strncmp(own, name, length) == 0;
}

td_module *td_model_at(td_model_options o, td_site at)
{
    TD_REQUIRE(o.name != NULL, at, "td_model: the name is NULL");
    const char *name = registry_own_name(o.name);
    for (int f = 0; f < FAMILIES; f++) {
        for (int i = 0; i < families[f]->count; i++) {
            const void *plan = plan_of(families[f], i);
            if (!is_called(families[f], name_of(plan), name)) {
                continue;
            }
            if (check_options(name, &o, !families[f]->stems) != TD_OK) {
                return NULL;
            }
            if (families[f] == &td_gpt_family) { /* it sets its record itself */
                return families[f]->make(plan, &o);
            }
            o.classes = o.classes != 0 ? o.classes : 1000;
            bool blank = td_init_blank(o.blank);
            td_module *m = families[f]->make(plan, &o);
            td_init_blank(blank);
            return td_model_set_record(m, (td_model_record){ .arch = name_of(plan),
                                                             .classes = o.classes,
                                                             .stem = o.stem,
                                                             .image_size = o.image_size });
        }
    }
    unknown_model(name);
    return NULL;
}

/* ---- what a model was made with ---- */

td_module *td_model_set_record(td_module *m, td_model_record record)
{
    if (m != NULL) {
        td_node_of(m)->record = record;
    }
    return m;
}

td_model_record td_model_record_of(const td_module *m)
{
    return td_node_of(m)->record;
}
