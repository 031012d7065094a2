/* Where the values of a GPT come from: what the readers of files share. */
#pragma once

#include "nn/models/files/gpt_files.h"
#include "nn/models/gpt_internal.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

/* A tensor of a file: some rows of a parameter. */
typedef struct gpt_piece {
    char name[96];  /* Hugging Face's */
    td_tensor part; /* the header of these rows, in the file's shape */
    int64_t at;     /* where the file has it */
} gpt_piece;

typedef struct gpt_source {
    td_gpt_options options;
    bool llama;       /* the tensors' names are Llama's; otherwise GPT-2's */
    bool conv1d;      /* layers' matrices are [in,out] */
    gpt_piece *items; /* of all parameters, in the order of their rows */
    int count;
    td_status (*find)(struct gpt_source *s); /* sets `at`: all is there, and fits */
    td_status (*read)(struct gpt_source *s, gpt_piece *piece);
} gpt_source;

/* Lists the pieces of a model, which s describes. Free s->items. */
td_status td_gpt_pieces(gpt_source *s, const td_module *net);

/* The model of s->options with a source's values: all is found before memory is taken. */
td_module *td_gpt_from_source(gpt_source *s);

bool td_gpt_ends(const char *name, const char *end);

/* *found: the file is llm.c's or llama2.c's. */
td_module *td_gpt_load_bin(const char *path, FILE *file, int64_t size, bool *found);
/* The options that a config.json describes, and whether it is a Llama. */
td_status td_gpt_read_config(const char *text, size_t size, gpt_source *s);
