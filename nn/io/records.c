#include "nn/io/records.h"

#include "autograd/hooks.h"
#include "nn/extra/ema_internal.h"
#include "nn/extra/scaler.h"
#include "nn/internal.h"
#include "nn/optim/optim_internal.h"
#include "nn/params.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 10 }; /* differences in a message */

char *td_format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = NULL;
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        td_fail(TD_E_NOMEM, "no memory for a name in a checkpoint");
        return NULL;
    }
    return text;
}

void td_differ(td_difference *d, const char *format, ...)
{
    size_t length = strlen(d->text), left = sizeof d->text - length;
    if (d->count < LISTED && left > 16) {
        char item[256];
        va_list args;
        va_start(args, format);
        vsnprintf(item, sizeof item, format, args);
        va_end(args);
        snprintf(d->text + length, left - 6, "%s%s", d->count > 0 ? ", " : "", item);
    } else if (d->count == LISTED) { /* room was left for it */
        memcpy(d->text + length, ", ...", 6);
    }
    d->count++;
}

/* ---- kinds of text ---- */

static char *put_string(const void *of)
{
    return td_format("%s", (const char *)of);
}

static const td_text_kind string = { put_string, NULL, NULL };

static char *put_count(const void *of)
{
    return td_format("%" PRId64, *(const int64_t *)of);
}

bool td_read_count(const char *text, int64_t most, int64_t *count)
{
    char *end;
    *count = strtoll(text, &end, 10);
    return end != text && *end == '\0' && *count >= 0 && *count <= most;
}

static bool take_count(void *of, const char *text, bool set)
{
    int64_t count = 0;
    if (text != NULL && !td_read_count(text, TD_MOST_COUNT, &count)) {
        return false;
    }
    if (set) {
        *(int64_t *)of = count;
    }
    return true;
}

static const td_text_kind a_count = { put_count, take_count, "which is no count" };

static char *put_rate(const void *of)
{
    return td_format("%.17g", *(const double *)of);
}

static bool take_rate(void *of, const char *text, bool set)
{
    char *end;
    double value = text != NULL ? strtod(text, &end) : 0;
    if (text != NULL && (end == text || *end != '\0' || !(value >= 0 && value < INFINITY))) {
        return false;
    }
    if (set && text != NULL) {
        *(double *)of = value;
    }
    return true;
}

static const td_text_kind rate = { put_rate, take_rate, "which is no learning rate" };

static char *put_scaler(const void *of)
{
    td_scaler_state now = td_scaler_now((td_scaler *)(uintptr_t)of);
    return td_format("%.17g %" PRId64 " %" PRId64, now.scale, now.good, now.skipped);
}

/* A file without a scaler is of a run in another precision. */
static bool take_scaler(void *of, const char *text, bool set)
{
    td_scaler_state s;
    int used = 0;
    if (text == NULL) {
        return true;
    }
    if (sscanf(text, "%lf %" SCNd64 " %" SCNd64 "%n", &s.scale, &s.good, &s.skipped, &used) != 3 ||
        text[used] != '\0' || !(s.scale > 0 && s.scale < INFINITY) || s.good < 0 ||
        s.good > TD_MOST_COUNT || s.skipped < 0 || s.skipped > TD_MOST_COUNT) {
        return false;
    }
    if (set) {
        td_scaler_set(of, &s);
    }
    return true;
}

static const td_text_kind a_scaler = { put_scaler, take_scaler,
                                       "which is no loss scale with two counts" };

static char *put_dropout(const void *of)
{
    const td_dropout_place *place = of;
    return td_format("%" PRIu64 " %" PRIu64, place->seed, place->calls);
}

static bool take_dropout(void *of, const char *text, bool set)
{
    td_dropout_place place;
    if (text == NULL || sscanf(text, "%" SCNu64 " %" SCNu64, &place.seed, &place.calls) != 2) {
        return false;
    }
    if (set) {
        *(td_dropout_place *)of = place;
    }
    return true;
}

static const td_text_kind dropout = { put_dropout, take_dropout, "which is not two numbers" };

/* ---- a generator's whole state ---- */

enum { WORDS = 624, DIGITS = 8 /* of a word */ };

static char *put_generator(const void *of)
{
    const td_generator *g = of;
    uint64_t cached;
    memcpy(&cached, &g->cached_normal, sizeof cached);
    char words[WORDS * DIGITS + 1];
    for (int i = 0; i < WORDS; i++) {
        snprintf(words + (ptrdiff_t)DIGITS * i, DIGITS + 1, "%08" PRIx32, g->state[i]);
    }
    return td_format("%" PRIu64 " %d %d %016" PRIx64 " %s", g->seed, (int)g->next,
                     (int)g->has_cached, cached, words);
}

static bool take_generator(void *of, const char *text, bool set)
{
    td_generator g;
    uint64_t cached;
    int at = 0;
    if (text == NULL ||
        sscanf(text, "%" SCNu64 " %" SCNd32 " %" SCNd32 " %" SCNx64 " %n", &g.seed, &g.next,
               &g.has_cached, &cached, &at) != 4 ||
        at == 0 || g.next < 0 || g.next > WORDS || g.has_cached < 0 || g.has_cached > 1) {
        return false;
    }
    const char *words = text + at;
    if (strspn(words, "0123456789abcdef") != WORDS * DIGITS || words[WORDS * DIGITS] != '\0') {
        return false;
    }
    for (int i = 0; i < WORDS; i++) {
        (void)sscanf(words + (ptrdiff_t)DIGITS * i, "%8" SCNx32, &g.state[i]);
    }
    memcpy(&g.cached_normal, &cached, sizeof cached);
    if (set) {
        *(td_generator *)of = g;
    }
    return true;
}

static const td_text_kind generator = { put_generator, take_generator,
                                        "which is no state of a generator" };

/* ---- the order of parameters in memory, "2 0 1": the k-th number is the k-th in memory ---- */

/* Data parallelism lays parameters out in the order in which gradients become ready. */
static bool is_moved(const td_params *params)
{
    int k = 0, count = td_params_count(params);
    while (k < count && td_params_order(params)[k] == k) {
        k++;
    }
    return k < count;
}

/* Whether a tape still knows of the parameters: what it has saved must not move. */
static bool in_use(const td_params *params)
{
    bool used = false;
    for (int i = 0; i < td_params_count(params); i++) {
        used = used || td_leaf_uses(td_params_get(params, i)->tensor) > 0;
    }
    return used;
}

static char *put_order(const void *of)
{
    enum { LONGEST = 12 }; /* of a number, and the space */
    int count = td_params_count(of);
    const int *order = td_params_order(of);
    char *text = malloc((size_t)count * LONGEST + 1);
    size_t at = 0;
    for (int k = 0; text != NULL && k < count; k++) {
        at += (size_t)snprintf(text + at, LONGEST + 1, "%s%d", k > 0 ? " " : "", order[k]);
    }
    return text;
}

/* The numbers of a text, which are a permutation, into order, of room for as many as the text has
 * bytes. Returns how many; 0: no permutation. */
static int read_order(const char *text, int *order)
{
    int count = 0;
    for (char *end; *text != '\0'; text = *end == ' ' ? end + 1 : end) {
        long number = strtol(text, &end, 10);
        if (end == text || (*end != ' ' && *end != '\0') || number < 0 || number > INT32_MAX) {
            return 0;
        }
        order[count++] = (int)number;
    }
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    bool valid = seen != NULL;
    for (int k = 0; valid && k < count; k++) {
        valid = order[k] < count && !seen[order[k]];
        if (valid) {
            seen[order[k]] = true;
        }
    }
    free(seen);
    return valid ? count : 0;
}

/* Other parameters may take gradients here than when the file was made: then the order has no
 * meaning, and the present one stays; so it does where ranks share state by its place. */
static bool take_order(void *of, const char *text, bool set)
{
    if (text == NULL || in_use(of) || td_params_peers_of(of) != NULL) {
        return true;
    }
    int count = td_params_count(of);
    int *order = calloc(strlen(text) + 1, sizeof *order);
    int there = order != NULL ? read_order(text, order) : 0;
    bool fits = there > 0;
    if (set && fits && there == count &&
        memcmp(order, td_params_order(of), (size_t)count * sizeof *order) != 0) {
        fits = td_params_reorder(of, order) == TD_OK;
    }
    free(order);
    return fits;
}

static const td_text_kind an_order = { put_order, take_order, "which is no order" };

/* ---- the list ---- */

/* Room for one more: it doubles. */
static void *grow(td_records *l, void *items, int count, size_t size)
{
    if ((count & (count - 1)) != 0) {
        return items;
    }
    void *more = realloc(items, (size_t)(count > 0 ? 2 * count : 1) * size);
    l->failed = l->failed || more == NULL;
    return more != NULL ? more : items;
}

/* Takes the name over, and the tensor if it is a view. */
static void add_tensor(td_records *l, td_tensor_part part, char *name, td_tensor *t, bool view)
{
    l->failed = l->failed || name == NULL || t == NULL;
    l->tensors = grow(l, l->tensors, l->tensor_count, sizeof *l->tensors);
    if (l->failed) {
        free(name);
        td_free(view ? t : NULL);
        return;
    }
    l->tensors[l->tensor_count++] =
        (td_tensor_record){ .name = name, .tensor = t, .view = view, .part = part };
}

/* Parameter i's part of what the ranks may share, or what is packed: `flat`, a window then. */
static void add_share(td_records *l, td_tensor_part part, char *name, const td_params *params,
                      int i, td_tensor *flat, bool shared)
{
    add_tensor(l, part, name,
               shared ? td_params_get(params, i)->tensor : td_params_view(params, flat, i),
               !shared);
    if (shared && !l->failed) {
        l->tensors[l->tensor_count - 1].window = flat;
        l->tensors[l->tensor_count - 1].param = i;
    }
}

/* Takes the key over. */
static void add_text(td_records *l, char *key, const td_text_kind *kind, const void *of)
{
    char *text = l->file == NULL && key != NULL ? kind->put(of) : NULL;
    l->failed = l->failed || key == NULL || (l->file == NULL && text == NULL);
    l->texts = grow(l, l->texts, l->text_count, sizeof *l->texts);
    if (l->failed) {
        free(key);
        free(text);
        return;
    }
    l->texts[l->text_count++] =
        (td_text_record){ .key = key, .text = text, .kind = kind, .of = (void *)(uintptr_t)of };
}

static void add(td_records *l, const char *key, const td_text_kind *kind, const void *of)
{
    add_text(l, td_format("%s", key), kind, of);
}

void td_records_free(td_records *list)
{
    for (int i = 0; i < list->tensor_count; i++) {
        free(list->tensors[i].name);
        td_free(list->tensors[i].view ? list->tensors[i].tensor : NULL);
    }
    for (int i = 0; i < list->text_count; i++) {
        free(list->texts[i].key);
        free(list->texts[i].text);
    }
    free(list->tensors);
    free(list->texts);
}

/* ---- the parts ---- */

/* Which parameter a tensor is; -1: none. */
static int number_of(const td_params *params, const td_tensor *t)
{
    int i = td_params_count(params) - 1;
    while (i >= 0 && td_params_get(params, i)->tensor != t) {
        i--;
    }
    return i;
}

/* Whether ranks have a window of the values alone. */
static bool shares_values(const td_params *params)
{
    const td_params_peers *peers = params != NULL ? td_params_peers_of(params) : NULL;
    return peers != NULL && peers->own_values;
}

static void list_model(td_records *l, td_module *model)
{
    const td_params *params = td_params_laid_out(model);
    td_state_list state = td_module_state(model);
    l->failed = state.count < 0;
    for (int i = 0; i < state.count; i++) {
        td_tensor *t = state.items[i].tensor;
        char *name = td_format("%s", state.items[i].name);
        int number = shares_values(params) ? number_of(params, t) : -1;
        if (number >= 0) {
            add_share(l, TD_PART_MODEL, name, params, number, td_params_flat(params), true);
        } else {
            add_tensor(l, TD_PART_MODEL, name, t, false);
        }
    }
    td_state_list_free(&state);
}

/* What td_load_model makes the model with, and the program's own. */
static void list_notes(td_records *l, const td_checkpoint_options *c)
{
    int64_t format = TD_CHECKPOINT_FORMAT;
    td_model_record r = td_model_record_of(c->model); /* all zero if another way made the model */
    add(l, TD_KEY_FORMAT, &a_count, &format);
    if (r.arch != NULL) {
        add(l, TD_KEY_ARCH, &string, r.arch);
        add(l, TD_KEY_CLASSES, &a_count, &r.classes);
        add(l, TD_KEY_STEM, &string, r.stem == TD_STEM_CIFAR ? "cifar" : "imagenet");
    }
    if (r.image_size > 0) {
        add(l, TD_KEY_IMAGE_SIZE, &a_count, &r.image_size);
    }
    if (r.widths[0] > 0) {
        char widths[64];
        snprintf(widths, sizeof widths, "%" PRId64 " %" PRId64 " %" PRId64, r.widths[0],
                 r.widths[1], r.widths[2]);
        add(l, TD_KEY_WIDTHS, &string, widths);
    }
    if (r.unit_head) {
        add(l, TD_KEY_UNIT_HEAD, &string, "yes");
    }
    for (int i = 0; i < c->metadata_count; i++) {
        add(l, c->metadata[i].key, &string, c->metadata[i].value);
    }
}

/* A parameter that has made no step, here or in the file, has no state there. */
static void list_parameter(td_records *l, td_optim *o, int i)
{
    const char *path = td_params_get(o->params, i)->name;
    char *key = td_format(TD_KEY_OPTIMIZER_STEP, path);
    int64_t steps = o->steps[i];
    if (l->file != NULL && key != NULL) {
        steps = 0;
        (void)take_count(&steps, td_safetensors_metadata(l->file, key), true);
    }
    if (l->file == NULL && steps == 0) {
        free(key);
        return;
    }
    add_text(l, key, &a_count, &o->steps[i]);
    td_tensor_part part = steps > 0 ? TD_PART_OTHER : TD_PART_EMPTY;
    bool shared = td_params_peers_of(o->params) != NULL || o->kind->packed != TD_F32;
    for (int k = 0; k < TD_OPTIM_STATES; k++) {
        td_tensor *own = NULL;
        bool has_own = o->kind->own_state != NULL && o->kind->own_state(o, i, k, &own);
        char *name = o->kind->states[k] != NULL
                         ? td_format(TD_KEY_OPTIMIZER "%s.%s", path, o->kind->states[k])
                         : NULL;
        if (has_own) {
            add_tensor(l, part, name, own, true);
        } else if (o->kind->own_state == NULL && o->state[k] != NULL) {
            add_share(l, part, name, o->params, i, o->state[k], shared);
        } else {
            free(name);
        }
    }
}

static void list_optimizer(td_records *l, td_optim *o)
{
    const char *here = o->kind->name, *kind = here;
    if (l->file == NULL) {
        td_optim_settle(o);
    } else {
        kind = td_safetensors_metadata(l->file, TD_KEY_OPTIMIZER_KIND);
    }
    if (kind == NULL) {
        td_differ(&l->missing, "the state of an optimizer (%s)", here);
        return;
    }
    if (strcmp(kind, here) != 0) {
        td_differ(&l->unlike, "the optimizer is %.20s in the file, %s here", kind, here);
        return;
    }
    add(l, TD_KEY_OPTIMIZER_KIND, &string, here);
    add(l, TD_KEY_OPTIMIZER_LR, &rate, &o->lr);
    for (int i = 0; i < td_params_count(o->params); i++) {
        list_parameter(l, o, i);
    }
}

static void list_averages(td_records *l, td_ema *e)
{
    if (l->file == NULL) {
        td_ema_settle(e);
    } else if (td_safetensors_metadata(l->file, TD_KEY_EMA_UPDATES) == NULL) {
        td_differ(&l->missing, "averages of the weights (%s*)", TD_KEY_EMA);
        return;
    }
    add(l, TD_KEY_EMA_UPDATES, &a_count, td_ema_count(e));
    for (int i = 0; i < td_params_count(e->of.params); i++) {
        add_share(l, TD_PART_OTHER,
                  td_format(TD_KEY_EMA "%s", td_params_get(e->of.params, i)->name), e->of.params, i,
                  e->of.flat, shares_values(e->of.params));
    }
    for (int i = 0; i < e->of.buffer_count; i++) {
        add_tensor(l, TD_PART_OTHER, td_format(TD_KEY_EMA "%s", e->of.buffers[i].name),
                   e->of.buffers[i].copy, false);
    }
}

static void list_dropout(td_module *m, const char *path, void *user)
{
    const td_dropout_place *place = td_dropout_place_of(m);
    if (place != NULL) {
        add_text(user, td_format(TD_KEY_DROPOUT, path), &dropout, place);
    }
}

void td_records_list(td_records *l)
{
    const td_checkpoint_options *c = l->options;
    list_model(l, c->model);
    if (l->file == NULL) {
        list_notes(l, c);
    }
    if (c->optim != NULL) {
        list_optimizer(l, c->optim);
    }
    if (c->ema != NULL) {
        list_averages(l, c->ema);
    }
    for (int i = 0; i < c->extra_count; i++) {
        add_tensor(l, TD_PART_OTHER, td_format("%s", c->extra[i].name), c->extra[i].tensor, false);
        if (!l->failed) {
            l->tensors[l->tensor_count - 1].owner = c->extra[i].owner;
        }
    }
    if (c->scaler != NULL) {
        add(l, TD_KEY_SCALER, &a_scaler, c->scaler);
    }
    if (c->with_random) {
        add(l, TD_KEY_RANDOM, &generator, td_default_generator());
        td_module_each(c->model, list_dropout, l);
    }
    const td_params *params = td_params_laid_out(c->model);
    bool ours = params != NULL && td_params_peers_of(params) == NULL; /* not the ranks' */
    if (params != NULL && (l->file != NULL || (ours && is_moved(params)))) {
        add(l, TD_KEY_ORDER, &an_order, params);
    }
}
