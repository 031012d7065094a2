#!/usr/bin/env python3
"""PyTorch's side of bench_gpt, with its arguments and a last one; speaks the protocol of bench/peer.h.

usage: torch_gpt_peer.py train MODEL BATCH T THREADS fp32|bf16 eager|compiled
       torch_gpt_peer.py write MODEL T - THREADS fp32|bf16 eager|compiled
       torch_gpt_peer.py attention BxH T WIDTH THREADS fp32|bf16 eager|compiled
       torch_gpt_peer.py head ROWS WORDS WIDTH THREADS fp32 eager|compiled
"""
import contextlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

from torch_peer import serve

SIZES = {"gpt-nano": (256, 64, 4, 4, 128), "gpt-mini": (256, 256, 6, 6, 384), "gpt2": (50257, 1024, 12, 12, 768)}


class Layer(nn.Module):
    def __init__(self, heads, width, context):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.keys = self.values = None  # the cache of one sequence

    def attention(self, x, past):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, 2))
        if self.keys is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            self.keys[:, :, past:past + 1], self.values[:, :, past:past + 1] = k, v
            y = F.scaled_dot_product_attention(q, self.keys[:, :, :past + 1], self.values[:, :, :past + 1])
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x, past):
        x = x + self.attention(self.ln_1(x), past)
        return x + self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, words, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(heads, width, context) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens, labels=None, past=0):
        places = torch.arange(past, past + tokens.shape[1])
        x = self.wte(tokens) + self.wpe(places)
        for layer in self.layers:
            x = layer(x, past)
        logits = self.head(self.ln_f(x))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def arithmetic(precision):
    return torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def compiled(function, how):
    return torch.compile(function) if how == "compiled" else function


def training(model, batch, length, precision, how):
    words = SIZES[model][0]
    gpt = GPT(*SIZES[model])
    optim = torch.optim.AdamW(gpt.parameters(), lr=1e-4, weight_decay=0.1)
    x, y = (torch.randint(words, (int(batch), int(length))) for _ in range(2))
    run = compiled(gpt, how)

    def step():
        optim.zero_grad(set_to_none=True)
        with arithmetic(precision):
            loss = run(x, y)
        loss.backward()
        optim.step()
        return loss.item()

    return step


def writing(model, length, precision, how):
    words, _, _, heads, width = SIZES[model]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    gpt = GPT(*SIZES[model]).to(dtype).eval()
    for layer in gpt.layers:
        layer.keys, layer.values = (torch.randn(1, heads, int(length), width // heads, dtype=dtype) for _ in range(2))
    token, past = torch.randint(words, (1, 1)), int(length) - 1
    run = compiled(gpt, how)

    def step():
        with torch.no_grad():
            run(token, past=past)[0, 0, 0].item()

    return step


def attending(batch_heads, length, width, precision, how):
    batch, heads = map(int, batch_heads.split("x"))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    qkv = torch.randn(batch, int(length), 3, heads, int(width), dtype=dtype).requires_grad_()

    def attention():
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).sum()

    run = compiled(attention, how)

    def step():
        qkv.grad = None
        run().backward()

    return step


def head(rows, words, width, precision, how):
    x = torch.randn(int(rows), int(width)).requires_grad_()
    w = torch.randn(int(words), int(width)).requires_grad_()
    y = torch.randint(int(words), (int(rows),))
    run = compiled(lambda: F.cross_entropy(F.linear(x, w), y), how)

    def step():
        x.grad = w.grad = None
        run().backward()

    return step


def main():
    kind, first, second, third, threads, precision, how = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(int(threads))
    step = {"train": lambda: training(first, second, third, precision, how),
            "write": lambda: writing(first, second, precision, how),
            "attention": lambda: attending(first, second, third, precision, how),
            "head": lambda: head(first, second, third, precision, how)}[kind]()
    serve("torch %s, %s, %s, %d threads" % (torch.__version__, precision, how, torch.get_num_threads()), step)


main()
