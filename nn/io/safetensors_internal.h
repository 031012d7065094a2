/* The safetensors format, seen from inside. Users do not include this.
 *
 * A file is: the header's length (8 bytes, little-endian); the header, a JSON object; the data. The
 * header maps each tensor's name to {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, bytes
 * counted from the beginning of the data, row-major, little-endian; the data have no holes and no
 * overlaps. "__metadata__" maps strings to strings. (Source: the format's description at
 * github.com/huggingface/safetensors.) */
#ifndef TD_NN_IO_SAFETENSORS_INTERNAL_H
#define TD_NN_IO_SAFETENSORS_INTERNAL_H

#include "nn/io/safetensors.h"

#define TD_SAFETENSORS_MAX_HEADER 100000000 /* bytes: the format's own limit */
#define TD_SAFETENSORS_METADATA "__metadata__"

struct td_safetensors {
    void *map; /* the mapped file; NULL: the bytes are the caller's */
    size_t map_size;
    struct cJSON *header;          /* names and metadata point into it */
    const struct cJSON *metadata;  /* NULL: none */
    td_safetensors_entry *entries; /* in the order of their data */
    void **copies;                 /* aligned copies of data that are not; mostly NULL */
    int *by_name;                  /* numbers of entries, sorted by name */
    int count;
};

/* Parses the header's text, checks every entry by itself, and lists the entries. What has been made
 * when it fails is the file's, for td_safetensors_close. */
td_status td_safetensors_read_header(td_safetensors *file, const char *text, size_t size,
                                     const char *data, int64_t data_size);

/* "F32", or NULL for a dtype that the format does not have. */
const char *td_safetensors_dtype_name(td_dtype dtype);

/* Gives the data of entry i, which are used before the next call; NULL with td_last_error() ends
 * the writing. */
typedef const void *(*td_safetensors_fetch)(int i, void *user);

/* td_safetensors_write for data that are made one after the other; entries[i].data is not read. */
td_status td_safetensors_write_from(const char *path, const td_safetensors_entry *entries,
                                    int count, const td_metadata *metadata, int metadata_count,
                                    td_safetensors_fetch fetch, void *user);

#endif
