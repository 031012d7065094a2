#!/usr/bin/env python3
"""Lesson 12, apps/gpt_single, in plain PyTorch: prints the loss of each step, and those of validation.

usage: gpt_twin.py TEXT STEPS EVALUATE-EVERY >LOSSES    lines "step loss", and "validation step loss"
       gpt_twin.py --compare LOSSES METRICS PRINTED     with metrics.csv of apps/gpt, and what gpt_single printed
"""
import csv
import math
import re
import sys

SEED, CONTEXT, BATCH, LR, LEAST, WARMUP = 1337, 64, 12, 1e-3, 1e-4, 100


def rate(step, steps):
    if step < WARMUP:
        return LR * step / WARMUP
    return LEAST + (LR - LEAST) * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) / 2


def train(path, steps, each):
    import torch
    import gpt_torch

    text = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8).long()
    known = int(0.9 * len(text))
    val = text[known:]
    gpt_torch.VOCABULARY = 256
    torch.manual_seed(SEED)
    net = gpt_torch.GPT(gpt_torch.Config(context=CONTEXT, layers=4, heads=4, width=128, kv_heads=4))
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    optim = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              betas=(0.9, 0.99))
    draw = torch.Generator().manual_seed(SEED)
    places = torch.arange(CONTEXT)
    for step in range(steps):
        for group in optim.param_groups:
            group["lr"] = rate(step, steps)
        begins = torch.randint(known - CONTEXT, (BATCH,), generator=draw)[:, None]
        loss = net.loss(text[begins + places], text[begins + places + 1])
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        print(step + 1, repr(loss.item()))
        if (step + 1) % each == 0:
            with torch.no_grad():
                windows = torch.arange(0, len(val) - CONTEXT, CONTEXT)[:, None]
                losses = [net.loss(val[w + places], val[w + places + 1]).item() * len(w) for w in windows.split(100)]
            print("validation", step + 1, repr(sum(losses) / len(windows)), flush=True)


def compare(losses, metrics, printed):
    rows = [line.split() for line in open(losses)]
    theirs = {int(r[0]): float(r[1]) for r in rows if len(r) == 2}
    validation = {int(r[1]): float(r[2]) for r in rows if len(r) == 3}
    ours = {int(r["step"]): float(r["train/loss"]) for r in csv.DictReader(open(metrics)) if r["train/loss"]}
    assert sorted(ours) == sorted(theirs), f"{len(ours)} and {len(theirs)} steps"
    apart, step = max((abs(ours[s] - theirs[s]), s) for s in ours)
    print(f"{len(ours)} losses: at most {apart:.2e} apart (step {step}: {ours[step]:.6f} and {theirs[step]:.6f})")
    lines = re.findall(r"^step +(\d+): loss ([\d.]+) \| validation: loss ([\d.]+)", open(printed).read(), re.M)
    assert [int(s) for s, _, _ in lines] == sorted(validation), "validation after other steps"
    each, far = int(lines[0][0]), 0
    for s, mean, after in ((int(s), float(m), float(v)) for s, m, v in lines):
        assert abs(mean - sum(ours[i] for i in range(s - each + 1, s + 1)) / each) < 1e-4, f"gpt_single's mean at step {s}"
        far = max(far, abs(after / validation[s] - 1))
    print(f"{len(lines)} validations: at most {100 * far:.3f} % apart; the last {lines[-1][2]} and {validation[sorted(validation)[-1]]:.4f}")
    assert apart <= 1e-4 and far <= 0.002


if sys.argv[1] == "--compare":
    compare(*sys.argv[2:])
else:
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
