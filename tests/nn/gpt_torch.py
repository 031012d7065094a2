#!/usr/bin/env python3
"""A GPT in plain PyTorch, with nanoGPT's initialisation; writes the numbers that test_nn_gpt compares with.

usage: gpt_torch.py >tests/golden/gpt.json
"""
import json
import math
import zlib

import torch
from torch import nn
from torch.nn import functional as F

BATCH, LENGTH, VOCABULARY = 2, 32, 65
VARIANTS = {
    "gpt2": {},
    "no_bias": {"bias": False},
    "llama": {"bias": False, "rope": True, "rms_norm": True, "swiglu": True, "untied": True, "kv_heads": 2},
}


class Config:
    context, layers, heads, width, bias = 32, 2, 4, 64, True
    rope = rms_norm = swiglu = untied = False
    kv_heads = 4

    def __init__(self, **options):
        for name, value in options.items():
            setattr(self, name, value)
        self.hidden = (8 * self.width // 3 + 31) // 32 * 32 if self.swiglu else 4 * self.width


class LayerNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c.width))
        self.bias = nn.Parameter(torch.zeros(c.width)) if c.bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def norm(c):
    return nn.RMSNorm(c.width, eps=1e-5) if c.rms_norm else LayerNorm(c)


def rope(x):
    """x [B,heads,T,h]: pair j is elements j and j + h/2."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.h = c.width // c.heads
        self.c_attn = nn.Linear(c.width, self.h * (c.heads + 2 * c.kv_heads), bias=c.bias)
        self.c_proj = nn.Linear(c.width, c.width, bias=c.bias)

    def forward(self, x):
        c, (batch, length, width) = self.c, x.shape
        q, k, v = self.c_attn(x).split([self.h * n for n in (c.heads, c.kv_heads, c.kv_heads)], 2)
        q, k, v = (t.view(batch, length, -1, self.h).transpose(1, 2) for t in (q, k, v))
        if c.rope:
            q, k = rope(q), rope(k)
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.h)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(mask, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.width, c.hidden, bias=c.bias)
        if c.swiglu:
            self.c_gate = nn.Linear(c.width, c.hidden, bias=c.bias)
        self.c_proj = nn.Linear(c.hidden, c.width, bias=c.bias)

    def forward(self, x):
        h = self.c_fc(x)
        h = F.silu(self.c_gate(x)) * h if hasattr(self, "c_gate") else F.gelu(h, approximate="tanh")
        return self.c_proj(h)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = norm(c), Attention(c)
        self.ln_2, self.mlp = norm(c), MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        parts = {"wte": nn.Embedding(VOCABULARY, c.width)}
        if not c.rope:
            parts["wpe"] = nn.Embedding(c.context, c.width)
        parts["h"] = nn.ModuleList(Block(c) for _ in range(c.layers))
        parts["ln_f"] = norm(c)
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(c.width, VOCABULARY, bias=False)
        if not c.untied:
            self.transformer.wte.weight = self.lm_head.weight
        self.apply(self.draw)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * c.layers))

    @staticmethod
    def draw(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        t = self.transformer
        x = t.wte(tokens)
        if "wpe" in t:
            x = x + t.wpe.weight[:tokens.shape[1]]
        for block in t.h:
            x = block(x)
        return self.lm_head(t.ln_f(x))

    def loss(self, tokens, labels):
        return F.cross_entropy(self(tokens).view(-1, VOCABULARY), labels.view(-1))


def formula(count):
    """In [-1, 1): formula() of test_nn_gpt.c."""
    i = torch.arange(count, dtype=torch.int64)
    return (((i * 2 + 1) * 2654435761 & 0xFFFFFFFF) >> 8).double() / 2 ** 23 - 1


def tokens_of(step):
    """Tokens and the tokens behind them, [B,T] each."""
    i = torch.arange(BATCH * (LENGTH + 1), dtype=torch.int64) + 1000 * step
    all_tokens = ((i * 2654435761 & 0xFFFFFFFF) >> 16) % VOCABULARY
    rows = all_tokens.view(BATCH, LENGTH + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def measures(t):
    """Norm, and two projections, of all elements."""
    flat = t.detach().reshape(-1)
    f = formula(len(flat))
    return [flat.norm().item(), (flat @ f).item(), (flat @ f.flip(0)).item()]


def variant(options):
    torch.manual_seed(0)
    net = GPT(Config(**options))
    names = [name for name, _ in net.named_parameters()]
    result = {"parameters": {name: "%08x" % zlib.crc32(p.detach().numpy().tobytes())
                             for name, p in net.named_parameters()}}
    net.double()
    tokens, labels = tokens_of(0)
    logits = net(tokens)
    loss = net.loss(tokens, labels)
    loss.backward()
    result["logits"] = measures(logits) + logits[1, 30, :8].tolist()
    result["gradients"] = {name: measures(p.grad) for name, p in net.named_parameters()}
    optim = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    result["losses"] = []
    for step in range(10):
        loss = net.loss(*tokens_of(step))
        optim.zero_grad()
        loss.backward()
        optim.step()
        result["losses"].append(loss.item())
    assert len(names) == len(result["gradients"])
    return result


def main():
    torch.set_num_threads(2)
    print(json.dumps({name: variant(options) for name, options in VARIANTS.items()}, indent=0))


if __name__ == "__main__":
    main()
