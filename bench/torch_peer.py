#!/usr/bin/env python3
"""PyTorch's side of the comparison; speaks the protocol of bench/peer.h.

usage: torch_peer.py step MODEL imagenet|cifar SIZE CLASSES BATCH THREADS nchw|nhwc fp32|bf16
       torch_peer.py wine CSV
       torch_peer.py pictures FOLDER WORKERS
"""
import contextlib
import os
import socket
import sys
import time

import torch
from torch import nn


def status_kb(key):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key):
                return int(line.split()[1])
    return -1


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(facts, step):
    print("ready", facts, flush=True)
    for line in sys.stdin:
        if not line.startswith("go "):
            break
        times = []
        for _ in range(int(line[3:])):
            begin = time.perf_counter()
            step()
            times.append("%.6f" % ((time.perf_counter() - begin) * 1e3))
        print(" ".join(times), "| RssAnon", status_kb("RssAnon:"), flush=True)


def run_rank(rank, world, port, pipes, make, arguments):
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    facts, step = make(rank, world, *arguments)

    def step_together():
        for _, other in pipes[1:]:
            other.send(True)
        step()

    if rank == 0:
        sys.stdin = open(0)
        serve(facts, step_together)
        for _, other in pipes[1:]:
            other.send(False)
    else:
        while pipes[rank][0].recv():
            step()
    dist.destroy_process_group()


def serve_ranks(make, world, *arguments):
    """Like serve, for ranks of one thread over gloo. make(rank, world, *arguments) gives the facts and a rank's step. Rank 0
    is this process, which has the standard input; it tells the others when to make a step."""
    import torch.multiprocessing as mp

    context = mp.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    given = (world, free_port(), pipes, make, arguments)
    others = [context.Process(target=run_rank, args=(rank, *given), daemon=True) for rank in range(1, world)]
    for process in others:
        process.start()
    run_rank(0, *given)
    for process in others:
        process.join(60)


def make_net(model, stem, classes):
    import torchvision

    net = getattr(torchvision.models, model)(num_classes=classes)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    return net


def training(model, stem, size, classes, batch, layout, precision):
    torch.manual_seed(0)
    net = make_net(model, stem, classes)
    x = torch.randn(batch, 3, size, size)
    y = torch.randint(0, classes, (batch,))
    if layout == "nhwc":
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True,
                            weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    net.train()

    def arithmetic():
        if precision == "bf16":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step():
        optim.zero_grad(set_to_none=True)
        with arithmetic():
            loss = loss_of(net(x), y)
        loss.backward()
        optim.step()
        return loss.item()

    return step


def wine(path):
    from torch.utils.data import DataLoader, TensorDataset

    rows = [line.split(",") for line in open(path).read().split("\n")[1:] if line]
    data = torch.tensor([[float(v) for v in r[:13]] for r in rows])[:142]
    data = (data - data.mean(0)) / data.std(0, unbiased=False)
    labels = torch.tensor([int(r[13]) for r in rows])[:142]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3))
    optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(data, labels), batch_size=32, shuffle=True)

    def epoch():
        total = 0.0
        for x, y in loader:
            optim.zero_grad()
            loss = loss_of(net(x), y)
            loss.backward()
            optim.step()
            total += loss.item()

    return epoch


def pictures(folder, workers, count=480):
    """What bench_pictures does: the folder again and again, `count` pictures in batches of 16."""
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms

    chain = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    data = datasets.ImageFolder(folder, chain)
    repeated = Subset(data, [i % len(data) for i in range(count)])
    loader = DataLoader(repeated, batch_size=16, num_workers=workers, persistent_workers=True)

    def epoch():
        seen = sum(len(y) for _, y in loader)
        assert seen == count

    return epoch


def main():
    job, *rest = sys.argv[1:]
    if job == "wine":
        threads, step = 1, wine(rest[0])
    elif job == "pictures":
        threads, step = 1, pictures(rest[0], int(rest[1]))
    else:
        model, stem, size, classes, batch, threads, layout, precision = rest
        step = training(model, stem, int(size), int(classes), int(batch), layout, precision)
    torch.set_num_threads(int(threads))
    serve("PyTorch %s, %d threads" % (torch.__version__, torch.get_num_threads()), step)


if __name__ == "__main__":
    main()
