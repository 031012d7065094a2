/* The safetensors format, seen from inside. Users do not include this.
 *
 * A file is: the header's length (8 bytes, little-endian); the header, a JSON object; the data. The
 * header maps each tensor's name to {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, bytes
 * counted from the beginning of the data, row-major, little-endian; the data have no holes and no
 * overlaps. "__metadata__" maps strings to strings. (Source: the format's description at
 * github.com/huggingface/safetensors.) */
#pragma once

#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "tensor/extend.h"

enum {
    TD_SAFETENSORS_LENGTH = 8, /* bytes in front of the header */
    TD_SAFETENSORS_WIDEST = 8, /* bytes of an element: wide ones come first, so all lie aligned */
    TD_SAFETENSORS_HEADER = 100000000, /* bytes of a header at most: the format's own limit */
};

typedef struct td_safetensors_place {
    td_safetensors_entry entry;
    const char *unknown; /* td_safetensors_unknown */
    int64_t begin;       /* of its data, counted from the first tensor's */
} td_safetensors_place;

struct td_safetensors {
    FILE *in;                    /* NULL: the file is in memory */
    const unsigned char *memory; /* NULL: it is read from `in` */
    int64_t size;                /* of the whole file when it was opened */
    int64_t data;                /* where the first tensor's data begin */
    struct cJSON *header;        /* names and metadata point into it */
    const struct cJSON **texts;  /* the metadata, sorted by key */
    int text_count;
    td_safetensors_place *places;         /* in the order of their data */
    td_safetensors_entry *entries;        /* the same */
    const td_safetensors_entry **by_name; /* sorted by name */
    int count;
};

/* Parses the header's text, checks every entry by itself, and lists the entries. What has been made
 * when it fails is the file's, for td_safetensors_close. */
td_status td_safetensors_read_header(td_safetensors *file, const char *text, size_t size);

/* The i-th key of the metadata and its value, in the order of the keys. The file owns both. */
void td_safetensors_text(const td_safetensors *file, int i, const char **key, const char **text);

/* The header's text, malloc'ed. begin[i] becomes the place of entry i's data. */
td_status td_safetensors_write_header(const td_safetensors_entry *entries, int count,
                                      const td_metadata *metadata, int metadata_count,
                                      int64_t *begin, char **text);
