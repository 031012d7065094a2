/* Where the values of a GPT come from: what the readers of files share. */
#ifndef TD_NN_MODELS_FILES_GPT_SOURCE_H
#define TD_NN_MODELS_FILES_GPT_SOURCE_H

#include "nn/models/files/gpt_files.h"
#include "nn/models/gpt_internal.h"

/* A tensor of a file: some rows of a parameter. */
typedef struct gpt_piece {
    char name[96]; /* Hugging Face's */
    int ndim;
    int64_t rows, columns; /* columns 1 of a vector */
    bool conv1d;           /* a linear layer's weight, which GPT-2's files have as [in,out] */
} gpt_piece;

typedef struct gpt_source {
    bool llama; /* the tensors' names are Llama's; otherwise GPT-2's */
    td_gpt_options options;
    td_status (*check)(struct gpt_source *s, const gpt_piece *piece); /* it is there, and fits */
    td_status (*read)(struct gpt_source *s, const gpt_piece *piece, float *values);
} gpt_source;

enum { GPT_MOST_PIECES = 3 };
/* The pieces of a parameter, in the order of its rows. */
int td_gpt_pieces(const gpt_source *s, const td_named_tensor *parameter,
                  gpt_piece pieces[GPT_MOST_PIECES]);

/* The model of s->options with a source's values: all is checked before memory is taken. */
td_module *td_gpt_from_source(gpt_source *s);

/* *found: the file is llm.c's or llama2.c's; otherwise the status is TD_OK. */
td_module *td_gpt_load_bin(const char *path, FILE *file, int64_t size, bool *found);
/* The options that a config.json describes, and whether it is a Llama. */
td_status td_gpt_read_config(const char *text, size_t size, gpt_source *s);

#endif
