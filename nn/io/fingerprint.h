/* Fingerprints: numbers of 64 bits that tell whether two states of a training run have the same
 * bits, however the runs are spread over ranks.
 *
 * A fingerprint is the sum, modulo 2^64, of mix(name, index, bits) over all elements of all
 * tensors; `index` counts row-major in the whole tensor. Parts of a tensor add up, so each rank
 * adds what it has, and the sum depends neither on the number of ranks, nor on what they share, nor
 * on the order in memory. mix(name, index, .) is one to one: a tensor in which one element has
 * changed always has another fingerprint; other changes go unnoticed with a probability of 2^-64.
 * (That is no protection against somebody who changes a file on purpose.)
 *
 * What counts: parameters, buffers, state and steps of optimizers, averages, gradients that wait
 * for more, tensors of the program's own, and the states of random generators, of Dropouts and of
 * the loss scaler. The loader's place, the program's metadata and the order in memory do not count.
 * td_checkpoint_save writes the fingerprint into the file's metadata ("tandem.fingerprint", 16
 * hexadecimal digits), and td_checkpoint_load refuses a file whose content has another one. */
#pragma once

#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"

TD_BEGIN_C

#define TD_KEY_FINGERPRINT "tandem.fingerprint"

/* The fingerprint of each tensor and text, in the order of a checkpoint. */
typedef struct td_fingerprint_item {
    char *name;
    uint64_t value;
    bool summed; /* over the ranks: each has a part */
    bool tensor; /* not a text, which every stage of a pipeline has */
} td_fingerprint_item;
typedef struct td_fingerprints {
    td_fingerprint_item *items;
    int count;
    uint64_t all; /* the sum of all: the fingerprint */
} td_fingerprints;

/* The fingerprint of what td_checkpoint_save would save with these options, path apart. What ranks
 * share is summed over them: if td_saves_together(model) is true, all ranks call it, as they call
 * td_checkpoint_save. What every rank has whole is not exchanged: there each rank has the
 * fingerprint of its own copy. Free the result by td_fingerprints_free, also after a failure.
 * TD_E_NOMEM; TD_E_UNSUPPORTED as td_checkpoint_save; or what the exchange of the ranks says. */
td_status td_fingerprint_at(td_fingerprints *result, td_checkpoint_options options, td_site at);
#define td_fingerprint(RESULT, ...)                                                                \
    td_fingerprint_at(                                                                             \
        RESULT, (td_checkpoint_options){ .begin_ = 0, .path = "", TD_NAME(model) __VA_ARGS__ },    \
        TD_HERE)
/* The same of the gradients, under the parameters' names; 0: a parameter has none. All ranks call
 * it if they share the optimizer's state or have slices. If they do both, the sum depends on the
 * number of slices. */
td_status td_fingerprint_gradients(td_fingerprints *result, const td_params *params);
/* The same of a file's content. TD_E_IO; TD_E_UNSUPPORTED: td_safetensors_unknown. */
td_status td_fingerprint_file(td_fingerprints *result, const td_safetensors *file);
void td_fingerprints_free(td_fingerprints *result);

/* TD_E_FORMAT unless the file's content has the fingerprint of the file's metadata. A file without
 * one is fine. path: for the message. */
td_status td_fingerprint_check(const td_safetensors *file, const char *path);

/* ---- the parts of a sum ---- */

/* What a tensor's name, dtype and shape add to the numbers below. */
uint64_t td_fingerprint_name(const char *name, td_dtype dtype, td_shape shape);
/* `count` elements of `size` bytes each (1, 2, 4, 8), one after the other, which are elements
 * first, first + step, ... of their tensor. */
uint64_t td_fingerprint_elements(uint64_t name, const void *elements, size_t size, int64_t first,
                                 int64_t step, int64_t count);
/* All of a tensor, of any device and any strides; *value is added to. TD_E_NOMEM. */
td_status td_fingerprint_tensor(uint64_t name, const td_tensor *t, uint64_t *value);
/* A text of the metadata; 0: the key is none of those that count. */
uint64_t td_fingerprint_text(const char *key, const char *text);

TD_END_C
