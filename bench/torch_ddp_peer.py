#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel over gloo beside tandem's: the training step of ResNet-18 on
32x32 pictures, ranks of one thread each. Rank 0 speaks the protocol of bench/peer.h.

usage: torch_ddp_peer.py RANKS BATCH_OF_A_RANK nchw|nhwc
"""
import sys

import torch
import torchvision
from torch import nn

import torch_peer


def make(rank, world, batch, layout):
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

    return "PyTorch %s, gloo, %d ranks of %d thread" % (torch.__version__, world, torch.get_num_threads()), step


if __name__ == "__main__":
    torch_peer.serve_ranks(make, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
