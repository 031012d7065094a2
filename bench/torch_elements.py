#!/usr/bin/env python3
"""Operations on elements (f32, two threads, no gradients) and some layers (forward and backward), tandem and PyTorch in
turns: microseconds of a call, the least of three runs each, and PyTorch's time divided by tandem's.

usage: torch_elements.py build/VARIANT/bench/bench_elements [ELEMENTS | layers]...
"""
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(2)
ALIKE = ["neg", "abs", "floor", "exp", "erf", "sin", "cos", "tanh", "sigmoid", "reciprocal"]
ACTIVATIONS = ["relu", "elu", "selu", "gelu", "silu", "softplus", "hardswish", "mish"]


def least(call, inner, rounds=12):
    call()
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - begin) / inner)
    return best * 1e6


def elements(n):
    x, y = torch.rand(n) * 6 - 3, torch.rand(n) * 1.5 + 0.5
    calls = {name: lambda f=getattr(torch, name): f(x) for name in ALIKE}
    calls |= {name: lambda f=getattr(F, name): f(x) for name in ACTIVATIONS}
    calls |= {"leaky_relu": lambda: F.leaky_relu(x, 0.1), "gelu_tanh": lambda: F.gelu(x, approximate="tanh"),
              "clamp": lambda: x.clamp(-1, 1), "mul_scalar": lambda: x * 2, "add": lambda: x + y, "mul": lambda: x * y,
              "div": lambda: x / y, "maximum": lambda: torch.maximum(x, y)}
    inner = 5 if n >= 10**6 else 100 if n >= 10**5 else 1000
    with torch.no_grad():
        return {name: least(call, inner) for name, call in calls.items()}


def layers():
    def step(m, x):
        def run():
            x.grad = None
            y = m(-x)
            (y[0] if isinstance(y, tuple) else y).sum().backward()
        return least(run, 2)

    image = {"memory_format": torch.channels_last}
    leaf = lambda *shape: torch.randn(*shape).requires_grad_()
    labels = torch.arange(4096) * 37 % 1000
    logits = leaf(4096, 1000)

    def loss():
        logits.grad = None
        F.cross_entropy(logits, labels).backward()

    return {"conv1d": step(nn.Conv1d(128, 128, 3, padding=1), leaf(16, 128, 512)),
            "conv_transpose2d": min(
                step(nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1), leaf(8, 64, 28, 28)),
                step(nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1).to(**image),
                     torch.randn(8, 64, 28, 28).to(**image).requires_grad_())),
            "group_norm": min(step(nn.GroupNorm(8, 64), leaf(16, 64, 32, 32)),
                              step(nn.GroupNorm(8, 64), torch.randn(16, 64, 32, 32).to(**image).requires_grad_())),
            "cross_entropy": least(loss, 2)}


def main():
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    for what in sys.argv[2:] or ["1000", "100000", "10000000", "layers"]:
        ours, theirs = {}, {}
        for _ in range(3):
            out = subprocess.run([sys.argv[1], what], capture_output=True, text=True, check=True,
                                 env=os.environ | {"OMP_NUM_THREADS": "2"}).stdout
            for name, us in map(str.split, out.splitlines()):
                ours[name] = min(ours.get(name, float("inf")), float(us))
            for name, us in (layers() if what == "layers" else elements(int(what))).items():
                theirs[name] = min(theirs.get(name, float("inf")), us)
        ratios = {name: theirs[name] / ours[name] for name in ours}
        print(f"\n{what}: median {statistics.median(ratios.values()):.2f}")
        for name, ratio in sorted(ratios.items(), key=lambda item: item[1]):
            print(f"  {name:18} tandem {ours[name]:10.2f} us, PyTorch {theirs[name]:10.2f} us: {ratio:6.2f}")


main()
