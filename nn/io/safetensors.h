/* safetensors files: named tensors, and text as metadata. The format is described at
 * github.com/huggingface/safetensors. For whole models and training runs use nn/io/checkpoint.h. */
#ifndef TD_NN_IO_SAFETENSORS_H
#define TD_NN_IO_SAFETENSORS_H

#include "nn/io/checkpoint.h"

TD_BEGIN_C

typedef struct td_safetensors
    td_safetensors; /* a file that is open for reading; its data are mapped */
typedef struct td_safetensors_entry {
    const char *name;
    td_dtype dtype;
    td_shape shape;
    const void *data; /* row-major; an open file owns the data, and its name */
    size_t bytes;
} td_safetensors_entry;
/* Opens a file. td_safetensors_open checks every length, offset, dtype and overlap of the file.
 * TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT; the message says what is wrong, and *file is NULL. */
td_status td_safetensors_open(const char *path, td_safetensors **file);
/* Does the same with a file in memory. The caller keeps bytes until td_safetensors_close. */
td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file);
/* The number of tensors; the i-th tensor, in the order of the file; the tensor of a name, or NULL;
 * the metadata value of a key, or NULL. The file owns all of these until it is closed. */
int td_safetensors_count(const td_safetensors *file);
const td_safetensors_entry *td_safetensors_get(const td_safetensors *file, int i);
const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name);
const char *td_safetensors_metadata(const td_safetensors *file, const char *key);
void td_safetensors_close(td_safetensors *file); /* NULL is fine */

/* Writes a file, atomically as td_checkpoint_save does. The names of the entries must differ. */
td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const td_metadata *metadata, int metadata_count);

TD_END_C

#endif
