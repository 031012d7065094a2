/* LoRA, low-rank adapters (Hu et al. 2021): a trained model learns something new by small matrices
 * next to its linear layers, whose own weights stay as they are.
 *
 *     td_module *net = td_load_model("base.safetensors");
 *     td_lora(net, .rank = 8, .layers = "*.attn.c_attn");           before td_parameters
 *     ... train as before: td_parameters, td_adamw, td_ddp, checkpoints ...
 *     td_lora_save("adapter.safetensors", net);                     the adapters alone
 *     td_module *merged = td_lora_merged(net);                      an ordinary model */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

/* td_lora(net, .rank = 8, ...): freezes all parameters of net, and gives linear layers an adapter:
 *
 *     y = x w^T + b + alpha / rank (x A^T) B^T        A [rank,in], B [out,rank]
 *
 * A is drawn as a linear layer's weight, from the default generator, and B is 0: net computes what
 * it did before. The adapters are parameters "PATH.lora.A.weight" and "PATH.lora.B.weight", and are
 * trained.
 * Returns the number of adapters. Negative with td_last_error(): TD_E_ARG: rank is below 1 or
 * larger than a layer; a pattern that no linear layer's path matches. TD_E_NOMEM: free net, which
 * may have some of its adapters. It is a mistake of the program if td_parameters was called on net,
 * or net has adapters. */
typedef struct td_lora_options {
    int begin_; /* for the library: lets the macro take an empty list */
    int64_t rank;
    double alpha;       /* 0: rank */
    const char *layers; /* shell patterns of paths, separated by commas; NULL: "*", all */
} td_lora_options;
int td_lora_at(td_module *net, td_lora_options options, td_site at);

/* Writes the adapters of net, and alpha, as a safetensors file with the names of PEFT:
 * "base_model.model.PATH.lora_A.weight". Of a model in stages or slices all ranks that hold it call
 * td_lora_save, and the first one writes. TD_E_ARG: net has none; td_save's errors. */
td_status td_lora_save(const char *path, const td_module *net);
/* Gives net the adapters of a file, as td_lora does, with their values. TD_E_FORMAT, TD_E_MISMATCH:
 * the file is of something else, or of adapters for another model; net then has to be freed.
 * td_safetensors_open's errors. */
td_status td_lora_load(const char *path, td_module *net);

/* A copy of net with w + alpha / rank B A as weights, without adapters, and with all parameters
 * trained. All values of net must be in this process (td_unshard). NULL with td_last_error(). */
td_module *td_lora_merged(const td_module *net);

TD_END_C

#define td_lora(net, ...) td_lora_at(net, (td_lora_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
