/* safetensors files: named tensors, and text as metadata. The format is described at
 * github.com/huggingface/safetensors. For whole models and training runs use nn/io/checkpoint.h. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

struct td_metadata; /* nn/io/checkpoint.h */

typedef struct td_safetensors td_safetensors; /* a file that is open for reading */
typedef struct td_safetensors_entry {
    const char *name; /* of an open file: the file owns the name */
    td_dtype dtype;
    td_shape shape;
    const void *data; /* row-major, of a tensor that is written; of an open file NULL */
    size_t bytes;     /* of the data */
} td_safetensors_entry;
/* Opens a file and reads its header. td_safetensors_open checks every length, offset, shape and
 * overlap of the file. TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT; the message says what is wrong, and
 * *file is NULL. */
td_status td_safetensors_open(const char *path, td_safetensors **file);
/* Does the same with a file in memory. The caller keeps bytes until td_safetensors_close. */
td_status td_safetensors_parse(const void *bytes, size_t size, td_safetensors **file);
/* Copies a tensor's data, entry->bytes, to `to`; entry is the file's own (td_safetensors_get,
 * _find). Several threads may read at once. TD_E_IO: reading failed, or the file has become shorter
 * since it was opened. TD_E_UNSUPPORTED: td_safetensors_unknown. */
td_status td_safetensors_read(const td_safetensors *file, const td_safetensors_entry *entry,
                              void *to);
/* The same into a tensor of the entry's shape; float dtypes are converted. TD_E_NOMEM, too. */
td_status td_safetensors_take(const td_safetensors *file, const td_safetensors_entry *entry,
                              td_tensor *to);
/* The number of tensors; the i-th tensor, in the order of the file; the tensor of a name, or NULL;
 * the metadata value of a key, or NULL. The file owns all of these until it is closed. */
int td_safetensors_count(const td_safetensors *file);
const td_safetensors_entry *td_safetensors_get(const td_safetensors *file, int i);
const td_safetensors_entry *td_safetensors_find(const td_safetensors *file, const char *name);
/* NULL, or what the library does not have: the name of the tensor's dtype ("BOOL"), or "of more
 * than 8 dimensions". Then the entry's name and bytes alone mean something. */
const char *td_safetensors_unknown(const td_safetensors *file, const td_safetensors_entry *entry);
const char *td_safetensors_metadata(const td_safetensors *file, const char *key);
void td_safetensors_close(td_safetensors *file); /* NULL is fine */

/* Writes a file, atomically as td_checkpoint_save does. The names of the entries must differ.
 * TD_E_ARG: a name appears twice, or the header has more than 100,000,000 bytes; TD_E_IO. */
td_status td_safetensors_write(const char *path, const td_safetensors_entry *entries, int count,
                               const struct td_metadata *metadata, int metadata_count);

/* The same with entries that td_safetensors_of has made: of tensors, each to be written as a dtype.
 * The tensors and the names stay the caller's. TD_E_NOMEM, too. */
td_status td_safetensors_write_tensors(const char *path, const td_safetensors_entry *entries,
                                       int count, const struct td_metadata *metadata,
                                       int metadata_count);
td_safetensors_entry td_safetensors_of(const char *name, const td_tensor *t, td_dtype dtype);

/* ---- writing in parts ----
 *
 * td_safetensors_plan makes the temporary file with its header. Then you put bytes anywhere into
 * the data of any tensor, in any order, until every byte has been put, and finish the file. The
 * entries' data are not read; entries and path stay the caller's and are not used after the call.
 */

typedef struct td_safetensors_out td_safetensors_out;

/* *out is NULL after a failure. TD_E_ARG: a name appears twice. TD_E_IO; TD_E_NOMEM. */
td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const struct td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out);
/* Writes `size` bytes into tensor i's data, `offset` bytes from their beginning. TD_E_IO. */
td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size);
/* Changes a metadata value of the plan to one of the same length. TD_E_IO. */
td_status td_safetensors_set(td_safetensors_out *out, const char *key, const char *value);
/* keep: waits until the disk has the file, and puts it in the target's place. Otherwise the file is
 * removed and the target is unchanged. Frees out; NULL is fine. TD_E_IO. */
td_status td_safetensors_finish(td_safetensors_out *out, bool keep);

TD_END_C
