#!/usr/bin/env python3
"""Prints the numbers of PyTorch's layers that tests/nn/test_nn_layers.c holds, in the order of its table: the sum of
the outputs, of the input's gradient and of the parameters' gradients, each with fixed weights.

usage: layers_torch.py
"""
import torch
import torch.nn as nn


def numbers(count, step, modulus, divisor):
    return torch.tensor([((i * step) % modulus - modulus // 2) / divisor for i in range(count)], dtype=torch.float64)


def run(layer, *shape):
    layer, k = layer.double(), 0
    for value in layer.state_dict().values():
        value.view(-1).copy_(numbers(k + value.numel(), 37, 41, 40.0)[k:])
        k += value.numel()
    x = numbers(torch.Size(shape).numel(), 23, 29, 14.0).view(shape).requires_grad_(True)
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    total = (y * numbers(y.numel(), 29, 31, 16.0).view(y.shape)).sum()
    total.backward()
    weighted = lambda grad: (grad * numbers(grad.numel(), 13, 17, 8.0).view(grad.shape)).sum().item()
    sums = total.item(), weighted(x.grad), sum(weighted(p.grad) for p in layer.parameters())
    print(layer, tuple(y.shape), "{ %.15g, %.15g, %.15g }," % sums)


run(nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), 2, 4, 9)
run(nn.Conv3d(3, 4, (2, 3, 1), stride=(2, 1, 1), padding=1), 2, 3, 4, 5, 3)
run(nn.Conv3d(2, 3, (4, 3, 2), dilation=(1, 2, 1), padding="same"), 2, 2, 5, 4, 3)
run(nn.Sequential(nn.ZeroPad3d((0, 1, 2, 0, 1, 0)), nn.Conv3d(2, 3, (2, 3, 2))), 2, 2, 3, 4, 3)
run(nn.Sequential(nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(2, 3, (3, 2))), 2, 2, 4, 5)
run(nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), 2, 3, 5)
run(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), 2, 4, 3, 4)
run(nn.GroupNorm(2, 4), 2, 4, 3, 3)
run(nn.InstanceNorm2d(4, affine=True), 2, 4, 3, 3)
run(nn.RMSNorm(5), 3, 5)
run(nn.LayerNorm((3, 4)), 2, 3, 4)
run(nn.Upsample(scale_factor=1.7, mode="bilinear"), 2, 2, 5, 4)
run(nn.Upsample(size=(3, 7)), 2, 2, 5, 4)
run(nn.AdaptiveAvgPool1d(3), 2, 2, 7)
run(nn.AdaptiveMaxPool1d(3), 2, 2, 7)
run(nn.AdaptiveAvgPool2d((3, 2)), 2, 2, 5, 7)
run(nn.AdaptiveMaxPool2d((3, 2)), 2, 2, 5, 7)
run(nn.MaxPool1d(3, stride=2, padding=1, dilation=2, ceil_mode=True), 2, 2, 10)
run(nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True), 2, 2, 10)
run(nn.PReLU(3), 2, 3, 4)
run(nn.BatchNorm1d(3), 4, 3, 5)
run(nn.BatchNorm3d(3), 2, 3, 2, 3, 2)

# Running statistics: after one training step, and what evaluation gives with them.
norm = nn.InstanceNorm2d(3, affine=True, momentum=0.3, track_running_stats=True).double()
x = numbers(2 * 3 * 4 * 2, 23, 29, 14.0).view(2, 3, 4, 2)
trained = norm(x)
evaluated = norm.eval()(x)
print(norm, *["%.15g" % (t * numbers(t.numel(), 29, 31, 16.0).view(t.shape)).sum().item()
              for t in (trained, norm.running_mean, norm.running_var, evaluated)], sep=", ")

# Averages over all batches: after two training steps.
norm = nn.BatchNorm1d(3, momentum=None).double()
x = numbers(2 * 3 * 4, 23, 29, 14.0).view(2, 3, 4)
norm(x), norm(x * x)
print(norm, *["%.15g" % (t * numbers(t.numel(), 29, 31, 16.0).view(t.shape)).sum().item()
              for t in (norm.running_mean, norm.running_var, norm.eval()(x))], sep=", ")
