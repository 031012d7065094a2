#!/usr/bin/env python3
"""PyTorch beside bench_mesh: the same blocks as a pipeline (torch.distributed.pipelining), as tensor parallel slices,
or on one rank in micro-batches; gloo, ranks of one thread each. Rank 0 speaks the protocol of bench/peer.h.

usage: torch_mesh_peer.py pieces|gpipe|1f1b|slices RANKS BLOCKS WIDTH ROWS MICRO
"""
import sys

import torch
import torch.distributed as dist
from torch import nn

import torch_peer


def pipeline_step(net, loss_of, how, rank, world, micro, x, y):
    from torch.distributed import pipelining
    share = len(net) // world
    part = net[rank * share:(rank + 1) * share]
    kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[how]
    schedule = kind(pipelining.PipelineStage(part, rank, world, torch.device("cpu")), n_microbatches=micro,
                    loss_fn=loss_of)
    inputs = [x] if rank == 0 else []
    labels = {"target": y, "losses": []} if rank == world - 1 else {}
    return part, lambda: schedule.step(*inputs, **labels)


def slices_step(net, loss_of, world, x, y):
    from torch.distributed.tensor import parallel
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    plan = {"1": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
    for block in net:
        parallel.parallelize_module(block, mesh, plan)
    return net, lambda: loss_of(net(x), y).backward()


def pieces_step(net, loss_of, micro, x, y):
    def compute():
        for part, labels in zip(x.chunk(micro), y.chunk(micro)):
            (loss_of(net(part), labels) / micro).backward()
    return net, compute


def make(rank, world, how, blocks, width, rows, micro):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                        nn.Linear(4 * width, width)) for _ in range(blocks)])
    x, y = torch.randn(micro * rows, width), torch.randn(micro * rows, width)
    loss_of = nn.MSELoss()
    if how == "pieces":
        net, compute = pieces_step(net, loss_of, micro, x, y)
    elif how == "slices":
        net, compute = slices_step(net, loss_of, world, x, y)
    else:
        net, compute = pipeline_step(net, loss_of, how, rank, world, micro, x, y)
    optim = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optim.zero_grad()
        compute()
        optim.step()

    return "PyTorch %s, gloo, %s, %d x 1 thread" % (torch.__version__, how, world), step


if __name__ == "__main__":
    world, *sizes = map(int, sys.argv[2:7])
    torch_peer.serve_ranks(make, world, sys.argv[1], *sizes)
