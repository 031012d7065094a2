#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel over gloo beside tandem's: the training step of ResNet-18 on
32x32 pictures, ranks of one thread each. Rank 0 speaks the protocol of bench/peer.h.

usage: torch_ddp_peer.py RANKS BATCH_OF_A_RANK nchw|nhwc
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
from torch import nn

import torch_peer


def worker(rank, world, batch, layout, port, commands):
    """commands: rank 0 tells the others to make a step."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    # Pictures and model of the single process; wrapped.
    torch.manual_seed(rank)
    net = torchvision.models.resnet18(num_classes=10)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    if layout == "nhwc":
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True,
                            weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()

    def step():
        optim.zero_grad(set_to_none=False)
        loss = loss_of(net(x), y)
        loss.backward()
        optim.step()
        return loss.item()

    def step_together():
        for _, other in commands[1:]:
            other.send(True)
        return step()

    if rank == 0:
        sys.stdin = open(0)
        torch_peer.serve("PyTorch %s, gloo, %d ranks of %d thread" % (
            torch.__version__, world, torch.get_num_threads()), step_together)
        for _, other in commands[1:]:
            other.send(False)
    else:
        while commands[rank][0].recv():
            step()
    dist.destroy_process_group()


def main():
    world, batch, layout = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    port = torch_peer.free_port()
    context = mp.get_context("fork")
    commands = [context.Pipe(duplex=False) for _ in range(world)]
    # Rank 0 is this process: it has the standard input.
    others = [context.Process(target=worker, args=(rank, world, batch, layout, port, commands),
                              daemon=True) for rank in range(1, world)]
    for process in others:
        process.start()
    worker(0, world, batch, layout, port, commands)
    for process in others:
        process.join(60)


if __name__ == "__main__":
    main()
