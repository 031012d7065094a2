/* safetensors files: named tensors, and strings as metadata (github.com/huggingface/safetensors).
 */
#ifndef TD_NN_SAFETENSORS_H
#define TD_NN_SAFETENSORS_H

#include "nn/checkpoint.h"

TD_BEGIN_C

typedef struct td_safetensors td_safetensors; /* a file opened for reading; its data are mapped */
typedef struct td_safetensors_entry {
    const char *name;
    td_dtype dtype;
    td_shape shape;
    const void *data; /* row-major */
    size_t bytes;
} td_safetensors_entry;
/* Every length, offset, dtype and overlap is checked before anything is used. */
td_status td_safetensors_open(const char *path, td_safetensors **file);
/* The same from memory (for tests and fuzzing); bytes stay the caller's. */
td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file);
int td_safetensors_count(const td_safetensors *file);
const td_safetensors_entry *td_safetensors_get(const td_safetensors *file, int i);
const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name);
const char *td_safetensors_metadata(const td_safetensors *file, const char *key); /* or NULL */
void td_safetensors_close(td_safetensors *file);

/* Writes a file atomically. entries' names must differ. */
td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count);

TD_END_C

#endif
