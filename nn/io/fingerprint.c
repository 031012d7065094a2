/* Fingerprints of the state of a training run: of its tensors and texts, and of parts of them. */
#include "nn/io/fingerprint.h"

#include "nn/io/records.h"
#include "nn/io/safetensors_internal.h"
#include "tensor/backend.h"
#include "tensor/system/list.h"
#include "tensor/system/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- elements ---- */

static const uint64_t INDEX = 0xbf58476d1ce4e5b9; /* odd, so that all indices stay apart */

/* One to one: both factors are odd, and the shift can be undone. */
static inline uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15;
    x ^= x >> 32;
    return x * 0xd6e8feb86659fd93;
}

/* The elements' bits, whatever they are. */
typedef uint16_t __attribute__((may_alias)) bits16;
typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;

#define ADD_ELEMENTS(TYPE)                                                                         \
    for (int64_t i = 0; i < count; i++, key += step) {                                             \
        sum += mix(key ^ ((const TYPE *)elements)[i]);                                             \
    }

static inline __attribute__((always_inline)) uint64_t
fingerprint_mix(const void *elements, size_t size, uint64_t key, uint64_t step, int64_t count)
{
    uint64_t sum = 0;
    switch (size) {
    case 1:
        ADD_ELEMENTS(uint8_t)
        break;
    case 2:
        ADD_ELEMENTS(bits16)
        break;
    case 4:
        ADD_ELEMENTS(bits32)
        break;
    default:
        ADD_ELEMENTS(bits64)
    }
    return sum;
}

#if defined(__x86_64__)
/* The same, quicker. */
__attribute__((target("avx2"))) static uint64_t
fingerprint_mix_avx2(const void *elements, size_t size, uint64_t key, uint64_t step, int64_t count)
{
    return fingerprint_mix(elements, size, key, step, count);
}
#endif

uint64_t td_fingerprint_elements(uint64_t name, const void *elements, size_t size, int64_t first,
                                 int64_t step, int64_t count)
{
    uint64_t key = name + (uint64_t)first * INDEX, add = (uint64_t)step * INDEX;
#if defined(__x86_64__)
    if (td_cpu_has_avx2()) {
        return fingerprint_mix_avx2(elements, size, key, add, count);
    }
#endif
    return fingerprint_mix(elements, size, key, add, count);
}

uint64_t td_fingerprint_name(const char *name, td_dtype dtype, td_shape shape)
{
    uint64_t hash = td_hash_text(td_hash_text(TD_HASH_BEGIN, name), td_dtype_name(dtype));
    for (int d = 0; d < shape.ndim; d++) {
        hash = mix(hash ^ (uint64_t)shape.dim[d]);
    }
    return mix(hash);
}

uint64_t td_fingerprint_text(const char *key, const char *text)
{
    static const char *const begins[] = { TD_KEY_OPTIMIZER, TD_KEY_EMA, "scaler", TD_KEY_RANDOM,
                                          "dropout." };
    bool counts = false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        counts = counts || strncmp(key, begins[i], strlen(begins[i])) == 0;
    }
    int64_t length = (int64_t)strlen(text);
    uint64_t name = td_fingerprint_name(key, TD_U8, TD_SHAPE(length));
    return counts ? name + td_fingerprint_elements(name, text, 1, 0, 1, length) : 0;
}

/* ---- tensors ---- */

/* All elements, row-major, to be freed. */
static void *read_elements(const td_tensor *t)
{
    void *elements = malloc(td_tensor_bytes(t) + 1);
    if (elements != NULL) {
        td_read(t, elements, t->dtype);
    }
    return elements;
}

td_status td_fingerprint_tensor(uint64_t name, const td_tensor *t, uint64_t *value)
{
    void *elements = read_elements(t);
    TD_CHECK(elements != NULL, TD_E_NOMEM, "no memory for a fingerprint");
    *value += td_fingerprint_elements(name, elements, td_dtype_size(t->dtype), 0, 1, td_numel(t));
    free(elements);
    return TD_OK;
}

/* The same of a part: 1-d, the elements of a tensor like `form` from `begin` on in the order of
 * memory. What is next to each other in memory is `row` apart in row-major order. */
static td_status fingerprint_part(uint64_t name, const td_tensor *form, int64_t begin,
                                  const td_tensor *part, uint64_t *value)
{
    int order[TD_MAX_DIMS] = { 0 }, last = form->ndim - 1; /* dimensions, outermost first */
    int64_t row[TD_MAX_DIMS] = { 1 }, end = begin + td_numel(part), run;
    size_t size = td_dtype_size(part->dtype);
    for (int d = last, k; d >= 0; d--) {
        row[d] = d < last ? row[d + 1] * form->shape[d + 1] : 1;
        for (k = d; k < last && form->stride[order[k + 1]] > form->stride[d]; k++) {
            order[k] = order[k + 1];
        }
        order[k] = d;
    }
    char *elements = read_elements(part);
    TD_CHECK(elements != NULL, TD_E_NOMEM, "no memory for a fingerprint");
    int inner = last >= 0 ? order[last] : 0;
    int64_t length = last >= 0 ? form->shape[inner] : 1;
    for (int64_t at = begin; at < end; at += run) {
        int64_t rest = at / length, index = at % length * row[inner];
        run = length - at % length < end - at ? length - at % length : end - at;
        for (int k = last - 1; k >= 0; rest /= form->shape[order[k--]]) {
            index += rest % form->shape[order[k]] * row[order[k]];
        }
        *value += td_fingerprint_elements(name, elements + (size_t)(at - begin) * size, size, index,
                                          row[inner], run);
    }
    free(elements);
    return TD_OK;
}

/* ---- lists ---- */

void td_fingerprints_free(td_fingerprints *result)
{
    for (int i = 0; i < result->count; i++) {
        free(result->items[i].name);
    }
    free(result->items);
    *result = (td_fingerprints){ 0 };
}

static td_status fingerprints_add(td_fingerprints *f, const char *name, uint64_t value, bool summed,
                                  bool tensor)
{
    char *copy = strdup(name);
    bool room = copy != NULL && td_grow(&f->items, f->count, sizeof *f->items);
    if (!room) {
        free(copy);
        return td_fail(TD_E_NOMEM, "no memory for fingerprints");
    }
    f->items[f->count++] = (td_fingerprint_item){ copy, value, summed, tensor };
    return TD_OK;
}

/* Values in halves of 32 bits, whose sums over ranks f64 holds; or, back, values of the sums. */
static void fingerprints_halve(td_fingerprints *f, double *halves, bool back)
{
    for (int i = 0; i < f->count; i++) {
        td_fingerprint_item *item = &f->items[i];
        if (item->summed && back) {
            item->value = (uint64_t)halves[2 * i] + ((uint64_t)halves[2 * i + 1] << 32);
        } else if (item->summed) {
            halves[2 * i] = (double)(uint32_t)item->value;
            halves[2 * i + 1] = (double)(item->value >> 32);
        }
    }
}

/* Sums over the ranks what each has a part of; then over a pipeline's stages their tensors. */
static td_status fingerprints_sum(td_fingerprints *f, const td_params_peers *peers,
                                  const td_staging *stages)
{
    double *halves = calloc(2 * (size_t)f->count + 1, sizeof *halves);
    td_status status = halves != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory for fingerprints");
    status = td_records_agree(peers, NULL, status);
    status = stages != NULL ? stages->agree(status, stages->user) : status;
    if (status == TD_OK && halves != NULL && peers != NULL) {
        fingerprints_halve(f, halves, false);
        peers->sum(halves, 2 * f->count, peers->user);
        fingerprints_halve(f, halves, true);
        status = td_records_agree(peers, NULL, TD_OK); /* the sum of a broken group is none */
    }
    for (int i = 0; i < f->count; i++) {
        f->items[i].summed = f->items[i].tensor;
    }
    if (status == TD_OK && halves != NULL && stages != NULL) {
        fingerprints_halve(f, halves, false);
        status = stages->sum(halves, 2 * f->count, stages->user);
        fingerprints_halve(f, halves, true);
    }
    for (int i = 0; i < f->count; i++) {
        f->all += f->items[i].value;
    }
    free(halves);
    return status;
}

/* ---- a run ---- */

/* Of the whole tensor of which ranks have slices. Collective. */
static td_status fingerprint_slice(const td_slicing *slicing, const td_cut *cut, const char *name,
                                   const td_tensor *slice, uint64_t *value)
{
    td_shape shape = slicing->type->whole(slicing, cut);
    td_tensor *whole = td_new(shape, slice->dtype, td_device_of(slice));
    td_status status = slicing->agree(whole != NULL ? TD_OK : TD_E_NOMEM, slicing->user);
    status = status == TD_OK ? slicing->type->gather(slicing, cut, slice, whole) : status;
    status = status == TD_OK ? td_fingerprint_tensor(td_fingerprint_name(name, slice->dtype, shape),
                                                     whole, value)
                             : status;
    td_free(whole);
    return status;
}

/* This rank's window of a record; of slices, all of this rank's slice. */
static td_status fingerprint_window(const td_records *l, const td_params *params, uint64_t name,
                                    const td_tensor_record *r, uint64_t *value)
{
    const td_tensor *t = r->tensor;
    td_window here = td_params_here(params, r->param);
    bool collects = r->cut != NULL && td_params_peers_of(params) != NULL;
    int64_t count = collects ? td_numel(t) : here.count;
    if (count == 0) {
        return TD_OK;
    }
    td_tensor *part = td_zeros(TD_SHAPE(count), t->dtype, td_device_of(r->window)), slice;
    TD_CHECK(part != NULL, TD_E_NOMEM, "no memory for a fingerprint");
    td_status status = collects ? td_params_collect(params, r->window, r->param, part)
                                : td_params_take(params, r->window, r->param, part);
    if (status == TD_OK && r->cut != NULL) {
        td_init_header(&slice, part->storage, 0, td_shape_of(t), t->stride, t->dtype);
        status = fingerprint_slice(l->slicing, r->cut, r->name, &slice, value);
    } else if (status == TD_OK) {
        int64_t begin = here.begin - td_params_get(params, r->param)->begin;
        status = fingerprint_part(name, t, begin, part, value);
    }
    td_free(part);
    return status;
}

/* Adds what this rank has of a record. */
static td_status fingerprint_record(td_fingerprints *f, const td_records *l,
                                    const td_params *params, const td_params_peers *peers,
                                    const td_tensor_record *r)
{
    uint64_t name = td_fingerprint_name(r->name, r->tensor->dtype, td_shape_of(r->tensor));
    uint64_t value = 0; /* of what other ranks have */
    td_status status = TD_OK;
    if (l->stages != NULL && r->stage != l->stages->rank) {
        return fingerprints_add(f, r->name, 0, false, true);
    }
    if (r->window != NULL) {
        status = fingerprint_window(l, params, name, r, &value);
    } else if (r->cut != NULL) {
        status = fingerprint_slice(l->slicing, r->cut, r->name, r->tensor, &value);
    } else if (peers == NULL || r->owner == 0 || r->owner == peers->rank) {
        status = td_fingerprint_tensor(name, r->tensor, &value);
    }
    bool summed = peers != NULL && r->cut == NULL && (r->window != NULL || r->owner > 0);
    return status == TD_OK ? fingerprints_add(f, r->name, value, summed, true) : status;
}

static td_status fingerprint_records(td_fingerprints *f, const td_records *list,
                                     const td_params *params, const td_params_peers *peers)
{
    TD_TRY(list->failed ? td_fail(TD_E_NOMEM, "no memory for a fingerprint") : TD_OK);
    for (int i = 0; i < list->tensor_count; i++) {
        TD_TRY(fingerprint_record(f, list, params, peers, &list->tensors[i]));
    }
    for (int i = 0; i < list->text_count; i++) {
        uint64_t value = td_fingerprint_text(list->texts[i].key, list->texts[i].text);
        TD_TRY(value != 0 ? fingerprints_add(f, list->texts[i].key, value, false, false) : TD_OK);
    }
    return TD_OK;
}

td_status td_fingerprint_at(td_fingerprints *result, td_checkpoint_options options, td_site at)
{
    *result = (td_fingerprints){ 0 };
    td_records_require(&options, "td_fingerprint", at);
    TD_TRY(td_records_check_gradients(&options)); /* the same on all ranks */
    td_records list = { .options = &options };
    const td_params *together = td_records_together(&options);
    const td_params_peers *peers = together != NULL ? td_params_ranks_of(together) : NULL;
    td_records_list(&list);
    td_status status = fingerprint_records(result, &list, td_params_laid_out(options.model), peers);
    status = td_records_agree_all(options.model, peers, status);
    td_records_free(&list);
    return status == TD_OK ? fingerprints_sum(result, peers, list.stages) : status;
}

td_status td_fingerprint_gradients(td_fingerprints *result, const td_params *params)
{
    const td_params_peers *peers = td_params_peers_of(params);
    const td_slicing *slicing = params->slicing;
    td_status status = TD_OK;
    *result = (td_fingerprints){ 0 };
    for (int i = 0; status == TD_OK && i < td_params_count(params); i++) {
        const td_param *p = td_params_get(params, i);
        const td_tensor *grad = td_grad(p->tensor);
        uint64_t name = td_fingerprint_name(p->name, p->tensor->dtype, td_shape_of(p->tensor));
        uint64_t value = 0;
        td_window here = td_params_here(params, i);
        if (grad != NULL && peers != NULL && here.count > 0) {
            td_tensor part =
                td_params_part(td_params_flat_grad(params), here.place + here.to_grads, here.count);
            status = fingerprint_part(name, p->tensor, here.begin - p->begin, &part, &value);
        } else if (grad != NULL && peers == NULL) {
            const td_cut *cut = slicing != NULL ? slicing->type->of(slicing, p->tensor) : NULL;
            status = cut != NULL ? fingerprint_slice(slicing, cut, p->name, grad, &value)
                                 : td_fingerprint_tensor(name, grad, &value);
        }
        status = status == TD_OK ? fingerprints_add(result, p->name, value, peers != NULL, true)
                                 : status;
    }
    status = td_records_agree(peers, NULL, status);
    return status == TD_OK ? fingerprints_sum(result, peers, NULL) : status;
}

/* ---- a file ---- */

static td_status fingerprint_entry(td_fingerprints *f, const td_safetensors *file,
                                   const td_safetensors_entry *e)
{
    void *data = malloc(e->bytes + 1);
    TD_CHECK(data != NULL, TD_E_NOMEM, "no memory to read '%s'", e->name);
    td_status status = td_safetensors_read(file, e, data);
    if (status == TD_OK) {
        size_t size = td_dtype_size(e->dtype);
        uint64_t name = td_fingerprint_name(e->name, e->dtype, e->shape);
        int64_t count = (int64_t)(e->bytes / size);
        uint64_t value = td_fingerprint_elements(name, data, size, 0, 1, count);
        status = fingerprints_add(f, e->name, value, false, true);
    }
    free(data);
    return status;
}

td_status td_fingerprint_file(td_fingerprints *result, const td_safetensors *file)
{
    const char *key, *text;
    *result = (td_fingerprints){ 0 };
    for (int i = 0; i < file->count; i++) {
        TD_TRY(fingerprint_entry(result, file, &file->entries[i]));
    }
    for (int i = 0; i < file->text_count; i++) {
        td_safetensors_text(file, i, &key, &text);
        uint64_t value = td_fingerprint_text(key, text);
        TD_TRY(value != 0 ? fingerprints_add(result, key, value, false, false) : TD_OK);
    }
    return fingerprints_sum(result, NULL, NULL);
}

td_status td_fingerprint_check(const td_safetensors *file, const char *path)
{
    const char *said = td_safetensors_metadata(file, TD_KEY_FINGERPRINT);
    if (said == NULL) {
        return TD_OK;
    }
    char text[32];
    td_fingerprints found;
    td_status status = td_fingerprint_file(&found, file);
    snprintf(text, sizeof text, "%016" PRIx64, found.all);
    td_fingerprints_free(&found);
    TD_TRY(status);
    TD_CHECK(strcmp(text, said) == 0, TD_E_FORMAT,
             "'%s' has changed since it was saved, or the disk has damaged it: its content has the "
             "fingerprint %s, and its metadata say %.40s. Use another checkpoint; if a program of "
             "yours has changed it on purpose, that must remove the metadata value '%s', too",
             path, text, said, TD_KEY_FINGERPRINT);
    return TD_OK;
}
