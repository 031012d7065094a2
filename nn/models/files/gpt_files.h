/* GPTs from and for other programs: Hugging Face's GPT-2 and Llama, llm.c, llama2.c. Nothing else
 * of the library needs this folder. */
#pragma once

#include "nn/models/gpt.h"

TD_BEGIN_C

/* Makes the GPT that a file or folder of another program describes, on the CPU, in f32 and in
 * evaluation mode. You free it by td_module_free. `path` is
 *
 *     a folder, or a model.safetensors in it   Hugging Face's GPT-2 or Llama, with config.json
 *     gpt2_124M.bin                            llm.c's, version 3 (f32)
 *     stories15M.bin                           llama2.c's, version 0 or 1 (f32)
 *
 * or a file that td_save wrote. NULL with td_last_error(): no such file, another kind of file,
 * sizes that do not fit together, tensors that are missing or too many, an option of the model that
 * td_gpt does not have. */
td_module *td_gpt_load(const char *path);

/* Writes model.safetensors and config.json into a folder, which is made: transformers reads it by
 * GPT2LMHeadModel.from_pretrained or LlamaForCausalLM.from_pretrained. TD_E_UNSUPPORTED: the
 * options are neither GPT-2's (none, or untied) nor a Llama's (rope, rms_norm, swiglu, no_bias).
 * TD_E_IO. */
td_status td_gpt_save(const char *folder, td_module *gpt);

TD_END_C
