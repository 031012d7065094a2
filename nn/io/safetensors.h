/* safetensors files: named tensors, and text as metadata. The format is described at
 * github.com/huggingface/safetensors. For whole models and training runs use nn/io/checkpoint.h. */
#ifndef TD_NN_IO_SAFETENSORS_H
#define TD_NN_IO_SAFETENSORS_H

#include "tensor/tensor.h"

TD_BEGIN_C

struct td_metadata; /* nn/io/checkpoint.h */

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
                               const struct td_metadata *metadata, int metadata_count);

/* ---- writing in parts ----
 *
 * One process plans a file: it makes the temporary file with the header. Other processes may join
 * by the file's place, which the first tells them; they have the same entries. Each process puts
 * bytes anywhere into the data of any tensor, in any order, until every byte has been put by
 * somebody. The processes that joined finish before the first does. The entries' data are not read;
 * entries and path stay the caller's and are not used after the call. */

typedef struct td_safetensors_out td_safetensors_out;
typedef struct td_safetensors_place {
    char file[4096]; /* the temporary file */
    int64_t data;    /* where its data begin */
    int64_t bytes;   /* of all its data */
} td_safetensors_place;

/* *out is NULL after a failure. TD_E_ARG: a name appears twice. TD_E_IO; TD_E_NOMEM. */
td_status td_safetensors_plan(const char *path, const td_safetensors_entry *entries, int count,
                              const struct td_metadata *metadata, int metadata_count,
                              td_safetensors_out **out);
const td_safetensors_place *td_safetensors_place_of(const td_safetensors_out *out);
/* TD_E_IO also if this host does not see the file; then other processes must put its part.
 * TD_E_MISMATCH: the entries are not those of the plan. */
td_status td_safetensors_join(const td_safetensors_place *place,
                              const td_safetensors_entry *entries, int count,
                              td_safetensors_out **out);
/* Writes `size` bytes into tensor i's data, `offset` bytes from their beginning. TD_E_IO. */
td_status td_safetensors_put(td_safetensors_out *out, int i, int64_t offset, const void *bytes,
                             size_t size);
/* Waits until the disk has what was put. TD_E_IO. */
td_status td_safetensors_sync(td_safetensors_out *out);
/* keep: syncs the file, and in the process that planned it puts it in the target's place. Otherwise
 * the file is removed and the target is unchanged. Frees out; NULL is fine. */
td_status td_safetensors_finish(td_safetensors_out *out, bool keep);

TD_END_C

#endif
