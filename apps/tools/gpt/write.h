/* Text that a GPT writes: prompts to tokens, tokens to text on stdout. */
#pragma once

#include "data/text/tokenizer.h"
#include "tandem.h"

/* How it writes: the command line's options. */
typedef struct gpt_writing {
    const char *vocab, *merges; /* of the tokenizer; NULL: bytes */
    const char *stop;           /* NULL, or the text before which it ends */
    bool bf16;                  /* weights are held in bf16 */
    bool quiet;                 /* does not tell that the text may get longer than the context */
    td_group *group; /* NULL, or the processes that hold the model together: all call gpt_write, and
                      * the first one prints */
    int64_t length, top_k, seed;
    double temperature, top_p, repetition_penalty;
} gpt_writing;

/* Continues the prompts. A single one's text is printed as it comes, several texts one after the
 * other when all are done, each below a line with its number. The model has all of its values in
 * memory. TD_E_MISMATCH: the tokenizer is not the model's. Otherwise td_gpt_generate's errors, and
 * the tokenizer's. */
td_status gpt_write(const gpt_writing *w, td_module *gpt, const char *const *prompts, int count);
