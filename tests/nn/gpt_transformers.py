#!/usr/bin/env python3
"""The other side of long_nn_gpt_transformers.sh: GPT-2 and Llama of Hugging Face's transformers.

usage: gpt_transformers.py --check                  the packages are there
       gpt_transformers.py make KIND FOLDER         trains a small KIND (gpt2, llama) on this file's bytes, and saves it
       gpt_transformers.py compare FOLDER OUT       transformers' logits and greedy tokens, next to worker_gpt's in OUT
       gpt_transformers.py compare FOLDER OUT ADAPTER    the same of PEFT, with tandem's adapters for c_attn
       gpt_transformers.py tokens                   a prompt
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is looked up

import torch
import transformers
from safetensors.torch import load_file

PROMPT = [ord(c) for c in 'import sys\nimport torch\ndef main()']
CONTEXT, GREEDY = 64, 24


def make(kind, folder):
    torch.manual_seed(1)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=96, n_layer=3, n_head=4,
                                         bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(vocab_size=256, max_position_embeddings=CONTEXT, hidden_size=96,
                                          intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
                                          num_key_value_heads=2, bos_token_id=0, eos_token_id=0,
                                          rope_theta=50000.0)
        model = transformers.LlamaForCausalLM(config)
    with open(__file__, "rb") as f:
        text = torch.tensor(list(f.read()))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        begins = torch.randint(len(text) - CONTEXT, (8,))
        batch = torch.stack([text[b:b + CONTEXT] for b in begins])
        loss = model(input_ids=batch, labels=batch).loss
        optim.zero_grad()
        loss.backward()
        optim.step()
    print(f"{kind}: loss {loss.item():.3f}")
    model.save_pretrained(folder)


def adapted(model, path):
    import peft
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        alpha = float(f.metadata()["lora.alpha"])
    values = load_file(path)
    config = peft.LoraConfig(r=min(next(iter(values.values())).shape), lora_alpha=alpha, target_modules=["c_attn"],
                             fan_in_fan_out=True)
    model = peft.get_peft_model(model, config)
    unexpected = peft.set_peft_model_state_dict(model, values).unexpected_keys
    assert not unexpected, unexpected
    return model.eval()


def compare(folder, out, adapter=None):
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    model = adapted(model, adapter) if adapter else model
    theirs = load_file(out)
    tokens = list(PROMPT)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
        for _ in range(GREEDY):
            tokens.append(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax().item())
    error = ((logits - theirs["logits"]).abs().max() / logits.abs().max()).item()
    same = tokens[len(PROMPT):] == theirs["greedy"].tolist()
    print(f"{kind}: logits differ by {error:.2g} of the largest, greedy tokens {'agree' if same else 'DIFFER'}")
    sys.exit(0 if error < 1e-4 and same else 1)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif sys.argv[1] == "compare":
        compare(*sys.argv[2:])
    elif sys.argv[1] == "tokens":
        print(GREEDY, *PROMPT)


main()
