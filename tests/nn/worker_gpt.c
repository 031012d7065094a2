/* For long_nn_gpt_transformers.sh: GPTs from and for other programs.
 *
 * usage: worker_gpt run PATH OUT COUNT TOKEN...    loads PATH by td_gpt_load, and writes to OUT
 *                                                  (safetensors) its logits for the tokens, [T,V],
 *                                                  and COUNT greedy tokens that follow them
 *        worker_gpt make FOLDER TEXT               saves td_model(TEXT), drawn, by td_gpt_save
 */
#include "nn/io/safetensors.h"
#include "nn/models/files/gpt_files.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

typedef struct greedy {
    int64_t tokens[MOST], count;
} greedy;

static bool note(int prompt, int64_t token, void *user)
{
    (void)prompt;
    greedy *g = user;
    g->tokens[g->count++] = token;
    return true;
}

static int run(char **argv, int count)
{
    int64_t tokens[MOST], length = atoi(argv[4]);
    td_module *net = td_gpt_load(argv[2]);
    if (net == NULL || count > MOST || length > MOST) {
        td_die();
    }
    for (int i = 0; i < count; i++) {
        tokens[i] = atoll(argv[5 + i]);
    }
    int64_t words = td_gpt_options_of(net).vocabulary;
    float *logits = malloc((size_t)(words * count) * sizeof *logits);
    td_tensor *x = td_from(tokens, TD_SHAPE(1, count), TD_I64, TD_CPU);
    TD_STEP {
        td_no_grad_begin();
        td_read(td_forward(net, x), logits, TD_F32);
        td_no_grad_end();
    }
    greedy g = { .count = 0 };
    td_gpt_prompt prompt = { tokens, count };
    if (td_gpt_generate(net, .prompts = &prompt, .length = length, .temperature = TD_ZERO,
                        .token = note, .user = &g) != TD_OK) {
        td_die();
    }
    td_safetensors_entry entries[] = {
        { "logits", TD_F32, TD_SHAPE(count, words), logits, (size_t)(words * count) * 4 },
        { "greedy", TD_I64, TD_SHAPE(g.count), g.tokens, (size_t)g.count * sizeof(int64_t) },
    };
    if (td_safetensors_write(argv[3], entries, 2, NULL, 0) != TD_OK) {
        td_die();
    }
    free(logits);
    td_free(x);
    td_module_free(net);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 5 && strcmp(argv[1], "run") == 0) {
        return run(argv, argc - 5);
    }
    if (argc != 4 || strcmp(argv[1], "make") != 0) {
        return 64;
    }
    td_manual_seed(3);
    td_module *net = td_model(argv[3]);
    if (net == NULL || td_gpt_save(argv[2], net) != TD_OK) {
        td_die();
    }
    td_module_free(net);
    return 0;
}
