#!/usr/bin/env python3
"""PyTorch beside bench_shard: the same model, batch and optimizer under DistributedDataParallel and under fully_shard
(FSDP2, one unit a block), over gloo, ranks of one thread each. Prints the least time of a step, and by how
much a rank's proportional memory (Pss) has grown.

usage: torch_shard_peer.py [RANKS] [BLOCKS] [WIDTH] [ROWS]
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

import torch_peer

STEPS, WARM = 8, 2


def pss():
    """MiB that this process has of the machine's memory: shared pages count by their shares."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(float(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def worker(rank, world, blocks, width, rows, way, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    dist.barrier()
    before = pss()
    torch.manual_seed(1)
    net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                        nn.Linear(4 * width, width)) for _ in range(blocks)])
    if way == "fully_shard":
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        for block in net:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optim = torch.optim.Adam(net.parameters(), lr=1e-4)
    torch.manual_seed(2 + rank)
    x = torch.randn(rows, width)
    best = float("inf")
    for i in range(WARM + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        loss = nn.functional.mse_loss(net(x), x)
        optim.zero_grad()
        loss.backward()
        optim.step()
        best = min(best, time.perf_counter() - begin) if i >= WARM else best
    grown = pss() - before
    dist.barrier()
    if rank == 0:
        print(f"{way:12} {best * 1e3:8.1f} ms {grown:8.1f} MiB Pss", flush=True)
    dist.destroy_process_group()


def main():
    given = [int(a) for a in sys.argv[1:5]]
    ranks, blocks, width, rows = given + [2, 12, 512, 128][len(given):]
    print(f"PyTorch {torch.__version__}, gloo, {ranks} ranks of one thread, {blocks} blocks of {width}, {rows} rows")
    for way in ("ddp", "fully_shard"):
        mp.spawn(worker, (ranks, blocks, width, rows, way, torch_peer.free_port()), nprocs=ranks)


if __name__ == "__main__":
    main()
