#!/usr/bin/env python3
"""Prints the numbers of PyTorch's optimizers and schedules that tests/nn/test_optim_steps.c and
tests/nn/test_optim_schedule.c hold, in the order of their tables.

usage: optim_torch.py
"""
import torch
import torch.optim as optim
import torch.optim.lr_scheduler as schedules


def values(make):
    """The parameters after eight steps; the gradients are test_optim_steps.c's."""
    p = torch.tensor([1.0, -0.5, 0.25, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    for step in range(8):
        p.grad = torch.tensor([((step * 31 + i * 17) % 64 - 31) / 64 for i in range(4)], dtype=torch.float64)
        optimizer.step()
    print(", ".join(repr(value) for value in p.tolist()))


def rates(make, metrics=None):
    """The rates of twelve steps, or what follows each metric."""
    optimizer = optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedule, found = make(optimizer), []
    for step in range(12 if metrics is None else len(metrics)):
        before = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step(*[] if metrics is None else [metrics[step]])
        found.append(before if metrics is None else optimizer.param_groups[0]["lr"])
    print(", ".join("%.12g" % rate for rate in found))


values(lambda p: optim.Adam(p, lr=.05, weight_decay=.02, amsgrad=True))
values(lambda p: optim.AdamW(p, lr=.05, betas=(.5, .7), weight_decay=.1, amsgrad=True))
values(lambda p: optim.RMSprop(p, lr=.05))
values(lambda p: optim.RMSprop(p, lr=.05, alpha=.9, eps=1e-3, momentum=.8, weight_decay=.02))
values(lambda p: optim.RMSprop(p, lr=.05, alpha=.9, centered=True, eps=1e-2))
values(lambda p: optim.RMSprop(p, lr=.05, alpha=.8, centered=True, eps=1e-2, momentum=.5))
values(lambda p: optim.Adagrad(p, lr=.1))
values(lambda p: optim.Adagrad(p, lr=.1, initial_accumulator_value=.3, weight_decay=.05, eps=1e-3))

rates(lambda o: schedules.CosineAnnealingWarmRestarts(o, 4, eta_min=.001))
rates(lambda o: schedules.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=.001))
rates(lambda o: schedules.OneCycleLR(o, max_lr=.5, total_steps=12))
rates(lambda o: schedules.OneCycleLR(o, max_lr=.5, total_steps=12, pct_start=.5, div_factor=10, final_div_factor=100))
rates(lambda o: schedules.SequentialLR(
    o, [schedules.ConstantLR(o, 1.0), schedules.StepLR(o, 2, .5), schedules.CosineAnnealingLR(o, 4, eta_min=.001)],
    milestones=[3, 8]))
METRICS = [1, .9, .95, .91, .92, .9, .8, .85, .85, .85, .85, .85, .85, .85, .85, .1]
rates(lambda o: schedules.ReduceLROnPlateau(o, factor=.5, patience=2), METRICS)
rates(lambda o: schedules.ReduceLROnPlateau(o, patience=1, cooldown=2, min_lr=.004, threshold=.05,
                                            threshold_mode="abs"), METRICS)
rates(lambda o: schedules.ReduceLROnPlateau(o, mode="max", factor=.5, patience=2, threshold=.1), METRICS)
